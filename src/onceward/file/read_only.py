"""Read an agent's file on a connection that cannot write."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.errors import (
    InvalidArgument,
    OncewardError,
    ReadOnlyStore,
    StoreFault,
    StoreUnusable,
)
from onceward.file import file_checks, migrations
from onceward.file.connection import (
    UNTYPED,
    BusyHandler,
    close_without_checkpoint,
    connect,
    execute_reading,
    has_columns,
    may_be_damage,
    raise_meant,
    translate_error,
    translate_own_error,
)
from onceward.message.clock import monotonic
from onceward.message.names import quoted

WAIT_FOR: Final = 1.0
"""Seconds that a reader waits for the recovery of a WAL, or until a last connection closes."""
OPCODES: Final = 20_000
"""Steps of SQLite between two checks of the clock."""
COMMITS: Final = "PRAGMA data_version"
SMALL_CACHE: Final = "PRAGMA cache_size = -2048"
"""Page cache in KiB: one reader per request may be open."""
ONE_MOMENT: Final = "BEGIN"
# An application's table of the same name takes precedence.
SHORT_NAMES: Final = """
SELECT name, substr(name, 10) FROM sqlite_schema
 WHERE type = 'view' AND name GLOB 'onceward_*' AND name <> 'onceward_send'
   AND substr(name, 10) NOT IN (SELECT lower(name) FROM sqlite_schema)
"""
SHORT_NAME: Final = "CREATE TEMP VIEW {short} AS SELECT * FROM main.{name}"


class FileReader:
    """A connection to one file that cannot write; statements that exceed *longest* are ended."""

    def __init__(
        self, con: Any, path: Path, longest: float | None = None, *, wait: float = WAIT_FOR
    ) -> None:
        self._con, self.path, self._longest = con, path, longest
        self._execute = partial(execute_reading, within=wait)
        self._until = 0.0
        if longest is not None:
            con.set_progress_handler(self._too_long, OPCODES)

    def _too_long(self) -> bool:
        return self._longest is not None and monotonic() > self._until

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """
        Run one reading statement and return its rows; invalid UTF-8 is read with replacement marks.

        Raises:
            StoreError: mapped from what SQLite said.

        """
        try:
            return list(self.walk(sql, bindings))
        except UnicodeDecodeError:
            pass
        return [
            tuple(map(_text, row)) for row in self.walk(self._as_bytes(sql, bindings), bindings)
        ]

    def walk(self, sql: str, bindings: Any = None) -> Generator[tuple[Any, ...], None, None]:
        """Yield the rows of one reading statement, which ends when the caller stops."""
        self._until = monotonic() + (self._longest or 0.0)
        cursor = self._con.cursor()
        try:
            yield from self._execute(cursor.execute, sql, bindings)
        except UnicodeDecodeError:
            raise
        except Exception as error:
            raise_meant(self._meant(error), error)
            raise
        finally:
            cursor.close(True)  # noqa: FBT003 - forced: apsw takes it by position only

    def damage(self) -> str | None:
        """Return a value that the agent's tables cannot hold, if one is found in a second."""
        from onceward.file import damage  # noqa: PLC0415 - rarely needed

        try:
            return damage.find(self._con)
        finally:
            if self._longest is not None:
                self._con.set_progress_handler(self._too_long, OPCODES)

    def hold(self) -> None:
        """Read on one snapshot in a block: the WAL cannot be emptied during it, so be quick."""
        self.rows(ONE_MOMENT)

    def commits(self) -> int:
        """Return a number that changes with each commit of another connection."""
        return int(self.rows(COMMITS)[0][0])

    def typed(self, sql: str) -> list[dict[str, Any]]:
        """
        Run one statement that a user typed, and return its rows by column.

        On this connection, the public views also have short names without the prefix.

        Raises:
            InvalidArgument: SQLite cannot run it, or it is several statements.
            ReadOnlyStore: it would write; nothing was changed.

        """
        for name, short in self.rows(SHORT_NAMES):
            self._execute(self._con.execute, SHORT_NAME.format(name=name, short=short))
        self._con.exec_trace = _OneReading()
        found: list[dict[str, Any]] = []
        names: list[str] = []
        try:
            cursor = self._execute(self._con.execute, sql)
            for row in cursor:
                names = names or _distinct([column[0] for column in cursor.get_description()])
                found.append(dict(zip(names, row, strict=True)))
        except OncewardError:
            raise
        except Exception as error:
            meant = translate_error(error, self.path)
            raise InvalidArgument(str(meant)) if meant is error else meant from error
        return found

    def _meant(self, error: Exception) -> BaseException:
        if self._too_long():
            msg = f"{self.path}: reading took longer than {self._longest:g} s and was stopped"
            return StoreFault(msg)
        return translate_own_error(error, self.path)

    def _as_bytes(self, sql: str, bindings: Any) -> str:
        """Return the statement with each text as bytes, for invalid UTF-8."""
        names: list[str] = []
        cursor = self._con.cursor()

        def note(of: Any, _sql: str, _bindings: Any) -> bool:
            names.extend(column[0] for column in of.get_description())
            return False

        cursor.exec_trace = note
        try:
            self._execute(cursor.execute, sql, bindings)
        except Exception as error:  # the trace ends the statement before its first row
            if not names:
                raise_meant(translate_own_error(error, self.path), error)
                raise
        finally:
            cursor.close(True)  # noqa: FBT003 - as above
        own = ", ".join(f"c{at}" for at in range(len(names)))
        parts = ", ".join(
            f"CASE typeof(c{at}) WHEN 'text' THEN CAST(c{at} AS BLOB) ELSE c{at} END"
            for at in range(len(names))
        )
        return f"WITH t ({own}) AS ({sql}) SELECT {parts} FROM t"  # noqa: S608 - of the caller


class _OneReading:
    """Refuse writing statements and second statements before they run."""

    def __init__(self) -> None:
        self._first: Any = None

    def __call__(self, cursor: Any, sql: str, _: Any) -> bool:
        if not cursor.is_readonly:
            raise ReadOnlyStore(
                f"{quoted(sql.strip())} would write: this connection only reads; see onceward send"
            )
        if self._first is cursor and has_columns(cursor):
            raise InvalidArgument("these are several statements: run one at a time")
        self._first = cursor  # a repeated statement has another
        return True


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _distinct(names: list[str]) -> list[str]:
    """Return column names; a repeated one gets a number."""
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    both = zip(names, counts, strict=True)
    return [name if count == 1 else f"{name}:{count}" for name, count in both]


@contextmanager
def opened_any(
    path: Path, *, wait: float = WAIT_FOR, longest: float | None = None
) -> Iterator[FileReader]:
    """
    Open a file of any schema read-only for a block; it is not changed, and no writer waits.

    Raises:
        StoreUnusable: it does not exist.
        StoreError: the file failed.

    """
    file_checks.refuse_no_file(path)
    if not path.exists():
        raise StoreUnusable(f"{path} does not exist: it was moved or deleted")
    _refuse_deleted_wal(path)
    patience = BusyHandler()
    patience.deadline = monotonic() + wait  # one deadline for all statements
    with connected(path, patience) as con:
        reader = FileReader(con, path, longest, wait=wait)
        reader.rows(SMALL_CACHE)
        try:
            yield reader
        except UNTYPED as error:
            said = reader.damage() if may_be_damage(error) else None
            if said is None:
                raise
            from onceward.file import damage  # noqa: PLC0415 - rarely needed

            raise damage.corrupt(path, said) from error


def _refuse_deleted_wal(path: Path) -> None:
    """Raise StoreFault if only the WAL is missing: a new one would end the saving of the old."""
    if Path(f"{path}-shm").exists() and not Path(f"{path}-wal").exists():
        raise StoreFault(
            f"{path}: its -wal was deleted: end and start no process, the next commit of one that"
            " has the file open saves it; onceward doctor names them"
        )


@contextmanager
def connected(
    path: Path, patience: BusyHandler, *, at_rest: bool = False
) -> Iterator[apsw.Connection]:
    """
    Connect to a file for a block that only reads; where nothing can be created beside it, too.

    SQLite needs the side files of a WAL, or must be able to create them. An idle file has none:
    in a folder that is read-only it is read as it is, and must not change during the block. So is
    an idle file that is read-only: side files would get its mode, and no later opening could write.
    With *at_rest* each file without a WAL is: nothing is created beside it.

    Raises:
        ReadOnlyStore: its side files hold commits, but cannot be opened.
        StoreFault: a process of another machine or mount wrote to it during the block.

    """
    still = at_rest or file_checks.read_only_part(path) is not None
    before = _if_closed(path) if still else None
    try:
        con = connect(path, readonly=True, immutable=before is not None, patience=patience)
    except ReadOnlyStore:
        before = _if_idle(path)
        if before is None:
            raise
        con = connect(path, readonly=True, immutable=True)
    try:
        yield con
    finally:
        close_without_checkpoint(con)
    if before is not None and _if_idle(path) != before:
        raise StoreFault(f"{path} was written to while it was read: read it again")


def _if_closed(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file without a WAL; None if it has one."""
    return None if Path(f"{path}-wal").exists() else _if_idle(path)


def _if_idle(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file without a WAL that holds commits; None if it has one."""
    with suppress(FileNotFoundError):
        if Path(f"{path}-wal").stat().st_size:
            return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@contextmanager
def opened(
    path: Path, *, wait: float = WAIT_FOR, longest: float | None = None
) -> Iterator[FileReader]:
    """
    Open an agent's file read-only for a block, as ``opened_any``.

    Raises:
        StoreUnusable: it does not exist, not an agent's file, or its schema is older or newer.
        StoreError: the file failed.

    """
    with opened_any(path, wait=wait, longest=longest) as reader:
        if not migrations.is_agents(reader.rows):
            raise StoreUnusable(f"{path} is not an agent's file")
        if behind := migrations.pending(reader):
            steps = ", ".join(step.name for step in behind)
            raise StoreUnusable(f"{path} lacks {steps}: run onceward migrate {path}")
        yield reader
