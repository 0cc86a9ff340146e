"""Wait for the notifications of a file in a task: the event loop reads the file's socket itself."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from onceward.db.database import Database
from onceward.db.notify import Direction


class Call(Protocol):
    """Runs a call that blocks off the loop."""

    def __call__(self, work: Callable[[], None]) -> Awaitable[None]:
        """Run *work*."""
        ...


class AsyncWaiter:
    """A flag that notifications of one direction set; one task waits for it and clears it."""

    def __init__(self, file: Database, side: Direction, *, poll: float, call: Call) -> None:
        self._file, self._every, self._call = file, poll, call
        self._flag, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop_listening = file.notifier.listen(side, self._set)
        self._poll_at = file.notifier.next_poll(poll) if poll > 0 else 0.0
        self._socket = -1
        with suppress(OSError, NotImplementedError):  # none is left, or a loop without readers
            self._socket = os.dup(file.notifier.fileno(side))  # a loop has one reader of each
            self._loop.add_reader(self._socket, file.notifier.hear, side)

    def _set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._flag.set)

    async def wait(self, seconds: float | None) -> None:
        """Wait until the flag is set, or *seconds* have passed."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._flag.is_set() and (left := end - time.monotonic()) > 0:
            due = self._poll_at - time.monotonic() if self._every > 0 else math.inf
            pause = max(0.0, min(left, due))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._flag.wait(), None if pause == math.inf else pause)
            if self._every > 0 and time.monotonic() >= self._poll_at:
                self._poll_at = self._file.notifier.next_poll(self._every)
                await self._call(partial(self._file.notifier.look, self._file.version_if_open))

    def clear(self) -> None:
        """Clear the flag; what is committed after that sets it again."""
        self._flag.clear()

    def close(self) -> None:
        """Listen no more."""
        self._stop_listening()
        if self._socket >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._socket)
            os.close(self._socket)
