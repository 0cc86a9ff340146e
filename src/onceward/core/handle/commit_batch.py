"""
The commit that quick handlers share, and who holds its transaction when.

A worker has at most one transaction open: its batch. Two threads reach it, the
worker's own, which also makes the calls of a coroutine, and that of its heartbeat.
Each does so under the lock of the batch; SQLite's write lock is held from the first
line to the commit, whichever thread has the batch meanwhile.

==============================  =======================  ==============================
moment                          holder                   what the heartbeat may do
==============================  =======================  ==============================
``claim`` leases lanes          worker (``begin``)       wait: the lock is taken
claimed, no call has written    no thread (``detach``)   commit the claim alone
``note`` writes before a call   worker (``attach``)      wait: the lock is taken
a call has written (``join``)   worker (``attach``), in  nothing; leases need no
                                a savepoint of the call  prolonging: no other writer
                                                         can take them
``end`` or ``undo`` of a call   no thread (``detach``)   commit what ended
``commit``                      worker or heartbeat      begin the commit itself
==============================  =======================  ==============================

The heartbeat commits what ``CLAIM_WAITS`` has passed for, or another writer of the
process waits for, or a lease must be prolonged for. The worker commits when ``end``
says so: enough has ended, ``share_for`` has passed, or the message was claimed in
isolation; and at the end of its round. A worker that does not share its claims
(a slow handler, an unclean end) commits each by a write of its own: then the batch
is opened by the first call that writes.

Where a commit fails, or a call has ended the transaction itself, everything since
the last commit is undone: its lanes are released, each message is claimed alone
next, and ``lost`` ends the round. An error of one call undoes its savepoint only.

This is a batch of its own beside the write queue because handlers are the
user's code: each runs once, reads what it wrote and is given the open
transaction, so its work cannot be kept in a queue and run when a commit is made.
The batch begins and ends at the writer like any block, and shares its commit
with the requests that wait there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Final, TypeVar

from onceward.core.handle import inbox, lanes
from onceward.core.handle.inbox import LeasedMessage, SettledMessage
from onceward.errors import InvalidArgument, LeaseLost, OncewardError
from onceward.file.connection import ConstraintError, SQLError
from onceward.file.database import Database
from onceward.file.transaction import SavepointMark, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.events import Event
from onceward.message.vocabulary import Settlement

T = TypeVar("T")
FULL: Final = 256
CLAIM_WAITS: Final = 0.002
"""Seconds that a claim waits for its handlers before it is committed alone."""
LaneRest = tuple[list[LeasedMessage], int]
"""The claim of a lane, and the index of its first message that stays leased."""
Claimed = list[list[LeasedMessage]]
"""Claimed messages by lane."""
WRITTEN: Final = (
    "this handler has written, and would hold the file's lock: write in a step with tx=True,"
    " or after the last step"
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
        self._lock = RLock()
        self._tx: StoreTransaction | None = None
        self._inside = False
        self._since = 0.0
        self._ended: list[SettledMessage] = []
        self._events: list[Event] = []
        self._rest: dict[int, tuple[list[LeasedMessage], int]] = {}
        self._mark = SavepointMark(0, 0, 0)
        self._claimed_at: float | None = None
        """Since when a claim waits in the open transaction; None where none does."""
        self.lost = False
        """Whether the last commit failed, so that everything it held will be handled again."""
        self.left_leases = False
        """Whether lanes may still be leased that this worker no longer works on."""

    def claim(self, work: Callable[[StoreTransaction], Claimed]) -> Claimed:
        """
        Claim messages in the transaction that their handlers share: one commit does for both.

        The claim is committed at once where a message was claimed in isolation, and
        otherwise before its handlers' effects by ``heartbeat``, should they take long.
        """
        with self._lock:
            self._tx = self._db.writer.begin()
            try:
                claimed = work(self._tx)
            except BaseException as error:
                self._tx = None
                self._db.writer.rollback()
                raise self._db.translate_error(error) from error
            if not claimed:
                self._tx = None
                self._db.writer.rollback()
                return claimed
            self._claimed_at = self._db.clock.monotonic()
            self._db.writer.detach()
            if any(lane[0].lane.isolate for lane in claimed):
                self.commit()
            return claimed

    def join(self) -> StoreTransaction:
        """Return the transaction for the handler that runs now, inside a savepoint of its own."""
        with self._lock:
            if self._tx is None:
                self._tx = self._db.writer.begin()
                self._since = self._since or self._db.clock.monotonic()
            tx = self._tx
            self._db.writer.attach()
            if not self._inside:
                self._mark = tx.savepoint()
                self._inside = True
            return tx

    @property
    def inside(self) -> bool:
        """Whether the handler that runs now has written."""
        return self._inside

    def note(self, work: Callable[[StoreTransaction], T], *, alone: bool) -> T:
        """
        Write what stays, also where the handler that is about to be called fails.

        It is committed now where *alone*, and otherwise as a claim is: with the effects of
        quick handlers, or by ``heartbeat`` before those of one that takes long.
        """
        with self._lock:
            if self._tx is None:
                self._tx = self._db.writer.begin()
            self._db.writer.attach()
            found = work(self._tx)
            self._db.writer.detach()
            if self._claimed_at is None:
                self._claimed_at = self._db.clock.monotonic()
            if alone:
                self.commit()
            return found

    def step_aside(self) -> None:
        """Commit what earlier handlers left open; no-op where this handler has written already."""
        with self._lock:
            if not self._inside:
                self.commit()

    def write_outside(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit *work* at once; with the handler's transaction where it has one open."""
        with self._lock:
            if self._inside:
                return work(self.join())
            with self._db.outside_handler():
                return self._db.write(work)

    def free(self) -> None:
        """
        Commit the claim, and what earlier handlers left open; then no lock is held.

        Raises:
            InvalidArgument: the handler that runs now has written.
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
        """Commit *work* by itself, before the handler ends; raises what ``free`` raises."""
        with self._lock:
            self.free()
            with self._db.outside_handler():
                return self._db.write(work)

    @contextmanager
    def alone(self) -> Iterator[StoreTransaction]:
        """Commit what the handler writes in a block by itself; raises what ``free`` raises."""
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
        """Undo what the handler wrote; others keep theirs unless it ended the transaction."""
        with self._lock:
            if self._inside and self._tx is not None and not _undone(self._tx, self._mark):
                self._break()
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
        Note the settlement of a message, to be written with the shared commit; say if that is due.

        *rest* is the lane's claim and the index of its first message that stays leased.
        """
        with self._lock:
            if self._tx is not None:
                if self._inside:
                    self._tx.release_savepoint(self._mark)
                self._outside()
            now = self._db.clock.monotonic()
            self._since = self._since or now
            if self._claimed_at is not None:
                self._claimed_at = now
            self._ended.append(SettledMessage(leased, settlement))
            self._events += events
            self._rest[leased.lane.lane_id] = rest
            return self._is_due(now)

    def end_all(self, ended: list[tuple[SettledMessage, LaneRest, list[Event]]]) -> None:
        """Note the settlements of messages that share their effects, and commit them together."""
        with self._lock:  # the heartbeat would commit effects with a part of the settlements
            for each, rest, events in ended:
                self.end(each.leased, each.settlement, rest=rest, events=events)
            self.commit()

    def abandon(self) -> None:
        """Undo everything that is not committed: the thread ends."""
        with self._lock:
            self._break()
            self._outside()

    def _break(self) -> None:
        """Undo the whole batch; its messages are handled again, each with a commit of its own."""
        ended, self._ended, self._events, self._rest = self._ended, [], [], {}
        tx, self._tx, self._since = self._tx, None, 0.0
        if tx is not None:
            self._db.writer.rollback()
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
        """Whether a claim has waited for a handler too long, or another writer waits for it."""
        at = self._claimed_at
        return at is not None and (
            self._db.writer.queue.waiting > 0 or self._db.clock.monotonic() - at >= CLAIM_WAITS
        )

    def heartbeat(self, work: Callable[[StoreTransaction], object] | None = None) -> bool:
        """
        Commit what is due, and run *work* (prolonging leases); called by the heartbeat.

        Returns False, and does nothing, while a handler is inside the transaction: it
        holds the file's lock then, and no other worker or process can take its lanes.
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
        """Settle what ended and commit; where that fails, all of it is undone and handled again."""
        with self._lock:
            ended, events, claims = self._ended, self._events, self._rest
            self._ended, self._events, self._rest = [], [], {}
            tx, self._tx, self._since = self._tx, None, 0.0
            claimed, self._claimed_at = self._claimed_at is not None, None
            if not ended and not claimed:
                if tx is not None:  # of a handler that went on after its claim was lost
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
                    self._db.write(partial(inbox.settle, ended=ended, rest=rest))
                else:
                    self._settle(tx, ended, rest)
            except (OncewardError, ConstraintError):
                # The handler that runs now keeps its lane, and a claim may be there after all.
                self.lost = self.left_leases = True
                self._release(ended)
                return
        if events:
            self._told(events)

    def _settle(
        self, tx: StoreTransaction, ended: list[SettledMessage], rest: dict[int, list[int]]
    ) -> None:
        """Settle messages in the transaction of their handlers, and commit it."""
        self._db.writer.attach()
        try:
            if ended:
                inbox.settle(tx, ended, rest)
        except BaseException as error:
            self._db.writer.rollback()
            raise self._db.translate_error(error) from error
        self._db.writer.commit()

    def _release(self, ended: list[SettledMessage]) -> None:
        """Release lost lanes, to be claimed message by message; one lost again rests as well."""
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
    """Undo the handler's savepoint; say whether it was still there."""
    try:
        tx.rollback_savepoint(mark)
    except SQLError:
        return False
    return tx.alive
