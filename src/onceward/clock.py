"""Time as a parameter: wall clock in milliseconds for what is stored, monotonic seconds for what is waited."""

from __future__ import annotations

import time
from typing import Protocol

Millis = int
"""A moment (UTC since 1970) or a span, in milliseconds; moments are named ``*_at``."""


class Clock(Protocol):
    """What the library asks the world about time."""

    def now(self) -> Millis:
        """Return the wall clock in milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Millis:
        """Return the wall clock in milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps."""
        return time.monotonic()


def iso(at: Millis) -> str:
    """Return *at* as RFC 3339 text with milliseconds, in UTC."""
    global _last  # noqa: PLW0603 - one remembered moment: many frames are written in one millisecond
    known, text = _last
    if known != at:
        seconds, millis = divmod(at, 1000)
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03d}Z"
        _last = (at, text)
    return text


_last: tuple[Millis, str] = (0, "1970-01-01T00:00:00.000Z")
