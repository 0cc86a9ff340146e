"""Define a clock that only tests advance."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from onceward.message.arguments import checked
from onceward.message.clock import Millis
from onceward.message.times import Span, millis

START_AT: Final[Millis] = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the same in every run, so that printed dates can be compared."""


class ManualClock:
    """
    A clock that the test controls.

    Pass one clock to every postbox of a test, so that they share the time.
    """

    @checked
    def __init__(self, start_at: Millis = START_AT) -> None:
        self._wall, self._waited = start_at, 0

    def now(self) -> Millis:
        """Return the wall clock in milliseconds since 1970, UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Return the seconds waited since the start; steps of the wall clock do not count."""
        return self._waited / 1000

    def advance(self, span: Span) -> None:
        """
        Advance both clocks.

        Raises:
            InvalidArgument: *span* is negative; ``step`` moves the wall clock back.

        """
        passed = millis("time to advance (step() moves the wall clock back)", span)
        self._wall += passed
        self._waited += passed

    def step(self, span: Span) -> None:
        """Set the wall clock forward, or back by a negative *span*, as a time server does."""
        if isinstance(span, timedelta):
            span = span.total_seconds()
        if isinstance(span, int | float) and span < 0:
            self._wall -= millis("span", -span)
        else:
            self._wall += millis("span", span)
