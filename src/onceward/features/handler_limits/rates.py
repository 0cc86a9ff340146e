"""Count the calls of handlers with a rate, for all processes on the file."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from onceward.core.rows import limits
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.times import Rate

GROUPS: Final = "group"
FILLED: Final = "SELECT tokens, filled_at FROM _onceward_rate_limits WHERE name = ?"


def bucket(pattern: str) -> str:
    """Return the name under which the calls of a handler are counted."""
    return f"handler:{pattern}"


def keyed_bucket(group: str) -> str:
    """Return the name under which the calls of one group of a handler are counted."""
    return f"{GROUPS}:{group}"


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the full buckets of groups: a new one has the same tokens."""
    del before  # each is full at a time of its own
    return limits.forget_full(tx, GROUPS, limit)


def refilled(tokens: float, filled_at: Millis, rate: Rate, now: Millis) -> float:
    """
    Return how many calls of a bucket that was read may begin now.

    A clock that was set back adds nothing, and counts from its new time.
    """
    return min(rate.burst, tokens + max(0, now - filled_at) * rate.per_second / 1000.0)


def left(tx: StoreTransaction, bucket: str, rate: Rate) -> float:
    """Return how many calls of a bucket may begin now; below 1 means none."""
    for tokens, filled_at in tx.rows(FILLED, (bucket,)):
        return refilled(tokens, filled_at, rate, tx.now)
    return rate.burst


def take(tx: StoreTransaction, calls: Sequence[tuple[str, Rate, int]]) -> None:
    """Count calls of buckets; a negative number takes back calls that were not made."""
    limits.take_calls(
        tx, [(name, rate.per_second, rate.burst, count) for name, rate, count in calls]
    )


def wait(rate: Rate, found: float) -> Millis:
    """Return the milliseconds until a handler with *found* calls left may begin one."""
    return max(1, ceil(1000 * (1 - found) / rate.per_second))
