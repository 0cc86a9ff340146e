"""Wait for a stop signal: the first ends the work gracefully, the second one at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from onceward.message.clock import monotonic

STOPS: Final = (signal.SIGINT, signal.SIGTERM)
GLANCE: Final = 0.5
"""Seconds of one wait: Python does not see a signal that comes just as a longer one begins."""


@contextmanager
def stops(told: SimpleQueue[Any]) -> Iterator[None]:
    """
    Put the number of every stop signal into *told* while the block runs.

    The first signal restores the handlers from before. A SimpleQueue is the one queue whose
    ``put`` may interrupt its own ``get``.
    """
    before = {number: signal.getsignal(number) for number in STOPS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, _: object) -> None:
        restore()
        told.put(number)

    for number in STOPS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()


T = TypeVar("T")


def awaited(told: SimpleQueue[T], timeout: float | None = None) -> T | None:
    """Return the next news of a queue that ``stops`` puts signals into; None after *timeout*."""
    end = None if timeout is None else monotonic() + timeout
    while True:
        left = GLANCE if end is None else min(GLANCE, end - monotonic())
        try:
            return told.get(timeout=max(0.0, left))
        except Empty:
            if end is not None and monotonic() >= end:
                return None


def first(told: SimpleQueue[T]) -> T:
    """Return the next news of a queue that ``stops`` puts signals into."""
    while (news := awaited(told, GLANCE)) is None:
        pass
    return news
