"""Let the tasks of an event loop wait for commits, and lease messages, through one bridge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onceward.core.handle.message import AsyncMessage, Message
from onceward.core.run import recovery
from onceward.core.run.async_bridge import AsyncBridge, AsyncWaiter
from onceward.core.run.engine_loop import Due
from onceward.errors import StoreError
from onceward.file.database import Database
from onceward.message.body import Body
from onceward.message.clock import monotonic
from onceward.message.times import Span
from onceward.message.times import seconds as span_seconds

T = TypeVar("T")


class FileBridge(AsyncBridge):
    """The bridge of one postbox; its tasks can also wait for a commit."""

    def __init__(self, db: Database, loop: asyncio.AbstractEventLoop, poll: float) -> None:
        super().__init__(db, loop)
        self._file, self._poll = db, poll

    async def wait(
        self,
        look: Callable[[], T | None],
        timeout: Span | None,
        *,
        db: Database | None = None,
        due: Due | None = None,
        run: Callable[[Callable[[], T | None]], Awaitable[T | None]] | None = None,
    ) -> T | None:
        """
        Call *look* after every commit until it finds something or *timeout* has passed.

        *run* calls *look*; by default this bridge does.
        """
        seconds = None if timeout is None else span_seconds("timeout", timeout)
        run = run or self.call
        found = await run(look)
        if found is not None or seconds == 0:
            return found
        deadline = None if seconds is None else monotonic() + seconds
        file = db or self._file
        next_look = due or (lambda left: recovery.next_wakeup(file, left))
        notified = AsyncWaiter(file, "in", poll=self._poll, call=self.call)
        try:
            while (found := await run(look)) is None:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    return None
                pause = await self.call(lambda left=left: next_look(left))  # type: ignore[misc]
                await notified.wait(pause)
                notified.clear()
        finally:
            notified.close()
        return found

    async def lease(
        self,
        look: Callable[[], Sequence[Message[Body]]],
        timeout: Span | None,
        *,
        db: Database | None = None,
        due: Due | None = None,
    ) -> list[AsyncMessage[Body]]:
        """
        Wait for the messages that *look* leases; see ``wait``.

        If the task is cancelled while a thread leases them, they are put back: no caller has them.
        """
        leased = list[Message[Body]]()

        def keep() -> bool | None:
            leased.extend(look())
            return bool(leased) or None

        try:
            await self.wait(keep, timeout, db=db, due=due)
        except asyncio.CancelledError:
            if leased:
                with suppress(asyncio.CancelledError):  # the first one is raised
                    await self.call(lambda: _put_back(leased))
            raise
        return [AsyncMessage(each, self) for each in leased]

    async def receive(
        self, look: Callable[[], Message[Body] | None], timeout: Span | None
    ) -> AsyncMessage[Body] | None:
        """Wait for the message that *look* leases; see ``lease``."""

        def leased() -> list[Message[Body]]:
            found = look()
            return [] if found is None else [found]

        return next(iter(await self.lease(leased, timeout)), None)


def _put_back(messages: Sequence[Message[Any]]) -> None:
    for each in messages:
        with suppress(StoreError):  # then its lease runs out
            each._put_back()
