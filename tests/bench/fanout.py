"""
Fan-out: one message to many, against the same rows by hand in one transaction.

Each lap has files of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench import raw
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Postbox

RECIPIENTS: Final = 10_000
PER_SECOND: Final = 20_000
SECONDS: Final = 0.5


def fanout(plan: Plan) -> Iterator[Result]:
    """Send one message to a channel of many; all copies and the one body are one commit."""
    size = plan.messages(RECIPIENTS, per_second=PER_SECOND)
    ours, by_hand, bodies = plan.room("ours"), plan.room("raw"), list[int]()
    with Postbox(ours / "owner.db", agent="owner", start=False) as box:
        box.channels.create("room").add_many(f"r{number}" for number in range(size))
    numbers = count()
    plan.settle()
    pairs = alternate(
        lambda: _ours(ours, f"a{next(numbers)}", bodies),
        lambda: _raw(by_hand / f"raw{next(numbers)}.db", size),
        rounds=plan.rounds,
    )
    seconds = median(lap.seconds for lap in pairs.ours)
    goals = [Goal("seconds", at_most=SECONDS)] if size == RECIPIENTS else []
    yield compare(
        "fanout",
        pairs,
        durability="safe",
        goals=goals,
        recipients=size,
        seconds=seconds,
        bodies_per_send=max(bodies),
    )


def _ours(home: Path, agent: str, bodies: list[int]) -> Lap:
    with Postbox(home / f"{agent}.db", agent=agent, start=False, max_pending=UNBOUNDED) as box:
        channel = box.channels.get("room")
        channel.join()
        size = len(channel.members()) - 1
        lap = _lap(size, lambda: channel.send(note()))
        bodies.append(box._db.read("SELECT count(*) FROM _onceward_bodies")[0][0])
    return lap


def _raw(path: Path, size: int) -> Lap:
    with raw.opened(path, "safe") as con:
        rows = raw.rows(note().model_dump_json())
        ready = [next(rows) for _ in range(size)]
        return _lap(size, lambda: raw.put_many(con, ready))


def _lap(size: int, work: Callable[[], object]) -> Lap:
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    return Lap(size, took, (took,))
