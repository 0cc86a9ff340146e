"""Options of the source, as one checked value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import apsw

from onceward.fleet.columns import ASKED, EVERY, InvalidOption, Kind, Table, table
from onceward.fleet.files import Found, find
from onceward.fleet.opening import PASSING, Reason, Source, opened
from onceward.message.names import quoted

MIB: Final = 1024 * 1024
MODES: Final = ("DROPMALFORMED", "PERMISSIVE", "FAILFAST")
FRAMES: Final = ("", "text", "json", "variant")
COPIES: Final = ("auto", "always", "never")
OPTION: Final = "option."
"""Prefix of a table's options among its properties."""
SIZE: Final = re.compile(r"(?P<number>\d+)\s*(?:(?P<unit>[kmgt])?i?b?)")
UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
YES: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of reading, by their names in Spark."""

    path: tuple[str, ...] = ()
    """Files to read: a glob (`/fleet/{a,b}/**/*.db`), a folder (all its `*.db`), or a JSON list of
    such; `load(...)` sets it. One that names nothing fails with `PATH_NOT_FOUND`."""
    table: str = "outbox"
    """Which table: see below."""
    columns: tuple[str, ...] = ()
    """Only these columns, by name with commas between, `*` for all but the contents. Spark does
    not tell the source which ones a query needs, so `.select(...)` alone reads as much."""
    frame: str = ""
    """Read column `frame` as well. `text`: as stored. `json`: NULL if invalid. `variant`: VARIANT,
    parsed in Python; see below. Without it frames are read only if `columns` names them."""
    where: str = ""
    """Only these rows: a condition in SQLite's SQL on the view's own columns, where times are
    integer milliseconds."""
    path_glob_filter: str = ""
    """Only files whose names match; a folder without it means its `*.db`."""
    mode: str = "DROPMALFORMED"
    """
    Treatment of a file that cannot be read to its end. `DROPMALFORMED`: none of its rows are
    delivered. `PERMISSIVE`: the rows before the damage are. `FAILFAST`: it fails the job, whatever
    the next three options say. `quarantine` lists the file in each mode.
    """
    ignore_corrupt_files: bool | None = None
    """Leave out a file that is damaged, or no agent's, or of another schema; `false`: fail. A
    stream skips the rows of a micro-batch permanently, and by default fails in it."""
    ignore_missing_files: bool | None = None
    """Leave out a file that vanished after the files were listed, or was replaced; `false`: fail.
    A stream by default fails where rows of a micro-batch went with it."""
    ignore_locked_files: bool = True
    """Leave out a file that may be readable at the next try (`locked`, `changing`, `unreadable`);
    `false`: fail. A stream always fails and tries again, as it would skip the file's rows."""
    snapshot: bool | None = None
    """Read each file in one transaction, as of one moment, in one task; the default for `evidence`.
    Off: in short ones."""
    copy: str = "auto"
    """`always`: read a local copy. `auto`: only where SQLite cannot read in place, as in a
    read-only folder. `never`."""
    max_partition_bytes: int = 256 * MIB
    """Small files share a task up to this size; larger ones are cut by sequence."""
    min_partition_num: int = 0
    """At least so many tasks where there is enough to read; 0: two for each core of the driver's
    machine."""
    batch_rows: int = 8192
    """Most rows of one Arrow batch; with frames fewer, so that a batch stays in a core's cache."""
    busy_timeout: float = 5.0
    """Seconds to wait for a file that others hold, before it counts as locked."""
    manifests: str = ""
    """For streams: a folder, kept with the checkpoint, for the positions in all files; without it
    a stream has at most 1,000 files."""
    look_for: float = 3.0
    """For streams: seconds to examine new and changed files, a millisecond each, before a
    micro-batch; the rest is next time."""
    max_rows_per_trigger: int = 0
    """For streams: at most about so many rows in a micro-batch; 0: all there are."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """
        Return *given*, checked; unknown names are refused, as a misspelt one would be ignored.

        Raises:
            InvalidOption: see its message.

        """
        names = {spelt(field.name).lower(): field.name for field in fields(cls)}
        known = plain({name.lower(): value for name, value in given.items()})
        if unknown := sorted(known.keys() - names.keys()):
            known_names = ", ".join(spelt(field.name) for field in fields(cls))
            raise InvalidOption(f"there is no option {unknown[0]!r}: the options are {known_names}")
        made = cls(
            **{
                names[name]: _value(names[name], value)
                for name, value in known.items()
                if name in names
            }
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise InvalidOption where a value cannot be; a condition is tried on an empty table."""
        if not self.path:
            raise InvalidOption("no files are given: pass a glob or a folder to load(...)")
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("copy", self.copy, COPIES),
            ("frame", self.frame, FRAMES),
        ):
            if value not in allowed:
                msg = f"{name} {value!r} is not one of {', '.join(filter(None, allowed))}"
                raise InvalidOption(msg)
        self.named()
        if (
            self.max_partition_bytes < 1
            or self.batch_rows < 1
            or self.busy_timeout < 0
            or min(self.min_partition_num, self.max_rows_per_trigger, self.look_for) < 0
        ):
            least = "maxPartitionBytes and batchRows must be at least 1"
            rest = (
                "busyTimeout, lookFor, minPartitionNum and maxRowsPerTrigger must not be negative"
            )
            raise InvalidOption(f"{least}, {rest}")
        if self.where:
            _try(self.where, self.chosen)

    @property
    def chosen(self) -> Table:
        """The table that is read."""
        return table(self.table).framed(self.frame or "text")

    def named(self) -> dict[str, Kind]:
        """Return the columns that are read, with their types."""
        return self.chosen.named(self.columns or ((EVERY, "frame") if self.frame else ()))

    def files(self, *, strict: bool = False) -> list[Found]:
        """Return the files that are there now; if *strict*, raise NoSuchPath as ``find`` does."""
        return find(self.path, names=self.path_glob_filter, strict=strict)

    def opened(self, path: str) -> AbstractContextManager[Source]:
        """Open a file for reading, as ``opening.opened`` does."""
        return opened(path, copy=self.copy, busy_timeout=self.busy_timeout)

    def leaves_out(self, reason: Reason) -> bool:
        """Return whether a file that cannot be read for this reason is left out."""
        if self.mode == "FAILFAST":
            return False
        if reason in PASSING:
            return self.ignore_locked_files
        said = self.ignore_missing_files if reason == "vanished" else self.ignore_corrupt_files
        return said is not False

    @property
    def insisting(self) -> Options:
        """These options for rows that a stream has planned: it does not come back to them."""
        return replace(
            self,
            ignore_locked_files=False,
            ignore_corrupt_files=bool(self.ignore_corrupt_files),
            ignore_missing_files=bool(self.ignore_missing_files),
        )

    @property
    def whole(self) -> bool:
        """Whether each file is read as of one moment."""
        return self.chosen.whole if self.snapshot is None else self.snapshot


def plain(given: Mapping[str, str]) -> dict[str, str]:
    """
    Return the options that a user gave, from those that Spark hands on, by names in lower case.

    ``CREATE TABLE`` brings its properties among them, and the options once more under a prefix.
    """
    known = dict(given)
    if "provider" in known:
        path = known.get("path", "")
        known = {
            name.removeprefix(OPTION): text
            for name, text in given.items()
            if name.startswith(OPTION)
        }
        known["path"] = path
    if "paths" in known:
        known["path"] = known.pop("paths")
    known.pop("__partition_columns", None)
    return known


def spelt(name: str) -> str:
    """Return an option's name as Spark users write it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _value(name: str, text: str) -> Any:
    by_name: dict[str, Callable[[str], Any]] = {
        "path": paths, "columns": _names, "max_partition_bytes": bytes_of,
        "mode": str.upper, "copy": str.lower, "frame": str.lower,
    }  # fmt: skip
    by_type: dict[str, Callable[[str], Any]] = {
        "bool": flag, "bool | None": flag, "int": int, "float": float, "str": str,
    }  # fmt: skip
    [kind] = (str(field.type) for field in fields(Options) if field.name == name)
    try:
        return (by_name.get(name) or by_type[kind])(text)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption(f"option {spelt(name)} does not accept {quoted(text)}") from error


def paths(text: str) -> tuple[str, ...]:
    """Return the paths of a JSON list, or the one path that it is."""
    if text.startswith("["):
        return tuple(str(path) for path in json.loads(text))
    return (text,)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text.split(",") if name.strip())


def flag(text: str) -> bool:
    """Return the boolean that a user's text means."""
    return YES[text.lower()]


def bytes_of(text: str) -> int:
    """Return a size as Spark's settings spell it: ``134217728``, ``128m``, ``1GB``."""
    found = SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return int(found["number"]) << UNITS[found["unit"] or ""]


def _try(where: str, chosen: Table) -> None:
    if len(chosen.parts) != 1 or ";" in where:
        rule = "only a table of one view accepts a condition, without a semicolon"
        raise InvalidOption(f"where {quoted(where, 200)}: {rule}; filter the others in Spark")
    columns = ", ".join(f'"{name}"' for name in chosen.parts[0].columns if name not in ASKED)
    con = apsw.Connection(":memory:")
    try:
        con.execute(f"CREATE TABLE t ({columns or 'none'})")
        for condition in (where, f"({where}\n)"):  # one that closes our brackets is none by itself
            con.execute(f"SELECT 1 FROM t WHERE {condition}")
    except apsw.Error as error:
        msg = f"where {quoted(where, 200)} is not a condition on {chosen.name}: {error}"
        raise InvalidOption(msg) from error
    finally:
        con.close()
