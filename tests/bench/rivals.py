"""
Other local queues, each behind the same three verbs.

They are optional, the extra ``bench`` brings them.
Each runs as durably as it can be told to; what that means stands in the row.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

TABLE: Final = """
CREATE TABLE IF NOT EXISTS queue (
    seq   INTEGER PRIMARY KEY AUTOINCREMENT,
    state INTEGER NOT NULL DEFAULT 0,
    body  TEXT    NOT NULL
)
"""
READY: Final = "CREATE INDEX IF NOT EXISTS ready ON queue (seq) WHERE state = 0"
PUT: Final = "INSERT INTO queue (body) VALUES (?)"
CLAIM: Final = """
UPDATE queue SET state = 1 WHERE seq IN (SELECT seq FROM queue WHERE state = 0 ORDER BY seq LIMIT ?)
  RETURNING seq, body
"""
ACK: Final = "DELETE FROM queue WHERE seq = ?"
BATCH: Final = 100
EXACTLY: Final = "exactly once"
LEAST: Final = "at least once"
MOST: Final = "at most once"


class Rival(Protocol):
    """One system: a full cycle of one message, and a stream of many."""

    name: str
    durability: str
    promise: str
    """How often a message takes effect if a process is killed."""

    def cycle(self) -> None:
        """Enqueue, consume and acknowledge one message."""
        ...

    def stream(self, count: int) -> None:
        """Enqueue *count* messages, consume and acknowledge them, at the library's best speed."""
        ...

    def close(self) -> None:
        """Leave files, server and threads."""
        ...


class Sqlite3:
    """A queue by hand on the standard library's sqlite3."""

    name = "sqlite3 by hand"
    durability = "WAL, synchronous=FULL: every commit synced"
    promise = LEAST

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._con = importlib.import_module("sqlite3").connect(
            folder / "queue.db", isolation_level=None
        )
        for sql in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", TABLE, READY):
            self._con.execute(sql)

    def _commit(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        self._con.execute("BEGIN IMMEDIATE")
        self._con.executemany(sql, rows)
        self._con.execute("COMMIT")

    def _take(self, count: int) -> int:
        self._con.execute("BEGIN IMMEDIATE")
        found = self._con.execute(CLAIM, (count,)).fetchall()
        self._con.execute("COMMIT")
        self._commit(ACK, [(seq,) for seq, _ in found])
        return len(found)

    def cycle(self) -> None:
        """Three commits."""
        self._commit(PUT, [(self._body,)])
        self._take(1)

    def stream(self, count: int) -> None:
        """Put, take and acknowledge a hundred messages per commit."""
        for _ in range(0, count, BATCH):
            self._commit(PUT, [(self._body,)] * BATCH)
        while self._take(BATCH):
            pass

    def close(self) -> None:
        """Close the file."""
        self._con.close()


class LiteQueue:
    """litequeue with its synchronous level raised to FULL; it knows no batches."""

    name = "litequeue"
    durability = (
        "WAL, synchronous=FULL set on its connection "
        "(its own default, NORMAL, loses commits with the power)"
    )
    promise = LEAST

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._queue = importlib.import_module("litequeue").LiteQueue(str(folder / "queue.db"))
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def _consume(self) -> None:
        self._queue.done(self._queue.pop().message_id)

    def cycle(self) -> None:
        """Put, pop, done."""
        self._queue.put(self._body)
        self._consume()

    def stream(self, count: int) -> None:
        """Put in one transaction per hundred, pop and done one by one."""
        for _ in range(0, count, BATCH):
            with self._queue.transaction():
                for _ in range(BATCH):
                    self._queue.put(self._body)
        for _ in range(0, count, BATCH):
            for _ in range(BATCH):
                self._consume()

    def close(self) -> None:
        """Close the file."""
        self._queue.conn.close()


class PersistQueue:
    """persist-queue's acknowledging queue; every call commits."""

    name = "persist-queue"
    durability = "WAL, synchronous=FULL (its default): every call synced"
    promise = LEAST

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._queue = importlib.import_module("persistqueue").SQLiteAckQueue(
            str(folder), auto_commit=True
        )

    def cycle(self) -> None:
        """Put, get, ack."""
        self._queue.put(self._body)
        self._queue.ack(self._queue.get())

    def stream(self, count: int) -> None:
        """Put all, then get and ack each."""
        for _ in range(count):
            self._queue.put(self._body)
        for _ in range(count):
            self._queue.ack(self._queue.get())

    def close(self) -> None:
        """Close the file."""
        self._queue.close()


class Huey:
    """
    huey on SQLite: taking a task deletes it.

    So there is nothing to acknowledge, and a crash loses it.
    """

    name = "huey"
    durability = "WAL, fsync=True: every commit synced"
    promise = MOST

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._huey = importlib.import_module("huey").SqliteHuey(
            filename=str(folder / "queue.db"), fsync=True, results=False
        )
        self._task = self._huey.task()(_length)

    def _consume(self) -> None:
        self._huey.execute(self._huey.dequeue())

    def cycle(self) -> None:
        """Enqueue, dequeue, run."""
        self._task(self._body)
        self._consume()

    def stream(self, count: int) -> None:
        """Enqueue all, then dequeue and run each."""
        for _ in range(count):
            self._task(self._body)
        for _ in range(count):
            self._consume()

    def close(self) -> None:
        """Close the file."""
        self._huey.storage.close()


def _length(body: str) -> int:
    return len(body)


Opener = Any
"""Takes folder and body and returns a context manager of a Rival."""


@contextmanager
def _closing(kind: Any, folder: Path, body: str) -> Iterator[Rival]:
    made = kind(folder, body)
    try:
        yield made
    finally:
        made.close()


LOCAL: Final = {
    kind.name: partial(_closing, kind) for kind in (Sqlite3, LiteQueue, PersistQueue, Huey)
}
Opened = AbstractContextManager[Rival]
