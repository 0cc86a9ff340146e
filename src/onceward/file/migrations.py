"""Apply schema/*.sql: each file once, in order, in one transaction with its record."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from onceward.errors import SchemaMismatch, SchemaTooNew
from onceward.message.clock import Millis

APPLICATION_ID: Final = 0x6F6E6365  # "once"
"""The mark in the header of an agent's file."""
LEDGER: Final = """
CREATE TABLE _onceward_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    digest     BLOB    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""
APPLIED: Final = "SELECT version, name, digest FROM _onceward_migrations ORDER BY version"
RECORD: Final = (
    "INSERT INTO _onceward_migrations (version, name, digest, applied_at) VALUES (?, ?, ?, ?)"
)
# The time of an image is 0: its tables were copied into the file.
STAMP: Final = "UPDATE _onceward_migrations SET applied_at = ? WHERE applied_at = 0"
SHAPE: Final = "SELECT sql FROM sqlite_schema WHERE name = '_onceward_migrations'"
TABLES: Final = "SELECT lower(name) FROM sqlite_schema"
COLUMNS: Final = "SELECT group_concat(name) FROM pragma_table_info('_onceward_migrations')"


# Not the mark in the file's header: another program may have set its own.
EXISTS: Final = """
SELECT 1
  FROM sqlite_schema
 WHERE name = '_onceward_file_info'
   AND EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_onceward_migrations')
"""


OWNED: Final = "SELECT 1 FROM _onceward_file_info"


class SqlRunner(Protocol):
    """The part of a transaction that a migration needs."""

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all its rows."""
        ...


class Migration(NamedTuple):
    """One file of the schema folder."""

    version: int
    name: str
    sql: str


def folder() -> Path:
    """Return the schema folder: the wheel's, or the one beside src in a checkout."""
    here = Path(__file__).resolve()
    packaged = here.parents[1] / "schema"
    return packaged if packaged.is_dir() else here.parents[3] / "schema"


@lru_cache(maxsize=1)
def migrations() -> tuple[Migration, ...]:
    """Return all migrations this version knows, in order."""
    found = sorted(folder().glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return tuple(Migration(int(p.name[:4]), p.stem, p.read_text(encoding="utf-8")) for p in found)


def is_agents(read: Callable[[str, Any], list[tuple[Any, ...]]]) -> bool:
    """
    Return whether a file is an agent's: it has our tables and an owner, whichever mark it has.

    One whose creation was interrupted may have the tables alone.
    """
    return bool(read(EXISTS, None)) and bool(read(OWNED, None))


def pending(tx: SqlRunner, known: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """
    Return the migrations this file still needs, oldest first.

    Raises:
        SchemaTooNew: the file was written by a newer version.
        SchemaMismatch: a table with one of our names exists that onceward did not create.

    """
    all_known = migrations() if known is None else known
    if tx.rows(SHAPE) != [(LEDGER.lstrip(),)]:
        names = {name for (name,) in tx.rows(TABLES)}
        if "_onceward_migrations" not in names:
            _refuse_foreign_tables(names, all_known)
            return all_known
        _refuse_other_ledger(tx)
    return _missing(tx.rows(APPLIED), all_known)


def refuse_unknown_tables(tx: SqlRunner, path: Path) -> None:
    """Raise SchemaMismatch for a file that has our mark, and tables but none of ours."""
    names = sorted(name for (name,) in tx.rows(TABLES))
    if names:
        some = ", ".join(names[:5])
        raise SchemaMismatch(
            f"{path} was made by a version of onceward whose tables this version does not know"
            f" ({some}): open it with that version, or create a new file"
        )


def _refuse_other_ledger(tx: SqlRunner) -> None:
    if tx.rows(COLUMNS) != [("version,name,digest,applied_at",)]:
        msg = "the table _onceward_migrations has other columns: use a separate file for onceward"
        raise SchemaMismatch(msg)


def _missing(applied: list[tuple[Any, ...]], known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    newest = known[-1].version if known else 0
    if applied and applied[-1][0] > newest:
        msg = f"the file has schema {applied[-1][0]}, this version knows {newest}: upgrade onceward"
        raise SchemaTooNew(msg)
    by_version = {m.version: m for m in known}
    for version, name, seen in applied:
        if version not in by_version or by_version[version].name != name:
            raise SchemaMismatch(
                f"schema step {version} of this file is {name!r}, which this version does not have"
            )
        del seen  # kept for forensics: a comment may change between releases, its effect may not
    done = {version for version, _, _ in applied}
    return tuple(m for m in known if m.version not in done)


def _refuse_foreign_tables(names: set[str], known: tuple[Migration, ...]) -> None:
    created = _created(known)
    taken = sorted(name for name in names if name in created or name.startswith(PRIVATE))
    if taken:
        raise SchemaMismatch(
            f"the database already has {', '.join(taken)} with other columns: rename them, or use "
            "a separate file"
        )


PRIVATE: Final = "_onceward_"
"""Prefix of every private table, index and trigger; public views begin with ``onceward_``."""
CREATES: Final = re.compile(
    r"^CREATE\s+(?:UNIQUE\s+)?(?:TABLE|VIEW|INDEX|TRIGGER)\s+(\w+)", re.MULTILINE
)


@lru_cache(maxsize=4)
def _created(known: tuple[Migration, ...]) -> frozenset[str]:
    return frozenset(name.lower() for m in known for name in CREATES.findall(m.sql))


def apply(tx: SqlRunner, migration: Migration, now: Millis) -> None:
    """Run one migration and record it, inside the caller's transaction."""
    if not tx.rows("SELECT 1 FROM sqlite_schema WHERE name = '_onceward_migrations'"):
        tx.rows(LEDGER)
    tx.rows(migration.sql)
    made_of = sha256(migration.sql.encode()).digest()[:16]
    tx.rows(RECORD, (migration.version, migration.name, made_of, now))


def stamp(tx: SqlRunner, now: Millis) -> None:
    """Record when a file got tables that were copied into it."""
    tx.rows(STAMP, (now,))
