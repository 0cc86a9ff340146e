"""
Share one commit among quick handlers, and pass its transaction between two threads.

A worker has at most one transaction open: its batch. Two threads reach it, the worker's own, which
also makes the calls of a coroutine, and that of its heartbeat. Each takes the lock of the batch;
SQLite's write lock is held from the first line to the commit, independently of the thread that has
the batch.

==============================  =======================  ==============================
moment                          holder                   what the heartbeat may do
==============================  =======================  ==============================
``claim`` leases lanes          worker (``begin``)       wait: the lock is taken
claimed, no call has written    no thread (``detach``)   commit the claim alone; first store
                                                         the message of an arrival
``note`` writes before a call   worker (``attach``)      wait: the lock is taken
a call has written (``join``)   worker (``attach``), in  nothing; leases need no
                                a savepoint of the call  prolonging: no other writer
                                                         can take them
``end`` or ``undo`` of a call   no thread (``detach``)   commit what ended
``commit``                      worker or heartbeat      begin the commit itself
==============================  =======================  ==============================

The heartbeat commits after ``CLAIM_WAITS``, when another writer of the process waits, or when a
lease must be prolonged. The worker commits when ``end`` returns True: enough messages have ended,
``share_for`` has passed, or the message was claimed in isolation; and at the end of its round. A
worker that does not share its claims (a slow handler, an unclean end) commits each claim
separately: then the first call that writes opens the batch.

If a commit fails, or a call has ended the transaction itself, everything since
the last commit is undone: its lanes are released, each message is claimed alone
next, and ``lost`` ends the round. An error of one call undoes its savepoint only.

This batch is separate from the write queue because handlers are the user's code: each runs once,
reads its own writes and gets the open transaction, so its work cannot be queued and run at the
commit. The batch begins and ends at the writer like any block, and shares its commit with the
requests that wait there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.rows import lanes
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.arrival import Arrival
from onceward.errors import InvalidArgument, LeaseLost, OncewardError
from onceward.file import forks
from onceward.file.connection import ConstraintError, SQLError, raise_meant
from onceward.file.database import Database
from onceward.file.transaction import SavepointMark, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.events import Event
from onceward.message.times import Span, millis
from onceward.message.vocabulary import HANDLED, Settlement

T = TypeVar("T")
FULL: Final = 256
CLAIM_WAITS: Final = 0.002
"""Seconds that a claim waits for its handlers before it is committed alone."""
LaneRest = tuple[list[LeasedMessage], int]
"""The claim of a lane, and the index of its first message that stays leased."""
Claimed = list[list[LeasedMessage]]
"""Claimed messages by lane."""
WRITTEN: Final = (
    "this handler has already sent a message or used ctx.tx, so it would hold the file's lock: "
    "do that in a step with tx=True, or after the last step and the last use of ctx.postbox"
)
CLAIM_LOST: Final = "the commit of its claim failed"


class HandlerCommitBatch:
    """The open commit of one worker."""

    def __init__(
        self,
        db: Database,
        *,
        share_for: float,
        rest_for: Callable[[int], Millis],
        told: Callable[[list[Event]], None],
    ) -> None:
        self._db, self._share_for, self._rest_for, self._told = db, share_for, rest_for, told
        self.bind: Final = partial(db.writer.thread_transactions.bind, self)
        """Make the writes of this thread join."""
        self.unbind: Final = db.writer.thread_transactions.unbind
        """Undo ``bind``."""
        self._lock = forks.new_rlock()
        self._tx: StoreTransaction | None = None
        self._inside = False
        self._since = 0.0
        self._ended: list[SettledMessage] = []
        self._events: list[Event] = []
        self._rest: dict[int, tuple[list[LeasedMessage], int]] = {}
        self._mark = SavepointMark(0, 0, 0)
        self.arrival: Arrival | None = None
        """The parcel whose message is handled before it is stored; None once that is stored."""
        self._owed: Arrival | None = None
        """The parcel whose answer follows the next commit."""
        self._claimed_at: float | None = None
        """Since when a claim waits in the open transaction; None if none does."""
        self.lost = False
        """Whether the last commit failed, so that all its messages will be handled again."""
        self.left_leases = False
        """Whether lanes that this worker no longer works on may still be leased."""

    def claim(
        self, work: Callable[[StoreTransaction], Claimed], arrival: Arrival | None = None
    ) -> Claimed:
        """
        Claim messages in the transaction that their handlers share, so that one commit is enough.

        The claim is committed at once if a message was claimed in isolation, and otherwise by
        ``heartbeat`` before its handlers' effects if they take long. The message of an *arrival* is
        stored by that commit, or before its handler's first write.
        """
        with self._lock:
            self._tx = self._db.writer.begin()
            try:
                claimed = work(self._tx)
            except BaseException as error:
                self._tx = None
                self._db.writer.rollback()
                raise_meant(self._db.translate_error(error), error)
                raise
            if not claimed:
                self._tx = None
                self._db.writer.rollback()
                return claimed
            self.arrival = self._owed = arrival
            self._claimed_at = self._db.clock.monotonic()
            self._db.writer.detach()
            if any(lane[0].lane.isolate for lane in claimed):
                self.commit()
            return claimed

    def join(self) -> StoreTransaction:
        """Return the transaction for the running handler, inside its own savepoint."""
        with self._lock:
            if self._tx is None:
                self._tx = self._db.writer.begin()
                self._since = self._since or self._db.clock.monotonic()
            tx = self._tx
            self._db.writer.attach()
            if not self._inside:
                if self.arrival is not None and self.arrival.asks:
                    self._store(tx)
                self._mark = tx.savepoint()
                self._inside = True
                if self.arrival is not None:
                    self.arrival.store_handled(tx)
            return tx

    def _store(self, tx: StoreTransaction) -> None:
        """Store the message of an arrival under its lease, which is then settled as usual."""
        arrival, self.arrival = self.arrival, None
        if arrival is not None:
            arrival.store(tx)

    def before_read(self) -> None:
        """Commit the message of the running handler, which reads the file by another connection."""
        with self._lock:
            if self.arrival is not None and not self._inside:
                self.commit()

    def before_query(self) -> StoreTransaction | None:
        """
        Return the transaction of the running handler, which reads, if it has written.

        If it has not, the writes of earlier handlers are committed, for it to read.

        Raises:
            LeaseLost: they could not be committed; the claim of this handler is lost with them.

        """
        if not self._db.writer.thread_transactions.is_bound:
            return None
        with self._lock:
            if self._inside:
                return self.join()
            if self._ended or self.arrival is not None:
                with self._db.outside_handler():
                    self.commit()
            if self.lost:
                raise LeaseLost(CLAIM_LOST)
            return None

    @property
    def inside(self) -> bool:
        """Whether the running handler has written."""
        return self._inside

    def note(self, work: Callable[[StoreTransaction], T], *, alone: bool) -> T:
        """
        Write rows that stay even if the handler that is about to be called fails.

        With *alone* it is committed now, otherwise like a claim: with the effects of quick
        handlers, or by ``heartbeat`` before those of a slow one.
        """
        with self._lock:
            if self._tx is None:
                self._tx = self._db.writer.begin()
            self._db.writer.attach()
            if self.arrival is not None:
                self._store(self._tx)
            found = work(self._tx)
            self._db.writer.detach()
            if self._claimed_at is None:
                self._claimed_at = self._db.clock.monotonic()
            if alone:
                self.commit()
            return found

    def check_foreign_keys(self) -> None:
        """Raise ConstraintError for a deferred key that the running handler leaves violated."""
        if self._inside and self._tx is not None:
            self._tx.check_foreign_keys()

    def step_aside(self) -> None:
        """Commit the open writes of earlier handlers, unless this handler has already written."""
        with self._lock:
            if not self._inside:
                self.commit()

    def write_outside(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit *work* at once, with the handler's transaction if it has an open one."""
        with self._lock:
            if self._inside:
                return work(self.join())
            return self._db.write_outside(work)

    def extend(self, held: Lease, seconds: Span) -> None:
        """Keep a lease for *seconds* from now."""
        span = millis("seconds", seconds)
        self.write_outside(lambda tx: lanes.extend(tx, held, until=tx.now + span))

    def free(self) -> None:
        """
        Commit the claim and the open writes of earlier handlers; then no lock is held.

        Raises:
            InvalidArgument: the running handler has written.
            LeaseLost: the claim could not be committed.

        """
        with self._lock:
            if self._inside:
                raise InvalidArgument(WRITTEN)
            if self._ended or self._claimed_at is not None or self._tx is not None:
                with self._db.outside_handler():
                    self.commit()
            if self.lost:
                raise LeaseLost(CLAIM_LOST)

    def write_alone(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit *work* separately, before the handler ends; raise the errors of ``free``."""
        with self._lock:
            self.free()
            return self._db.write_outside(work)

    @contextmanager
    def alone(self) -> Iterator[StoreTransaction]:
        """Commit the handler's writes of a block separately; raise the errors of ``free``."""
        with self._lock:
            self.free()
            try:
                tx = self.join()
                yield tx
                tx.release_savepoint(self._mark)
            except BaseException:
                self._forget()
                self._db.writer.rollback()
                raise
            self._forget()
            self._db.writer.attach()
            self._db.writer.commit()

    def _forget(self) -> None:
        """Leave a transaction that is about to end."""
        self._tx, self._inside, self._since = None, False, 0.0

    def undo(self) -> None:
        """Undo the handler's writes; others keep theirs unless it ended the transaction."""
        with self._lock:
            if self._inside and self._tx is not None and not _undone(self._tx, self._mark):
                self._break()
            if self.arrival is not None and self._tx is not None:
                self._store(self._tx)
            self._outside()

    def end(
        self,
        leased: LeasedMessage,
        settlement: Settlement,
        *,
        rest: tuple[list[LeasedMessage], int],
        events: list[Event],
    ) -> bool:
        """
        Add a message's settlement to the shared commit; return whether that commit is due.

        *rest* is the lane's claim and the index of its first message that stays leased.
        """
        with self._lock:
            ended = False
            if self._tx is not None:
                if self.arrival is not None:
                    ended = self._end_arrival(self._tx, settlement)
                elif self._inside:
                    self._tx.release_savepoint(self._mark)
                self._outside()
            now = self._db.clock.monotonic()
            self._since = self._since or now
            if self._claimed_at is not None:
                self._claimed_at = now
            self._events += events
            if ended:
                return True
            self._ended.append(SettledMessage(leased, settlement))
            self._rest[leased.lane.lane_id] = rest
            return self._owed is not None or self._is_due(now)

    def _end_arrival(self, tx: StoreTransaction, settlement: Settlement) -> bool:
        """Store the message of an arrival by its settlement; return False if that must follow."""
        arrival = self.arrival
        if arrival is None or arrival.asks or settlement is not HANDLED:
            self._store(tx)
            return False
        if not self._inside:
            arrival.store_handled(tx)
        self.arrival = None  # the commit ends its savepoint
        return True

    def end_all(self, ended: list[tuple[SettledMessage, LaneRest, list[Event]]]) -> None:
        """Add the settlements of messages that share their effects, and commit them together."""
        with self._lock:  # the heartbeat would commit effects with a part of the settlements
            for each, rest, events in ended:
                self.end(each.leased, each.settlement, rest=rest, events=events)
            self.commit()

    def abandon(self) -> None:
        """Undo all uncommitted writes: the thread ends."""
        with self._lock:
            self._break()
            self._outside()

    def _break(self) -> None:
        """Undo the whole batch; its messages are handled again, each with its own commit."""
        ended, self._ended, self._events, self._rest = self._ended, [], [], {}
        tx, self._tx, self._since = self._tx, None, 0.0
        if tx is not None:
            self._db.writer.rollback()
        self._tell(stored=False)
        if ended or self._claimed_at is not None:
            self.lost = self.left_leases = True
            self._claimed_at = None
        if ended:
            self._release(ended)

    def _outside(self) -> None:
        self._inside = False
        if self._tx is not None:
            self._db.writer.detach()

    def _is_due(self, now: float) -> bool:
        """Return whether it is time to commit."""
        return bool(self._ended) and (
            len(self._ended) >= FULL
            or self._ended[-1].leased.lane.isolate
            or now - self._since >= self._share_for
        )

    @property
    def _claim_is_due(self) -> bool:
        """Whether a claim has waited too long for a handler, or another writer waits for it."""
        at = self._claimed_at
        return at is not None and (
            self._db.writer.queue.waiting > 0 or self._db.clock.monotonic() - at >= CLAIM_WAITS
        )

    def heartbeat(self, work: Callable[[StoreTransaction], object] | None = None) -> bool:
        """
        Commit if due, and run *work* (prolonging leases); called by the heartbeat.

        Do nothing and return False while a handler is inside the transaction: it then holds the
        file's lock, and no other worker or process can take its lanes.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._inside:
                return False
            due = self._is_due(self._db.clock.monotonic()) or self._claim_is_due
            if due or (work is not None and self._tx is not None):
                self.commit()
            if work is not None:
                self._db.write(work)
            return True
        finally:
            self._lock.release()

    def commit(self) -> None:
        """Settle the ended messages and commit; if that fails, undo all, to be handled again."""
        with self._lock:
            ended, events, claims = self._ended, self._events, self._rest
            self._ended, self._events, self._rest = [], [], {}
            tx, self._tx, self._since = self._tx, None, 0.0
            claimed, self._claimed_at = self._claimed_at is not None, None
            if not ended and not claimed:
                if tx is not None:  # of a handler that continued after its claim was lost
                    self._db.writer.rollback()
                self._inside = False
                return
            rest: dict[int, list[int]] = {}
            for lane, (messages, start) in claims.items():
                rest[lane] = (
                    [each.seq for each in messages[start:]] if start < len(messages) else []
                )
            try:
                if tx is None:
                    self._db.write(partial(received.settle, ended=ended, rest=rest))
                else:
                    self._settle(tx, ended, rest)
            except (OncewardError, ConstraintError):
                # The running handler keeps its lane, and its claim may have been committed.
                self._tell(stored=False)
                self.lost = self.left_leases = True
                self._release(ended)
                return
            if self._owed is not None:
                self._tell(stored=True)
        if events:
            self._told(events)

    def _tell(self, *, stored: bool) -> None:
        """Give the carrier of an arrival its answer; without one it accepts the parcel itself."""
        owed, self._owed, self.arrival = self._owed, None, None
        if owed is not None:
            owed.tell(owed.answer if stored else None)

    def _settle(
        self, tx: StoreTransaction, ended: list[SettledMessage], rest: dict[int, list[int]]
    ) -> None:
        """Settle messages in the transaction of their handlers, and commit it."""
        self._db.writer.attach()
        try:
            if self.arrival is not None:
                self._store(tx)
            if ended:
                received.settle(tx, ended, rest)
        except BaseException as error:
            self._db.writer.rollback()
            raise_meant(self._db.translate_error(error), error)
            raise
        self._db.writer.commit()

    def _release(self, ended: list[SettledMessage]) -> None:
        """Release lost lanes, to be claimed message by message; back off if lost again."""
        lanes_of: dict[int, list[LeasedMessage]] = {}
        for each in ended:
            lanes_of.setdefault(each.leased.lane.lane_id, []).append(each.leased)

        def give_back(tx: StoreTransaction) -> None:
            for leased in lanes_of.values():
                held, attempt = leased[0].lane, leased[0].attempt
                due_at = tx.now + self._rest_for(attempt) if held.isolate else None
                lanes.release(tx, held, [one.seq for one in leased], broken=True, due_at=due_at)

        try:
            self._db.write(give_back)
        except OncewardError:  # the worker releases them before its next claim
            self.left_leases = True


def _undone(tx: StoreTransaction, mark: SavepointMark) -> bool:
    """Undo the handler's savepoint; return whether it still existed."""
    try:
        tx.rollback_savepoint(mark)
    except SQLError:
        return False
    return tx.alive
