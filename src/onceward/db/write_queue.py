"""
The turnstile: one writer at a time in this process, first come, first served.

Whoever has the turn may do the work of all who wait; they then find it done.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock, get_ident
from typing import Any, Final, Generic, TypeVar, cast

from onceward.db.transaction import StoreTransaction, TransactionHost
from onceward.errors import Busy, ForkedProcess, OutcomeUnknown, StoreClosed

T = TypeVar("T")
GROUP_MAX: Final = 512
INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)
"""What a signal may raise between any two steps; it is meant for the thread that runs, not for whose work it does."""


class WriteRequest(Generic[T]):
    """One unit of work in the queue; ``work`` is None for a caller that wants the turn itself."""

    __slots__ = (
        "done",
        "effects",
        "error",
        "ids",
        "is_leader",
        "next",
        "result",
        "tx",
        "wakeup",
        "work",
    )

    def __init__(self, work: Callable[[StoreTransaction], T] | None) -> None:
        self.work = work
        self.ids: list[str] = []
        self.result: T | None = None
        self.error: BaseException | None = None
        self.effects: list[Callable[[], None]] = []
        self.done = False
        self.is_leader = False
        """Whether it has the turn."""
        self.next: WriteRequest[Any] | None = None
        """Who has the turn after it and does not know it yet."""
        self.tx: StoreTransaction | None = None
        """The transaction of its last attempt."""
        self.wakeup: Any = None

    def attempt(
        self,
        tx: StoreTransaction,
        mapped: Callable[[BaseException], BaseException],
        *,
        nested: bool,
    ) -> None:
        """Do the work; what it raises is kept, as what it means to its caller, and *nested* work that failed is undone."""
        self.tx, self.error = tx, None
        tx.effects, tx.message_ids = self.effects, self.ids = [], []
        try:
            if nested:
                tx.savepoint()
            self.result = self.work(tx)  # type: ignore[misc]  # callers without work are not attempted
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            self.error = mapped(error)
            if self.error is not error:
                self.error.__cause__ = error
            if nested:
                tx.rollback_savepoint()
            return
        if nested:
            tx.release_savepoint()

    def unknown(self, error: BaseException) -> OutcomeUnknown:
        """Return what the caller is told when nobody can say whether COMMIT happened."""
        return OutcomeUnknown(
            f"COMMIT: {str(error).partition(';')[0]}; ask resolve(id), or send again with the same id",
            tuple(self.ids),
        )

    def outcome(self) -> T:
        """Return the result or raise the error, as its caller would have met it."""
        if self.error is not None:
            raise self.error
        for effect in self.effects:
            effect()
        return cast("T", self.result)

    def finish(self) -> None:
        """Wake whoever waits for the outcome."""
        self.done = True
        if self.wakeup is not None:
            self.wakeup.release()


def fail(jobs: Sequence[WriteRequest[Any]], error: BaseException | None) -> None:
    """Tell all who wait that their work was undone, because of *error* or each for a reason of its own."""
    for job in jobs:
        job.error = error or job.error
        job.finish()


class WriteQueue:
    """
    Who may write now, and who waits.

    Python raises an interrupt after any call. So whatever must not be torn is
    written without one, or can be done once more.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.closed = False
        self.interrupt: BaseException | None = None
        """An interrupt of this thread that waits for the end of the turn."""
        self._mutex = Lock()
        self._queue: deque[WriteRequest[Any]] = deque()
        self._batch: list[WriteRequest[Any]] = []
        """Those whose work is done in this turn."""
        self._taken = False
        self._pid = os.getpid()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    def defer_interrupt(self, error: BaseException | None) -> None:
        """Keep an interrupt that is meant for this thread, not for its neighbours, until it leaves."""
        if isinstance(error, INTERRUPTS):
            self.interrupt = error

    def close(self) -> None:
        """Let nobody in any more; waits for the one who is."""
        job: WriteRequest[Any] = WriteRequest(None)
        try:
            self.enter(job)
            self.closed = True
        finally:
            self.leave(job)

    def enter(self, job: WriteRequest[Any]) -> float:
        """Return with the turn, or with the job done by somebody else; whatever is raised, ``leave`` must follow."""
        self.check()
        deadline = time.monotonic() + self.timeout
        with self._mutex:
            if not self._taken:
                if self.closed:  # meanwhile
                    self.check()
                self._taken = job.is_leader = True
                return deadline
            gate = Lock()
            gate.acquire()
            self._queue += (job,)
            job.wakeup = gate
        try:
            if not gate.acquire(timeout=self.timeout):
                self._give_up(job)
        except BaseException:
            self._abandon(job)
            raise
        if self.closed and not job.done:
            self.check()
        return deadline

    def check(self) -> None:
        """Raise ForkedProcess or StoreClosed where nothing may be done any more."""
        if os.getpid() != self._pid:
            msg = "this postbox was opened before fork(): open it in processes started by spawn, or fork before opening"
            raise ForkedProcess(msg)
        if self.closed:
            msg = "the postbox is closed: open it again"
            raise StoreClosed(msg)

    def _abandon(self, job: WriteRequest[Any]) -> None:
        """Leave the queue on an interrupt; a turn that was given to us meanwhile is passed on by ``leave``."""
        if not self._withdraw(job):
            self._await(job)

    def _withdraw(self, job: WriteRequest[Any]) -> bool:
        with self._mutex:
            waiting = job in self._queue
            if waiting:
                job.done = True
                self._queue.remove(job)
        return waiting

    def _give_up(self, job: WriteRequest[Any]) -> None:
        if self._withdraw(job):
            msg = "other work of this process held the file for the whole deadline; nothing was written, try again"
            raise Busy(msg)
        self._await(job)  # it is being worked on at this very moment: its outcome is near

    @staticmethod
    def _await(job: WriteRequest[Any]) -> None:
        while not (job.done or job.is_leader):  # the gate may have let us through an instant ago
            job.wakeup.acquire(timeout=0.01)

    def drain(self) -> list[WriteRequest[Any]]:
        """Take the work of those who wait out of the queue, to be done in this turn."""
        if self._queue:
            with self._mutex:
                while (
                    self._queue and self._queue[0].work is not None and len(self._batch) < GROUP_MAX
                ):
                    self._batch += (self._queue[0],)
                    del self._queue[0]
        return self._batch[:]

    def leave(self, job: WriteRequest[Any]) -> None:
        """
        Give the turn of *job* to the next in the queue, if it has it; raises an interrupt that came when it could not be raised.

        Whoever of its company was left without an outcome by an interrupt gets it now, or waits again before all others.
        """
        if job.wakeup is not None and not (job.is_leader or job.done):
            self._abandon(job)
        if not job.is_leader:
            return
        interrupt, self.interrupt = self.interrupt, None
        try:
            self._pass_on(job)
        except INTERRUPTS:
            self._pass_on(job)
            raise
        if interrupt is not None:
            raise interrupt

    def _pass_on(self, job: WriteRequest[Any]) -> None:
        with self._mutex:
            if job.is_leader:
                if self._batch:
                    self._finish_batch()
                if self._queue:
                    job.next = self._queue[0]
                    del self._queue[0]
                    job.next.is_leader = True
                else:
                    self._taken = False
                job.is_leader, job.done = False, True
        heir, job.next = job.next, None
        if heir is not None:
            heir.wakeup.release()

    def _finish_batch(self) -> None:
        """Let nobody wait for an outcome that was written already, or for a turn that is over."""
        for each in self._batch:
            if not each.done and each.tx is not None and each.tx.durable:
                each.finish()
        self._queue = deque([*[each for each in self._batch if not each.done], *self._queue])
        self._batch = []


class ThreadTransactions:
    """Which threads run a handler: what they contribute joins its transaction."""

    def __init__(self) -> None:
        self._by_thread: dict[int, TransactionHost] = {}

    def bind(self, host: TransactionHost) -> None:
        """Let what this thread contributes from now on join the transaction of *host*."""
        self._by_thread[get_ident()] = host

    def unbind(self) -> None:
        """End what ``invite`` began."""
        self._by_thread.pop(get_ident(), None)

    def current(self) -> TransactionHost | None:
        """Return the host of this thread, None where it runs no handler."""
        return self._by_thread.get(get_ident())

    def join(self) -> None:
        """Enter the transaction of this thread's handler, if it runs one."""
        if self._by_thread and (host := self.current()) is not None:
            host.join()
