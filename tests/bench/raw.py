"""
The rival: the same work written by hand on apsw, with nothing that can be left out.

One table with the columns that a hand-written outbox needs, a UNIQUE id and a
partial index of what is ready; tuples are built before the clock starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import apsw

TABLE: Final = """
CREATE TABLE IF NOT EXISTS outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    recipient  TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    state      INTEGER NOT NULL DEFAULT 0,
    body       TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_ready ON outbox (recipient, seq) WHERE state = 0;
"""
INSERT: Final = "INSERT INTO outbox (id, recipient, type, body, created_at) VALUES (?, ?, ?, ?, ?)"
Connection = apsw.Connection
SYNC: Final = {"safe": "full", "fast": "normal"}

Row = tuple[str, str, str, str, int]


@contextmanager
def opened(
    path: Path, durability: str, *, schema: str = TABLE, vfs: str | None = None
) -> Iterator[Connection]:
    """Open a file of the rival's own, as durable as ours, for a block."""
    con = connect(path, durability, schema=schema, vfs=vfs)
    try:
        yield con
    finally:
        con.close()


def connect(
    path: Path, durability: str, *, schema: str = TABLE, vfs: str | None = None
) -> Connection:
    """Open a file of the rival's own, as durable as ours."""
    con = apsw.Connection(str(path), vfs=vfs)
    con.set_busy_timeout(10_000)
    con.pragma("journal_mode", "wal")
    con.pragma("synchronous", SYNC[durability])
    con.execute(schema)
    return con


def rows(body: str, recipient: str = "bob") -> Iterator[Row]:
    """Yield tuples ready for INSERT, their ids sorted by time as UUIDv7 are."""
    for number in count():
        yield (
            f"{number:08x}-0000-7000-8000-000000000000",
            recipient,
            "bench.note",
            body,
            1_700_000_000_000 + number,
        )


def put_one(con: Connection, row: Row) -> None:
    """Commit one message."""
    con.execute("BEGIN IMMEDIATE")
    con.execute(INSERT, row)
    con.execute("COMMIT")


def put_many(con: Connection, batch: Sequence[Row]) -> None:
    """Commit many messages at once."""
    con.execute("BEGIN IMMEDIATE")
    con.executemany(INSERT, batch)
    con.execute("COMMIT")
