"""A clock that stands still until a test turns it."""

from __future__ import annotations

from typing import Final

from onceward.model.clock import Millis

START_AT: Final[Millis] = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the same in every run, so that printed dates can be compared."""


class ManualClock:
    """
    Time as the test wants it.

    Pass one clock to every postbox of a test, and they share their time.
    """

    def __init__(self, start_at: Millis = START_AT) -> None:
        self._wall, self._waited = start_at, 0

    def now(self) -> Millis:
        """Return the wall clock in milliseconds since 1970, UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Return the seconds waited since the start; steps of the wall clock do not count."""
        return self._waited / 1000

    def advance(self, seconds: float) -> None:
        """
        Let time pass on both clocks.

        Raises:
            ValueError: *seconds* is negative; ``step`` moves the wall clock back.

        """
        if seconds < 0:
            msg = f"time does not run backwards: advance({seconds}); step() moves the wall clock"
            raise ValueError(msg)
        self._wall += round(1000 * seconds)
        self._waited += round(1000 * seconds)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back without a wait, as a time server does."""
        self._wall += round(1000 * seconds)
