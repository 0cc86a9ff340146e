"""One, two and three processes with workers on one file whose handler does next to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.commits import commits
from tests.bench.crew import LONGEST, Link, hear, over, running, until
from tests.bench.deliver import TABLE, bob
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan

from onceward import Postbox

MESSAGES: Final = 6000
SESSIONS: Final = 20
ROUNDS: Final = 3
CROWDS: Final = (1, 2, 3)
STARTED: Final = 0.03
"""Share of the messages that are handled before the clock starts: until then processes open."""
GOAL: Final = (Goal("ratio", at_least=0.9),)


def processes(plan: Plan) -> Iterator[Result]:
    """Handle a backlog by ever more processes, in turns; another one must not cost."""
    each = max(1, plan.messages(MESSAGES, per_second=10_000) // SESSIONS)
    found = [
        [_lap(plan.room(f"{crowd}-{lap}"), crowd, each) for crowd in CROWDS]
        for lap in range(min(ROUNDS, plan.rounds))
    ]
    for place, crowd in enumerate(CROWDS):
        yield Result(
            case="processes",
            durability="safe",
            rate=median(lap[place][0] for lap in found),
            ratio=median(lap[place][0] / lap[0][0] for lap in found),
            more={
                "processes": crowd,
                "messages": each * SESSIONS,
                "messages_a_commit": median(lap[place][1] for lap in found),
            },
            goals=GOAL if crowd > 1 else (),
        )


def _lap(home: Path, crowd: int, each: int) -> tuple[float, float]:
    """Return how many messages a second so many processes handle, and how many in a commit."""
    total = each * SESSIONS
    with Postbox(home / "bob.db", agent="bob", start=False, max_inbox=UNBOUNDED) as box:
        with box.begin() as tx:
            tx.execute(TABLE)
        with Postbox(home / "alice.db", agent="alice", start=False, max_pending=UNBOUNDED) as user:
            for number in range(SESSIONS):
                user.session(f"s{number}").send_many([("bob", note())] * each)
            user.run_until_idle()
        with ExitStack() as stack:
            crew = [stack.enter_context(running(worker, home)) for _ in range(crowd)]
            before = commits(home)
            for link in crew:
                link.send("go")
            until(lambda: box.file.stats()["processed"] >= STARTED * total)
            began, done = time.perf_counter(), box.file.stats()["processed"]
            until(lambda: box.file.stats()["processed"] >= total)
            rate = (total - done) / (time.perf_counter() - began)
            return rate, total / (commits(home) - before)


def worker(link: Link, home: Path) -> None:
    """Handle what waits, from the word on; the body of the other processes."""
    link.send("ready")
    hear(link)
    with Postbox(home / "bob.db", agent=bob):
        over(link, LONGEST)
