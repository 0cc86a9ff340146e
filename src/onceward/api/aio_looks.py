"""Looking at a file, awaitable: numbers, history, threads, words."""

from __future__ import annotations

from typing import Any

from onceward.api.postbox import Postbox
from onceward.runtime.async_bridge import AsyncBridge
from onceward.store import queries


class AsyncLooks:
    """Reads of an open postbox; nothing here consumes anything."""

    @property
    def _both(self) -> tuple[Postbox, AsyncBridge]:
        raise NotImplementedError

    @property
    def _box(self) -> Postbox:
        return self._both[0]

    @property
    def _crossing(self) -> AsyncBridge:
        return self._both[1]

    async def stats(self) -> dict[str, int]:
        """Return present numbers and totals that survive pruning."""
        return await self._crossing.call(self._box.stats)

    async def history(self, **filters: Any) -> queries.Page:
        """Return past messages, newest first."""
        return await self._crossing.call(lambda: self._box.history(**filters))

    async def thread(self, message_id: str) -> list[queries.HistoryEntry]:
        """Return the conversation that a message belongs to."""
        return await self._crossing.call(lambda: self._box.thread(message_id))

    async def search(self, text: str, *, limit: int = 100, offset: int = 0) -> queries.Page:
        """Return past messages whose body holds all words of *text*; see ``Postbox.search``."""
        return await self._crossing.call(lambda: self._box.search(text, limit=limit, offset=offset))
