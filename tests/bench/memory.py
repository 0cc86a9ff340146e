"""How large a process grows over a full outbox, and how long an import takes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench import fill
from tests.bench.crew import LONGEST, Link, hear, over, running
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan
from tests.bench.sink import Sink, box_with

STATUS: Final = Path("/proc/self/status")
PENDING: Final = 1_000_000
LARGEST_MB: Final = 120.0
LONGEST_IMPORT: Final = 0.15
IMPORT: Final = "from onceward import Postbox"
IMPORTS: Final = 9
DRAIN_LAPS: Final = 20


def memory(plan: Plan) -> Iterator[Result]:
    """Drain a million pending messages in a fresh process, and import the package in fresh ones."""
    pending = plan.messages(PENDING, per_second=20_000)
    path = plan.room("full") / "alice.db"
    fill.pending(path, pending)
    with running(drain, path, pending, DRAIN_LAPS * plan.lap_for) as link:
        drained, largest, before = hear(link)
    more = {"pending": pending, "drained": drained, "rss_mb": largest, "rss_before_open_mb": before}
    yield Result(
        case="memory", durability="safe", more=more, goals=(Goal("rss_mb", at_most=LARGEST_MB),)
    )
    yield imported(plan.room("bytecode"), max(1, min(IMPORTS, plan.scaled(IMPORTS, per_second=50))))


def drain(link: Link, path: Path, pending: int, seconds: float) -> None:
    """
    Push out pending messages for a while and tell this process's peak size.

    This is the body of the other process.
    """
    sink, before = Sink(), largest_mb()
    with box_with(path, sink, start=True):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and sum(sink.messages) < pending:
            time.sleep(0.05)
    link.send("ready")
    link.send((sum(sink.messages), largest_mb(), before))
    over(link, LONGEST)


def largest_mb() -> float:
    """Return the largest size that this process ever had in memory, in MB."""
    # getrusage would tell the size that our parent had when it started us
    return _status_mb("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def present_mb() -> float:
    """Return the size of this process in memory, in MB; elsewhere than on Linux, the largest."""
    return _status_mb("VmRSS:") or largest_mb()


def _status_mb(name: str) -> float:
    if not STATUS.exists():
        return 0.0
    found = next(
        text for text in STATUS.read_text(encoding="ascii").splitlines() if text.startswith(name)
    )
    return int(found.split()[1]) * 1024 / 1e6


def imported(cache: Path, times: int) -> Result:
    """
    Return how much longer a fresh interpreter takes that imports the package.

    Its bytecode was compiled before.
    """
    world = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    world["PYTHONPYCACHEPREFIX"] = str(cache)
    _python(IMPORT, world)
    pairs = [(_python(IMPORT, world), _python("pass", world)) for _ in range(times)]
    extra = median(one - other for one, other in pairs)
    more = {"import_s": extra, "bare_python_s": median(other for _, other in pairs)}
    return Result(
        case="import",
        durability="none",
        more=more,
        goals=(Goal("import_s", at_most=LONGEST_IMPORT),),
    )


def _python(code: str, world: dict[str, str]) -> float:
    before = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=world)
    return time.perf_counter() - before
