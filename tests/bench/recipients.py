"""
One message to each of a thousand recipients' files, beside ten recipients: a message's price.

Then with places for a tenth of these files: what a recipient costs among ten thousand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Final
from unittest.mock import patch

from tests.bench.crew import LONGEST, Link, hear, over, running
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate
from tests.bench.memory import present_mb
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.transports import file

MANY: Final = 1000
FEW: Final = 10
PER_SECOND: Final = 1000
RATIO: Final = 0.5
"""A message to one of a thousand may cost at most twice what it costs to one of ten."""
KB_EACH: Final = 100.0
PLACES: Final = 10
"""One file in so many may be open, as 1,024 of ten thousand."""
CPU_MS: Final = 2.5


def recipients(plan: Plan) -> Iterator[Result]:
    """Deliver rounds of one message each to a thousand recipients and to ten, in turns."""
    size = plan.messages(MANY, per_second=PER_SECOND)
    with _sender(plan.room("few"), FEW) as few, _sender(plan.room("many"), size) as many:
        took = list[float]()
        pairs = alternate(
            lambda: _timed_lap(many, size, took), lambda: _lap(few, FEW, max(1, size // FEW)),
            rounds=plan.rounds,
        )  # fmt: skip
    with running(grow, plan.room("memory"), size) as link:
        grown = hear(link)
    yield Result(
        case="recipients",
        durability="safe",
        rate=median(lap.rate for lap in pairs.ours),
        ratio=pairs.ratio,
        more={"recipients": size, "beside": FEW, "kb_each": grown, "cpu_ms": min(took)},
        goals=(
            Goal("ratio", at_least=RATIO),
            Goal("kb_each", at_most=KB_EACH),
            Goal("cpu_ms", at_most=CPU_MS),
        )
        if size == MANY
        else (),
    )
    yield _beyond(plan, size)


def grow(link: Link, folder: Path, size: int) -> None:
    """
    Deliver to each recipient and tell by how many KB that grows this process for each.

    This is the body of the other process: memory that earlier cases have freed hides the growth.
    """
    with _sender(folder, size) as box:
        link.send("ready")
        before = present_mb()
        _lap(box, size, 1)
        link.send(1000 * (present_mb() - before) / size)
        over(link, LONGEST)


def _beyond(plan: Plan, size: int) -> Result:
    """Return the processor time of a message where ten times as many files are used as may be."""
    with (
        patch.object(file, "files_allowed", lambda: max(1, size // PLACES)),
        _sender(plan.room("beyond"), size) as box,
    ):
        _lap(box, size, 1)
        took = list[float]()
        for _ in range(min(3, plan.rounds)):
            _timed_lap(box, size, took)
    return Result(
        case="recipients-beyond",
        durability="safe",
        more={"recipients": size, "open": max(1, size // PLACES), "cpu_ms": median(took)},
        goals=(Goal("cpu_ms", at_most=CPU_MS),) if size == MANY else (),
    )


@contextmanager
def _sender(folder: Path, size: int) -> Iterator[Postbox]:
    for number in range(size):
        Postbox(folder / f"r{number}.db", agent=f"r{number}", start=False).close()
    with Postbox(folder / "s.db", agent="s", start=False, max_pending=UNBOUNDED) as box:
        yield box


def _timed_lap(box: Postbox, size: int, took: list[float]) -> Lap:
    """Send one message to each; keep the milliseconds of the processor for a message."""
    before = time.process_time()
    lap = _lap(box, size, 1)
    took.append(1000 * (time.process_time() - before) / size)
    return lap


def _lap(box: Postbox, size: int, rounds: int) -> Lap:
    began = time.perf_counter()
    for _ in range(rounds):
        box.send_many(zip((f"r{number}" for number in range(size)), repeat(note())))
        box.run_until_idle()
    return Lap(size * rounds, time.perf_counter() - began)
