"""
Count the messages of each span of time, without reading them.

Rows are numbered in the order of their commits and never renumbered, so the number
of the first row after a moment, found by bisection, is all that is needed: the
difference of two such numbers is how many messages came between two moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.inspector.reading import NEVER, Reader

FROM: Final = {
    "sent": """
SELECT seq, created_at FROM onceward_outbox WHERE seq >= ? ORDER BY seq LIMIT 1
""",
    "received": """
SELECT seq, received_at FROM onceward_inbox WHERE seq >= ? ORDER BY seq LIMIT 1
""",
    "handled": """
SELECT seq, processed_at FROM onceward_processed_messages WHERE seq >= ? ORDER BY seq LIMIT 1
""",
}
LAST: Final = {
    name: sql.replace(">=", "<=").replace("ORDER BY seq", "ORDER BY seq DESC")
    for name, sql in FROM.items()
}
SERIES: Final = tuple(FROM)


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

    def total(self) -> int:
        """Return how many there were in all spans."""
        return sum(self.sent) + sum(self.received) + sum(self.handled)


def rates(reader: Reader, now: Millis, *, span: Millis, count: int) -> Rates:
    """Return the rates of the last *count* spans; the last one ends with the running span."""
    until = (now // span + 1) * span
    series = (_series(reader, name, until, span, count) for name in SERIES)
    return Rates(until, span, *series)


def _series(reader: Reader, name: str, until: Millis, span: Millis, count: int) -> tuple[int, ...]:
    last = reader.rows(LAST[name], (NEVER,))
    if not last or last[0][1] < until - span * count:
        return (0,) * count
    end = int(last[0][0]) + 1
    found: list[int] = []
    for back in range(1, count + 1):
        begin = _first_since(reader, name, until - back * span, end)
        found.append(end - begin)
        end = begin
    return tuple(reversed(found))


def _first_since(reader: Reader, name: str, at: Millis, high: int) -> int:
    """Return the number of the first row at or after a moment, at most *high*."""
    low, step = high - 1, 1
    while low > 0 and _is_since(reader, name, low, at):
        high, low, step = low, max(0, low - step), step * 2
    while low + 1 < high:
        middle = (low + high) // 2
        if _is_since(reader, name, middle, at):
            high = middle
        else:
            low = middle
    there = reader.rows(FROM[name], (high,))  # rows before it may have been pruned
    return int(there[0][0]) if there else high


def _is_since(reader: Reader, name: str, seq: int, at: Millis) -> bool:
    found = reader.rows(FROM[name], (seq,))
    return not found or found[0][1] >= at
