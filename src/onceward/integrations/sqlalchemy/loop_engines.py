"""Make engines and sessions of SQLAlchemy's asyncio extension over a postbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection as Work
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import Session
from sqlalchemy.util.concurrency import await_only

from onceward import AsyncContext, AsyncPostbox, Transaction
from onceward.errors import InvalidArgument
from onceward.integrations.dbapi.connections import Connection
from onceward.integrations.dbapi.errors import InterfaceError
from onceward.integrations.sqlalchemy.engines import (
    URL,
    EngineOptions,
    begun,
    still_there,
)
from onceward.integrations.sqlalchemy.loop_connections import BlockConnection, LoopConnection
from onceward.message.names import DEFAULT_SESSION
from onceward.types import AsyncTransaction

T = TypeVar("T")

_of_handlers: WeakKeyDictionary[Any, AsyncEngine] = WeakKeyDictionary()
"""By the outbox of a postbox: the engine of its async handlers' sessions."""
_context: ContextVar[AsyncContext] = ContextVar("onceward_sqlalchemy_context")
"""The handler that a connection is made for."""


def async_engine(
    box: AsyncPostbox, *, foreign_keys: bool = False, **options: Unpack[EngineOptions]
) -> AsyncEngine:
    """
    Return an engine whose transactions are those of an open postbox, for its event loop.

    As with ``engine``, a transaction takes the one turn to write of the file. It
    belongs to the task that begins it: what that task sends by the postbox joins
    it, and other tasks wait, at most ``busy_timeout``; the loop never does. In a
    block ``async with box.begin()`` it joins the block by savepoint. With the
    isolation level AUTOCOMMIT statements read what is committed and never wait.
    *foreign_keys* has SQLite check foreign keys, for all users of the open file,
    from the first connection on.

    Raises:
        StoreClosed: the postbox is not open.
        InvalidArgument: it is a ``Postbox``, which has no event loop.

    """
    if not isinstance(box, AsyncPostbox):
        msg = "an async engine needs an AsyncPostbox: make it of one, or take engine(box)"
        raise InvalidArgument(msg)
    outbox_of, bridge_of = ref(box._plain._outbox), ref(box._bridge)

    def connect() -> BlockConnection:
        outbox, bridge = still_there(outbox_of), still_there(bridge_of)
        if asyncio.get_running_loop() is not bridge._loop:
            msg = "the engine belongs to the event loop that opened its postbox: use it there"
            raise InterfaceError(msg)
        if foreign_keys and not outbox.db._enforces:
            await_only(bridge.call(outbox.db.enforce_foreign_keys))
        return BlockConnection(Connection(outbox), bridge)

    return create_async_engine(URL, creator=connect, poolclass=NullPool, **options)


def async_transaction(
    work: AsyncSession | AsyncConnection, session: str = DEFAULT_SESSION
) -> AsyncTransaction:
    """
    Return the transaction of *work* to send with, in the conversation *session*.

    ``await async_transaction(work).send(…)`` begins the transaction of *work* if
    need be. Messages are committed or rolled back with it, also by savepoint.

    Raises:
        InvalidArgument: by its calls; the engine is not of ``async_engine(box)``, or its
            level is AUTOCOMMIT.
        OperationalError: of SQLAlchemy, by its calls; others held the file for the
            whole deadline.

    """
    if not isinstance(work, AsyncSession | AsyncConnection):
        msg = "async_transaction takes an AsyncSession or AsyncConnection: others, transaction"
        raise InvalidArgument(msg)
    return _WorkTransaction(_BegunByCall(work, session))


class _BegunByCall:
    """The thread of a transaction, which the first call begins."""

    def __init__(self, work: AsyncSession | AsyncConnection, session: str) -> None:
        self._work, self._session = work, session
        self._lock = asyncio.Lock()
        self._begun: tuple[LoopConnection, Transaction] | None = None

    @property
    def plain(self) -> Transaction:
        """Return the transaction that was begun."""
        return cast("tuple[LoopConnection, Transaction]", self._begun)[1]

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* on the thread of the transaction."""
        async with self._lock:
            if self._begun is None:
                self._begun = await self._work.run_sync(_begin, self._session)
        return await self._begun[0].call(work)

    write = call


class _WorkTransaction(AsyncTransaction):
    """The transaction of a session or a connection, begun by the first call."""

    def __init__(self, thread: _BegunByCall) -> None:
        self._thread = thread

    @property
    def _plain(self) -> Transaction:
        return self._thread.plain

    @property
    def _off_loop(self) -> _BegunByCall:
        return self._thread


def _begin(work: Session | Work, session: str) -> tuple[LoopConnection, Transaction]:
    connection = begun(work, LoopConnection)
    return connection, connection.transaction(session)


async def async_session_for(ctx: AsyncContext) -> AsyncIterator[AsyncSession]:
    """
    Give an async handler a session in its transaction: ``Depends(async_session_for)``.

    Its rows are committed with the processed mark, or not at all; the
    end of the handler flushes. Messages are sent with ``ctx.send``.

    Raises:
        InvalidArgument: the handler is not async, or takes batches.

    """
    if not isinstance(ctx, AsyncContext):
        msg = "async_session_for serves async handlers of one message: others, session_for"
        raise InvalidArgument(msg)
    token = _context.set(ctx)
    try:
        connection = await _engine_of_handlers(ctx._plain._outbox).connect()
    finally:
        _context.reset(token)
    try:
        async with AsyncSession(connection) as session:
            yield session
            await session.commit()  # unlike the end of ``begin()`` it raises after a failed flush
    finally:
        await connection.close()


def _engine_of_handlers(outbox: Any) -> AsyncEngine:
    if (made := _of_handlers.get(outbox)) is None:
        made = create_async_engine(URL, creator=_connect_handler, poolclass=NullPool)
        _of_handlers[outbox] = made
    return made


def _connect_handler() -> LoopConnection:
    ctx = _context.get()
    return LoopConnection(Connection(ctx._plain._outbox), ctx._off_loop)
