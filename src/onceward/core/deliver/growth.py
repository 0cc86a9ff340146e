"""Decide how many messages the next parcel to a network peer may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from onceward.message.parcel import Answer

MOST: Final = 10_000
"""Maximum messages of a parcel over a slow network."""


class _Pace(NamedTuple):
    limit: int
    answered_at: float


class ParcelGrowth:
    """
    Decides how many messages the next parcel to each network peer may hold.

    Twice as many as the last one, while an exchange takes longer than both ends need to store a
    parcel: the rest is network time. Half as many, down to *base*, otherwise. The recipient is
    assumed to be as quick as this process, which settles one parcel and packs the next between two
    pushes.
    """

    def __init__(self, monotonic: Callable[[], float], base: int) -> None:
        self._now, self._base = monotonic, base
        self._paces: dict[str, _Pace] = {}

    def limit(self, name: str) -> int:
        """Return how many messages the next parcel to *name* may hold."""
        pace = self._paces.get(name)
        return self._base if pace is None else pace.limit

    def timed(self, name: str, messages: int, push: Callable[[], Answer]) -> Answer:
        """Push a parcel of so many messages, and adapt to the time that it takes."""
        begun, before = self._now(), self._paces.get(name)
        answer = push()
        ended, limit = self._now(), self.limit(name)
        if before is not None and messages >= limit:
            packing = begun - before.answered_at
            grows = ended - begun > 2 * packing
            limit = min(2 * limit, MOST) if grows else max(limit // 2, self._base)
        self._paces[name] = _Pace(max(limit, self._base), ended)
        return answer
