"""Read an agent's file for a page: a read-only connection for the time of one request."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from onceward.errors import StoreFault, StoreUnusable
from onceward.file import migrations
from onceward.file.connection import (
    BusyHandler,
    close_without_checkpoint,
    connect,
    translate_own_error,
)
from onceward.file.database import APPLICATION_ID

WAIT_FOR: Final = 1.0
"""Seconds that a page waits for the recovery of a WAL, or for the close of a last connection."""
LONGEST: Final = 5.0
"""Seconds after which a statement is interrupted."""
OPCODES: Final = 20_000
"""Steps of SQLite between two looks at the clock."""
MARK: Final = "PRAGMA application_id"
SMALL_CACHE: Final = "PRAGMA cache_size = -2048"
"""KiB of pages: as many readers as there are requests may be open."""
NEVER: Final = 1 << 62
"""A sequence number, and a moment, that none is above."""


class Reader:
    """A connection to one file that cannot write; every statement is a transaction of its own."""

    def __init__(self, con: Any, path: Path) -> None:
        self._con, self.path = con, path
        self._until = 0.0
        con.set_progress_handler(self._too_long, OPCODES)

    def _too_long(self) -> bool:
        return time.monotonic() > self._until

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """
        Run one reading statement and return its rows; text that is no UTF-8 is read with marks.

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
        """Yield the rows of one reading statement, which ends where the caller stops."""
        self._until = time.monotonic() + LONGEST
        cursor = self._con.cursor()
        try:
            yield from cursor.execute(sql, bindings)
        except UnicodeDecodeError:
            raise
        except Exception as error:
            raise self._meant(error) from error
        finally:
            cursor.close(True)  # noqa: FBT003 - forced: apsw takes it by position only

    def _meant(self, error: Exception) -> BaseException:
        if self._too_long():
            msg = f"{self.path}: reading took longer than {LONGEST:g} s and was given up"
            return StoreFault(msg)
        return translate_own_error(error, self.path)

    def _as_bytes(self, sql: str, bindings: Any) -> str:
        """Return the statement with each text as bytes, for text that is no UTF-8."""
        names: list[str] = []
        cursor = self._con.cursor()

        def note(of: Any, _sql: str, _bindings: Any) -> bool:
            names.extend(column[0] for column in of.get_description())
            return False

        cursor.exec_trace = note
        try:
            cursor.execute(sql, bindings)
        except Exception as error:  # the trace ends the statement before its first row
            if not names:
                raise translate_own_error(error, self.path) from error
        finally:
            cursor.close(True)  # noqa: FBT003 - as above
        columns = ", ".join(f"c{at}" for at in range(len(names)))
        parts = ", ".join(
            f"CASE typeof(c{at}) WHEN 'text' THEN CAST(c{at} AS BLOB) ELSE c{at} END"
            for at in range(len(names))
        )
        return f"WITH t ({columns}) AS ({sql}) SELECT {parts} FROM t"  # noqa: S608 - our names


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """
    Open an agent's file read-only for a block; nothing of it is changed, no writer waits.

    Raises:
        StoreUnusable: it is gone, no agent's file, or its schema is older or newer.
        StoreError: the file failed.

    """
    if not path.exists():
        msg = f"{path} is gone: it was moved or deleted"
        raise StoreUnusable(msg)
    patience = BusyHandler()
    patience.deadline = time.monotonic() + WAIT_FOR
    con = connect(path, readonly=True, patience=patience)
    try:
        reader = Reader(con, path)
        reader.rows(SMALL_CACHE)
        _refuse_unfit(reader)
        yield reader
    finally:
        close_without_checkpoint(con)


def _refuse_unfit(reader: Reader) -> None:
    if reader.rows(MARK) != [(APPLICATION_ID,)]:
        msg = f"{reader.path} is no agent's file"
        raise StoreUnusable(msg)
    if behind := migrations.pending(reader):
        steps = ", ".join(step.name for step in behind)
        msg = f"{reader.path} lacks {steps}: run onceward migrate {reader.path}"
        raise StoreUnusable(msg)
