"""
From one process to another through a NATS server, up to the processed receipt.

The server syncs every message that it stores. Beside it the same messages by file, and bare
JetStream, whose consumer keeps nothing and only acknowledges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.bench.crew import LONGEST, Link, over, running
from tests.bench.deliver import BATCH, TABLE, bob, lap, receive
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.nats import JetStream, server
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.transports.network.nats_listener import NatsListener

MESSAGES: Final = 10_000
ROUNDS: Final = 3
BESIDE_FILE: Final = (Goal("ratio", at_least=0.75),)
BESIDE_BARE: Final = (Goal("ratio", at_least=3.0),)
SYNCED: Final = "safe; server: sync_interval: always"


def over_nats(plan: Plan) -> Iterator[Result]:
    """Carry messages between two processes, in turns by NATS, by file and by bare JetStream."""
    size = -(-plan.messages(MESSAGES, per_second=5000) // BATCH) * BATCH
    ours, files, bare = (plan.room(name) for name in ("ours", "files", "bare"))
    with (
        server(bare) as url,
        running(listen, ours, url),
        running(receive, files, "safe"),
        closing(JetStream(url, note().model_dump_json())) as rival,
        Postbox(
            ours / "alice.db",
            agent="alice",
            max_pending=UNBOUNDED,
            listeners=[NatsListener(url)],
        ) as box,
        Postbox(files / "alice.db", agent="alice", max_pending=UNBOUNDED) as by_file,
    ):
        box.peers.add("bob", f"{url}/bob")
        plan.settle()
        rounds = min(ROUNDS, plan.rounds)
        beside = alternate(lambda: lap(box, size), lambda: lap(by_file, size), rounds=rounds)
        yield compare("nats", beside, durability=SYNCED, goals=BESIDE_FILE, beside="file")
        few = max(BATCH, size // 5 // BATCH * BATCH)
        beside = alternate(lambda: lap(box, size), lambda: stream(rival, few), rounds=rounds)
        yield compare("nats", beside, durability=SYNCED, goals=BESIDE_BARE, beside="bare JetStream")


def stream(rival: JetStream, size: int) -> Lap:
    """Publish, fetch and acknowledge a hundred at a time, each with its confirmation."""
    began = time.perf_counter()
    rival.stream(size)
    return Lap(size, time.perf_counter() - began)


def listen(link: Link, folder: Path, url: str) -> None:
    """Handle what comes through the server until told to end; the body of another process."""
    other = folder / "other"
    other.mkdir()
    with Postbox(other / "bob.db", agent=bob, listeners=[NatsListener(url)]) as box:
        box.peers.add("alice", f"{url}/alice")
        with box.begin() as tx:
            tx.execute(TABLE)
        link.send("ready")
        over(link, LONGEST)
