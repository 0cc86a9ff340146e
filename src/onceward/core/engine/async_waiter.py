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

from onceward.file.database import Database
from onceward.file.notify import Direction, Notifier


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
        self._stop_reading = _read(self._loop, file.notifier, side)

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
                if self._file.notifier.is_due(self._every):
                    await self._call(partial(self._file.notifier.look, self._file.version_if_open))

    def clear(self) -> None:
        """Clear the flag; what is committed after that sets it again."""
        self._flag.clear()

    def close(self) -> None:
        """Listen no more."""
        self._stop_listening()
        self._stop_reading()


class _Reader:
    """An event loop's reader of a file's socket, shared by the tasks that wait there."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, notifier: Notifier, side: Direction
    ) -> None:
        self.users, self._loop, self._socket = 0, loop, -1
        with suppress(OSError, NotImplementedError):  # none is left, or a loop without readers
            self._socket = os.dup(notifier.fileno(side))  # other loops may read the same one
            loop.add_reader(self._socket, notifier.hear, side)

    def close(self) -> None:
        """Read no more."""
        if self._socket >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._socket)
            os.close(self._socket)


_readers: dict[tuple[asyncio.AbstractEventLoop, Notifier, Direction], _Reader] = {}


def _read(
    loop: asyncio.AbstractEventLoop, notifier: Notifier, side: Direction
) -> Callable[[], None]:
    """Have the running *loop* read the socket; the same thread ends it by the call returned."""
    key = (loop, notifier, side)
    reader = _readers.get(key) or _Reader(*key)
    _readers[key] = reader
    reader.users += 1

    def stop() -> None:
        reader.users -= 1
        if not reader.users:
            del _readers[key]
            reader.close()

    return stop
