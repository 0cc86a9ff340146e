"""Run an event loop on its own thread; import asyncio only when one is needed."""

from __future__ import annotations

import os
from threading import Thread
from typing import TYPE_CHECKING, Final

from onceward.transports.network.shared import Shared

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def start_loop(name: str) -> AbstractEventLoop:
    """
    Start a loop on a daemon thread.

    ``loop.call_soon_threadsafe(loop.stop)`` stops and closes it.
    """
    import asyncio  # noqa: PLC0415 - 18 ms that most programs need not pay

    loop = asyncio.new_event_loop()
    Thread(target=_serve, args=(loop,), name=name, daemon=True).start()
    return loop


_handler_loops: Final[dict[int, Shared[AbstractEventLoop]]] = {}


def handler_loop() -> Shared[AbstractEventLoop]:
    """Return the loop that runs the coroutines of all agents of this process."""
    made = Shared(lambda: start_loop("onceward-loop"), _stop)
    return _handler_loops.setdefault(os.getpid(), made)  # never the loop of the parent process


def _stop(loop: AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


def _serve(loop: AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
