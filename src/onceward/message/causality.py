"""Order messages so that none stands before the one that it answers or follows from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def after_causes(
    items: Sequence[T], id_of: Callable[[T], str], causes_of: Callable[[T], Iterable[str]]
) -> Iterator[T]:
    """
    Yield *items* in their order, but each after the first item of every id that caused it.

    Times of one moment, or of two clocks, do not tell a question from its answer.
    """
    first: dict[str, int] = {}
    for place, item in enumerate(items):
        first.setdefault(id_of(item), place)
    told: set[int] = set()
    for place in range(len(items)):
        waiting, held = [place], {place}  # the item, its cause, the cause of that
        while waiting:
            causes = (first[each] for each in causes_of(items[waiting[-1]]) if each in first)
            cause = next((each for each in causes if each not in told and each not in held), None)
            if cause is not None:
                waiting.append(cause)
                held.add(cause)
                continue
            last = waiting.pop()
            if last not in told:
                yield items[last]
            told.add(last)
