"""Open one agent's file for reading, live or not, or report why it cannot be read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import apsw

from onceward.errors import Busy, OncewardError, ReadOnlyStore, StoreCorrupt
from onceward.file.connection import BusyHandler, connect, raise_meant, translate_error
from onceward.file.migrations import migrations
from onceward.fleet.files import stat
from onceward.message.clock import monotonic

Reason = Literal[
    "vanished", "unreadable", "empty", "foreign", "corrupt", "older", "newer", "locked", "changing",
    "gone", "differs",
]  # fmt: skip
"""Why a file is not read, in one word."""
REASONS: Final = {
    "vanished": "it was listed, but no longer exists",
    "unreadable": "the operating system denies reading it",
    "empty": "it has no tables, or does not belong to an agent yet",
    "foreign": "it is a SQLite database, but not an agent's file",
    "corrupt": "SQLite finds it damaged, or it is not a database at all",
    "older": "its schema is older than the first one with views: open it once with this version",
    "newer": "its schema is newer, and lacks the requested columns: upgrade onceward",
    "locked": "other processes held it for longer than busyTimeout",
    "changing": "it was written during every attempt to copy it",
    "gone": "it was read or shipped earlier, but is no longer among the files",
    "differs": "it is a copy that differs from the current file",
}
"""Meaning of each reason."""
FILE_STATES: Final = ("read", *REASONS)
"""States of a reading; ranked from one, as all states are."""
PASSING: Final = frozenset({"locked", "changing", "unreadable"})
"""Reasons that may not apply at the next attempt."""
IDENTITY: Final = "SELECT agent, file_id FROM {schema}._onceward_file_info"
VERSION: Final = "SELECT coalesce(max(version), 0) FROM {schema}._onceward_migrations"
TABLES: Final = "SELECT count(*) FROM {schema}.sqlite_schema"
HAS: Final = "SELECT name FROM pragma_table_info(?, ?)"
CHECK: Final = "PRAGMA quick_check(1)"
COPY_TRIES: Final = 3


class Unreadable(OncewardError):
    """The file cannot be read: ``quarantine`` says why; repair it, or exclude it."""

    def __init__(self, path: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{path}: {reason}, {REASONS[reason]} ({detail})")
        self.path, self.reason, self.detail = path, reason, detail

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, Reason, str]]:
        return Unreadable, (self.path, self.reason, self.detail)


class LogTrouble(OncewardError):
    """Base of errors of a shipped log; each class says what to do."""


class EachTime(BusyHandler):
    """Waits up to the limit at each statement, instead of one limit for all."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def __call__(self, calls: int) -> bool:
        """Wait briefly and return True; return False once this wait has lasted too long."""
        if not calls:
            self.deadline = monotonic() + self._timeout
        return super().__call__(calls)


@dataclass(frozen=True, slots=True)
class Source:
    """An agent's file, open for reading."""

    con: apsw.Connection
    path: str
    agent: str
    file_id: str
    version: int
    """Its newest schema step."""
    schema: str = "main"
    """The name of the file in its connection."""

    def columns(self, view: str) -> frozenset[str]:
        """Return the columns of a view in this file; none if it has no such view."""
        return frozenset(str(name) for (name,) in self.con.execute(HAS, (view, self.schema)))

    def check(self) -> None:
        """
        Read every page.

        Raises:
            Unreadable: something is damaged.

        """
        [(said,)] = self.con.execute(CHECK).fetchall()
        if said != "ok":
            raise Unreadable(self.path, "corrupt", str(said))


@contextmanager
def opened(path: str, *, copy: str = "auto", busy_timeout: float = 5.0) -> Iterator[Source]:
    """
    Open *path* read-only together with its WAL; nothing of the file is changed.

    Raises:
        Unreadable: with the reason; also for what SQLite finds while the block reads.

    """
    with translated(path), ExitStack() as stack:
        if stat(path) is None:
            raise Unreadable(path, "vanished", "no such file")
        file = stack.enter_context(copied(path)) if copy == "always" else path
        try:
            source = _opened(file, path, busy_timeout)
        except ReadOnlyStore:
            if copy != "auto":
                raise
            source = _opened(stack.enter_context(copied(path)), path, busy_timeout)
        stack.callback(source.con.close)
        yield source


@contextmanager
def resting(path: str) -> Iterator[Source]:
    """
    Open a file without locks and WAL, in a third of the time, without writing beside it.

    The caller compares ``files.stat`` before and after: data from a file that changed in between is
    invalid.

    Raises:
        Unreadable: as ``opened``.

    """
    with translated(path):
        source = _opened(path, path, 0.0, immutable=True)
        with closing(source.con):
            yield source


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Convert errors of a file to Unreadable with a reason."""
    try:
        yield
    except (Unreadable, LogTrouble):
        raise
    except (apsw.Error, OncewardError, OSError, UnicodeDecodeError) as error:
        raise Unreadable(path, _reason(path, error), str(error)) from error


def _reason(path: str, error: Exception) -> Reason:
    match translate_error(error, path):
        case Busy():
            return "locked"
        case StoreCorrupt() | UnicodeDecodeError():
            return "corrupt"
        case apsw.SQLError():
            return "foreign"
    return "unreadable" if Path(path).exists() else "vanished"


def _opened(path: str, name: str, busy_timeout: float, *, immutable: bool = False) -> Source:
    patience = EachTime(busy_timeout)
    con = connect(Path(path), readonly=True, immutable=immutable, patience=patience)
    try:
        con.execute("PRAGMA query_only = ON")
        return identified(con, name)
    except BaseException as error:
        con.close()
        raise_meant(translate_error(error, name), error)
        raise


def identified(con: apsw.Connection, path: str, schema: str = "main") -> Source:
    """
    Return the agent's file that a connection has open under the name *schema*.

    Raises:
        Unreadable: it is not an agent's file.

    """
    try:
        found = con.execute(IDENTITY.format(schema=schema)).fetchall()
        [(version,)] = con.execute(VERSION.format(schema=schema)).fetchall()
    except apsw.SQLError as error:
        [(tables,)] = con.execute(TABLES.format(schema=schema)).fetchall()
        detail = str(error).replace(f"{schema}.", "", 1)  # the name under which the file is open
        raise Unreadable(path, "foreign" if tables else "empty", detail) from error
    if not found:
        raise Unreadable(path, "empty", "it has our tables, but no owner yet")
    [(agent, file_id)] = found
    return Source(con, path, str(agent), str(file_id), cast("int", version), schema)


def lacking(source: Source, view: str) -> Unreadable:
    """Return why a file without *view* cannot be read."""
    reason: Reason = "newer" if source.version > migrations()[-1].version else "older"
    return Unreadable(source.path, reason, f"schema {source.version} without {view}")


@contextmanager
def copied(path: str) -> Iterator[str]:
    """Copy the file with its WAL while no process writes: an inconsistent copy would lose rows."""
    with tempfile.TemporaryDirectory(prefix="onceward-copy-") as folder:
        copy = Path(folder, "copy.db")
        wal = Path(f"{copy}-wal")
        for _ in range(COPY_TRIES):
            before = stat(path)
            shutil.copyfile(path, copy)
            wal.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}-wal", wal)
            if before == stat(path):
                yield str(copy)
                return
        raise Unreadable(path, "changing", f"{COPY_TRIES} tries")
