"""
Laps, medians and the machine they were measured on.

Ratios of alternating laps are the result; absolute rates are for orientation only.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import apsw

from onceward.file.file_checks import filesystem


@dataclass(frozen=True, slots=True)
class Lap:
    """How many messages one lap moved, in which time, and how long its single steps took."""

    messages: int
    seconds: float
    waits: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Alternating laps: ours, by hand, ours, by hand."""

    ours: tuple[Lap, ...]
    raw: tuple[Lap, ...]

    @property
    def ratio(self) -> float:
        """Median of the pairwise ratios: neighbours in time meet the same machine."""
        return median(one.rate / other.rate for one, other in zip(self.ours, self.raw, strict=True))


@dataclass(frozen=True, slots=True)
class Goal:
    """What a number is to reach on two cores; exactly one bound is given."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def judged(self, value: float) -> dict[str, Any]:
        """Return the bound and whether *value* keeps it."""
        if self.at_least is not None:
            return {"at_least": self.at_least, "met": value >= self.at_least}
        return {"at_most": self.at_most, "met": value <= (self.at_most or 0.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured row of a case."""

    case: str
    durability: str
    rate: float | None = None
    raw_rate: float | None = None
    ratio: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()

    def as_dict(self, machine: dict[str, Any]) -> dict[str, Any]:
        """Return the row as it is printed; numbers carry four significant digits at most."""
        core = {
            name: getattr(self, name) for name in ("rate", "raw_rate", "ratio", "p50_ms", "p99_ms")
        }
        values = {name: short(value) for name, value in (core | self.more).items()}
        judged = {
            goal.metric: goal.judged(values[goal.metric])
            for goal in self.goals
            if values.get(goal.metric) is not None
        }
        return {
            "case": self.case,
            **values,
            "durability": self.durability,
            "goals": judged,
            "machine": machine,
        }


def compare(
    case: str, pairs: Pairs, *, durability: str, goals: Sequence[Goal] = (), **more: Any
) -> Result:
    """Return the row of alternating laps: medians of the rates, quantiles of every wait of ours."""
    waits = sorted(wait for lap in pairs.ours for wait in lap.waits)
    return Result(
        case=case,
        durability=durability,
        rate=median(lap.rate for lap in pairs.ours),
        raw_rate=median(lap.rate for lap in pairs.raw),
        ratio=pairs.ratio,
        p50_ms=quantile_ms(waits, 0.5),
        p99_ms=quantile_ms(waits, 0.99),
        more=more,
        goals=tuple(goals),
    )


def alternate(ours: Callable[[], Lap], raw: Callable[[], Lap], *, rounds: int) -> Pairs:
    """Run the two in turns after one unmeasured lap each."""
    ours(), raw()
    pairs = []
    for _ in range(rounds):
        gc.collect()
        pairs.append((ours(), raw()))
    return Pairs(tuple(one for one, _ in pairs), tuple(other for _, other in pairs))


def repeat(step: Callable[[], object], seconds: float, *, messages: int = 1) -> Lap:
    """Repeat *step*, which moves *messages*, for about *seconds*, at least once."""
    clock, waits = time.perf_counter, list[float]()
    began = before = clock()
    while not waits or before - began < seconds:
        step()
        after = clock()
        waits.append(after - before)
        before = after
    return Lap(messages * len(waits), before - began, tuple(waits))


def quantile_ms(ordered: Sequence[float], share: float) -> float | None:
    """Return a quantile of sorted seconds, in milliseconds; None of nothing."""
    if not ordered:
        return None
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def short(value: Any) -> Any:
    """Round floats to four significant digits; leave everything else alone."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}")


def machine(folder: Path) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    return {
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "filesystem": filesystem(folder),
        "sync_ms": short(sync_ms(folder / "sync")),
        "python": platform.python_version(),
        "build": python_build(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "scheduler": scheduler(),
        "load": short(os.getloadavg()[0]) if hasattr(os, "getloadavg") else None,
    }


def python_build() -> str:
    """
    Return how this Python was compiled.

    Builds without ``--enable-optimizations`` run Python code slower. Debian's has its optimizations
    from another step, which the flags do not name.
    """
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if "--enable-optimizations" in flags:
        return "optimized"
    return "the build of the system" if sys.base_prefix == "/usr" else "not optimized"


def scheduler() -> str:
    """
    Return whether this process has ordinary scheduling, or runs before other processes.

    With ordinary scheduling a busy neighbour costs a tick per sync.
    """
    if not hasattr(os, "sched_getscheduler"):
        return "ordinary"
    return "ordinary" if os.sched_getscheduler(0) == os.SCHED_OTHER else "real-time"


def sync_ms(path: Path, times: int = 40) -> float:
    """Return the median time of one synced 4 KiB write, the least a durable commit can take."""
    waits, page = [], bytes(4096)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(times):
            before = time.perf_counter()
            os.pwrite(handle, page, 0)
            os.fsync(handle)
            waits.append(time.perf_counter() - before)
    finally:
        os.close(handle)
        path.unlink()
    return 1000 * median(waits)
