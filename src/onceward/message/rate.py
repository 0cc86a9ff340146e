"""Read how often something may happen: ``10/m`` is ten times a minute, 2.5 is so often a second."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from onceward.errors import InvalidArgument
from onceward.message.quoting import quoted
from onceward.message.times import PLAIN, UNITS, GivenRate, seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls that may come at once, and how fast the right to make them comes back."""

    burst: int
    per_second: float


def read_rate(field: str, given: GivenRate, *, burst: int = 1) -> Rate:
    """
    Return a rate; raise InvalidArgument for a value that is none.

    All calls of a text such as ``10/m`` may come at once, and *burst* calls of a number.
    """
    if isinstance(given, str) and not PLAIN.fullmatch(given):
        return _read(field, given)
    number = float(given) if isinstance(given, str) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < inf:
        raise _refused(field, given)
    return Rate(burst, float(number))


def _read(field: str, text: str) -> Rate:
    calls, _, span = text.partition("/")
    per = f"1{span}" if span in UNITS else span
    if calls.isascii() and calls.isdigit() and int(calls) > 0 and span:
        over = seconds(field, per)
        if over:
            return Rate(int(calls), int(calls) / over)
    raise _refused(field, text)


def _refused(field: str, given: object) -> InvalidArgument:
    told = "write calls and a span, such as 10/m, 5/s or 100/15m, or a number a second"
    return InvalidArgument(f"{field}={quoted(given)}: {told}")
