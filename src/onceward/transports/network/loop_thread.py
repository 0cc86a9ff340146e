"""Run the exchanges of a transport on its own event loop, which closing ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from onceward.core.run.event_loop import start_loop
from onceward.errors import Unreachable
from onceward.file import forks

CLOSE_WITHIN: Final = 5.0
"""Seconds that closing waits for the connections."""
T = TypeVar("T")


class LoopThread:
    """An event loop on a thread that starts with the first exchange."""

    def __init__(self, name: str, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._name, self._close = name, close
        self._lock = forks.new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._under_way: set[asyncio.Task[Any]] = set()
        self._awaited: set[Future[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T], within: float, lack: str) -> T:
        """
        Return the result of *work*.

        Raises:
            Unreachable: it took longer than *within* seconds (the error names the *lack*), or the
            transport was closed.

        """
        with self._lock:  # close() ends work that began before it
            if self._closed:
                work.close()
                raise Unreachable("this transport is closed")
            if self._loop is None:
                self._loop = start_loop(self._name)
            begun = asyncio.run_coroutine_threadsafe(self._timed(work, within), self._loop)
            self._awaited.add(begun)
        try:
            return begun.result()
        except CancelledError as error:
            raise Unreachable("this transport was closed") from error
        except TimeoutError as error:
            raise Unreachable(f"{lack} within {within:.3g} s") from error
        finally:
            self._awaited.discard(begun)

    async def _timed(self, work: Coroutine[Any, Any, T], within: float) -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it runs as a task
        self._under_way.add(task)
        try:
            async with asyncio.timeout(within):
                return await work
        finally:
            self._under_way.discard(task)

    def close(self) -> None:
        """End running work, then the connections and the loop; safe to call twice."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_WITHIN)
        loop.call_soon_threadsafe(loop.stop)
        for each in list(self._awaited):  # a library swallowed the cancellation
            each.cancel()

    async def _end(self) -> None:
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if self._close is not None:
            await self._close()
