"""Read how often a handler may be called: ``10/m`` is ten calls a minute."""

from __future__ import annotations

from onceward.errors import InvalidArgument
from onceward.model.quoting import quoted
from onceward.model.times import UNITS, seconds
from onceward.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls that may come at once, and how fast the right to make them comes back."""

    burst: int
    per_second: float


def read_rate(text: str) -> Rate:
    """Return the rate that a text such as ``10/m``, ``5/s`` or ``100/15m`` says."""
    if isinstance(text, str):
        calls, _, span = text.partition("/")
        per = f"1{span}" if span in UNITS else span
        if calls.isascii() and calls.isdigit() and int(calls) > 0 and span:
            over = seconds("rate", per)
            if over:
                return Rate(int(calls), int(calls) / over)
    msg = f"rate={quoted(text)}: write calls and a span, such as 10/m, 5/s or 100/15m"
    raise InvalidArgument(msg)
