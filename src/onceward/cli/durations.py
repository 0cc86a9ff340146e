"""Parse spans (5m, 2h30m, 1.5s, 250ms, 7d, seconds) and moments (dates, or spans ago)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward.model.clock import SystemClock

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
WHOLE: Final = re.compile(rf"(?:{PART.pattern})+")
PLAIN: Final = re.compile(r"\d+(?:\.\d+)?")


def seconds(text: str) -> float:
    """Return a span in seconds; raise ValueError for other text."""
    if PLAIN.fullmatch(text):
        return float(text)
    if not WHOLE.fullmatch(text):
        msg = f"{text!r} is no span: write 5m, 2h30m, 1.5s, 250ms, 7d or seconds"
        raise ValueError(msg)
    return sum(float(number) * UNITS[unit] for number, unit in PART.findall(text))


class Span(float):
    """A span in seconds; its name is what the help page shows."""


def converted(_: Any, tokens: Sequence[Any]) -> Span:
    """Convert an argument to a span, for the parser of the command line."""
    return Span(seconds(tokens[0].value))


SpanOption = Annotated[Span, Parameter(converter=converted)]
"""An option that takes a span and has a default."""
MaybeSpan = Annotated[Span | None, Parameter(converter=converted)]
"""An option that takes a span and is absent by default."""


class Moment(int):
    """A moment in milliseconds; its name is what the help page shows."""


def moment(text: str) -> int:
    """Return milliseconds for an RFC 3339 date (UTC by default) or a span before now."""
    try:
        return SystemClock().now() - round(1000 * seconds(text))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is no moment: write 2026-01-31T12:00:00Z, or how long ago it was, as in 2h"
        raise ValueError(msg) from None
    return round(1000 * (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def converted_moment(_: Any, tokens: Sequence[Any]) -> Moment:
    """Convert an argument to a moment, for the parser of the command line."""
    return Moment(moment(tokens[0].value))


MaybeMoment = Annotated[Moment | None, Parameter(converter=converted_moment)]
"""An option that takes a moment and is absent by default."""


def ago(then: int, now: int) -> str:
    """Return how far *then* is from *now*, both in milliseconds, in one unit."""
    gap = abs(now - then) / 1000
    unit = next((name for name in ("w", "d", "h", "m") if gap >= UNITS[name]), "s")
    text = f"{gap / UNITS[unit]:.0f} {unit}"
    return f"{text} ago" if then <= now else f"in {text}"
