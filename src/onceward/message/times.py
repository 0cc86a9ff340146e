"""
Read durations, moments and rates from numbers, timedelta, datetime and text.

A duration is a number of seconds, a timedelta, or text such as ``2h30m`` or ``3 days``. A moment is
a datetime with a time zone, milliseconds since 1970, an RFC 3339 date (UTC by default), or a
duration before now. A rate is ``10/m``, ten per minute, or 2.5 per second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.names import quoted

Span = float | timedelta | str
"""Seconds, a timedelta, or text: 90, 1.5s, 250ms, 5m, 2h30m, 7d, 1w, 3 days."""
Moment = int | datetime | timedelta | str
"""A datetime, milliseconds since 1970, a date as text, or a duration before now."""
Point = int | datetime | str
"""A moment that is not a duration ago: a datetime, milliseconds, or a date as text."""
GivenRate = float | str
"""A rate: a number per second, or text: 10/m, 5/s, 100/15m."""

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
WORDS: Final = ("second", "minute", "hour", "day", "week")
"""Units in full, with or without an s, optionally after a space; the first letter is the symbol."""
PART: Final = re.compile(rf"(\d+(?:\.\d+)?)( ?(?:{'|'.join(WORDS)})s?\b|ms|[smhdw])")
WHOLE: Final = re.compile(rf"{PART.pattern}(?: ?{PART.pattern})*")
PLAIN: Final = re.compile(r"\d+(?:\.\d+)?")
LONGEST: Final = 1e10
"""Seconds of the longest duration: 317 years."""
FIRST: Final[Millis] = 946_684_800_000
"""The year 2000: a smaller number was meant as seconds."""
LAST: Final[Millis] = 10_000_000_000_000
"""The year 2286: a larger number was meant as micro- or nanoseconds."""


def seconds(field: str, given: Span, *, error: type[InvalidArgument] = InvalidArgument) -> float:
    """Return a duration in seconds, not negative; raise *error* for an invalid value."""
    if isinstance(given, str):
        return _read(field, given, error)
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < LONGEST:
        raise error(
            f"{field} {quoted(given)} must be seconds, a timedelta or text such as 2h, not negative"
            " and less than 317 years"
        )
    return given


def millis(field: str, given: Span, *, error: type[InvalidArgument] = InvalidArgument) -> Millis:
    """Return a duration in milliseconds; raise *error* for an invalid value."""
    return round(1000 * seconds(field, given, error=error))


def _read(field: str, text: str, error: type[InvalidArgument]) -> float:
    if PLAIN.fullmatch(text):
        return float(text)
    if not WHOLE.fullmatch(text):
        told = "write 5m, 2h30m, 1.5s, 250ms, 7d, 3 days or seconds"
        raise error(f"{field} {quoted(text)} is not a valid duration: {told}")
    return sum(float(number) * _unit(name.strip()) for number, name in PART.findall(text))


def _unit(name: str) -> float:
    """Return the seconds of a unit, given by its symbol or in full."""
    return UNITS[name] if name in UNITS else UNITS[name[0]]


def in_one_unit(spent: Millis) -> str:
    """Return a duration in its largest unit: 35 s, 3 h."""
    gap = spent / 1000
    unit = next((name for name in ("w", "d", "h", "m") if gap >= UNITS[name]), "s")
    return f"{gap / UNITS[unit]:.0f} {unit}"


def moment(field: str, given: Moment, now: Millis) -> Millis:
    """
    Return a moment in milliseconds; a duration counts back from *now*.

    Raises:
        InvalidArgument: it is not a moment, an implausible number, or has no time zone.

    """
    if isinstance(given, timedelta):
        return _before(field, given, now)
    if isinstance(given, str) and (PLAIN.fullmatch(given) or WHOLE.fullmatch(given)):
        return _before(field, given, now)
    if isinstance(given, str):
        given = _date(field, given, InvalidArgument, ", or a duration ago, such as 2h")
    return point(field, given)


def point(field: str, given: Point, *, error: type[InvalidArgument] = InvalidArgument) -> Millis:
    """Return a moment that is not a duration, in milliseconds; raise *error* as ``moment`` does."""
    if isinstance(given, str):
        given = _date(field, given, error, "")
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise error(f"{field} {given} has no time zone: {Hint.TIME_ZONE}")
        told = given
        given = round(1000 * given.timestamp())
        if given >= LAST:
            raise error(f"{field} {told} is after 2286-11-20, the last date that is stored")
    if isinstance(given, bool) or not isinstance(given, int | float) or not _meant(given):
        raise error(f"{field} {quoted(given)} is not a moment: {Hint.MOMENT}")
    return round(given)


def _meant(number: float) -> bool:
    """Return whether a number is plausible as milliseconds; 0 is 1970."""
    return number == 0 or FIRST <= number < LAST


def _date(field: str, text: str, error: type[InvalidArgument], other: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise error(
            f"{field} {quoted(text)} is not a moment: write 2026-01-31T12:00:00Z{other}"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _before(field: str, span: Span, now: Millis) -> Millis:
    at = now - millis(field, span)
    if at < 0:
        msg = f"{field} {quoted(span)} is before 1970: a plain number in text means seconds ago"
        raise InvalidArgument(msg)
    return at


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls that may happen at once, and how fast new ones are allowed."""

    burst: int
    per_second: float


def read_rate(field: str, given: GivenRate, *, burst: int = 1) -> Rate:
    """
    Return a rate; raise InvalidArgument for an invalid value.

    All calls of a text such as ``10/m`` may happen at once; of a number, *burst* calls.
    """
    if isinstance(given, str) and not PLAIN.fullmatch(given):
        return _read_times(field, given)
    number = float(given) if isinstance(given, str) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < inf:
        raise _refused(field, given)
    return Rate(burst, float(number))


def _read_times(field: str, text: str) -> Rate:
    calls, _, span = text.partition("/")
    per = f"1{span}" if span in UNITS else span
    if calls.isascii() and calls.isdigit() and int(calls) > 0 and span:
        over = seconds(field, per)
        if over:
            return Rate(int(calls), int(calls) / over)
    raise _refused(field, text)


def _refused(field: str, given: object) -> InvalidArgument:
    told = "write calls and a duration, such as 10/m, 5/s or 100/15m, or a number per second"
    return InvalidArgument(f"{field}={quoted(given)}: {told}")
