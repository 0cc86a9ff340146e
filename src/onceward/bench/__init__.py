"""Benchmarks: what the library costs over the same work written by hand, measured side by side in one run."""

from __future__ import annotations

import json as jsonlib
import sys
import tempfile
from pathlib import Path

from onceward.bench.cases import CASES, case as find
from onceward.bench.measure import machine
from onceward.bench.plan import Plan
from onceward.bench.show import line

DONE = 0
UNKNOWN = 2


def run(
    case: str, *, json: bool = False, seconds: float | None = None, size: int | None = None, folder: Path | None = None
) -> int:
    """
    Measure one case and print its rows.

    Args:
        case: send, send-many, group, deliver, wake, backlog, peers, memory, or report, which writes the page.
        json: One JSON object per row instead of words.
        seconds: Length of one lap; short laps also shrink the sizes, for a quick look.
        size: Number of messages, where a case has one.
        folder: Where the files lie; the disk under it is what is measured.

    """
    if case == "report":
        from onceward.bench.report import write  # noqa: PLC0415 - it draws, and knows every case

        return write(seconds=seconds, folder=folder)
    if case not in CASES:
        sys.stderr.write(f"no case is called {case!r}: there are {', '.join(CASES)}, and report\n")
        return UNKNOWN
    with tempfile.TemporaryDirectory(dir=folder, prefix="onceward-bench-", ignore_cleanup_errors=True) as made:
        plan = Plan(folder=Path(made), seconds=seconds, size=size)
        facts = machine(plan.folder)
        for result in find(case)(plan):
            row = result.as_dict(facts)
            sys.stdout.write(f"{jsonlib.dumps(row) if json else line(row)}\n")
            sys.stdout.flush()
    return DONE
