"""Read an agent's file through a read-only connection and its public views."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from onceward.errors import ReadOnlyStore, StoreUnusable
from onceward.file import migrations
from onceward.file.connection import BusyHandler, connect, has_columns, translate_error
from onceward.message.quoting import quoted
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.target import existing

WAIT_FOR: Final = 5.0
"""Seconds. A reader of a WAL waits only for a recovery or for the last connection's close."""
HIGHEST: Final = "\U0010ffff"
# A table that the application calls so itself keeps its name.
SHORT: Final = """
SELECT substr(name, 10) FROM sqlite_schema
 WHERE type = 'view' AND name GLOB 'onceward_*' AND name <> 'onceward_send'
   AND substr(name, 10) NOT IN (SELECT lower(name) FROM sqlite_schema)
"""


class Look:
    """A read-only connection; every answer is a list of rows by column name."""

    def __init__(self, con: Any, path: Path) -> None:
        self._con, self.path = con, path
        self._has_run = False

    def ask(self, sql: str, **named: Any) -> list[dict[str, Any]]:
        """Run one reading statement; a column name that comes twice gets a number."""
        found: list[dict[str, Any]] = []
        names: list[str] = []
        try:
            cursor = self._con.execute(sql, named or None)
            for row in cursor:
                names = names or _distinct([column[0] for column in cursor.get_description()])
                found.append(dict(zip(names, row, strict=True)))
        except Exception as error:
            raise translate_error(error, self.path) from error
        return found

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run one reading statement and return plain tuples."""
        found: list[tuple[Any, ...]] = self._con.execute(sql, bindings).fetchall()
        return found

    def run(self, sql: str) -> list[dict[str, Any]]:
        """
        Run a statement that a user typed.

        Raises:
            ReadOnlyStore: it would write; nothing was changed.
            Usage: it is no SQL, several statements, or names what does not exist.

        """
        try:
            self.name_views_shortly()
            self._con.exec_trace = self._refuse_writes
            return self.ask(sql)
        except Exception as error:
            if type(error).__module__.partition(".")[0] == "apsw":
                raise Usage(str(error)) from error
            raise

    def name_views_shortly(self) -> None:
        """Offer the public views without their prefix too, to this connection alone."""
        for (name,) in self.rows(SHORT):
            view = f"SELECT * FROM main.onceward_{name}"  # noqa: S608 - a name of the schema
            self._con.execute(f"CREATE TEMP VIEW {name} AS {view}")

    def _refuse_writes(self, cursor: Any, sql: str, _: Any) -> bool:
        if not cursor.is_readonly:
            msg = (
                f"{quoted(sql.strip())} would write: this connection only reads; see onceward send"
            )
            raise ReadOnlyStore(msg)
        if self._has_run and has_columns(cursor):
            msg = "these are several statements: run one at a time"
            raise Usage(msg)
        self._has_run = True
        return True


def _distinct(names: list[str]) -> list[str]:
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    both = zip(names, counts, strict=True)
    return [name if count == 1 else f"{name}:{count}" for name, count in both]


@contextmanager
def look(path: Path) -> Iterator[Look]:
    """Open a file of any schema read-only; nothing of it is changed."""
    patience = BusyHandler()
    patience.deadline = time.monotonic() + WAIT_FOR  # one deadline for all statements
    con = connect(existing(path), readonly=True, patience=patience)
    try:
        yield Look(con, path)
    finally:
        con.close()


@contextmanager
def views(path: Path) -> Iterator[Look]:
    """
    Open a file read-only and check that it has the views of this version.

    Raises:
        StoreUnusable: its schema is older, newer, or not ours.

    """
    with look(path) as found:
        if behind := pending(found, path):
            steps = ", ".join(step.name for step in behind)
            msg = f"{path} lacks {steps}: run onceward migrate {path}"
            raise StoreUnusable(msg)
        yield found


def pending(found: Look, path: Path) -> tuple[migrations.Migration, ...]:
    """Return the schema steps that a file still needs."""
    try:
        return migrations.pending(found)
    except Exception as error:
        raise translate_error(error, path) from error


def whole_id(found: Look, sql: str, prefix: str) -> str:
    """
    Return the one id that starts with *prefix*.

    Raises:
        NothingThere: none does.
        Usage: several do.

    """
    ids = [str(row["id"]) for row in found.ask(sql, low=prefix, high=prefix + HIGHEST)]
    if prefix in ids:
        return prefix
    if len(ids) > 1:
        some = f"{len(ids)} or more ids start with {prefix!r}, among them {ids[0]} and {ids[1]}"
        msg = f"{some}: give more of it"
        raise Usage(msg)
    if not ids:
        msg = f"no id starts with {prefix!r}: see onceward ls outbox, ls inbox and dead ls"
        raise NothingThere(msg)
    return ids[0]
