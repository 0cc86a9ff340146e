"""
Copy new files of an agent instead of creating them by SQL, which takes longer than most tests.

The tests of files, of the core and of the docs create theirs as users do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from onceward.file import connection, file_checks, migrations
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import SystemClock
from onceward.message.names import DIRECTORY


def make(path: Path) -> bytes:
    """Make a file with our tables that belongs to no agent yet, and return its bytes."""
    path.touch()
    con = connection.connect(path)
    con.pragma("auto_vacuum", 2)
    connection.enable_wal(con, full=False, checkpoint_pages=0)
    con.execute("BEGIN IMMEDIATE")
    tx = StoreTransaction(con, SystemClock().now())
    tx.rows(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
    for step in migrations.migrations():
        migrations.apply(tx, step, tx.now)
    con.execute("COMMIT")
    connection.close(con)
    return path.read_bytes()


@contextmanager
def copied(file: bytes) -> Iterator[None]:
    """Let every file that this process creates begin as a copy of *file*."""
    create = file_checks.create_or_check

    def create_or_check(path: Path, *, allow_network: bool) -> bool:
        created = create(path, allow_network=allow_network)
        if created and path.name != DIRECTORY:
            path.write_bytes(file)
        return created

    with patch.object(file_checks, "create_or_check", create_or_check):
        yield
