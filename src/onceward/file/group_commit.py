"""
Write a file through one queue per process: the thread that has the turn commits for all.

The thread at the head of the queue opens a transaction, runs the work of all waiting threads,
commits once and wakes them. A lone writer pays nothing for it. Work may run twice if the outcome of
a COMMIT was lost, so it must be repeatable: insert by id, settle by token.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from onceward.errors import (
    Busy,
    ForkedProcess,
    OutcomeUnknown,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreUnusable,
)
from onceward.file import forks
from onceward.file.connection import CLOSED_ERRORS
from onceward.file.file_checks import FileKey, file_key
from onceward.file.in_flight import CallRecords
from onceward.file.interrupts import OWN_ERRORS, interrupts_step, interrupts_work
from onceward.file.transaction import (
    Execute,
    Handle,
    NestedBlock,
    OwnReceiver,
    Store,
    StoreTransaction,
    TransactionHost,
)
from onceward.message.clock import monotonic
from onceward.message.error_text import Hint

T = TypeVar("T")
H = TypeVar("H")
GROUP_MAX: Final = 512
FULL: Final = "PRAGMA synchronous = full"
NORMAL: Final = "PRAGMA synchronous = normal"
"""Exceptions that a signal may raise between any two steps; they end the thread's calls."""
ENDED: Final = (
    "the transaction was ended inside its block: leave COMMIT and ROLLBACK to the block; all of "
    "it was undone"
)
NO_HANDLER: Final = nullcontext()
HELD: Final = (
    "other work of this process held the file for the whole deadline; "
    "nothing was written, try again"
)
INTERRUPTED: Final = "the thread that committed for the others was interrupted twice"
MOVED: Final = "the commit went to a file that was moved or deleted"
NOT_YET: Final = (
    "the -wal file was deleted while this process had it open, and its commits cannot be moved "
    "into the file yet: free disk space or end long reads, and do not end this process"
)
UNSAVED: Final = (
    "the -wal file was deleted while this process had it open, and another process has created a "
    "new one: commits since the last checkpoint may be lost; compare the file with its peers by "
    "onceward check"
)
TAKEN: Final = "the postbox was closed while this transaction was open: it was rolled back"
CLOSED: Final = "the postbox is closed: open it again"


class _OfTheParent:
    """Stand in a forked child for the connection of its parent, and for a statement on it."""

    in_transaction = False

    def __getattr__(self, _: str) -> NoReturn:
        raise ForkedProcess(forks.FORKED)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise ForkedProcess(forks.FORKED)


OF_THE_PARENT: Final[Any] = _OfTheParent()


def ended(tx: StoreTransaction) -> StoreError:
    """Return the error for a statement in a transaction that has ended."""
    if tx.handle is OF_THE_PARENT:
        return ForkedProcess(forks.FORKED)
    return StoreClosed(TAKEN) if tx.closed else StoreFault(ENDED)


class Packer(Protocol):
    """
    Pack parcels in the commit of their messages, for the process that pushes them.

    Its methods are called in the turn to write: they raise only interrupts, do not wait and begin
    no write.
    """

    def pack(self, tx: StoreTransaction) -> None:
        """Add parcels of the outgoing messages to a transaction that is about to be committed."""
        ...

    def hand_over(self, *, durable: bool) -> None:
        """Give the packed parcels to carriers, or forget them; a second call does the rest."""
        ...


class CommitsLost(StoreFault):
    """Earlier commits may be gone; the work of the transaction is not repeated."""


class WriteRequest(Generic[T]):
    """One unit of work in the queue; ``work`` is None if the caller wants the turn itself."""

    __slots__ = (
        "done",
        "effects",
        "error",
        "ids",
        "is_leader",
        "next",
        "result",
        "synced",
        "tx",
        "wakeup",
        "work",
    )

    def __init__(
        self, work: Callable[[StoreTransaction], T] | None, *, synced: bool = True
    ) -> None:
        self.work = work
        self.synced = synced
        """Whether its commit must survive a power cut once it has returned."""
        self.ids: list[str] = []
        self.result: T = None  # type: ignore[assignment]  # until the work is done
        self.error: BaseException | None = None
        self.effects: list[Callable[[], None]] = []
        self.done = False
        self.is_leader = False
        """Whether this request has the turn."""
        self.next: WriteRequest[Any] | None = None
        """The next leader, chosen but not yet woken."""
        self.tx: StoreTransaction | None = None
        """The transaction of the last attempt."""
        self.wakeup: Any = None

    def attempt(
        self,
        tx: StoreTransaction,
        mapped: Callable[[BaseException], BaseException],
        *,
        nested: bool,
    ) -> None:
        """Run the work and keep its result or translated error; undo failed *nested* work."""
        self.tx, self.error = tx, None
        tx.effects, tx.message_ids = self.effects, self.ids = [], []
        mark = None
        try:
            if nested:
                mark = tx.savepoint()
            self.result = self.work(tx)  # type: ignore[misc]  # callers without work are not attempted
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            self.error = mapped(error)
            if self.error is not error:
                self.error.__cause__ = error
            if mark is not None:
                tx.rollback_savepoint(mark)
            return
        if mark is not None:
            tx.release_savepoint(mark)

    def unknown(self, error: BaseException) -> OutcomeUnknown:
        """Return the error for a caller whose COMMIT may or may not have happened."""
        reason = str(error).partition(";")[0]
        return OutcomeUnknown(
            f"COMMIT: {reason}; {Hint.ASK_STATE}, or send again with the same id",
            tuple(self.ids),
            reason=reason,
        )

    def outcome(self) -> T:
        """Return the result after running the effects, or raise the error of the work."""
        if self.error is not None:
            raise self.error
        for effect in self.effects:
            effect()
        return self.result

    def finish(self) -> None:
        """Wake the thread that waits for this request."""
        self.done = True
        if self.wakeup is not None:
            self.wake()

    def wake(self) -> None:
        """Open the lock of the thread that waits; ``hurry`` may have opened it already."""
        try:  # noqa: SIM105 - without three calls
            self.wakeup.release()
        except RuntimeError:
            pass


def fail(requests: Sequence[WriteRequest[Any]], error: BaseException | None) -> None:
    """Finish requests whose work was undone, with *error* or each with its own error."""
    for request in requests:
        request.error = error or request.error
        request.finish()


class WriteQueue:
    """
    The turn to write, and the requests that wait for it, first come, first served.

    Python may raise an interrupt after any call. So an indivisible step makes no call, or can be
    repeated.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.closed = self.inherited = False
        self.interrupt: BaseException | None = None
        """A deferred interrupt of this thread, raised at the end of the turn."""
        self._mutex = forks.new_lock()
        self._queue: deque[WriteRequest[Any]] = deque()
        self._batch: list[WriteRequest[Any]] = []
        """Requests whose work is done in this turn."""
        self._patient: list[WriteRequest[Any]] = []
        """Requests that wait for the turn of another thread and take none themselves."""
        self.taken = False
        """Whether a thread has the turn."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their turn."""
        return len(self._queue)

    def defer_interrupt(self, error: BaseException | None) -> None:
        """Keep an interrupt, which concerns only this thread, until it leaves."""
        if error is not None and interrupts_step(error):
            self.interrupt = error

    def close(self, within: float) -> bool:
        """Refuse all further requests; return whether the turn was free *within* some seconds."""
        request: WriteRequest[Any] = WriteRequest(None)
        try:
            self.enter(request, within)
        except StoreClosed:
            return True
        except Busy:
            self.closed = True
            with self._mutex:
                waiting, self._queue = list(self._queue), deque()
            fail(waiting, StoreClosed(CLOSED))
            return False
        else:
            self.closed = True
            return True
        finally:
            self.hurry()  # requests that wait for the turn of another thread are refused now
            self.leave(request)

    def enter(self, request: WriteRequest[Any], within: float | None = None) -> float:
        """
        Return the deadline once this thread has the turn, or another one has done the request.

        ``leave`` must follow, even if this raises.
        """
        if self.closed:
            self.check()
        timeout = self.timeout if within is None else within
        deadline = monotonic() + timeout
        with self._mutex:
            if not self.taken:
                if self.closed:  # meanwhile
                    self.check()
                self.taken = request.is_leader = True
                return deadline
            wakeup = Lock()
            wakeup.acquire()
            self._queue += (request,)
            request.wakeup = wakeup
        try:
            if not wakeup.acquire(timeout=timeout):
                self._give_up(request)
        except BaseException:
            self._abandon(request)
            raise
        if self.closed and (not request.done or request.work is None):
            self.check()
        return deadline

    def enter_if_free(self, request: WriteRequest[Any]) -> bool:
        """Take the turn if no thread has it; ``pass_on`` must follow, even if this raises."""
        with self._mutex:
            if not (self.taken or self.closed):
                self.taken = request.is_leader = True
        return request.is_leader

    def check(self) -> None:
        """Raise ForkedProcess or StoreClosed if the file may no longer be used."""
        if self.closed:
            raise ForkedProcess(forks.FORKED) if self.inherited else StoreClosed(CLOSED)

    def leave_to_the_parent(self) -> None:
        """Refuse all requests: this process is a forked child."""
        self.closed = self.inherited = True

    def _abandon(self, request: WriteRequest[Any]) -> None:
        """Leave the queue on an interrupt; ``leave`` passes on a turn that came in between."""
        if not self._withdraw(request):
            self._await(request)

    def wait_for_turn_of_others(
        self, request: WriteRequest[Any], seconds: float, *, unless: Callable[[], bool]
    ) -> bool:
        """
        Wait until another thread has done *request*; return False if none did.

        It gives up after *seconds*, on ``hurry``, and at once if *unless* returns True.
        ``leave`` must follow, even if this raises.
        """
        self.check()
        wakeup = Lock()
        wakeup.acquire()
        request.wakeup = wakeup
        with self._mutex:
            self._patient += (request,)
        # asked once the request is in the queue, so that no commit is missed
        if not (self.closed or unless()):
            wakeup.acquire(timeout=seconds)
        if request.done or request.is_leader:
            return True
        if self._withdraw(request):
            return False
        self._await(request)
        return True

    def hurry(self) -> None:
        """Make the requests that wait for the turn of another thread take their own."""
        if self._patient:
            with self._mutex:
                for request in self._patient:
                    request.wake()

    def _withdraw(self, request: WriteRequest[Any]) -> bool:
        with self._mutex:
            for waiting in (self._queue, self._patient):
                if request in waiting:
                    request.done = True
                    waiting.remove(request)
                    return True
        return False

    def _give_up(self, request: WriteRequest[Any]) -> None:
        if self._withdraw(request):
            raise Busy(HELD)
        self._await(request)  # another thread is working on it: its outcome is near

    @staticmethod
    def _await(request: WriteRequest[Any]) -> None:
        while not (request.done or request.is_leader):  # the lock may have opened an instant ago
            request.wakeup.acquire(timeout=0.01)

    def drain(self, *, patient: bool = True) -> list[WriteRequest[Any]]:
        """
        Take the waiting requests with work out of the queue, to be done in this turn.

        Unless *patient*, leave those that wait for the turn of another thread.
        """
        if self._queue or self._patient:
            with self._mutex:
                while patient and self._patient:
                    self._batch += (self._patient[0],)
                    del self._patient[0]
                while (
                    self._queue and self._queue[0].work is not None and len(self._batch) < GROUP_MAX
                ):
                    self._batch += (self._queue[0],)
                    del self._queue[0]
        return self._batch[:]

    def leave(self, request: WriteRequest[Any]) -> None:
        """
        Pass the turn of *request* on, if it has it; raise a deferred interrupt.

        Drained requests that an interrupt left without an outcome get it now, or wait again at the
        head of the queue.
        """
        if request.wakeup is not None and not (request.is_leader or request.done):
            self._abandon(request)
        if not request.is_leader:
            return
        interrupt, self.interrupt = self.interrupt, None
        try:
            self.pass_on(request)
        except BaseException:
            self.pass_on(request)
            raise
        if interrupt is not None:
            raise interrupt

    def pass_on(self, request: WriteRequest[Any]) -> None:
        """Pass the turn of *request* on, if it has it; a second call does the rest."""
        with self._mutex:
            if request.is_leader:
                if self._batch:
                    self._finish_batch()
                if self._queue:
                    request.next = self._queue[0]
                    del self._queue[0]
                    request.next.is_leader = True
                else:
                    self.taken = False
                request.is_leader, request.done = False, True
        leader, request.next = request.next, None
        if leader is not None:
            leader.wakeup.release()

    def _finish_batch(self) -> None:
        """Finish followers whose work was or may be committed; requeue the others in front."""
        for each in self._batch:
            if not each.done and each.tx is not None and each.tx.may_be_durable:
                if not each.tx.durable and each.error is None:
                    each.error = each.unknown(StoreFault(INTERRUPTED))
                each.finish()
        self._queue = deque([*[each for each in self._batch if not each.done], *self._queue])
        self._batch = []


class ReplacedFileDetector:
    """
    Detect that the file or its WAL was removed or replaced under an open connection.

    A name changes only with its folder, so the folder is checked first (1.5 µs). A stat of the WAL
    itself costs more: a kernel with multigrain timestamps must then give the next write its own
    time stamp, and the next sync a journal commit (45 µs here).
    """

    SETTLED: Final = 2_000_000_000
    """Nanoseconds after which no second change can have the same time of the folder."""

    def __init__(self, path: Path) -> None:
        self._folder = str(path.parent)
        self._names = (str(path), f"{path}-wal")
        self._known = self._look()
        self._quiet: tuple[int, int, int] | None = None

    def _look(self) -> tuple[FileKey | None, ...]:
        return tuple(map(file_key, self._names))

    def refuse_replaced(self) -> None:
        """Raise StoreCorrupt if another file has the name now: our WAL would damage it."""
        now = file_key(self._names[0])
        if None not in {now, self._known[0]} and now != self._known[0]:
            msg = (
                f"{self._names[0]} was replaced by another file while it was open: close it, "
                "check the file, and open it again without the old -wal"
            )
            raise StoreCorrupt(msg)

    @property
    def only_wal_is_gone(self) -> bool:
        """
        Whether the WAL was deleted and has no contents under its name: our connections have all.

        A connection that only reads creates an empty one.
        """
        with suppress(StoreUnusable):
            file, wal = self._look()
            return file == self._known[0] and wal != self._known[1] and self._is_empty(wal)
        return False

    @property
    def has_other_wal(self) -> bool:
        """Whether a process has written to a new WAL, from which our connections do not read."""
        with suppress(StoreUnusable):
            wal = self._look()[1]
            return wal not in {None, self._known[1]} and not self._is_empty(wal)
        return False

    @property
    def has_lost_wal(self) -> bool:
        """Whether the file has another WAL: what stood in its own is lost, and was not moved."""
        with suppress(StoreUnusable):
            return self._look()[0] == self._known[0] and self.has_other_wal
        return False

    def _is_empty(self, wal: FileKey | None) -> bool:
        try:
            return wal is None or os.stat(self._names[1]).st_size == 0
        except OSError:
            return True

    def replaced(self) -> bool:
        """Return whether the names now belong to other files than at the start."""
        try:
            folder = os.stat(self._folder)
        except OSError:
            return True
        now = (folder.st_dev, folder.st_ino, folder.st_mtime_ns)
        if now == self._quiet:
            return False
        if self._look() != self._known:
            return True
        if time.time_ns() - folder.st_mtime_ns > self.SETTLED:
            self._quiet = now
        return False


class ThreadTransactions:
    """The threads that run a handler, whose transactions their writes join."""

    def __init__(self) -> None:
        self.hosts: dict[int, TransactionHost] = {}
        """The transaction of the handler that each thread runs."""

    def bind(self, host: TransactionHost) -> None:
        """Make writes of this thread join the transaction of *host*."""
        self.hosts[get_ident()] = host

    def unbind(self) -> None:
        """Undo ``bind``."""
        self.hosts.pop(get_ident(), None)

    @property
    def is_bound(self) -> bool:
        """Whether the calling thread runs a handler."""
        return get_ident() in self.hosts

    def join(self) -> None:
        """Enter the transaction of this thread's handler, if it runs one."""
        if self.hosts and (host := self.hosts.get(get_ident())) is not None:
            host.join()

    def before_read(self) -> None:
        """Let the handler that this thread runs commit what its reads expect to find."""
        if (host := self.hosts.get(get_ident())) is not None:
            host.before_read()


class Writer:
    """The one writer of a file: it makes every commit of this process."""

    def __init__(self, store: Store, timeout: float) -> None:
        self._store = store
        self.queue = WriteQueue(timeout)
        """The turn to write, and the requests that wait for it."""
        self.handle: Handle | None = None
        """The writing connection; None while it is not open."""
        self._execute: Execute | None = None
        """Runs a statement on the writer's cursor: a new one takes a third of the time of both."""
        self.refuses_commit = True
        """Whether SQLite must undo a COMMIT: set for users' statements, unset for our own."""
        self._saved_wal = False
        """Whether the last commit was saved from a deleted WAL, so that the file is reopened."""
        self.undone = 0
        """Set to 1 by SQLite, without running Python, when it rolls our transaction back."""
        self._owner = 0
        self._relaxed = False
        """Whether the connection may still be set to commit without a sync."""
        self._tx: StoreTransaction | None = None
        self._host: WriteRequest[Any] | None = None
        self.thread_transactions = ThreadTransactions()
        """The threads that run handlers, whose transactions their writes join."""
        self.wake_dispatchers: Callable[[], None] = lambda: None
        """Called after a commit with messages for another thread or process to push."""
        self.own: OwnReceiver | None = None
        """Settles messages to oneself, for the postbox that was opened last."""
        self.in_flight: CallRecords | None = None
        """The calls of all processes that have the file open."""
        self.packer: Packer | None = None
        """Packs parcels in the commit of their messages, if this process pushes them."""
        self.measured_commit: Callable[[StoreTransaction], None] | None = None
        """Replaces ``StoreTransaction.commit``, to measure how long it takes."""

    def use(self, handle: Handle | None) -> None:
        """Write on a connection; None while none is open."""
        self._execute = None if handle is None else handle.cursor().execute
        self.handle = handle

    def leave_to_the_parent(self) -> None:
        """Take all writes from a forked child: its parent ends the open transaction."""
        self.queue.leave_to_the_parent()
        self.thread_transactions.hosts.clear()
        if self._tx is not None:
            self._tx.leave_to_the_parent(OF_THE_PARENT)
        if self._host is not None:  # its block has nothing to undo, and no turn to pass on
            self._host.is_leader, self._host.done = False, True
        self._owner = 0
        self.use(None)

    @property
    def held(self) -> bool:
        """Whether this thread has an open transaction."""
        return self._owner == get_ident()

    @property
    def joins(self) -> bool:
        """Whether this thread has an open transaction, or runs a handler."""
        return self.held or self.thread_transactions.is_bound

    def write(self, work: Callable[[StoreTransaction], T], *, synced: bool = True) -> T:
        """
        Run *work* and commit it, together with the work of other waiting threads.

        In a thread with an open transaction or a running handler, *work* joins that by savepoint
        and is committed with it. A commit that is not *synced* survives the death of the process; a
        power cut may undo it, but none of the commits before it.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised twice; the error names the messages that may be there.
            BaseException: the error of *work*; its writes were rolled back.

        """
        if self.thread_transactions.hosts:
            self.thread_transactions.join()
        if self._owner == get_ident():
            tx = self.open_transaction()
            if tx.batching:  # an error undoes the whole batch, which is then run one by one
                return work(tx)
            try:
                with tx.nested():
                    return work(tx)
            except Exception as error:
                mapped = self._store.translate_error(error)
                if mapped is error:
                    raise
                raise mapped from error
        request = WriteRequest(work, synced=synced)
        try:
            try:
                deadline = self.queue.enter(request)
                if not request.done:
                    self._run([request], deadline)
            finally:
                self._leave(request)
        except BaseException:
            self._leave(request)  # an interrupt may have come at the first step of leaving
            raise
        if request.error is None and not request.effects:
            return request.result
        return request.outcome()

    def write_with_next(
        self,
        work: Callable[[StoreTransaction], T],
        within: float,
        *,
        unless: Callable[[], bool] = lambda: False,
    ) -> T:
        """
        Commit *work* with the next commit of another thread, or alone after *within* seconds.

        It is committed alone at once if *unless*, called when no commit can be missed any more,
        returns True. It raises the same errors as ``write``.
        """
        request = WriteRequest(work)
        try:
            taken = self.queue.wait_for_turn_of_others(request, within, unless=unless)
            if taken and not request.done:
                self._run([request], monotonic() + self.queue.timeout)
        finally:
            self._leave(request)
        return request.outcome() if taken else self.write(work)

    def write_each(
        self, works: Sequence[Callable[[StoreTransaction], Any]]
    ) -> list[WriteRequest[Any]]:
        """
        Commit several pieces of work of this thread together; return a request for each, in order.

        Each has its own outcome: a failing one does not affect the others.

        Raises:
            StoreClosed, ForkedProcess, Busy: nothing was written.

        """
        turn: WriteRequest[Any] = WriteRequest(None)
        requests = [WriteRequest(work) for work in works]
        try:
            self._run(requests, self.queue.enter(turn))
        finally:
            self._leave(turn)
        return requests

    def outside_handler(self) -> AbstractContextManager[None]:
        """
        Commit the writes of a block before they return, although this thread runs a handler.

        A handler that has already written is not left: its writes would wait for themselves.
        """
        host = self.thread_transactions.hosts.get(get_ident())
        return NO_HANDLER if host is None else self._beside(host)

    def write_outside(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run *work* and commit it before this returns, although this thread runs a handler."""
        if get_ident() not in self.thread_transactions.hosts:
            return self.write(work)
        with self.outside_handler():
            return self.write(work)

    @contextmanager
    def _beside(self, host: TransactionHost) -> Iterator[None]:
        try:
            self.thread_transactions.unbind()
            host.step_aside()
            yield
        finally:
            self.thread_transactions.bind(host)

    def transaction(self) -> Block:
        """Open a transaction for the caller's own statements, or join this thread's."""
        return Block(self)

    def begin(self) -> StoreTransaction:
        """Take the turn and open a transaction; any thread may ``commit`` or ``rollback`` it."""
        request: WriteRequest[Any] = WriteRequest(None)
        try:
            return self._open(request)
        except BaseException:
            self._leave(request)
            raise

    def _open(self, request: WriteRequest[Any]) -> StoreTransaction:
        deadline = self.queue.enter(request)
        self._host = request
        return self._begin(deadline)

    def open_transaction(self) -> StoreTransaction:
        """Return this thread's open transaction; raise StoreFault if SQLite ended it."""
        tx = cast("StoreTransaction", self._tx)
        if not tx.alive:
            raise ended(tx)
        return tx

    def commit(self) -> None:
        """
        Commit the transaction of ``begin``, together with the work of waiting requests.

        Raises:
            OutcomeUnknown: COMMIT raised; ask ``state`` for the messages it names.
            StoreClosed: the postbox was closed in between; nothing was written.

        """
        host: WriteRequest[Any] = self._host  # type: ignore[assignment]  # set by begin
        tx: StoreTransaction = self._tx  # type: ignore[assignment]  # set by begin
        try:
            if self.queue.closed and not self.queue.inherited:
                raise StoreClosed(TAKEN)
            if not tx.alive:
                raise ended(tx)
            host.effects, host.ids = tx.effects, tx.message_ids
            batch = self.queue.drain()
            try:
                for request in batch:
                    self._run_isolated(request, tx)
            except OWN_ERRORS as error:
                fail(batch, self._store.translate_error(error))
                raise
            failed, certain = self._try_commit(tx)
            if failed is not None:
                host.error = failed if certain else host.unknown(failed)
                self._repeat(batch, failed, certain=certain)
            for request in batch:
                request.finish()
        finally:
            self._leave(host)
        host.outcome()

    def rollback(self) -> None:
        """Undo all writes since ``begin`` and pass the turn on."""
        self._leave(cast("WriteRequest[Any]", self._host))

    def exclusive(self) -> Turn[Handle]:
        """Lend the connection outside any transaction, to change its settings."""
        return Turn(self, lambda request: self._store.writing_connection(self.queue.enter(request)))

    def exclusive_if_free(self) -> Turn[Handle | None]:
        """Lend the connection as ``exclusive``; None if it is not open, or a thread writes."""
        return Turn(
            self, lambda request: self.handle if self.queue.enter_if_free(request) else None
        )

    def detach(self) -> None:
        """Prevent threads from joining the open transaction until one attaches to it."""
        self._owner = 0

    def attach(self) -> None:
        """Make the work of the calling thread join the open transaction."""
        self._owner = get_ident()

    # -- the transaction --------------------------------------------------------------------

    def _begin(self, deadline: float, *, synced: bool = True) -> StoreTransaction:
        store, handle = self._store, self.handle
        store.busy_handler.deadline, store.quiet = deadline, 0
        if handle is None:
            handle = store.writing_connection(deadline)
        # an interrupt came between this call and the end of the last transaction
        if handle.in_transaction:
            handle.execute("ROLLBACK")
        try:
            execute = self._execute or handle.execute
            if synced is self._relaxed:
                self._relax(execute, synced=synced)
            execute("BEGIN IMMEDIATE")
            self._tx = StoreTransaction(handle, store.time.now(store.clock), execute)
            self._tx.own, self._tx.in_flight = self.own, self.in_flight
            self.undone, self._saved_wal = 0, False
            if self._tx.now > store.time.persist_after:
                store.on_begin(self._tx)
        except BaseException as error:
            if handle.in_transaction:
                handle.execute("ROLLBACK")
            mapped = self._store.translate_error(error)
            if mapped is error:
                raise
            raise mapped from error
        self._owner = get_ident()
        return self._tx

    def _relax(self, execute: Execute, *, synced: bool) -> None:
        """Set whether the next commits are synced; those of a 'fast' file never are."""
        if self._store.durability == "safe":
            self._relaxed = True  # an interrupt may come before the statement ends
            execute(FULL if synced else NORMAL, can_cache=False)  # it runs as it is prepared
        self._relaxed = not synced

    def rolled_back(self) -> None:
        """Record that SQLite rolled the open transaction back."""
        if self._tx is not None:
            self._tx.rolled_back = True

    def _run(self, own: list[WriteRequest[Any]], deadline: float) -> None:
        """Run this thread's requests and the waiting ones in one transaction."""
        queue = self.queue
        synced = own[0].synced  # a patient request of another thread would need a synced commit
        rides = queue._queue or (synced and queue._patient)
        batch = [*own, *queue.drain(patient=synced)] if rides else own
        try:
            tx = self._begin(deadline, synced=synced or len(batch) > 1)
            if len(batch) > 1:
                failed = self._run_batch(batch, tx, deadline)
                tx = cast("StoreTransaction", self._tx)
            else:
                batch[0].attempt(tx, self._store.translate_error, nested=False)
                failed = batch[0].error
        except Busy as error:
            fail(own, error)  # the others came later and have time left
        except OWN_ERRORS as error:
            self._rollback()
            fail(batch, self._store.translate_error(error))  # every waiting caller gets it
        else:
            if tx.rolled_back or not tx.handle.in_transaction:
                self._end()
                fail(batch, failed)
            elif failed is None or [each for each in batch if each.error is None]:
                failed, certain = self._try_commit(tx)
                if failed is not None:
                    self._repeat(batch, failed, certain=certain)
                for request in batch:
                    request.done = True
                    if request.wakeup is not None:
                        request.wake()
            else:
                self._rollback()
                fail(batch, None)

    def _run_batch(
        self, batch: list[WriteRequest[Any]], tx: StoreTransaction, deadline: float
    ) -> BaseException | None:
        """
        Run the work of a batch and return the last error.

        It runs as a whole; if that fails, the transaction is begun again and each piece runs in its
        own savepoint.
        """
        error = self._run_as_one(batch, tx)
        if error is None or not tx.alive:
            return error
        self._rollback()
        tx = self._begin(deadline)
        for request in batch:
            if not tx.alive:
                break
            if request.error is None:
                self._run_isolated(request, tx)
                error = request.error
        return error

    def _run_as_one(
        self, batch: list[WriteRequest[Any]], tx: StoreTransaction
    ) -> BaseException | None:
        """Run a batch without savepoints and with gathered rows; return the first error, if any."""
        tx.batching = True
        try:
            for request in batch:
                request.attempt(tx, self._store.translate_error, nested=False)
                if request.error is not None:
                    tx.batched_inserts.clear()
                    return self._attribute_error(request, batch[0])
            tx.end_batching()
        except OWN_ERRORS as error:
            return self._store.translate_error(error)  # run alone, each request gets its own
        finally:
            tx.batching = False
        return None

    def _attribute_error(
        self, request: WriteRequest[Any], first: WriteRequest[Any]
    ) -> BaseException | None:
        """
        Return the error of *request*, and clear it so that the request is run again alone.

        An interrupt in this thread's own work is kept: that work is not run again.
        """
        error = request.error
        if request is not first or not interrupts_work(error):
            self.queue.interrupt = error if interrupts_work(error) else self.queue.interrupt
            request.error = None
        return error

    def _run_isolated(self, request: WriteRequest[Any], tx: StoreTransaction) -> None:
        """Run another thread's work in a savepoint; keep an interrupt in it for this thread."""
        request.attempt(tx, self._store.translate_error, nested=True)
        if interrupts_work(request.error):
            self.queue.interrupt, request.error = request.error, None
            request.attempt(tx, self._store.translate_error, nested=True)

    def _repeat(
        self, batch: list[WriteRequest[Any]], error: BaseException, *, certain: bool
    ) -> None:
        """Run the requests whose COMMIT failed again, each in its own transaction."""
        for request in batch:
            if isinstance(error, CommitsLost):
                request.error = request.error or request.unknown(error)
            elif request.error is None:
                self._retry_alone(request, error, certain=certain)

    def _try_commit(self, tx: StoreTransaction) -> tuple[BaseException | None, bool]:
        """Return COMMIT's error, if any, and whether it is certain that nothing was written."""
        packer = self.packer if tx.outgoing else None
        try:
            if tx.has_news or (tx.outgoing and packer is None):
                tx.wakeups[self.wake_dispatchers] = None
            if packer is not None:
                packer.pack(tx)
            self.refuses_commit = False
            try:
                (self.measured_commit or StoreTransaction.commit)(tx)
            except BaseException as error:  # noqa: BLE001 - classified here
                self.queue.defer_interrupt(error)
                if not interrupts_step(error) or tx.alive or self.undone:
                    return self._commit_failed(tx, error)
            finally:
                self.refuses_commit = True
            self._tx = None
            self._owner = 0
            try:
                tx.durable = not self._store.guard.replaced() or self._save()
                for wake in tx.wakeups:
                    wake()
            except BaseException as error:  # noqa: BLE001 - raised when this thread leaves
                self.queue.defer_interrupt(error)
                self._announce(tx)
        finally:  # also after an interrupt: a peer that stays reserved gets no push
            if packer is not None:
                try:
                    packer.hand_over(durable=tx.durable)
                except BaseException:
                    packer.hand_over(durable=tx.durable)
                    self.wake_dispatchers()  # the first call may have been interrupted before it
                    raise
        if tx.durable and not self._saved_wal:
            return None, True
        return self._follow_file(), self._saved_wal

    def _follow_file(self) -> StoreError | None:
        """Reopen the file after a commit to a moved one; return the error, unless it was saved."""
        guard = self._store.guard
        if self._saved_wal:
            self._reopen()
            return None
        if guard.only_wal_is_gone:  # the connection stays open: it alone has the commits
            return StoreFault(NOT_YET)
        failed = CommitsLost(UNSAVED) if guard.has_lost_wal else StoreFault(MOVED)
        self._reopen()
        return failed

    def _save(self) -> bool:
        """Move a deleted WAL into the file; an interrupted call can be repeated."""
        self._saved_wal = self._store.save_deleted_wal()
        return self._saved_wal

    def _announce(self, tx: StoreTransaction) -> None:
        """Repeat the steps after a COMMIT that an interrupt prevented."""
        tx.durable = not self._store.guard.replaced() or self._save()
        for wake in tx.wakeups:
            wake()

    def _commit_failed(
        self, tx: StoreTransaction, error: BaseException
    ) -> tuple[BaseException, bool]:
        mapped = self._store.translate_error(error)
        # After a failed sync or checkpoint the commit may exist; a full disk fails before it.
        certain = tx.alive and not isinstance(mapped, StoreFault)
        tx.may_be_durable = not certain
        self._rollback()
        if not certain:
            self._reopen()
        return mapped, certain

    def _reopen(self) -> None:
        with suppress(StoreError):  # the next writer gets the same error and raises it
            self._store.reopen()

    def _retry_alone(
        self, request: WriteRequest[Any], first: BaseException, *, certain: bool
    ) -> None:
        try:
            tx = self._begin(monotonic() + self.queue.timeout)
        except BaseException as error:  # noqa: BLE001 - classified here
            request.error = error if certain else request.unknown(first)
            return
        tx.may_be_durable = not certain
        request.attempt(tx, self._store.translate_error, nested=False)
        if request.error is not None or not tx.alive:
            self._rollback()
            # It may have failed because the first commit did happen.
            if request.error is None or not certain:
                request.error = request.unknown(request.error or first)
            return
        failed, unwritten = self._try_commit(tx)
        if failed is not None:
            request.error = failed if certain and unwritten else request.unknown(failed)

    def _end(self) -> None:
        self._tx = None
        self._owner = 0

    def _rollback(self) -> None:
        tx = self._tx
        try:
            if tx is not None:
                tx.rolled_back = True
                tx.abandon()
        except BaseException:
            cast("StoreTransaction", tx).abandon()
            raise
        finally:
            self._end()

    def _leave(self, request: WriteRequest[Any]) -> None:
        """Undo the open writes of *request*, if it has the turn, and pass the turn on."""
        try:
            if request.is_leader and (self._owner or self._tx is not None):
                self._rollback()
        finally:
            self.queue.leave(request)


class Turn(AbstractContextManager[H]):
    """
    The turn to write during a ``with`` block.

    A generator would keep it for as long as an exception lives that a signal raised in the frames
    of ``contextlib``.
    """

    __slots__ = ("_enter", "_request", "_writer")

    def __init__(self, writer: Writer, enter: Callable[[WriteRequest[Any]], H]) -> None:
        self._writer, self._enter = writer, enter
        self._request: WriteRequest[Any] = WriteRequest(None)

    def __enter__(self) -> H:
        """Take the turn."""
        try:
            lent = self._enter(self._request)
        except BaseException:
            self._writer.queue.leave(self._request)
            raise
        return lent

    def __exit__(self, *_: object) -> None:
        """Pass the turn on."""
        try:
            self._writer.queue.leave(self._request)
        except BaseException:
            self._writer.queue.leave(self._request)  # an interrupt may have come before the first
            raise


class Block(AbstractContextManager[StoreTransaction]):
    """The transaction of a ``with`` block, or a savepoint of this thread's open transaction."""

    __slots__ = ("_nested", "_request", "_tx", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._request: WriteRequest[Any] = WriteRequest(None)
        self._nested: NestedBlock | None = None
        self._tx: StoreTransaction | None = None

    def __enter__(self) -> StoreTransaction:
        """Open the transaction, or join."""
        self._writer.thread_transactions.join()
        if self._writer.held:
            return self._join(self._writer.open_transaction())
        try:
            tx = self._writer._open(self._request)
        except BaseException as error:
            self._writer._leave(self._request)
            if isinstance(error, CLOSED_ERRORS) and self._writer.queue.closed:
                raise StoreClosed(TAKEN) from error
            raise
        return tx

    def _join(self, tx: StoreTransaction) -> StoreTransaction:
        nested = tx.nested()
        nested.__enter__()
        self._nested, self._tx = nested, tx
        tx.blocks += 1
        return tx

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or undo the block if it failed."""
        try:
            if self._tx is not None:
                self._leave_joined(self._tx, kind)
            elif error is None:
                self._writer.commit()
        except CLOSED_ERRORS as failed:
            error = failed
            if not self._writer.queue.closed:
                raise
        finally:
            if self._tx is None:
                self._writer._leave(self._request)
        if isinstance(error, CLOSED_ERRORS) and self._tx is None and self._writer.queue.closed:
            raise StoreClosed(TAKEN) from error

    def _leave_joined(self, tx: StoreTransaction, failed: type[BaseException] | None) -> None:
        tx.blocks -= 1
        nested = cast("NestedBlock", self._nested)
        if failed is None and not tx.alive:  # its savepoint is also gone
            nested.__exit__(StoreFault)
            raise StoreFault(ENDED)
        nested.__exit__(failed)
