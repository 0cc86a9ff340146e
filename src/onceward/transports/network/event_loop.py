"""Run an event loop on a thread of its own; asyncio is imported only when one is needed."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def start_loop(name: str) -> AbstractEventLoop:
    """
    Start a loop on a daemon thread.

    ``loop.call_soon_threadsafe(loop.stop)`` ends and closes it.
    """
    import asyncio  # noqa: PLC0415 - 18 ms that most programs need not pay

    loop = asyncio.new_event_loop()
    Thread(target=_serve, args=(loop,), name=name, daemon=True).start()
    return loop


def _serve(loop: AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
