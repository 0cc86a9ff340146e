"""
Write new files instead of having SQLite copy them, which takes longer than some tests.

The tests of files, of their schema and of the docs create theirs as users do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from onceward.file import connection, directory, file_checks, migrations
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import SystemClock
from onceward.message.names import DIRECTORY


@dataclass(frozen=True)
class ReadyMade:
    """The bytes of new files: of an agent that has no name yet, and of a home's directory."""

    agent: bytes
    directory: bytes


def make(folder: Path) -> ReadyMade:
    """Make both files in a folder."""
    return ReadyMade(
        _made(folder / "agent", migrations.APPLICATION_ID, SystemClock().now(), _migrated),
        _made(folder / "directory", directory.APPLICATION_ID, 0, _of_home),
    )


def _made(path: Path, mark: int, now: int, fill: Callable[[StoreTransaction], None]) -> bytes:
    path.touch()
    con = connection.connect(path)
    con.pragma("auto_vacuum", 2)
    connection.enable_wal(con, full=False, checkpoint_pages=0)
    con.execute("BEGIN IMMEDIATE")
    tx = StoreTransaction(con, now)
    tx.rows(f"PRAGMA application_id = {mark}")
    fill(tx)
    con.execute("COMMIT")
    connection.close(con)
    return path.read_bytes()


def _migrated(tx: StoreTransaction) -> None:
    for step in migrations.migrations():
        migrations.apply(tx, step, tx.now)


def _of_home(tx: StoreTransaction) -> None:
    tx.rows((migrations.folder() / "directory.sql").read_text(encoding="utf-8"))
    tx.run(directory.INSERT, (directory.VERSION, tx.now))


@contextmanager
def copied(made: ReadyMade) -> Iterator[None]:
    """Let every file that this process creates begin as a copy."""
    create = file_checks.create_or_check

    def create_or_check(path: Path, *, allow_network: bool) -> bool:
        created = create(path, allow_network=allow_network)
        if created:
            path.write_bytes(made.directory if path.name == DIRECTORY else made.agent)
        return created

    with patch.object(file_checks, "create_or_check", create_or_check):
        yield
