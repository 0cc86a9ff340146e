"""Many callers at once, each waiting for its own durable commit: do they share it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Final

from onceward.bench import raw
from onceward.bench.mail import idle_box, note
from onceward.bench.measure import LAP_FOR, Goal, Lap, Pairs, Result, alternate, compare, repeat

CALLERS: Final = 64
WORST_MS: Final = 50.0
THREADS_RATIO: Final = 3.5


def threads(folder: Path, *, seconds: float = LAP_FOR, callers: int = CALLERS) -> Iterator[Result]:
    """Send from 64 threads, against one caller's INSERT and COMMIT by hand."""
    body = note()
    rows = raw.rows(body.model_dump_json())
    with idle_box(folder, "safe") as box, raw.opened(folder / "raw.db", "safe") as con:
        session = box.session("bench")
        pairs = alternate(
            lambda: _together(lambda: session.send("bob", body), callers, seconds),
            lambda: repeat(lambda: raw.put_one(con, next(rows)), seconds),
        )
    yield waited("group-threads", pairs, callers, THREADS_RATIO)


def waited(case: str, pairs: Pairs, callers: int, goal: float) -> Result:
    """Return the row with the longest that any caller had to wait."""
    worst = 1000 * max(max(lap.waits) for lap in pairs.ours)
    goals = [Goal("ratio", at_least=goal), Goal("worst_ms", at_most=WORST_MS)]
    return compare(case, pairs, durability="safe", goals=goals, callers=callers, worst_ms=worst)


def _together(step: Callable[[], object], callers: int, seconds: float) -> Lap:
    laps: list[Lap] = []
    start = Barrier(callers + 1)

    def run() -> None:
        start.wait()
        laps.append(repeat(step, seconds))

    crew = [Thread(target=run) for _ in range(callers)]
    for one in crew:
        one.start()
    start.wait()
    began = time.perf_counter()
    for one in crew:
        one.join()
    took = time.perf_counter() - began
    return Lap(sum(lap.messages for lap in laps), took, tuple(wait for lap in laps for wait in lap.waits))
