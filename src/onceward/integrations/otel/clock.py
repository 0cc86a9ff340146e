"""Time an operation so that its span and its metric have one duration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The begin of an operation; its end does not follow steps of the wall clock."""

    started_at: int = field(default_factory=time.time_ns)
    """Nanoseconds since the epoch."""
    ticks: int = field(default_factory=time.perf_counter_ns)

    def now(self) -> tuple[int, float]:
        """Return the present moment in nanoseconds, and the seconds since the begin."""
        passed = time.perf_counter_ns() - self.ticks
        return self.started_at + passed, passed / 1e9
