"""Time as a parameter: wall clock in milliseconds for what is stored, monotonic seconds for what is waited."""

from __future__ import annotations

import time
from typing import Final, Protocol

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


class MonotonicFileClock:
    """
    The time of one file: the wall clock, but it never runs backwards and never stands still.

    Where the wall clock is behind what the file has seen (it was set back, or
    had been wrong), time goes on from there at half pace until the wall clock
    has caught up: backoffs and leases still end, and the difference melts away.
    """

    FORGETS: Final[Millis] = 90_000
    """How much of the time a file may forget; janitors store it every minute, so that nobody else has to."""

    def __init__(self) -> None:
        self._floor = 0
        self.persist_after: Millis = self.FORGETS
        """The moment after which the file would forget too much of the time if it ended here."""
        self._behind: tuple[float, Millis] | None = None

    def observe(self, at: Millis) -> None:
        """Take note that the file has stored *at*."""
        self._floor, self._behind = max(self._floor, at), None
        self.mark_persisted(at)

    def observe_remote(self, at: Millis) -> None:
        """Take note of what another process stored: its deadlines in the file may be that far ahead."""
        if at > self._floor:
            self.observe(at)

    def mark_persisted(self, at: Millis) -> None:
        """Take note that the file will remember *at*, whatever happens to this process."""
        self.persist_after = max(self.persist_after, at + self.FORGETS)

    def now(self, clock: Clock) -> Millis:
        """Return the present moment, not before any that was returned earlier."""
        wall = clock.now()
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
    global _last, _second  # noqa: PLW0603 - one remembered moment: many frames are written in one millisecond, more in one second
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
