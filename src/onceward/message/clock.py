"""
Define clocks, so that time is a parameter.

Stored moments are wall-clock milliseconds, waits are monotonic seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

Millis = int
"""A moment (UTC since 1970) or a span, in milliseconds; moments are named ``*_at``."""
# Libraries that freeze time in tests replace time.monotonic, in every module that refers to it.
monotonic: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""Return seconds on a clock that never steps; it goes on while a test freezes time."""


class Clock(Protocol):
    """The source of wall-clock and monotonic time."""

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
        return monotonic()


class MonotonicFileClock:
    """
    The time of one file: the wall clock, but it never goes back and never stops.

    If the wall clock is behind the file's time (it was set back, or had been wrong), the file's
    time runs at half speed until the wall clock has caught up: backoffs and leases still end, and
    the difference shrinks to zero.
    """

    FORGETS: Final[Millis] = 90_000
    """Maximum file time that may be lost; maintenance stores the time every minute."""

    def __init__(self) -> None:
        self._floor = 0
        self.wall: Millis = 0
        """The wall clock at the last call of ``now``."""
        self.persist_after: Millis = self.FORGETS
        """Moment after which the file time must be stored again."""
        self._behind: tuple[float, Millis] | None = None

    def observe(self, at: Millis) -> None:
        """Raise the file's time to *at*, which the file has stored."""
        self._floor, self._behind = max(self._floor, at), None
        self.mark_persisted(at)

    def observe_remote(self, at: Millis) -> None:
        """Raise the file's time to one that another process stored."""
        if at > self._floor:
            self.observe(at)

    def mark_persisted(self, at: Millis) -> None:
        """Record that *at* is stored in the file durably."""
        self.persist_after = max(self.persist_after, at + self.FORGETS)

    def now(self, clock: Clock) -> Millis:
        """Return the present moment, never before one that was returned earlier."""
        self.wall = wall = clock.now()
        if self._behind is None:
            if wall >= self._floor:
                self._floor = wall
                return wall
            self._behind = clock.monotonic(), self._floor
        since, floor = self._behind
        walked = max(self._floor, floor + int(500 * (clock.monotonic() - since)))
        if wall >= walked:
            walked, self._behind = wall, None
        self._floor = walked
        return walked


def iso(at: Millis) -> str:
    """Return *at* as RFC 3339 text with milliseconds, in UTC."""
    # Remembers one moment: many frames are written in one millisecond.
    global _last, _second  # noqa: PLW0603
    known, text = _last
    if known != at:
        seconds, millis = divmod(at, 1000)
        second = _second  # other threads change it
        if second[0] != seconds:
            _second = second = (seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)))
        text = f"{second[1]}.{millis:03d}Z"
        _last = (at, text)
    return text


_last: tuple[Millis, str] = (0, "1970-01-01T00:00:00.000Z")
_second: tuple[int, str] = (0, "1970-01-01T00:00:00")
