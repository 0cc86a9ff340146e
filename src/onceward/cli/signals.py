"""Wait for a stop signal: the first ends the work gracefully, the second one at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

STOPS: Final = (signal.SIGINT, signal.SIGTERM)


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
