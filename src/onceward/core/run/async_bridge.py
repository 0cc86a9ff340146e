"""
Pass calls and waits of an event loop to the file: one thread hop per call, one commit per tick.

The calls that tasks make in one tick run on one thread, and their writes are one batch of the write
queue. A transaction block of a task runs on a second thread, so that others can queue behind it.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread, Timer
from types import BuiltinFunctionType
from typing import Any, Protocol, TypeVar, cast
from weakref import ref

from onceward.core.run.async_face import carried, uncancelled, until_ended
from onceward.core.run.event_loop import renewed_by_forks
from onceward.errors import Busy, StoreClosed
from onceward.file.database import Database
from onceward.file.group_commit import HELD
from onceward.file.notify import Direction, Notifier
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import monotonic

T = TypeVar("T")


class UncancellableFuture(asyncio.Future[Any]):
    """A future that a task awaits to its end: it cannot be cancelled."""

    def cancel(self, msg: object = None) -> bool:
        """Refuse, because the work has started; the task raises CancelledError when it wakes."""
        del msg
        return False


@dataclass(slots=True)
class PendingCall:
    """One operation of a task; with ``joins`` it may share a commit with its neighbours."""

    work: Callable[[], Any]
    future: UncancellableFuture
    joins: bool
    result: Any = None
    error: BaseException | None = None

    def run(self, work: Callable[[], Any] | None = None) -> None:
        """Run the call, or *work* in its place, and keep its result or error."""
        try:
            self.result = (work or self.work)()
        except BaseException as error:  # noqa: BLE001 - it is raised in the task that asked
            self.error = error

    def write(self, tx: StoreTransaction) -> Any:
        """Run the call as one piece of a batch: its writes join *tx*."""
        del tx
        return self.work()

    def arrive(self) -> None:
        """Pass the outcome to the awaiting task."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class AsyncBridge:
    """The bridge from one event loop to one open file."""

    def __init__(self, db: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._db, self._loop = db, loop
        renewed_by_forks(loop)
        self._tick: list[PendingCall] = []
        self.closed = False
        self._queue: SimpleQueue[list[PendingCall] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name=f"onceward-bridge-{db.agent}", daemon=True)
        self._thread.start()
        self._block_thread = ThreadPoolExecutor(1, thread_name_prefix=f"onceward-block-{db.agent}")
        self._block_lock = asyncio.Lock()
        self._block_owner: ref[asyncio.Task[Any]] | None = None
        """Task that has the block; after a cancellation its traceback keeps its objects alive."""
        self._blocks_ended = 0
        self._undo: deque[Callable[[], None]] = deque()

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* off the loop; inside this task's transaction block, in that block."""
        return await self._submit(work, joins=False)

    async def write(self, work: Callable[[], T]) -> T:
        """Run *work*, which writes once, sharing the commit of all tasks in this tick."""
        return await self._submit(work, joins=True)

    def _check(self) -> None:
        """Raise StoreClosed if the bridge is closed: a call would wait forever."""
        if self.closed or self._db.writer.queue.closed:
            self._db.writer.queue.check()
            raise StoreClosed("the postbox is closed: open it again")

    async def _submit(self, work: Callable[[], T], *, joins: bool) -> T:
        self._check()
        if self.in_transaction:
            return await self.in_block(work)
        # logs and traces know the task by its context
        call = PendingCall(carried(work), UncancellableFuture(loop=self._loop), joins)
        if not self._tick:
            self._loop.call_soon(self._leave)
        self._tick.append(call)
        found: T = await call.future
        return found

    @property
    def in_transaction(self) -> bool:
        """Whether the running task has a transaction block open; tasks it started do not count."""
        owner = self._block_owner
        return owner is not None and owner() is asyncio.current_task()

    @asynccontextmanager
    async def block(self) -> AsyncIterator[StoreTransaction]:
        """Open a transaction block for the running task, or join the one it has open."""
        self._check()
        if self.in_transaction:
            async with self._on_block_thread() as tx:
                yield tx
            return
        await self.take_block()
        try:
            async with self._on_block_thread() as tx:
                yield tx
        finally:
            self.give_block_back()

    async def take_block(self) -> None:
        """
        Give the one transaction block to the running task; ``give_block_back`` must follow.

        It waits for its turn as long as other tasks keep ending theirs.

        Raises:
            Busy: one task held the block for the whole ``busy_timeout``.

        """
        ended = -1
        while ended != self._blocks_ended:
            ended = self._blocks_ended
            with suppress(TimeoutError):
                async with within(self._db.writer.queue.timeout):
                    await self._block_lock.acquire()
                    self._block_owner = ref(cast("asyncio.Task[Any]", asyncio.current_task()))
                    return
        raise Busy(HELD)

    def give_block_back(self) -> None:
        """Give the block to the next task that waits for it."""
        self._block_owner = None
        self._blocks_ended += 1
        self._block_lock.release()

    async def in_block(self, work: Callable[[], T]) -> T:
        """Run *work* on the thread of blocks, and await its end even when cancelled."""
        self._check()
        return await uncancelled(self._on_its_thread(carried(work)))

    def _on_its_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._block_thread, self._after_undoing, work)

    def _after_undoing(self, work: Callable[[], T]) -> T:
        """Run *work* after pending undos of finalizers, which would undo it otherwise."""
        while self._undo:
            with suppress(Exception):  # its caller is gone
                self._undo.popleft()()
        return work()

    async def beside(self, work: Callable[[], T]) -> T:
        """Run *work*, which only reads, without queueing behind calls that wait for the file."""
        self._check()
        return await uncancelled(self._loop.run_in_executor(None, carried(work)))

    def abandon_block(self, undo: Callable[[], None], *, owned: bool) -> None:
        """
        Run *undo* on the thread of blocks; then, if the block is *owned*, give it back.

        It waits for neither, so a finalizer may call it on any thread.
        """
        if owned:
            self._block_owner = None  # no call of that task joins what is undone
        self._undo.append(undo)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.give_block_back)

        def start() -> None:
            with suppress(RuntimeError):  # the bridge is closed, and nothing is open
                undone = self._block_thread.submit(self._after_undoing, lambda: None)
                if owned:
                    undone.add_done_callback(ended)

        try:  # a finalizer that waited for the executor's lock could wait for itself
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:  # the loop is closed
            start()

    @asynccontextmanager
    async def _on_block_thread(self) -> AsyncIterator[StoreTransaction]:
        self._check()
        block = self._db.transaction()
        entered = self._on_its_thread(block.__enter__)
        try:
            tx = await uncancelled(entered)
        except asyncio.CancelledError as error:
            if entered.exception() is None:
                await self._exit(block, error)
            raise
        try:
            yield tx
        except BaseException as error:
            if self._db.is_inherited or not await self._exit(block, error):
                raise
        else:
            if self._db.is_inherited:
                self._check()
            await self._exit(block, None)

    async def _exit(self, block: Any, error: BaseException | None) -> bool:
        about = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        leaving = self._on_its_thread(lambda: _leave_block(block, about))
        if not isinstance(error, asyncio.CancelledError):
            return await uncancelled(leaving)
        await until_ended(leaving)  # the caller raises the first cancellation
        return leaving.result()

    def _leave(self) -> None:
        batch, self._tick = self._tick, []
        if batch:  # closing may have taken it already
            self._queue.put(batch)

    # -- on the bridge's thread -------------------------------------------------------------

    def _serve(self) -> None:
        while (batch := self._queue.get()) is not None:
            joining: list[PendingCall] = []
            for call in batch:
                if call.joins:
                    joining.append(call)
                    continue
                self._together(joining)
                joining = []
                call.run()
            self._together(joining)
            self._loop.call_soon_threadsafe(_arrive, self._loop, batch)

    def _together(self, calls: list[PendingCall]) -> None:
        """Run calls that write, as one batch of the write queue."""
        if len(calls) == 1:
            calls[0].run()
        if len(calls) < 2:  # noqa: PLR2004 - one alone has a commit of its own
            return
        try:
            requests = self._db.write_each([call.write for call in calls])
        except BaseException as error:  # noqa: BLE001 - it is raised in the tasks that asked
            for call in calls:
                call.error = error
        else:
            for call, request in zip(calls, requests, strict=True):
                call.run(request.outcome)

    def close(self) -> None:
        """Run the calls that were already made, then stop."""
        self.closed = True
        self._leave()
        self._queue.put(None)
        self._block_thread.shutdown(wait=False)


def _arrive(loop: asyncio.AbstractEventLoop, batch: list[PendingCall]) -> None:
    """Pass the outcomes on; a signal's exception in one does not keep the others."""
    try:
        for call in batch:
            call.arrive()
    except BaseException:
        loop.call_soon(_arrive, loop, [call for call in batch if not call.future.done()])
        raise


def _leave_block(block: Any, about: tuple[Any, Any, Any]) -> bool:
    return bool(block.__exit__(*about))


class Call(Protocol):
    """Runs a call that blocks off the loop."""

    def __call__(self, work: Callable[[], None]) -> Awaitable[None]:
        """Run *work*."""
        ...


@asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[None]:
    """
    Raise TimeoutError if the block takes longer.

    A timer of a thread ends it while a test freezes time: event loops wait by time.monotonic.
    """
    async with asyncio.timeout(seconds) as bound:
        if seconds is None or isinstance(time.monotonic, BuiltinFunctionType):
            yield
            return
        loop = asyncio.get_running_loop()
        timer = Timer(seconds, lambda: loop.call_soon_threadsafe(_end, bound))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _end(bound: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # the block has ended
        bound.reschedule(0)


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
        end = math.inf if seconds is None else monotonic() + seconds
        while not self._flag.is_set() and (left := end - monotonic()) > 0:
            due = self._poll_at - monotonic() if self._every > 0 else math.inf
            pause = max(0.0, min(left, due))
            with suppress(TimeoutError):
                async with within(None if pause == math.inf else pause):
                    await self._flag.wait()
            if self._every > 0 and monotonic() >= self._poll_at:
                self._poll_at = self._file.notifier.next_poll(self._every)
                if self._file.notifier.is_due(self._every):
                    await self._call(partial(self._file.notifier.look, self._file.version_if_open))

    def clear(self) -> None:
        """Clear the flag; later commits set it again."""
        self._flag.clear()

    def close(self) -> None:
        """Stop listening."""
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
        """Stop reading."""
        if self._socket >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._socket)
            os.close(self._socket)


_readers: dict[tuple[asyncio.AbstractEventLoop, Notifier, Direction], _Reader] = {}


def _read(
    loop: asyncio.AbstractEventLoop, notifier: Notifier, side: Direction
) -> Callable[[], None]:
    """Let the running *loop* read the socket; return the call that ends it on the same thread."""
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
