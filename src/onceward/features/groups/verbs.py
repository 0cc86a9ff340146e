"""Add groups to contexts: ``ctx.group``, sync and async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from onceward.core.handle.call import CallParts
from onceward.core.run.async_face import AsyncFace
from onceward.errors import InvalidArgument
from onceward.features.groups.group import AsyncGroup, Group, new_group, opened


class WithGroups(CallParts):
    """The groups of a handler."""

    @contextmanager
    def group(self, *, then: str, data: object = None, type: str | None = None) -> Iterator[Group]:
        """
        Open a block whose ``send`` adds messages to a new group; it leaves with the processed mark.

        See ``box.groups.begin``. With *then* the name of this agent its own handler is called with
        a ``GroupDone`` when all have ended.

        Raises:
            InvalidArgument: *data* is not JSON, or a run sends it.
            SendError: no message can be sent to *then*.

        """
        tx = self._transaction_of_group()
        with opened(tx, self._new_group(then, data, type, tx), self._follow) as group:
            yield group

    def _new_group(self, then: str, data: object, kind: str | None, tx: Any) -> Any:
        return new_group(self._outbox, self.session, then, data, kind, within=tx)

    def _transaction_of_group(self) -> Any:
        if not hasattr(self, "tx"):
            raise InvalidArgument("a run sends no group: let a handler of messages send it")
        return self.tx


class AsyncWithGroups(AsyncFace[Any]):
    """The groups of a coroutine's call."""

    @asynccontextmanager
    async def group(
        self, *, then: str, data: object = None, type: str | None = None
    ) -> AsyncIterator[AsyncGroup]:
        """Open a block whose ``send`` adds messages to a new group; see ``Context.group``."""
        plain, off_loop = self._plain, self._off_loop
        tx = await off_loop.call(plain._transaction_of_group)
        new = await off_loop.call(lambda: plain._new_group(then, data, type, tx))
        group = Group(tx, new, plain._follow)
        yield AsyncGroup(group, off_loop)
        await off_loop.call(group._store)
