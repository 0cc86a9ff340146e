"""One message to each of a thousand recipients' files, beside ten recipients: a message's price."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate
from tests.bench.memory import largest_mb
from tests.bench.plan import Plan

from onceward import Postbox

MANY: Final = 1000
FEW: Final = 10
PER_SECOND: Final = 1000
RATIO: Final = 0.5
"""A message to one of a thousand may cost at most twice what it costs to one of ten."""


def recipients(plan: Plan) -> Iterator[Result]:
    """Deliver rounds of one message each to a thousand recipients and to ten, in turns."""
    size = plan.messages(MANY, per_second=PER_SECOND)
    with _sender(plan.room("few"), FEW) as few, _sender(plan.room("many"), size) as many:
        before = largest_mb()
        pairs = alternate(
            lambda: _lap(many, size, 1), lambda: _lap(few, FEW, max(1, size // FEW)),
            rounds=plan.rounds,
        )  # fmt: skip
        grown = 1000 * (largest_mb() - before) / size
    yield Result(
        case="recipients",
        durability="safe",
        rate=median(lap.rate for lap in pairs.ours),
        ratio=pairs.ratio,
        more={"recipients": size, "beside": FEW, "kb_each": grown},
        goals=(Goal("ratio", at_least=RATIO),) if size == MANY else (),
    )


@contextmanager
def _sender(folder: Path, size: int) -> Iterator[Postbox]:
    for number in range(size):
        Postbox(folder / f"r{number}.db", agent=f"r{number}", start=False).close()
    with Postbox(folder / "s.db", agent="s", start=False, max_pending=UNBOUNDED) as box:
        yield box


def _lap(box: Postbox, size: int, rounds: int) -> Lap:
    began = time.perf_counter()
    for _ in range(rounds):
        box.send_many(zip((f"r{number}" for number in range(size)), repeat(note())))
        box.run_until_idle()
    return Lap(size * rounds, time.perf_counter() - began)
