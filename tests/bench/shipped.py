"""
Case ``fleet-log``: the verdict from a log that was shipped every night, beside that from its files.

Both judge the same messages in this process; a lap's seconds are those of the processor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.nightly import DAY, grow
from tests.bench.plan import Plan
from tests.bench.reconcile import BEGAN, FEW, LOST, check, fill

from onceward.fleet import Rules, reconcile

MESSAGES: Final = 6000
PAIRS: Final = 20
NIGHTS: Final = 20
MILLION: Final = 1_000_000
GOALS: Final = (Goal("times", at_most=1.5),)
SKIPPED: Final = "not installed: pip install 'onceward[ship]'"


def shipped(plan: Plan) -> Iterator[Result]:
    """Ship pairs of files after each of some days, then judge the log and the files in turns."""
    if find_spec("pyarrow") is None:
        yield Result(case="fleet-log", durability="", more={"skipped": SKIPPED})
        return
    pairs = PAIRS if plan.seconds is None else FEW
    each = max(LOST + 1, plan.messages(MESSAGES, per_second=10_000) // pairs // NIGHTS)
    agents, log = plan.room("agents"), str(plan.folder / "log")
    _ship(agents, log, pairs, each)
    numbers = count()

    def judge(*paths: Path, **more: Any) -> Lap:
        began, rules = time.process_time(), Rules(now=BEGAN + (NIGHTS + 1) * DAY)
        out = plan.folder / f"out-{next(numbers)}"
        report = reconcile(*paths, out=out, rules=rules, **more)
        spent = time.process_time() - began
        check(report.verdicts, 2 * pairs)
        return Lap(report.messages, spent)

    laps = alternate(lambda: judge(log=log), lambda: judge(agents), rounds=plan.rounds)
    more = {
        "times": 1 / laps.ratio,
        "cpu_s": MILLION / max(one.rate for one in laps.ours),
        "raw_cpu_s": MILLION / max(one.rate for one in laps.raw),
        "both_cpu_s": MILLION / judge(agents, log=log).rate,
        "messages": laps.ours[0].messages,
        "nights": NIGHTS,
    }
    yield compare("fleet-log", laps, durability="none", goals=GOALS, files=2 * pairs, **more)


def _ship(agents: Path, log: str, pairs: int, each: int) -> None:
    from onceward.fleet import ship  # noqa: PLC0415 - an extra

    fill(agents, pairs, each)
    for night in range(NIGHTS):
        if night:
            for pair in range(pairs):
                grow(agents, pair, each, night)
        ship.files([str(agents)], log)
