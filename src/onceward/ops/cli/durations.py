"""Parse durations (5m, 2h30m, 1.5s, 250ms, 7d, seconds) and moments (dates, or durations ago)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from onceward.message import times
from onceward.message.clock import SystemClock
from onceward.message.times import read_rate


def seconds(text: str) -> float:
    """Return a span in seconds; raise ValueError for other text."""
    return times.seconds("span", text)


class Span(float):
    """A duration in seconds; the help page shows its name."""


def converted(_: Any, tokens: Sequence[Any]) -> Span:
    """Convert an argument to a span, for the parser of the command line."""
    return Span(seconds(tokens[0].value))


def written(span: float) -> str:
    """Return a default in the largest unit of which it is a multiple: 90s, 1m, 7d."""
    unit = next((name for name in ("d", "h", "m") if span and span % times.UNITS[name] == 0), "s")
    return f"{span / times.UNITS[unit]:g}{unit}"


SpanOption = Annotated[Span, Parameter(converter=converted, show_default=written)]
"""An option that takes a span and has a default."""
MaybeSpan = Annotated[Span | None, Parameter(converter=converted)]
"""An option that takes a span and is absent by default."""


class Rate(str):
    """A rate such as 10/m, or a number per second; the help page shows its name."""

    __slots__ = ()


def converted_rate(_: Any, tokens: Sequence[Any]) -> Rate:
    """Convert an argument to a rate, for the parser of the command line."""
    text = tokens[0].value
    read_rate("rate", text)
    return Rate(text)


MaybeRate = Annotated[Rate | None, Parameter(converter=converted_rate)]
"""An option that takes a rate and is absent by default."""


class Moment(int):
    """A moment in milliseconds; the help page shows its name."""


def moment(text: str) -> int:
    """Return milliseconds for an RFC 3339 date (UTC by default) or a span before now."""
    return times.moment("moment", text, SystemClock().now())


def converted_moment(_: Any, tokens: Sequence[Any]) -> Moment:
    """Convert an argument to a moment, for the parser of the command line."""
    return Moment(moment(tokens[0].value))


MaybeMoment = Annotated[Moment | None, Parameter(converter=converted_moment)]
"""An option that takes a moment and is absent by default."""


def converted_date(_: Any, tokens: Sequence[Any]) -> Moment:
    """Convert an argument to a moment; durations are not accepted."""
    return Moment(times.point("moment", tokens[0].value))


MaybeDate = Annotated[Moment | None, Parameter(converter=converted_date)]
"""An option that takes a date and is absent by default."""


def ago(then: int, now: int) -> str:
    """Return the distance of *then* from *now*, both in milliseconds, in one unit."""
    text = times.in_one_unit(abs(now - then))
    return f"{text} ago" if then <= now else f"in {text}"
