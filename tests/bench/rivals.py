"""
Other local queues, each behind the same verbs.

They are optional. The extra ``bench`` brings them, except honker, whose source package would be
built, and needs Rust, wherever its binary ones do not fit.
Each runs as durably as it can be told to; what that means stands in the row.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final, Protocol

from tests.bench.crew import LONGEST

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
POLL: Final = 0.001
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


class Queue(ABC):
    """A system whose consumer asks for messages, in this process or in another one."""

    name: str
    durability: str
    promise: str = LEAST
    waits: str = "polls every millisecond"
    """How a consumer in another process learns of a message."""

    @abstractmethod
    def __init__(self, where: Any, body: str) -> None:
        """Open a file in a folder, or connect to a url."""

    @abstractmethod
    def put(self, count: int) -> None:
        """Enqueue *count* messages."""

    @abstractmethod
    def take(self, most: int) -> int:
        """Consume and acknowledge up to *most* messages that wait; return how many."""

    @abstractmethod
    def close(self) -> None:
        """Close file or connection."""

    def wait(self) -> None:
        """Wait a moment for messages, when :meth:`take` has found none."""
        time.sleep(POLL)

    def cycle(self) -> None:
        """Enqueue, consume and acknowledge one message."""
        self.put(1)
        self._taken(1)

    def stream(self, count: int) -> None:
        """Enqueue all, then consume and acknowledge all."""
        self.put(count)
        self._taken(count)

    def _taken(self, count: int) -> None:
        while count:
            count -= self.take(min(BATCH, count))


Ended = Callable[[], None]
"""Called at the end of each task."""


class Tasks(ABC):
    """A system whose workers call a function for each message, in this process or another one."""

    name: str
    durability: str
    promise: str = LEAST
    waits: str
    """How a worker in another process learns of a message."""

    def __init__(self, ended: Ended | None = None) -> None:
        self._left, self._over = 0, Event()
        self.ended: Ended = self._count if ended is None else ended

    @abstractmethod
    def put(self, count: int) -> None:
        """Send *count* tasks."""

    @abstractmethod
    def close(self) -> None:
        """Stop the worker."""

    def cycle(self) -> None:
        """Send a task and wait until it has run."""
        self.stream(1)

    def stream(self, count: int) -> None:
        """Send tasks and wait until the last has run."""
        self._left = count
        self._over.clear()
        self.put(count)
        if not self._over.wait(LONGEST):
            msg = f"{self._left} tasks did not end"
            raise TimeoutError(msg)

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._over.set()


class Sqlite3(Queue):
    """A queue by hand on the standard library's sqlite3: a hundred messages per commit."""

    name = "sqlite3 by hand"
    durability = "WAL, synchronous=FULL: every commit synced"

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

    def put(self, count: int) -> None:
        """Insert, and commit once per hundred."""
        for first in range(0, count, BATCH):
            self._commit(PUT, [(self._body,)] * min(BATCH, count - first))

    def take(self, most: int) -> int:
        """Claim in one commit, delete in another."""
        self._con.execute("BEGIN IMMEDIATE")
        found = self._con.execute(CLAIM, (most,)).fetchall()
        self._con.execute("COMMIT")
        if found:
            self._commit(ACK, [(seq,) for seq, _ in found])
        return len(found)

    def close(self) -> None:
        """Close the file."""
        self._con.close()


class LiteQueue(Queue):
    """litequeue with its synchronous level raised to FULL; it takes messages one by one."""

    name = "litequeue"
    durability = (
        "WAL, synchronous=FULL set on its connection "
        "(its own default, NORMAL, loses commits with the power)"
    )

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._queue = importlib.import_module("litequeue").LiteQueue(str(folder / "queue.db"))
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def put(self, count: int) -> None:
        """Put one, or a hundred in one transaction."""
        if count == 1:
            self._queue.put(self._body)
            return
        for first in range(0, count, BATCH):
            with self._queue.transaction():
                for _ in range(min(BATCH, count - first)):
                    self._queue.put(self._body)

    def take(self, most: int) -> int:
        """Pop, done."""
        for taken in range(most):
            message = self._queue.pop()
            if message is None:
                return taken
            self._queue.done(message.message_id)
        return most

    def close(self) -> None:
        """Close the file."""
        self._queue.conn.close()


class PersistQueue(Queue):
    """persist-queue's acknowledging queue; every call commits."""

    name = "persist-queue"
    durability = "WAL, synchronous=FULL (its default): every call synced"

    def __init__(self, folder: Path, body: str) -> None:
        self._body = body
        self._module = importlib.import_module("persistqueue")
        self._queue = self._module.SQLiteAckQueue(str(folder), auto_commit=True)

    def put(self, count: int) -> None:
        """Put one by one."""
        for _ in range(count):
            self._queue.put(self._body)

    def take(self, most: int) -> int:
        """Get, ack."""
        for taken in range(most):
            try:
                found = self._queue.get(block=False)
            except self._module.Empty:
                return taken
            self._queue.ack(found)
        return most

    def close(self) -> None:
        """Close the file."""
        self._queue.close()


class Huey(Queue):
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
        self._task = self._huey.task(name="length")(_length)

    def put(self, count: int) -> None:
        """Enqueue one by one."""
        for _ in range(count):
            self._task(self._body)

    def take(self, most: int) -> int:
        """Dequeue, run."""
        for taken in range(most):
            task = self._huey.dequeue()
            if task is None:
                return taken
            self._huey.execute(task)
        return most

    def close(self) -> None:
        """Close the file."""
        self._huey.storage.close()


def _length(body: str) -> int:
    return len(body)


class Honker(Queue):
    """honker with its synchronous level raised to FULL; its watcher wakes the consumer."""

    name = "honker"
    durability = (
        "WAL, synchronous=FULL set on its connection "
        "(its own default, NORMAL, loses commits with the power)"
    )
    waits = "its watcher, which looks every millisecond"

    def __init__(self, folder: Path, body: str) -> None:
        self._db = importlib.import_module("honker").open(str(folder / "queue.db"))
        self._body, self._loop = body, asyncio.new_event_loop()
        with self._db.transaction() as tx:  # its only writing connection is not to be had else
            for sql in ("COMMIT", "PRAGMA synchronous = FULL", "BEGIN IMMEDIATE"):
                tx.execute(sql)
        self._queue = self._db.queue("bench")
        self._updates = self._db.update_events()

    def put(self, count: int) -> None:
        """Enqueue one, or a hundred in one transaction."""
        for first in range(0, count, BATCH):
            with self._db.transaction() as tx:
                for _ in range(min(BATCH, count - first)):
                    self._queue.enqueue(self._body, tx=tx)

    def take(self, most: int) -> int:
        """Claim in one commit, acknowledge in another."""
        found = self._queue.claim_batch("one", most)
        return int(self._queue.ack_batch([job.id for job in found], "one")) if found else 0

    def wait(self) -> None:
        """Wait for a commit."""
        with suppress(TimeoutError):
            self._loop.run_until_complete(self._update())

    async def _update(self) -> None:
        async with asyncio.timeout(50 * POLL):
            await self._updates.__anext__()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        self._loop.close()


Opened = AbstractContextManager[Rival]


@contextmanager
def closing(kind: Callable[[Any, str], Rival], where: object, body: str) -> Iterator[Rival]:
    """Open a system in a folder, or at a url, for a block."""
    made = kind(where, body)
    try:
        yield made
    finally:
        made.close()


KINDS: Final = (Sqlite3, LiteQueue, PersistQueue, Huey, Honker)
LOCAL: Final = {kind.name: partial(closing, kind) for kind in KINDS}
