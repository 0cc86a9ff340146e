"""Look, and look again whenever somebody committed, until there is something or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event as Flag
from typing import TypeVar

from onceward.db.database import Database

T = TypeVar("T")
Due = Callable[[float | None], float | None]
"""From the seconds that are left to the seconds after which to look again although nobody rang; None is never."""


def until_found(
    db: Database, look: Callable[[], T | None], timeout: float | None, *, poll: float, due: Due
) -> T | None:
    """Return what *look* finds, None when it found nothing for *timeout* seconds; None waits for ever."""
    found = look()
    if found is not None or timeout == 0:
        return found
    deadline = None if timeout is None else time.monotonic() + timeout
    flag = Flag()
    stop = db.notifier.listen("in", flag.set, version=db.version, poll=poll)
    try:
        while (found := look()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            flag.wait(due(left))
            flag.clear()
    finally:
        stop()
    return found
