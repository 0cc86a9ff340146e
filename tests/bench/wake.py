"""Time of one message from an idle sender to a commit in another process, and cost of idling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, cast

from tests.bench import pipeline
from tests.bench.crew import LONGEST, Link, hear, over, running, say_when
from tests.bench.deliver import TABLE, bob
from tests.bench.mail import note
from tests.bench.measure import Goal, Result, quantile_ms
from tests.bench.memory import present_mb
from tests.bench.plan import Plan

from onceward import Agent, Postbox, Tuning
from onceward.events import Processed
from onceward.file.open_files import REST_PERIOD
from onceward.message.parcel import Durability

ROUNDS: Final = 100
WARM: Final = 3
REST: Final = 0.02
P50_MS: Final = {"safe": 2.5, "fast": 1.2}
IDLE_PERCENT: Final = {1: 0.5, 200: 1.5}
RESTING_MB: Final = 150.0
"""Maximum size of the process with all these postboxes, once their files rest."""
SETTLE_FOR: Final = 0.5
RESTS_AFTER: Final = 3 * REST_PERIOD
"""Seconds after which files that nothing uses have freed their memory."""


def wake(plan: Plan) -> Iterator[Result]:
    """
    Send one message at a time to an idle process, against the pipeline by hand, in turns.

    Then let processes idle.
    """
    yield from latency(plan)
    yield from idle(plan)


def latency(plan: Plan) -> Iterator[Result]:
    """Measure from the call to the commit of the other process's handler, without the slow net."""
    rounds = plan.messages(ROUNDS, per_second=200)
    for durability, limit in P50_MS.items():
        ours, by_hand = plan.room(f"ours-{durability}"), plan.room(f"raw-{durability}")
        with (
            running(receive, ours, durability) as link,
            running(pipeline.receive, by_hand, durability, say_when) as other,
            Postbox(
                ours / "alice.db",
                agent="alice",
                durability=cast("Durability", durability),
                tuning=Tuning(poll_interval=0),
            ) as box,
            pipeline.Sender(by_hand, durability) as rival,
        ):
            plan.settle()
            body = note()
            pairs = [
                (once(lambda: box.send("bob", body), link), once(rival.send, other))
                for _ in range(rounds + WARM)
            ][WARM:]
        yield _row(durability, [one for one, _ in pairs], [other for _, other in pairs], limit)


def _row(durability: str, ours: list[float], raw: list[float], limit: float) -> Result:
    return Result(
        case="wake",
        durability=durability,
        ratio=median(raw) / median(ours),
        p50_ms=quantile_ms(sorted(ours), 0.5),
        p99_ms=quantile_ms(sorted(ours), 0.99),
        more={
            "raw_p50_ms": quantile_ms(sorted(raw), 0.5),
            "raw_p99_ms": quantile_ms(sorted(raw), 0.99),
            "rounds": len(ours),
        },
        goals=(Goal("p50_ms", at_most=limit),),
    )


def once(send: Callable[[], object], link: Link) -> float:
    """Return the seconds from the call to the other process's commit; its clock is ours."""
    time.sleep(REST)
    before = time.monotonic_ns()
    send()
    return (int(hear(link)) - before) / 1e9


def receive(link: Link, folder: Path, durability: str) -> None:
    """Handle whatever comes and tell when it was committed; the body of the other process."""
    with Postbox(
        folder / "bob.db",
        agent=bob,
        durability=cast("Durability", durability),
        tuning=Tuning(poll_interval=0),
    ) as box:
        with box.begin() as tx:
            tx.execute(TABLE)
        box.on(Processed, lambda _: say_when(link))
        link.send("ready")
        over(link, LONGEST)


def idle(plan: Plan) -> Iterator[Result]:
    """Let a process watch idle postboxes with the default settings, and read its CPU time."""
    for full, limit in IDLE_PERCENT.items():
        boxes = min(full, plan.scaled(full, per_second=200))
        settle = RESTS_AFTER if boxes == full else SETTLE_FOR
        with running(rest, plan.room(f"idle-{full}"), boxes, settle, 10 * plan.lap_for) as link:
            percent, opened, resting = hear(link)
        more = {"boxes": boxes, "cpu_percent": percent, "opened_mb": opened, "resting_mb": resting}
        goals = (Goal("cpu_percent", at_most=limit), Goal("resting_mb", at_most=RESTING_MB))
        yield Result(case="idle", durability="safe", more=more, goals=goals)


def rest(link: Link, home: Path, count: int, settle: float, seconds: float) -> None:
    """
    Open postboxes, do nothing, and tell the share of a core and the sizes: just opened, and later.

    This is the body of the other process.
    """
    with ExitStack() as stack:
        for number in range(count):
            agent = Agent(f"agent{number}")
            agent.on("bench.note")(_ignore)
            stack.enter_context(Postbox(home / f"agent{number}.db", agent=agent))
        opened = present_mb()
        link.send("ready")
        time.sleep(settle)
        before = time.process_time()
        time.sleep(seconds)
        link.send((100 * (time.process_time() - before) / seconds, opened, present_mb()))
        over(link, LONGEST)


def _ignore(body: object) -> None:
    del body
