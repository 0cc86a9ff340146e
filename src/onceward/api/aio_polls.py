"""The awaitable twin of polling: the same names, off the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceward.api.polling import Polls
from onceward.model.names import DEFAULT_SESSION
from onceward.model.record import MessageRecord
from onceward.runtime.async_bridge import AsyncBridge


class AsyncPolls:
    """What an open postbox offers a program that has a loop of its own; see ``Polls``."""

    @property
    def _both(self) -> tuple[Polls, AsyncBridge]:
        raise NotImplementedError

    async def poll(
        self,
        agent: str | None = None,
        *,
        topics: str | Iterable[str] | None = None,
        session: str = DEFAULT_SESSION,
        limit: int | None = None,
        consume_skipped: bool = True,
    ) -> list[MessageRecord]:
        """Return what came since the last poll, at most once; see ``Postbox.poll``."""
        box, crossing = self._both
        return await crossing.call(
            lambda: box.poll(
                agent, topics=topics, session=session, limit=limit, consume_skipped=consume_skipped
            )
        )

    async def tail(
        self, limit: int = 10, *, session: str = DEFAULT_SESSION, include_expired: bool = False
    ) -> list[MessageRecord]:
        """Return the newest messages of a session; see ``Postbox.tail``."""
        box, crossing = self._both
        return await crossing.call(
            lambda: box.tail(limit, session=session, include_expired=include_expired)
        )

    async def expire(self, session: str | None = None) -> int:
        """End what has outlived its time to live; see ``Postbox.expire``."""
        box, crossing = self._both
        return await crossing.call(lambda: box.expire(session))

    async def status(self, session: str | None = None) -> dict[str, dict[str, Any]]:
        """Return how each session stands; see ``Postbox.status``."""
        box, crossing = self._both
        return await crossing.call(lambda: box.status(session))
