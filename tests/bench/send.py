"""Sending by one caller: one message per commit, and a hundred per commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tests.bench import raw
from tests.bench.mail import idle_box, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare, repeat
from tests.bench.plan import Plan

MANY: Final = 100
MOST_COMMITS: Final = 5000
"""Of a hundred rows each: more than any machine does in a second."""
SINGLE_GOALS: Final = {"safe": 0.80, "fast": 0.55}
MANY_GOALS: Final = {"safe": 0.55, "fast": 0.55}


def send(plan: Plan) -> Iterator[Result]:
    """Commit one message at a time, against INSERT and COMMIT by hand."""
    for durability, goal in SINGLE_GOALS.items():
        ours, by_hand = plan.room(f"ours-{durability}"), plan.room(f"raw-{durability}")
        body = note()
        rows = raw.rows(body.model_dump_json())
        with idle_box(ours, durability) as box, raw.opened(by_hand / "raw.db", durability) as con:
            session = box.session("bench")
            plan.settle()
            pairs = alternate(
                lambda: repeat(lambda: session.send("bob", body), plan.lap_for),
                lambda: repeat(lambda: raw.put_one(con, next(rows)), plan.lap_for),
                rounds=plan.rounds,
            )
        yield compare("send", pairs, durability=durability, goals=[Goal("ratio", at_least=goal)])


def send_many(plan: Plan) -> Iterator[Result]:
    """
    Commit a hundred messages at a time, against ``executemany`` over prebuilt tuples.

    The tuples are built before the clock starts.
    """
    for durability, goal in MANY_GOALS.items():
        ours, by_hand = plan.room(f"ours-{durability}"), plan.room(f"raw-{durability}")
        bodies = [("bob", note(number)) for number in range(MANY)]
        rows = raw.rows(bodies[0][1].model_dump_json())
        with idle_box(ours, durability) as box, raw.opened(by_hand / "raw.db", durability) as con:
            session = box.session("bench")
            plan.settle()
            pairs = alternate(
                lambda: repeat(lambda: session.send_many(bodies), plan.lap_for, messages=MANY),
                lambda: _raw_lap(con, rows, plan.lap_for),
                rounds=plan.rounds,
            )
        yield compare(
            "send-many",
            pairs,
            durability=durability,
            goals=[Goal("ratio", at_least=goal)],
            per_commit=MANY,
        )


def _raw_lap(con: raw.Connection, rows: Iterator[raw.Row], seconds: float) -> Lap:
    ready = [list(islice(rows, MANY)) for _ in range(50 + round(seconds * MOST_COMMITS))]
    return repeat(lambda: raw.put_many(con, ready.pop()), seconds, messages=MANY)
