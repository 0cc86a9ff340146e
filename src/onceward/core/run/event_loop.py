"""Run an event loop on its own thread; import asyncio only when one is needed."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from onceward.core.run.shared import Shared
from onceward.file import forks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def start_loop(name: str) -> AbstractEventLoop:
    """
    Start a loop on a daemon thread.

    ``loop.call_soon_threadsafe(loop.stop)`` stops and closes it.
    """
    import asyncio  # noqa: PLC0415 - 18 ms that most programs need not pay

    loop = renewed_by_forks(asyncio.new_event_loop())
    Thread(target=_serve, args=(loop,), name=name, daemon=True).start()
    return loop


_loops: Final = WeakSet[Any]()


def renewed_by_forks(loop: AbstractEventLoop) -> AbstractEventLoop:
    """
    Take the descriptors of a loop from forked children, which share its epoll with their parent.

    Otherwise a child that closes its copy of the loop would end what the parent waits for.
    """
    _loops.add(loop)
    return loop


def _renew_all() -> None:
    for loop in list(_loops):
        selector: Any = getattr(loop, "_selector", None)
        if type(selector).__name__ == "EpollSelector":
            with suppress(OSError, ValueError, AttributeError):  # the loop is closed
                with select.epoll() as own:
                    os.dup2(own.fileno(), selector.fileno(), inheritable=False)
                loop._close_self_pipe()
                loop._make_self_pipe()


forks.in_child(_renew_all)
_handler_loops: Final[dict[int, Shared[AbstractEventLoop]]] = {}


def handler_loop() -> Shared[AbstractEventLoop]:
    """Return the loop that runs the coroutines of all agents of this process."""
    made = Shared(lambda: start_loop("onceward-loop"), _stop)
    return _handler_loops.setdefault(forks.count, made)  # never the loop of the parent process


def _stop(loop: AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


def _serve(loop: AbstractEventLoop) -> None:
    before = forks.count
    try:
        loop.run_forever()
    except BaseException as error:
        forks.leave_if_forked(before, error)
        raise
    finally:
        loop.close()
