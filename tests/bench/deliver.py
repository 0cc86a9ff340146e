"""
From one process to another by file, up to the processed receipt back at the sender.

Messages are sent, kept and handled with a row of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, cast

from tests.bench import pipeline
from tests.bench.crew import LONGEST, Link, over, running, until
from tests.bench.mail import UNBOUNDED, Note, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Agent, Context, Postbox
from onceward.message.parcel import Durability

MESSAGES: Final = 50_000
BATCH: Final = 100
ROUNDS: Final = 3
TABLE: Final = "CREATE TABLE IF NOT EXISTS work (number INTEGER NOT NULL, text TEXT NOT NULL)"
WRITE: Final = "INSERT INTO work (number, text) VALUES (?, ?)"
GOALS: Final = (Goal("rate", at_least=12_000), Goal("ratio", at_least=0.45))

bob: Final = Agent("bob")


@bob.on(Note)
def work(body: Note, ctx: Context) -> None:
    """Write one row, as any handler would."""
    ctx.tx.execute(WRITE, (body.number, body.text))


def deliver(plan: Plan) -> Iterator[Result]:
    """
    Carry messages between two processes, against a pipeline by hand.

    The pipeline has an outbox, an inbox and acknowledgements.
    """
    size = plan.messages(MESSAGES, per_second=10_000)
    ours, by_hand = plan.room("ours"), plan.room("raw")
    with (
        running(receive, ours, "safe"),
        running(pipeline.receive, by_hand, "safe"),
        Postbox(ours / "alice.db", agent="alice", max_pending=UNBOUNDED) as box,
        pipeline.Sender(by_hand, "safe") as rival,
    ):
        plan.settle()
        pairs = alternate(
            lambda: lap(box, size), lambda: rival.lap(size, BATCH), rounds=min(ROUNDS, plan.rounds)
        )
    yield compare("deliver", pairs, durability="safe", goals=GOALS, messages=size, per_commit=BATCH)


def lap(box: Postbox, size: int) -> Lap:
    """Send in batches and wait until the last message is acknowledged as processed."""
    before = box.file.stats()["acked"]
    bodies = iter([("bob", note(number)) for number in range(size)])
    began = time.perf_counter()
    while batch := list(islice(bodies, BATCH)):
        box.send_many(batch)
    until(lambda: box.file.stats()["acked"] - before >= size)
    return Lap(size, time.perf_counter() - began)


def receive(link: Link, folder: Path, durability: str) -> None:
    """Handle whatever comes until told to end; the body of the other process."""
    with Postbox(folder / "bob.db", agent=bob, durability=cast("Durability", durability)) as box:
        with box.begin() as tx:
            tx.execute(TABLE)
        link.send("ready")
        over(link, LONGEST)
