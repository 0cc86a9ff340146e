"""The async version of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from onceward.core.handle.bridge import FileBridge
from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.core.send.block import Transaction
from onceward.features.groups.api import Groups
from onceward.features.groups.group import AsyncGroup, Group


class AsyncGroups(AsyncFace[Groups]):
    """The groups of a file; see ``Groups``."""

    get = awaitable(Groups.get)
    list = awaitable(Groups.list)
    messages = awaitable(Groups.messages)

    @asynccontextmanager
    async def begin(
        self, *, then: str, data: object = None, type: str | None = None, session: str | None = None
    ) -> AsyncIterator[AsyncGroup]:
        """Open a block whose ``send`` adds messages to a new group; see ``Groups.begin``."""
        plain, bridge = self._plain, cast("FileBridge", self._off_loop)
        new = await bridge.call(lambda: plain._new(then, data, type, session))
        async with bridge.block() as tx:
            group = Group(Transaction(tx, plain._outbox, new.session), new)
            yield AsyncGroup(group, bridge)
            await bridge.call(group._store)
