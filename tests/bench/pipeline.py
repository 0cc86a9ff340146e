"""
The rival of ``deliver``: outbox, inbox and acknowledgement between two processes, by hand on apsw.

It keeps what a careful author would keep: durable outbox rows, an inbox that
takes each id once, handler's row and processed mark in one commit, and the
acknowledgement in the sender's file. It has no retries, no order beyond one
pusher, no leases, no fencing and no digests.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self, cast
from zlib import crc32

from tests.bench import raw
from tests.bench.crew import Link, nothing, over
from tests.bench.mail import note
from tests.bench.measure import Lap

CLAIM: Final = 500
INBOX: Final = """
CREATE TABLE IF NOT EXISTS inbox (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    type        TEXT    NOT NULL,
    state       INTEGER NOT NULL DEFAULT 0,
    body        TEXT    NOT NULL,
    received_at INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS inbox_ready ON inbox (seq) WHERE state = 0;
CREATE TABLE IF NOT EXISTS processed (id TEXT PRIMARY KEY, at INTEGER NOT NULL) STRICT,
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS work (number INTEGER NOT NULL, text TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS chosen (one INTEGER PRIMARY KEY, seqs TEXT NOT NULL) STRICT;
"""
CHOOSING: Final = (
    f"{raw.TABLE}CREATE TABLE IF NOT EXISTS chosen (one INTEGER PRIMARY KEY, "
    f"seqs TEXT NOT NULL) STRICT;"
)
CHOSEN: Final = (
    "INSERT INTO chosen (one, seqs) VALUES (1, ?) "
    "ON CONFLICT (one) DO UPDATE SET seqs = excluded.seqs"
)
PENDING: Final = (
    "SELECT seq, id, type, body FROM outbox WHERE recipient = 'bob' AND state = 0 AND seq > ? "
    "ORDER BY seq LIMIT ?"
)
KEEP: Final = (
    "INSERT INTO inbox (id, type, body, received_at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (id) DO NOTHING"
)
WAITING: Final = "SELECT seq, id, body FROM inbox WHERE state = 0 ORDER BY seq LIMIT ?"
WORK: Final = "INSERT INTO work (number, text) VALUES (?, ?)"
MARK: Final = "INSERT INTO processed (id, at) VALUES (?, ?)"
DONE: Final = "UPDATE inbox SET state = 1 WHERE seq IN (SELECT value FROM json_each(?))"
ACK: Final = (
    "UPDATE outbox SET state = 1 WHERE id IN (SELECT value FROM json_each(?)) AND state = 0"
)
ACKED: Final = "SELECT count(*) FROM outbox WHERE state = 0"


class Sender:
    """
    The sending process: a caller and a pushing thread.

    The caller commits batches, the thread pushes them into the other's inbox.
    """

    def __init__(self, folder: Path, durability: str) -> None:
        self._own = raw.connect(folder / "alice.db", durability)
        self._reader = raw.connect(folder / "alice.db", durability, schema=CHOOSING)
        self._peer = raw.connect(folder / "bob.db", durability, schema=INBOX)
        self._bell = str(_bell(folder))
        self._rows = raw.rows(note().model_dump_json())
        self._fresh, self._over = Event(), Event()
        self._seen = 0
        self._thread = Thread(target=self._push, daemon=True)

    def __enter__(self) -> Self:
        """Start pushing."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop pushing and close."""
        self._over.set()
        self._fresh.set()
        self._thread.join()
        for con in (self._own, self._reader, self._peer):
            con.close()

    def lap(self, size: int, batch: int) -> Lap:
        """Commit *size* messages in batches and wait until all are acknowledged."""
        rows = iter(list(islice(self._rows, size)))
        began = time.perf_counter()
        while some := list(islice(rows, batch)):
            raw.put_many(self._own, some)
            self._fresh.set()
        while self._own.execute(ACKED).get:
            time.sleep(0.01)
        return Lap(size, time.perf_counter() - began)

    def send(self) -> None:
        """Commit one message."""
        raw.put_one(self._own, next(self._rows))
        self._fresh.set()

    def _push(self) -> None:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        while not self._over.is_set():
            self._fresh.wait()
            self._fresh.clear()
            while found := self._reader.execute(PENDING, (self._seen, CLAIM)).fetchall():
                self._choose(found)
                now = time.time_ns() // 1_000_000
                self._peer.execute("BEGIN IMMEDIATE")
                self._peer.executemany(
                    KEEP, [(message_id, kind, body, now) for _, message_id, kind, body in found]
                )
                self._peer.execute("COMMIT")
                self._seen = cast("int", found[-1][0])
                with suppress(OSError):
                    bell.sendto(b"!", self._bell)
        bell.close()

    def _choose(self, found: list[Any]) -> None:
        """Push whatever was found."""


class CarefulSender(Sender):
    """
    The same, but each push is committed before it leaves.

    So it can be pushed again as it was.
    """

    def _choose(self, found: list[Any]) -> None:
        self._reader.execute("BEGIN IMMEDIATE")
        self._reader.execute(CHOSEN, (json.dumps([seq for seq, *_ in found]),))
        self._reader.execute("COMMIT")


def receive_carefully(
    link: Link, folder: Path, durability: str, told: Callable[[Link], None] = nothing
) -> None:
    """
    Handle every message, each claim committed before it is handled.

    So two workers never have the same message.
    """
    receive(link, folder, durability, told, claim=_claim)


def _claim(own: raw.Connection, found: list[Any]) -> None:
    own.execute("BEGIN IMMEDIATE")
    own.execute(CHOSEN, (json.dumps([seq for seq, *_ in found]),))
    own.execute("COMMIT")


def _free(own: raw.Connection, found: list[Any]) -> None:
    """Take without a claim: no other worker is here."""


def receive(
    link: Link,
    folder: Path,
    durability: str,
    told: Callable[[Link], None] = nothing,
    claim: Callable[[raw.Connection, list[Any]], None] = _free,
) -> None:
    """
    Handle every message and acknowledge it in the sender's file.

    This is the body of the other process.
    """
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.bind(str(_bell(folder)))
    bell.settimeout(0.05)
    with (
        raw.opened(folder / "bob.db", durability, schema=INBOX) as own,
        raw.opened(folder / "alice.db", durability) as peer,
    ):
        link.send("ready")
        while not over(link):
            with suppress(TimeoutError):
                bell.recv(64)
            for ids in _rounds(own, claim):
                told(link)
                peer.execute("BEGIN IMMEDIATE")
                peer.execute(ACK, (json.dumps(ids),))
                peer.execute("COMMIT")
    bell.close()
    _bell(folder).unlink()


def _bell(folder: Path) -> Path:
    """
    Return the path of *folder*'s doorbell.

    A socket's path must be short, the folder's own may not be.
    """
    return Path(gettempdir()) / f"onceward-bench-{crc32(str(folder).encode()):08x}"


def _rounds(
    own: raw.Connection, claim: Callable[[raw.Connection, list[Any]], None]
) -> Iterator[list[str]]:
    """Handle what waits, one commit per claim, and yield the ids of each."""
    while found := own.execute(WAITING, (CLAIM,)).fetchall():
        claim(own, found)
        now = time.time_ns() // 1_000_000
        own.execute("BEGIN IMMEDIATE")
        for _, _, text in found:
            body = json.loads(cast("str", text))
            own.execute(WORK, (body["number"], body["text"]))
        own.executemany(MARK, [(message_id, now) for _, message_id, _ in found])
        own.execute(DONE, (json.dumps([seq for seq, _, _ in found]),))
        own.execute("COMMIT")
        yield [str(message_id) for _, message_id, _ in found]
