"""Other processes of a case: started, told to end, and waited for."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

LONGEST: Final = 300.0
LOOK_EVERY: Final = 0.01

Link = Connection
"""
Both ends of the wire between a case and its other process.

The first word says "ready", the last one "over".
"""


@contextmanager
def running(target: Callable[..., None], *args: Any, **named: bool) -> Iterator[Link]:
    """
    Run ``target(link, *args, **named)`` in a fresh process for a block.

    It says when it is ready and ends when it hears from this process.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=target, args=(theirs, *args), kwargs=named, daemon=True)
    process.start()
    theirs.close()
    try:
        hear(ours)
        yield ours
    except BaseException:
        process.kill()
        raise
    finally:
        ours.close()
        process.join(LONGEST)


def hear(link: Link) -> Any:
    """Return the next word of the other process; raise TimeoutError if none comes for minutes."""
    if not link.poll(LONGEST):
        msg = "the other process fell silent"
        raise TimeoutError(msg)
    return link.recv()


def over(link: Link, wait: float = 0.0) -> bool:
    """Return whether the case has ended; looks for at most *wait* seconds."""
    return link.poll(wait)


def until(reached: Callable[[], bool]) -> None:
    """Look every few milliseconds; raise TimeoutError if it takes minutes."""
    limit = time.monotonic() + LONGEST
    while not reached():
        if time.monotonic() > limit:
            msg = "messages did not arrive: see file.stats() of both files"
            raise TimeoutError(msg)
        time.sleep(LOOK_EVERY)


def nothing(link: Link) -> None:
    """Say nothing."""


def say_when(link: Link) -> None:
    """Say the time on the clock that all processes of a machine share."""
    link.send(time.monotonic_ns())
