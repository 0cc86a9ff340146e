"""Many callers at once, each waiting for its own durable commit: whether they share it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from threading import Barrier, Thread
from typing import Final

from tests.bench import raw
from tests.bench.mail import UNBOUNDED, idle_box, note
from tests.bench.measure import Goal, Lap, Pairs, Result, alternate, compare, repeat
from tests.bench.plan import Plan

from onceward import AsyncPostbox

CALLERS: Final = 64
WORST_MS: Final = 50.0
GOALS: Final = {"threads": 3.0, "tasks": 6.0}


def group(plan: Plan) -> Iterator[Result]:
    """Send from 64 threads, then from 64 tasks, against one caller's INSERT and COMMIT by hand."""
    yield from threads(plan)
    yield from tasks(plan)


def threads(plan: Plan) -> Iterator[Result]:
    """Send from 64 threads of one process."""
    body = note()
    ours, by_hand = plan.room("threads"), plan.room("raw-threads")
    rows = raw.rows(body.model_dump_json())
    with idle_box(ours, "safe") as box, raw.opened(by_hand / "raw.db", "safe") as con:
        session = box.session("bench")
        plan.settle()
        pairs = alternate(
            lambda: together(lambda: session.send("bob", body), plan.lap_for),
            lambda: repeat(lambda: raw.put_one(con, next(rows)), plan.lap_for),
            rounds=plan.rounds,
        )
    yield _row("threads", pairs)


def tasks(plan: Plan) -> Iterator[Result]:
    """Send from 64 tasks of one event loop."""
    body = note()
    ours, by_hand = plan.room("tasks"), plan.room("raw-tasks")
    rows = raw.rows(body.model_dump_json())
    with asyncio.Runner() as runner, raw.opened(by_hand / "raw.db", "safe") as con:
        made = AsyncPostbox(
            ours / "alice.db", agent="alice", start=False, hold_unknown=True, max_pending=UNBOUNDED
        )
        box = runner.run(made.__aenter__())
        session = box.session("bench")
        plan.settle()
        pairs = alternate(
            lambda: runner.run(_gathered(lambda: session.send("bob", body), plan.lap_for)),
            lambda: repeat(lambda: raw.put_one(con, next(rows)), plan.lap_for),
            rounds=plan.rounds,
        )
        runner.run(box.close())
    yield _row("tasks", pairs)


def _row(callers: str, pairs: Pairs) -> Result:
    """Return the row with the longest that any caller had to wait."""
    worst = 1000 * max(max(lap.waits) for lap in pairs.ours)
    goals = [Goal("ratio", at_least=GOALS[callers]), Goal("worst_ms", at_most=WORST_MS)]
    return compare(
        f"group-{callers}", pairs, durability="safe", goals=goals, callers=CALLERS, worst_ms=worst
    )


def together(step: Callable[[], object], seconds: float) -> Lap:
    """Repeat *step* in all threads at once; return what they did together."""
    laps: list[Lap] = []
    start = Barrier(CALLERS + 1)

    def run() -> None:
        start.wait()
        laps.append(repeat(step, seconds))

    crew = [Thread(target=run) for _ in range(CALLERS)]
    for one in crew:
        one.start()
    start.wait()
    began = time.perf_counter()
    for one in crew:
        one.join()
    return _sum(laps, time.perf_counter() - began)


async def _gathered(step: Callable[[], Awaitable[object]], seconds: float) -> Lap:
    began = time.perf_counter()
    laps = await asyncio.gather(*(_repeat(step, seconds) for _ in range(CALLERS)))
    return _sum(laps, time.perf_counter() - began)


async def _repeat(step: Callable[[], Awaitable[object]], seconds: float) -> Lap:
    clock, waits = time.perf_counter, list[float]()
    began = before = clock()
    while not waits or before - began < seconds:
        await step()
        after = clock()
        waits.append(after - before)
        before = after
    return Lap(len(waits), before - began, tuple(waits))


def _sum(laps: list[Lap], seconds: float) -> Lap:
    return Lap(
        sum(lap.messages for lap in laps),
        seconds,
        tuple(chain.from_iterable(lap.waits for lap in laps)),
    )
