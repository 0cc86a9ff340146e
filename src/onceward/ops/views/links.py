"""Ask one file for its recent messages per peer, from a sample of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.views.asking import NEVER, Source, first_since
from onceward.ops.views.rates import FROM, LAST
from onceward.ops.views.waiting import exchanged

LATELY: Final = 3_600_000
"""Length of the examined period in milliseconds."""
SAMPLE: Final = 1_000
"""Maximum counted messages of a box; then the period that they cover is used."""
MINUTE: Final = 60_000
SHORTEST: Final = 1_000
"""Minimum period in milliseconds."""


@dataclass(frozen=True, slots=True)
class Link:
    """Messages per minute to and from a peer, in the last hour or a part of it."""

    peer: str
    sent: float
    received: float


def links(source: Source, now: Millis) -> tuple[Link, ...]:
    """Return the peers with which a file recently exchanged messages, by name."""
    sent_after, sent_for = _sample(source, "sent", now)
    received_after, received_for = _sample(source, "received", now)
    return tuple(
        Link(each.peer, each.sent * MINUTE / sent_for, each.received * MINUTE / received_for)
        for each in exchanged(source, sent_after, received_after)
    )


def _sample(source: Source, series: str, now: Millis) -> tuple[int, Millis]:
    """Return the number of the row before a sample, and how many milliseconds it covers."""
    last = source.rows(LAST[series], (NEVER,))
    if not last:
        return 0, LATELY
    newest = int(last[0][0])
    low = max(0, newest - SAMPLE + 1)
    first = first_since(source, FROM[series], now - LATELY, low, newest + 1)
    if first > low or not low:
        return first - 1, LATELY
    [(_, began_at)] = source.rows(FROM[series], (first,))
    return first - 1, max(SHORTEST, now - began_at)
