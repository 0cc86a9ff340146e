"""The async versions of mailboxes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, Unpack

from typing_extensions import TypeForm

from onceward.core.handle.bridge import FileBridge
from onceward.core.handle.context import AsyncTransaction
from onceward.core.handle.invoke import run_coroutine
from onceward.core.handle.message import AsyncMessage, Message
from onceward.core.run.async_face import (
    AsyncFace,
    OffLoop,
    OnWorker,
    WorkerThread,
    awaitable,
    awaitable_as,
    awaitable_write,
    on_thread,
    until_ended,
)
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.features.mailboxes.api import (
    HandlerTransaction,
    Mailbox,
    Mailboxes,
    MailboxFields,
    Where,
)
from onceward.features.mailboxes.mailbox_readers import EARLIEST
from onceward.message.body import Body
from onceward.message.names import quoted
from onceward.message.record import MailboxFilters, MessageRecord
from onceward.message.times import Span

T = TypeVar("T")


class AsyncHandlerTransaction(AsyncFace[HandlerTransaction]):
    """Transaction of an ``async def`` handler of a mailbox; see ``HandlerTransaction``."""

    def __init__(self, effects: HandlerTransaction, off_loop: OffLoop) -> None:
        super().__init__(effects, off_loop)
        self.tx: AsyncTransaction = _MarkTransaction(effects, off_loop)
        """The transaction that the mark commits with; opened, and the file locked, on first use."""

    send = awaitable(HandlerTransaction.send)


class _MarkTransaction(AsyncTransaction):
    """The transaction of a mailbox's handler, opened on first use."""

    def __init__(self, effects: HandlerTransaction, off_loop: OffLoop) -> None:
        self._effects, self._worker = effects, off_loop

    @property
    def _plain(self) -> Transaction:
        return self._effects.tx

    @property
    def _off_loop(self) -> OffLoop:
        return self._worker


AsyncHandler = Callable[[AsyncMessage[Any], AsyncHandlerTransaction], Awaitable[object]]


class AsyncMailbox(MailboxFields, AsyncFace[Mailbox]):
    """One mailbox of the home, until it expires; see ``Mailbox``."""

    def __init__(self, mailbox: Mailbox, bridge: FileBridge) -> None:
        MailboxFields.__init__(self, mailbox._address, id=mailbox.id, created=mailbox.created)
        AsyncFace.__init__(self, mailbox, bridge)
        self._bridge = bridge

    send = awaitable_write(Mailbox.send)
    discard = awaitable(Mailbox.discard)
    reset = awaitable(Mailbox.reset)
    query = awaitable(Mailbox.query)
    count = awaitable(Mailbox.count)

    async def _until(self, look: Callable[[], list[T]], timeout: Span | None) -> list[T]:
        """Call *look* after every commit in the mailbox's file until it finds something."""
        reader = self._plain._reader
        found = await self._bridge.wait(
            lambda: look() or None, timeout, db=reader.db, due=reader.until_due
        )
        return found or []

    async def scan(
        self, type: Any = None, *, timeout: Span | None = 0.0
    ) -> AsyncIterator[MessageRecord]:
        """Yield everything that has not expired, then new messages; see ``Mailbox.scan``."""
        read_on = self._plain._reading(type)
        while records := await self._until(read_on, timeout):
            for record in records:
                yield record

    async def read(
        self,
        reader: str,
        type: Any = None,
        *,
        limit: int = 100,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
        consume_skipped: bool = True,
        **filters: Unpack[MailboxFilters],
    ) -> list[MessageRecord]:
        """Move the named position and return what it passed; see ``Mailbox.read``."""

        def look() -> list[MessageRecord]:
            return self._plain.read(
                reader, type, limit=limit, start=start, consume_skipped=consume_skipped, **filters
            )

        return await self._until(look, timeout)

    async def lease(
        self,
        group: str,
        type: TypeForm[Body] | str | None = None,
        *,
        limit: int = 1,
        timeout: Span | None = 0.0,
        lease: Span | None = None,
        start: Where = EARLIEST,
    ) -> list[AsyncMessage[Body]]:
        """Lease the next messages of the group to us; see ``Mailbox.lease``."""

        def look() -> list[Message[Body]]:
            return self._plain.lease(group, type, limit=limit, lease=lease, start=start)

        reader = self._plain._reader
        return await self._bridge.lease(look, timeout, db=reader.db, due=reader.until_due)

    async def receive(
        self,
        group: str,
        type: TypeForm[Body] | str | None = None,
        *,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
    ) -> AsyncMessage[Body] | None:
        """Lease the next message of the group; see ``Mailbox.receive``."""
        found = await self.lease(group, type, timeout=timeout, start=start)
        return found[0] if found else None

    async def handle(
        self,
        group: str,
        handler: AsyncHandler,
        type: Any = None,
        *,
        limit: int = 1,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
    ) -> int:
        """
        Lease and handle the next messages by a coroutine function; see ``Mailbox.handle``.

        Once *handler* has used its transaction it holds the file's write lock:
        until it ends, await only that transaction and nothing else of this file. A cancellation
        cancels the handler, and its message is tried again.
        """
        if not inspect.iscoroutinefunction(handler):
            msg = f"handler {quoted(handler)} must be an async def: it runs on the event loop"
            raise InvalidArgument(msg)
        if self._bridge.in_transaction:
            msg = "handle commits on its own: call it outside of the open transaction"
            raise InvalidArgument(msg)
        calls = _HandlerCalls(handler, asyncio.get_running_loop())

        def look() -> int | None:
            handled = self._plain.handle(group, calls.run, type, limit=limit, start=start)
            return handled or None

        reader = self._plain._reader
        handled = await self._bridge.wait(
            look, timeout, db=reader.db, due=reader.until_due, run=calls.on_thread
        )
        return handled or 0


class _HandlerCalls:
    """Run an async handler for a thread that holds the transaction."""

    def __init__(self, handler: AsyncHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._handler, self._loop = handler, loop
        self._cancel: Callable[[], object] = lambda: None

    def run(self, message: Message[Any], effects: HandlerTransaction) -> None:
        """Run the handler's coroutine on the loop and its calls on this thread."""

        def start(on_worker: OnWorker) -> Awaitable[object]:
            thread = WorkerThread(on_worker)
            return self._handler(
                AsyncMessage(message, thread), AsyncHandlerTransaction(effects, thread)
            )

        def stoppable(cancel: Callable[[], object]) -> None:
            self._cancel = cancel

        run_coroutine(start, self._loop, stoppable)

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Run *work* on a separate thread; a cancellation cancels the handler first."""
        working = asyncio.ensure_future(on_thread(work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self._cancel()
            await until_ended(working)
            raise


class AsyncMailboxes(AsyncFace[Mailboxes]):
    """The mailboxes of the home; see ``Mailboxes``."""

    ensure = awaitable_as(AsyncMailbox, Mailboxes.ensure)
    create = awaitable_as(AsyncMailbox, Mailboxes.create)
    get = awaitable_as(AsyncMailbox, Mailboxes.get)
    list = awaitable(Mailboxes.list)
