"""
From an event loop to the file and back: one hop per operation, one commit per loop tick.

What tasks ask for in one tick crosses together and is committed together on one
thread. A transaction block of a task lives on a second thread, so that others
can queue behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.errors import OutcomeUnknown, StoreClosed

T = TypeVar("T")


class UncancellableFuture(asyncio.Future[Any]):
    """What a task waits for to its end: it hears of a cancellation once the outcome is known."""

    def cancel(self, msg: object = None) -> bool:
        """Refuse: the work is under way. The task that waits remembers that it was cancelled, and raises so when it wakes."""
        del msg
        return False


@dataclass(slots=True)
class PendingCall:
    """One operation under way; ``joins`` says that it may share a commit with its neighbours."""

    work: Callable[[], Any]
    future: UncancellableFuture
    joins: bool
    result: Any = None
    error: BaseException | None = None
    ids: tuple[str, ...] = ()
    """The messages that it wrote in the commit it shares."""

    def run(self) -> None:
        """Do the work and keep its result or error."""
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the task that asked
            self.error = error

    def arrive(self) -> None:
        """Hand the outcome to the awaiting task."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class AsyncBridge:
    """The way from one event loop to one open file."""

    def __init__(self, db: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._db, self._loop = db, loop
        self._tick: list[PendingCall] = []
        self._closed = False
        self._queue: SimpleQueue[list[PendingCall] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name=f"onceward-crossing-{db.agent}", daemon=True)
        self._thread.start()
        self._block_thread = ThreadPoolExecutor(1, thread_name_prefix=f"onceward-block-{db.agent}")
        self._block_lock = asyncio.Lock()
        self._block: ContextVar[asyncio.Task[Any] | None] = ContextVar(
            "onceward_block", default=None
        )

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* off the loop; inside this task's transaction block, in that block."""
        return await self._submit(work, joins=False)

    async def write(self, work: Callable[[], T]) -> T:
        """Run *work*, which writes once, sharing its commit with what other tasks write in this tick."""
        return await self._submit(work, joins=True)

    def _check(self) -> None:
        """Raise StoreClosed where nobody crosses any more: whoever waited then would wait for ever."""
        if self._closed:
            msg = "the postbox is closed: open it again"
            raise StoreClosed(msg)

    async def _submit(self, work: Callable[[], T], *, joins: bool) -> T:
        self._check()
        if self.in_transaction:
            return await uncancelled(self._loop.run_in_executor(self._block_thread, work))
        crosser = PendingCall(work, UncancellableFuture(loop=self._loop), joins)
        if not self._tick:
            self._loop.call_soon(self._leave)
        self._tick.append(crosser)
        found: T = await crosser.future
        return found

    @property
    def in_transaction(self) -> bool:
        """Whether the running task has a transaction block open; tasks it started do not count."""
        owner = self._block.get()
        return owner is not None and owner is asyncio.current_task()

    @asynccontextmanager
    async def block(self) -> AsyncIterator[StoreTransaction]:
        """Open a transaction block for the running task, or join the one it has open."""
        if self.in_transaction:
            async with self._on_block_thread() as tx:
                yield tx
            return
        async with self._block_lock:
            token = self._block.set(asyncio.current_task())
            try:
                async with self._on_block_thread() as tx:
                    yield tx
            finally:
                self._block.reset(token)

    @asynccontextmanager
    async def _on_block_thread(self) -> AsyncIterator[StoreTransaction]:
        self._check()
        block = self._db.transaction()
        entered = self._loop.run_in_executor(self._block_thread, block.__enter__)
        try:
            tx = await uncancelled(entered)
        except asyncio.CancelledError as error:
            if entered.exception() is None:
                await self._exit(block, error)
            raise
        try:
            yield tx
        except BaseException as error:
            if not await self._exit(block, error):
                raise
        else:
            await self._exit(block, None)

    async def _exit(self, block: Any, error: BaseException | None) -> bool:
        about = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        return bool(
            await uncancelled(
                self._loop.run_in_executor(self._block_thread, lambda: _leave_block(block, about))
            )
        )

    def _leave(self) -> None:
        batch, self._tick = self._tick, []
        if batch:  # closing may have taken it already
            self._queue.put(batch)

    # -- on the crossing thread -------------------------------------------------------------

    def _serve(self) -> None:
        while (batch := self._queue.get()) is not None:
            joining: list[PendingCall] = []
            for crosser in batch:
                if crosser.joins:
                    joining.append(crosser)
                    continue
                self._together(joining)
                joining = []
                crosser.run()
            self._together(joining)
            self._loop.call_soon_threadsafe(_arrive, batch)

    def _together(self, crossers: list[PendingCall]) -> None:
        if len(crossers) < 2:  # noqa: PLR2004 - one alone needs no company
            for crosser in crossers:
                crosser.run()
            return
        try:
            if not self._db.write(lambda tx: self._all_well(tx, crossers)):
                self._db.write(lambda tx: _run_each(tx, crossers))
        except OutcomeUnknown as error:
            for crosser in crossers:
                crosser.error = crosser.error or OutcomeUnknown(str(error), crosser.ids)
        except BaseException as error:  # noqa: BLE001 - it is raised in the task that asked
            for crosser in crossers:
                crosser.error = crosser.error or error

    def _all_well(self, tx: StoreTransaction, crossers: list[PendingCall]) -> bool:
        """Run all of them as one; what fails undoes everything, to be run again one by one."""
        tx.savepoint()
        try:
            with self._db.writer.without_savepoints():
                _run_all(tx, crossers)
            tx.release_savepoint()
        except BaseException:  # noqa: BLE001 - alone, each will tell whose it was
            tx.effects.clear()
            tx.rollback_savepoint()
            return False
        return True

    def close(self) -> None:
        """Serve what has crossed already, then nothing more."""
        self._closed = True
        self._leave()
        self._queue.put(None)
        self._block_thread.shutdown(wait=False)


def _run_all(tx: StoreTransaction, crossers: list[PendingCall]) -> None:
    for crosser in crossers:
        _run_one(tx, crosser)
        if crosser.error is not None:
            raise crosser.error


def _run_each(tx: StoreTransaction, crossers: list[PendingCall]) -> None:
    for crosser in crossers:
        _run_one(tx, crosser)
        if not tx.alive and crosser.error is not None:
            raise crosser.error


def _run_one(tx: StoreTransaction, crosser: PendingCall) -> None:
    known, crosser.error = len(tx.message_ids), None
    crosser.run()
    crosser.ids = tuple(tx.message_ids[known:])


def _arrive(batch: list[PendingCall]) -> None:
    for crosser in batch:
        crosser.arrive()


def _leave_block(block: Any, about: tuple[Any, Any, Any]) -> bool:
    return bool(block.__exit__(*about))


async def uncancelled(future: asyncio.Future[T]) -> T:
    """Await *future* to its end; a cancellation that comes meanwhile is raised once the outcome is known."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise
            cancelled = True
        except BaseException:  # noqa: BLE001 - alone, each will tell whose it was
            break
    if cancelled:
        future.exception()
        raise asyncio.CancelledError
    return future.result()
