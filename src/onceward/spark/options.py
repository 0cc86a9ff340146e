"""Options of the source, as one checked value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import apsw

from onceward.fleet.columns import ASKED, InvalidOption, Table, table
from onceward.model.quoting import quoted

MIB: Final = 1024 * 1024
MODES: Final = ("PERMISSIVE", "INSIST", "FAILFAST")
FRAMES: Final = ("text", "json", "variant")
COPIES: Final = ("auto", "always", "never")
YES: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of reading, by their names in Spark."""

    path: tuple[str, ...] = ()
    """Files to read: a glob (`/fleet/**/*.db`), a folder (all its `*.db`), or a JSON list of
    such; `load(...)` sets it."""
    table: str = "outbox"
    """Which table: see below."""
    columns: tuple[str, ...] = ()
    """Only these columns, by name with commas between; Spark cannot tell the source which it
    needs."""
    frame: str = "text"
    """`text`: frames as stored. `json`: NULL if invalid. `variant`: VARIANT, parsed in Python;
    see below."""
    where: str = ""
    """Only these rows: a condition in SQLite's SQL on the view's own columns, where times are
    integer milliseconds."""
    mode: str = "PERMISSIVE"
    """
    Treatment of an unreadable file. `PERMISSIVE`: it is left out and listed in `quarantine`.
    `FAILFAST`: it fails the job.
    `INSIST`: it fails the job where the reason may pass (`locked`, `changing`, `unreadable`), else
    it is left out.
    """
    snapshot: bool | None = None
    """Read each file in one transaction, as of one moment, in one task; the default for `ledger`.
    Off: in short ones."""
    copy: str = "auto"
    """`always`: read a local copy. `auto`: only where SQLite cannot read in place, as in a
    read-only folder. `never`."""
    task_bytes: int = 256 * MIB
    """Small files share a task up to this size; larger ones are cut by sequence."""
    min_tasks: int = 0
    """At least so many tasks where there is enough to read; 0: two for each core of the driver's
    machine."""
    batch_rows: int = 8192
    """Most rows of one Arrow batch; with frames fewer, so that a batch stays in a core's cache."""
    busy_timeout: float = 5.0
    """Seconds to wait for a file that others hold, before it counts as locked."""
    deep: bool = False
    """For `quarantine`: read every page of every file instead of only its beginning."""
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
        known = {name.lower(): value for name, value in given.items()}
        if "paths" in known:
            known["path"] = known.pop("paths")
        if unknown := sorted(known.keys() - names.keys() - _FOR_OTHERS):
            known_names = ", ".join(spelt(field.name) for field in fields(cls))
            msg = f"there is no option {unknown[0]!r}: there are {known_names}"
            raise InvalidOption(msg)
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
            msg = "no files are named: give load(...) a glob or a folder"
            raise InvalidOption(msg)
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("copy", self.copy, COPIES),
            ("frame", self.frame, FRAMES),
        ):
            if value not in allowed:
                msg = f"{name} {value!r} is none of {', '.join(allowed)}"
                raise InvalidOption(msg)
        self.chosen.ddl(self.columns)
        if (
            self.task_bytes < 1
            or self.batch_rows < 1
            or self.busy_timeout < 0
            or min(self.min_tasks, self.max_rows_per_trigger, self.look_for) < 0
        ):
            least = "taskBytes and batchRows are at least 1"
            msg = f"{least}, busyTimeout, lookFor, minTasks and maxRowsPerTrigger not negative"
            raise InvalidOption(msg)
        if self.where:
            _try(self.where, self.chosen)

    @property
    def chosen(self) -> Table:
        """The table that is read."""
        return table(self.table).framed(self.frame)

    @property
    def whole(self) -> bool:
        """Whether each file is read as of one moment."""
        return self.chosen.whole if self.snapshot is None else self.snapshot


_FOR_OTHERS: Final = frozenset({"__partition_columns"})
"""Options that Spark adds by itself."""


def option_names() -> dict[str, Any]:
    """Return the default of every option by its name in Spark."""
    return {spelt(field.name): field.default for field in fields(Options)}


def spelt(name: str) -> str:
    """Return an option's name as Spark users write it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _value(name: str, text: str) -> Any:
    kinds: dict[str, Callable[[str], Any]] = {
        "path": _paths,
        "columns": _names,
        "snapshot": flag,
        "deep": flag,
        "mode": str.upper,
        "copy": str.lower,
        "frame": str.lower,
        "task_bytes": int,
        "min_tasks": int,
        "batch_rows": int,
        "busy_timeout": float,
        "look_for": float,
        "max_rows_per_trigger": int,
    }  # fmt: skip
    try:
        return kinds.get(name, str)(text)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"option {spelt(name)} cannot be {quoted(text)}"
        raise InvalidOption(msg) from error


def _paths(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        return tuple(str(path) for path in json.loads(text))
    return (text,)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text.split(",") if name.strip())


def flag(text: str) -> bool:
    """Return what a user means by true or false."""
    return YES[text.lower()]


def _try(where: str, chosen: Table) -> None:
    if len(chosen.parts) != 1 or ";" in where:
        rule = "a table of one view takes one condition without a semicolon"
        msg = f"where {quoted(where, 200)}: {rule}; filter the others in Spark"
        raise InvalidOption(msg)
    columns = ", ".join(f'"{name}"' for name in chosen.parts[0].columns if name not in ASKED)
    con = apsw.Connection(":memory:")
    try:
        con.execute(f"CREATE TABLE t ({columns or 'none'})")
        con.execute(f"SELECT 1 FROM t WHERE ({where}\n)")  # noqa: S608 - it is the user's condition, on an empty table
    except apsw.Error as error:
        msg = f"where {quoted(where, 200)} is no condition on {chosen.name}: {error}"
        raise InvalidOption(msg) from error
    finally:
        con.close()
