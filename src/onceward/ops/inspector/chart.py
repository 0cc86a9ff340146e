"""Compute the numbers of a chart of messages: the spans of a range, as series and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.message.clock import Millis
from onceward.ops.views.rates import Rates

Ranges = Mapping[str, tuple[Millis, int]]
"""Length and number of the spans of each range; the first one is the default."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one range, and the ranges that its links lead to."""

    src: str
    range: str
    ranges: tuple[str, ...]
    rates: Rates | None

    @property
    def rows(self) -> list[tuple[Millis, int, int, int]]:
        """Spans with messages, newest first: begin, sent, received, handled."""
        return [row for row in reversed(_rows(self.rates)) if any(row[1:])]


def chosen(asked: str, ranges: Ranges) -> str:
    """Return the range in an address, or the first one."""
    return asked if asked in ranges else next(iter(ranges))


def numbers(found: Rates | None) -> dict[str, Any]:
    """Return rates in the chart's form: seconds, and a list for each series."""
    if found is None:
        return {"times": [], "series": []}
    times = [at // 1000 for at, *_ in _rows(found)]
    series = [found.sent, found.received, found.handled]
    return {"times": times, "span": found.span // 1000, "series": series}


def _rows(found: Rates | None) -> list[tuple[Millis, int, int, int]]:
    if found is None:
        return []
    begin = found.until - len(found.sent) * found.span
    counts = zip(found.sent, found.received, found.handled, strict=True)
    return [(begin + at * found.span, *each) for at, each in enumerate(counts)]


def together(found: Iterable[Rates]) -> Rates | None:
    """Return the sums of rates, aligned by their ends."""
    every = list(found)
    if not every:
        return None
    until, span = max(each.until for each in every), every[0].span
    count = len(every[0].sent)
    sums = {name: [0] * count for name in ("sent", "received", "handled")}
    for each in every:
        behind = (until - each.until) // span
        for name, total in sums.items():
            for at, number in enumerate(getattr(each, name)[behind:]):
                total[at] += number
    return Rates(until, span, *(tuple(sums[name]) for name in ("sent", "received", "handled")))
