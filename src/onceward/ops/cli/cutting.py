"""Cut a listing at its limit, and say on stderr how much it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from onceward.ops.cli.output import note

T = TypeVar("T")
COUNTED: Final = 1000
"""Rows after the limit that are counted, not only known to exist."""


def cut(ask: Callable[[int], Iterable[T]], limit: int) -> list[T]:
    """
    Return the first *limit* rows, all of them if it is negative, and tell how many are left out.

    Args:
        ask: Returns at most this many rows; a negative number means all.
        limit: Rows to print.

    """
    if limit <= 0:
        rows = [*ask(limit)]  # what is asked refuses 0 where that is wrong
        if limit:
            return rows
    rows = [*ask(limit + COUNTED)]
    if (more := len(rows) - limit) > 0:
        tell_more(f"{more:,}{'+' if more == COUNTED else ''} more")
    return rows[:limit]


def cut_bodies(ask: Callable[[int], Iterable[T]], limit: int) -> list[T]:
    """Do as ``cut``, but read one row more at most: each row has a body of any size."""
    if limit <= 0:  # what is asked knows whether 0 is wrong
        return [*ask(limit)]
    rows = [*ask(limit + 1)]
    if len(rows) > limit:
        tell_more("more")
    return rows[:limit]


def tell_more(more: str, instead: str = "") -> None:
    """Say that rows were left out, and which options print them."""
    note(f"{more}: --limit{instead}")
