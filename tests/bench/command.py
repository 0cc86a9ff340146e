"""Benchmarks: the library's cost over the same work by hand, measured side by side in one run."""

from __future__ import annotations

import json as jsonlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.cases import CASES, SPARK_CASES
from tests.bench.cases import case as find
from tests.bench.measure import machine
from tests.bench.plan import Plan
from tests.bench.show import line

DONE: Final = 0
UNKNOWN: Final = 2


def run(
    case: str,
    *,
    json: bool = False,
    seconds: float | None = None,
    size: int | None = None,
    folder: Path | None = None,
    page: bool = False,
) -> int:
    """
    Measure one case and print its rows.

    Args:
        case: send, send-many, group, deliver, slow-disk, wake, backlog, peers, processes,
            claim-group, runs, history, topics, fanout, recipients, large-body, memory, growth,
            fleet-lanes, fleet-log, fleet, fleet-reconcile, or report: all of them,
            and the page that shows their figures.
        json: One JSON object per row instead of words.
        seconds: Length of one lap; short laps also shrink the sizes, for a quick look.
        size: Number of messages, where a case has one.
        folder: Where the files lie; the disk under it is what is measured.
        page: Write the rows into the page that shows the figures, beside those of other builds of
            Python.

    """
    if case == "report":
        from tests.bench.report import measured  # noqa: PLC0415 - it draws and writes, which no other case needs

        measured(
            row
            for name in CASES | SPARK_CASES
            for row in rows(name, seconds=seconds, size=size, folder=folder)
        )
        return DONE
    if case not in CASES | SPARK_CASES:
        sys.stderr.write(
            f"no case is called {case!r}: there are {', '.join(CASES | SPARK_CASES)}, and report\n"
        )
        return UNKNOWN
    if page:
        from tests.bench.report import merged  # noqa: PLC0415 - as above

        merged(rows(case, seconds=seconds, size=size, folder=folder))
        return DONE
    for row in rows(case, seconds=seconds, size=size, folder=folder):
        sys.stdout.write(f"{jsonlib.dumps(row) if json else line(row)}\n")
        sys.stdout.flush()
    return DONE


def rows(
    case: str, *, seconds: float | None = None, size: int | None = None, folder: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one case as they are measured."""
    with tempfile.TemporaryDirectory(
        dir=folder, prefix="onceward-bench-", ignore_cleanup_errors=True
    ) as made:
        plan = Plan(folder=Path(made), seconds=seconds, size=size)
        facts = machine(plan.folder)
        for result in find(case)(plan):
            yield result.as_dict(facts)
