"""Let parcels to a peer grow while its way is slow: only one is in flight at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from onceward.message.parcel import Answer

MOST: Final = 10_000
"""Most messages of a parcel, however slow the way is."""


class _Pace(NamedTuple):
    limit: int
    answered_at: float


class ParcelGrowth:
    """
    Knows how many messages the next parcel to each peer of a network may hold.

    Twice as many as the last one, while an exchange takes longer than it takes both
    ends to store a parcel: the rest is spent on the way. Half as many, down to
    *base*, once it does not. The recipient is taken to be as quick as this process,
    which settles one parcel and packs the next between two pushes.
    """

    def __init__(self, monotonic: Callable[[], float], base: int) -> None:
        self._now, self._base = monotonic, base
        self._paces: dict[str, _Pace] = {}

    def limit(self, name: str) -> int:
        """Return how many messages the next parcel to *name* may hold."""
        pace = self._paces.get(name)
        return self._base if pace is None else pace.limit

    def timed(self, name: str, messages: int, push: Callable[[], Answer]) -> Answer:
        """Push a parcel of so many messages, and learn from the time that it takes."""
        begun, before = self._now(), self._paces.get(name)
        answer = push()
        ended, limit = self._now(), self.limit(name)
        if before is not None and messages >= limit:
            packing = begun - before.answered_at
            grows = ended - begun > 2 * packing
            limit = min(2 * limit, MOST) if grows else max(limit // 2, self._base)
        self._paces[name] = _Pace(max(limit, self._base), ended)
        return answer
