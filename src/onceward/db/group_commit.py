"""
One writer per process and file: who gets the turn commits everybody's work.

Writers queue. The one at the head opens a transaction, runs the work of all
that wait (a savepoint each), commits once and wakes them. A lone writer pays
nothing for it. Work that is handed in may run twice when a COMMIT's outcome
was lost, so it must be repeatable: inserts by id, settles by token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any, Final, TypeVar, cast

from onceward.db.shared_work import run_batch, run_isolated
from onceward.db.transaction import Handle, Store, StoreTransaction
from onceward.db.write_queue import INTERRUPTS, ThreadTransactions, WriteQueue, WriteRequest, fail
from onceward.errors import Busy, StoreError, StoreFault

T = TypeVar("T")
ENDED: Final = "the transaction was ended inside its block: leave COMMIT and ROLLBACK to the block; nothing of it was kept"


class Writer:
    """The turnstile in front of one database's writing connection."""

    def __init__(self, store: Store, timeout: float) -> None:
        self._store = store
        self.queue = WriteQueue(timeout)
        """Who may write now, and who waits."""
        self._owner = 0
        self._without_savepoints = False
        self._tx: StoreTransaction | None = None
        self._host: WriteRequest[Any] | None = None
        self.thread_transactions = ThreadTransactions()
        """Which threads run handlers, whose transactions their writes join."""

    @property
    def held(self) -> bool:
        """Whether this very thread has a transaction open."""
        return self._owner == get_ident()

    def write(self, work: Callable[[StoreTransaction], T]) -> T:
        """
        Run *work* in a transaction of its own, or as a savepoint of the caller's, and commit it.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised twice; the error names the messages that may be there.
            BaseException: whatever *work* raised; its writes were rolled back.

        """
        if self.held:
            if self._without_savepoints:
                return work(cast("StoreTransaction", self._tx))
            with self._savepoint() as tx:
                return work(tx)
        job = WriteRequest(work)
        try:
            try:
                deadline = self.queue.enter(job)
                if not job.done:
                    self._run([job, *self.queue.drain()], deadline)
            finally:
                self._leave(job)
        except INTERRUPTS:
            self._leave(job)  # it may have come at the first step of leaving
            raise
        return job.outcome()

    @contextmanager
    def transaction(self) -> Iterator[StoreTransaction]:
        """Open a transaction for the caller's own statements, or join the one this thread has open."""
        if self.held:
            with self._savepoint() as tx:
                yield tx
            return
        job: WriteRequest[Any] = WriteRequest(None)
        try:
            yield self._open(job)
            self.commit()
        except BaseException:
            self._leave(job)
            raise

    def begin(self) -> StoreTransaction:
        """Take the turn and open a transaction; ``commit`` or ``rollback`` must follow, from any thread."""
        job: WriteRequest[Any] = WriteRequest(None)
        try:
            return self._open(job)
        except BaseException:
            self._leave(job)
            raise

    def _open(self, job: WriteRequest[Any]) -> StoreTransaction:
        deadline = self.queue.enter(job)
        self._host = job
        return self._begin(deadline)

    def commit(self) -> None:
        """
        End what ``begin`` opened, together with the work of those who wait.

        Raises:
            OutcomeUnknown: COMMIT raised; ask ``resolve`` for the messages it names.

        """
        host, tx = cast("WriteRequest[Any]", self._host), cast("StoreTransaction", self._tx)
        try:
            if not tx.alive:
                raise StoreFault(ENDED)
            host.effects, host.ids = tx.effects, tx.message_ids
            batch = self.queue.drain()
            try:
                for job in batch:
                    run_isolated(job, tx, self._store.translate_error, self.queue.defer_interrupt)
            except Exception as error:
                fail(batch, self._store.translate_error(error))
                raise
            self._commit(batch, host)
        finally:
            self._leave(host)
        host.outcome()

    def rollback(self) -> None:
        """Undo what was written since ``begin`` and give the turn away."""
        self._leave(cast("WriteRequest[Any]", self._host))

    @contextmanager
    def without_savepoints(self) -> Iterator[None]:
        """Let work that joins run without savepoints, its rows gathered: what fails takes the whole transaction with it."""
        self._without_savepoints = True
        try:
            with cast("StoreTransaction", self._tx).batch_inserts():
                yield
        finally:
            self._without_savepoints = False

    @contextmanager
    def exclusive(self) -> Iterator[Handle]:
        """Lend the connection outside of any transaction, for settings of its own."""
        job: WriteRequest[Any] = WriteRequest(None)
        try:
            yield self._store.writing_connection(self.queue.enter(job))
        finally:
            self.queue.leave(job)

    def detach(self) -> None:
        """Let no thread join the open transaction until somebody adopts it."""
        self._owner = 0

    def write_outside_handler(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run *work* and commit it at once, even inside a handler, which must not have touched the file yet."""
        host = self.thread_transactions.current()
        return self.write(work) if host is None else host.write_outside(work)

    def attach(self) -> None:
        """Make the calling thread the one whose work joins the open transaction."""
        self._owner = get_ident()

    # -- the transaction --------------------------------------------------------------------

    def _begin(self, deadline: float) -> StoreTransaction:
        handle = self._store.writing_connection(deadline)
        if handle.in_transaction:  # an interrupt came even between us and the end of the last one
            handle.execute("ROLLBACK")
        try:
            handle.execute("BEGIN IMMEDIATE")
            self._tx = StoreTransaction(handle, self._store.now())
            self._store.on_begin(self._tx)
        except BaseException as error:
            if handle.in_transaction:
                handle.execute("ROLLBACK")
            mapped = self._store.translate_error(error)
            if mapped is error:
                raise
            raise mapped from error
        self._owner = get_ident()
        return self._tx

    def rolled_back(self) -> None:
        """Hear from SQLite that the open transaction was rolled back, by whomever."""
        if self._tx is not None:
            self._tx.rolled_back = True

    def _run(self, batch: list[WriteRequest[Any]], deadline: float) -> None:
        """Run a batch in one transaction; every job ends with a result or an error, or an interrupt ends the turn."""
        try:
            tx = self._begin(deadline)
            failed = run_batch(batch, tx, self._store.translate_error, self.queue.defer_interrupt)
        except Busy as error:
            fail(batch[:1], error)  # the others came later, and have time left
        except Exception as error:  # noqa: BLE001 - it is told to every waiting caller
            self._rollback()
            fail(batch, self._store.translate_error(error))
        else:
            self._finish_batch(batch, tx, failed)

    def _finish_batch(
        self, batch: list[WriteRequest[Any]], tx: StoreTransaction, failed: BaseException | None
    ) -> None:
        if not tx.alive:
            self._end()
            fail(batch, failed)
        elif [job for job in batch if job.error is None]:
            self._commit(batch)
        else:
            self._rollback()
            fail(batch, None)

    def _commit(
        self, batch: list[WriteRequest[Any]], host: WriteRequest[Any] | None = None
    ) -> None:
        """Commit; where that failed, repeat what can be repeated and tell the rest."""
        error, certain = self._try_commit()
        if error is not None:
            if host is not None:
                host.error = error if certain else host.unknown(error)
            for job in batch:
                if job.error is None:
                    self._retry_alone(job, error, certain=certain)
        for job in batch:
            job.finish()

    def _try_commit(self) -> tuple[BaseException | None, bool]:
        """Return COMMIT's error, if any, and whether it is certain that nothing was written."""
        tx = cast("StoreTransaction", self._tx)
        self._store.committing = True
        try:
            tx.commit()
        except BaseException as error:  # noqa: BLE001 - classified here
            self.queue.defer_interrupt(error)
            if not isinstance(error, INTERRUPTS) or tx.alive or tx.rolled_back:
                return self._commit_failed(tx, error)
        finally:
            self._store.committing = False
        self._end(tx.wakeups)
        if self._store.orphaned():
            self._reopen()
            return StoreFault("the commit went to a file that was taken away"), False
        tx.durable = True
        return None, True

    def _commit_failed(
        self, tx: StoreTransaction, error: BaseException
    ) -> tuple[BaseException, bool]:
        mapped = self._store.translate_error(error)
        # A sync or checkpoint that failed says nothing about the commit; a full disk or a constraint came before it.
        certain = tx.alive and not isinstance(mapped, StoreFault)
        self._rollback()
        if not certain:
            self._reopen()
        return mapped, certain

    def _reopen(self) -> None:
        with suppress(StoreError):  # the next writer meets the same error and tells its caller
            self._store.reopen()

    def _retry_alone(self, job: WriteRequest[Any], first: BaseException, *, certain: bool) -> None:
        try:
            tx = self._begin(time.monotonic() + self.queue.timeout)
        except BaseException as error:  # noqa: BLE001 - classified here
            job.error = error if certain else job.unknown(first)
            return
        job.attempt(tx, self._store.translate_error, nested=False)
        if job.error is not None or not tx.alive:
            self._rollback()
            if (
                job.error is None or not certain
            ):  # it may have failed because the first commit happened after all
                job.error = job.unknown(job.error or first)
            return
        failed, certain = self._try_commit()
        if failed is not None:
            job.error = failed if certain else job.unknown(failed)

    def _end(self, rings: Iterable[Callable[[], None]] = ()) -> None:
        self._tx = None
        self._owner = 0
        for ring in rings:
            ring()

    def _rollback(self) -> None:
        tx = self._tx
        try:
            if tx is not None:
                tx.rolled_back = True
                tx.abandon()
        except INTERRUPTS:
            cast("StoreTransaction", tx).abandon()
            raise
        finally:
            self._end()

    def _leave(self, job: WriteRequest[Any]) -> None:
        """Undo what *job* left open, if it has the turn, and give the turn away."""
        try:
            if job.is_leader:
                self._rollback()
        finally:
            self.queue.leave(job)

    @contextmanager
    def _savepoint(self) -> Iterator[StoreTransaction]:
        tx = cast("StoreTransaction", self._tx)
        if not tx.alive:
            raise StoreFault(ENDED)
        kept = len(tx.effects), len(tx.message_ids)
        tx.savepoint()
        try:
            yield tx
        except BaseException:
            del tx.effects[kept[0] :], tx.message_ids[kept[1] :]
            tx.rollback_savepoint()
            raise
        tx.release_savepoint()
