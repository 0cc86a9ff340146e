"""
A group that shares a mailbox: cost of a lease and a settlement, and wait of long polls.

Costs are per message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from tests.bench import raw
from tests.bench.crew import Link, hear, over, running, say_when
from tests.bench.mail import note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Postbox

FULL: Final = 2_000
PER_SECOND: Final = 800
WAKES: Final = 100
MEMBERS: Final = 5
WAKE_MS: Final = 50.0
RATIO: Final = 0.2
AHEAD: Final = 10
CROWD: Final = 3.0
"""Five members that lease ten at a time are to be so many times as fast as one that leases one."""
LAPS: Final = 3
SETUP: Final = (
    "CREATE TABLE tasks (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, owner TEXT, "
    "until INTEGER) STRICT"
)
PUT: Final = "INSERT INTO tasks (body) VALUES (?)"
TAKE: Final = """
UPDATE tasks SET owner = 'me', until = ?
  WHERE seq = (SELECT min(seq) FROM tasks WHERE owner IS NULL)
  RETURNING seq, body
"""
DONE: Final = "DELETE FROM tasks WHERE seq = ? AND owner = 'me'"


def claim_group(plan: Plan) -> Iterator[Result]:
    """
    Lease and settle one message after the other, against a claim by hand.

    Then let members do so in processes, and measure how soon they wake.
    """
    messages = plan.messages(FULL, per_second=PER_SECOND)
    ours, by_hand = plan.room("claims"), plan.room("raw-claims")
    numbers = count()
    with (
        Postbox(ours / "owner.db", agent="owner", start=False) as box,
        raw.opened(by_hand / "raw.db", "safe") as con,
    ):
        jobs = box.mailboxes.ensure("jobs", public=True, ttl=None)
        con.execute(SETUP)
        _fill(box, jobs, messages)
        plan.settle()
        pairs = alternate(
            lambda: _ours(jobs, f"g{next(numbers)}", max(1, messages // plan.rounds)),
            lambda: _raw(con, max(1, messages // plan.rounds)),
            rounds=plan.rounds,
        )
        yield compare(
            "claim-group",
            pairs,
            durability="safe",
            goals=[Goal("ratio", at_least=RATIO)],
            members=1,
        )
        yield _crowds(box, jobs, messages, min(LAPS, plan.rounds))
        yield _wakes(box, plan.scaled(WAKES, per_second=200))


def _fill(box: Postbox, jobs: Any, messages: int) -> None:
    for _ in range(messages):
        jobs.send(note())
    box.run_until_idle()


def _ours(jobs: Any, group: str, messages: int) -> Lap:
    began, done = time.perf_counter(), 0
    while done < messages and (found := jobs.lease(group)):
        found[0].ack()
        done += 1
    return Lap(done, time.perf_counter() - began)


def _raw(con: Any, messages: int) -> Lap:
    con.executemany(PUT, [(note().model_dump_json(),) for _ in range(messages)])
    began, done = time.perf_counter(), 0
    for _ in range(messages):
        [(seq, _)] = con.execute(TAKE, (time.time_ns(),)).fetchall()
        con.execute(DONE, (seq,))
        done += 1
    return Lap(done, time.perf_counter() - began)


def _crowds(box: Postbox, jobs: Any, messages: int, laps: int) -> Result:
    """Return how quick five processes of one group are together, beside one; and one with ten."""
    found = [
        (
            _crowd(box, jobs, f"five-{lap}", members=MEMBERS, limit=AHEAD),
            _crowd(box, jobs, f"one-{lap}", members=1, limit=1),
            _crowd(box, jobs, f"ahead-{lap}", members=1, limit=AHEAD),
        )
        for lap in range(laps)
    ]
    return Result(
        case="claim-group",
        durability="safe",
        rate=median(five for five, _, _ in found),
        raw_rate=median(one for _, one, _ in found),
        ratio=median(five / one for five, one, _ in found),
        more={
            "members": MEMBERS,
            "messages": messages,
            "one_by_tens": median(ahead for _, _, ahead in found),
        },
        goals=(Goal("ratio", at_least=CROWD),),
    )


def _crowd(box: Postbox, jobs: Any, group: str, *, members: int, limit: int) -> float:
    """Return how many messages a second so many processes of one group handle together."""
    with ExitStack() as stack:
        crew = [
            stack.enter_context(running(member, box.file.path, group, limit))
            for _ in range(members)
        ]
        began = time.perf_counter()
        for link in crew:
            link.send("go")
        handled = sum(hear(link) for link in crew)
        seconds = time.perf_counter() - began
    assert handled == jobs.count()
    return float(handled / seconds)


def member(link: Link, path: Path, group: str, limit: int) -> None:
    """Handle messages of a group until there are none; acknowledge those of a lease together."""
    with Postbox(path, agent="owner", start=False) as box:
        jobs = box.mailboxes.get("jobs")
        link.send("ready")
        link.recv()
        handled = 0
        while found := jobs.lease(group, limit=limit):
            with box.begin():
                for message in found:
                    message.ack()
            handled += len(found)
        link.send(handled)


def _wakes(box: Postbox, wakes: int) -> Result:
    """Return how long after a commit a member that waits in another process has the message."""
    waits = box.mailboxes.ensure("wakes", public=True, ttl=None)
    took = []
    with running(sleeper, box.file.path) as link:
        for _ in range(max(2, wakes)):
            waits.send(note())
            box.run_until_idle()
            committed = time.monotonic_ns()
            took.append(max(0.0, (hear(link) - committed) / 1e6))
        link.send("over")
        waits.send(note())
        box.run_until_idle()
    p50 = median(took)
    goals = (Goal("p50_ms", at_most=WAKE_MS),)
    return Result(
        case="claim-wake",
        durability="safe",
        p50_ms=p50,
        p99_ms=quantiles(took, n=100)[98],
        goals=goals,
    )


def sleeper(link: Link, path: Path) -> None:
    """Wait for one message after the other and say when it was there."""
    with Postbox(path, agent="owner", start=False) as box:
        waits = box.mailboxes.get("wakes")
        link.send("ready")
        while not over(link):
            message = waits.receive("sleepers", timeout=1.0)
            if message is not None and not over(link):
                say_when(link)
                message.ack()
