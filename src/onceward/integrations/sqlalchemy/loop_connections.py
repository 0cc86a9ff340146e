"""Connections of PEP 249 for the greenlets of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import AdaptedConnection
from sqlalchemy.util.concurrency import await_only, in_greenlet

from onceward import Transaction
from onceward.errors import OncewardError, StoreClosed
from onceward.integrations.dbapi.connections import Connection, Cursor, Work
from onceward.integrations.dbapi.errors import pep249
from onceward.integrations.dbapi.statements import Result

T = TypeVar("T")


class LoopCursor(Cursor):
    """A cursor, whose rows are in memory."""

    async def _async_soft_close(self) -> None:
        """Do nothing: SQLAlchemy asks for it before it hands rows to code that cannot await."""


class LoopConnection(AdaptedConnection):
    """
    A connection that makes its calls on the thread of one transaction, in an async handler.

    A call that has begun is awaited to its end, also when its task is cancelled.
    """

    def __init__(self, plain: Connection, thread: Any) -> None:
        self._plain = plain
        self._connection: Any = plain  # SQLAlchemy's name of it, and its type is another
        self._thread = thread  # the worker's or the postbox's, which are not public types

    @property
    def autocommit(self) -> bool:
        """Whether statements are transactions of their own."""
        return self._plain.autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._plain.autocommit = value

    @property
    def deferred(self) -> bool:
        """Whether the first statement that writes begins, and none that reads."""
        return self._plain.deferred

    @deferred.setter
    def deferred(self, value: bool) -> None:
        self._plain.deferred = value

    def begin(self) -> None:
        """Take the turn to write, or join the transaction of this task."""
        if self._plain.begins:
            self._wait(self._begin())

    def commit(self) -> None:
        """Commit; see ``Connection.commit``."""
        self._wait(self._end(self._plain.commit))

    def rollback(self) -> None:
        """Undo the transaction."""
        self._wait(self._end(self._plain.rollback))

    def close(self) -> None:
        """Roll back what is open."""
        self._wait(self._end(self._plain.close))

    def terminate(self) -> None:
        """Roll back what is open; a finalizer, which cannot wait, leaves it to the thread."""
        if in_greenlet():
            self.close()
        else:
            self._abandon()

    def savepoint(self, name: str) -> None:
        """Open a savepoint."""
        self._wait(self.call(partial(self._plain.savepoint, name)))

    def release(self, name: str) -> None:
        """End a savepoint and keep its work."""
        self._wait(self.call(partial(self._plain.release, name)))

    def rollback_to(self, name: str) -> None:
        """Undo a savepoint, its messages included."""
        self._wait(self.call(partial(self._plain.rollback_to, name)))

    def transaction(self, session: str) -> Transaction:
        """Return the transaction to send with, by ``call``; it begins if need be."""
        self.begin()
        return self._wait(self.call(partial(self._plain.transaction, session)))

    def cursor(self) -> LoopCursor:
        """Return a cursor."""
        return LoopCursor(self)

    def run(self, work: Work) -> Result:
        """Run *work* on the thread and the connection that are right for it."""
        return self._wait(self._run(work))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Await *call* from a greenlet; SQLAlchemy sees errors of PEP 249."""
        try:
            return await_only(call)
        except OncewardError as error:
            meant = pep249(error, self._plain.path)
            if meant is error:
                raise
            raise meant from error

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* on the thread of the transaction."""
        found: T = await self._thread.in_block(work)
        return found

    write = call

    async def _begin(self) -> None:
        await self.call(self._plain.begin)

    async def _end(self, end: Callable[[], None]) -> None:
        if self._plain.has_begun:
            await self.call(end)
        else:
            end()

    async def _run(self, work: Work) -> Result:
        return await self.call(partial(self._plain.run, work))

    def _abandon(self) -> None:
        """Do nothing: the handler's end undoes or keeps what joined it."""


class BlockConnection(LoopConnection):
    """
    A connection whose transaction is the one block of an open postbox.

    The task that begins it owns the block until the end: its calls of the postbox
    join the transaction, and other tasks wait, at most ``busy_timeout``.
    """

    def __init__(self, plain: Connection, bridge: Any) -> None:
        super().__init__(plain, bridge)
        self._beginning = asyncio.Lock()
        self._owns = False

    async def _begin(self) -> None:
        plain = self._plain
        async with self._beginning:
            if not plain.begins:  # a neighbour has begun meanwhile
                return
            try:
                if not self._thread.in_transaction:
                    await self._thread.take_block()
                    self._owns = True
                await super()._begin()
            except BaseException:
                await self._end(plain.rollback)
                raise

    async def _end(self, end: Callable[[], None]) -> None:
        try:
            await super()._end(end)
        except StoreClosed:  # so nothing is open any more
            self._plain.forget()
            if end == self._plain.commit:
                raise
        finally:
            if self._owns:
                self._owns = False
                self._thread.give_block_back()

    async def _run(self, work: Work) -> Result:
        plain = self._plain
        if plain.has_begun or self._thread.in_transaction:
            return await super()._run(work)
        found: Result | None = await self._thread.beside(partial(plain.read, work))
        if found is None and plain.autocommit:
            found = await self._thread.call(partial(plain.write, work))
        if found is None:
            await self._begin()
            found = await super()._run(work)
        return found

    def _abandon(self) -> None:
        owned, self._owns = self._owns, False
        if owned or self._plain.has_begun:
            self._thread.abandon_block(self._plain.close, owned=owned)
