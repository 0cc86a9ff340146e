"""
Count the messages of each time span without reading them.

Rows are numbered in commit order and never renumbered, so the number of the first row after a
moment, found by bisection, is enough: the difference of two such numbers is the number of messages
between two moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.views.asking import NEVER, Source, first_since, moment_before, moment_from

SERIES: Final = {
    "sent": ("onceward_outbox", "created_at"),
    "received": ("onceward_inbox", "received_at"),
    "handled": ("onceward_processed_messages", "processed_at"),
}
"""View and moment of each series."""
FROM: Final = {name: moment_from(*each) for name, each in SERIES.items()}
LAST: Final = {name: moment_before(*each) for name, each in SERIES.items()}


@dataclass(frozen=True, slots=True)
class Rates:
    """How many messages were sent, received and handled in each of equal spans, oldest first."""

    until: Millis
    span: Millis
    """Length of one span."""
    sent: tuple[int, ...]
    received: tuple[int, ...]
    handled: tuple[int, ...]

    @property
    def busiest(self) -> tuple[int, ...]:
        """The series with the most messages: handled ones, if as many."""
        return max((self.handled, self.received, self.sent), key=sum)

    @property
    def total(self) -> int:
        """Total of all spans."""
        return sum(self.sent) + sum(self.received) + sum(self.handled)


def rates(source: Source, now: Millis, *, span: Millis, count: int) -> Rates:
    """Return the rates of the last *count* spans, including the running one."""
    until = (now // span + 1) * span
    return Rates(until, span, *(_series(source, name, until, span, count) for name in FROM))


def _series(source: Source, name: str, until: Millis, span: Millis, count: int) -> tuple[int, ...]:
    last = source.rows(LAST[name], (NEVER,))
    if not last or last[0][1] < until - span * count:
        return (0,) * count
    end = int(last[0][0]) + 1
    begins = starts(source, FROM[name], end, until, span=span, count=count)
    return tuple(high - low for low, high in pairwise((*begins, end)))


def starts(
    source: Source, sql: str, end: int, until: Millis, *, span: Millis, count: int
) -> tuple[int, ...]:
    """
    Return the numbers of the first rows of spans, oldest first; *end* is after the last row.

    *sql* is of ``moment_from``.
    """
    found: list[int] = []
    for back in range(1, count + 1):
        end = _begin(source, sql, until - back * span, end)
        found.append(end)
    return tuple(reversed(found))


def _begin(source: Source, sql: str, at: Millis, high: int) -> int:
    """Return the number of the first row at or after a moment, usually near *high*."""
    low, step = high - 1, 1
    while low > 0 and _is_since(source, sql, low, at):
        high, low, step = low, max(0, low - step), step * 2
    return first_since(source, sql, at, low, high)


def _is_since(source: Source, sql: str, seq: int, at: Millis) -> bool:
    found = source.rows(sql, (seq,))
    return not found or found[0][1] >= at
