"""Serve the readers of one source: lease its messages, open, settle and put them back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.handle import claim
from onceward.core.handle.message import Message
from onceward.core.rows import claimable, lanes
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send import tasks
from onceward.errors import InvalidArgument, InvalidMessage, LeaseLost, OncewardError
from onceward.file import file_checks
from onceward.file.connection import UNTYPED, raise_meant
from onceward.file.transaction import StoreTransaction
from onceward.message.body import decode
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.frame import Frame
from onceward.message.ids import new_token
from onceward.message.options import reply_options
from onceward.message.retry import RetryPolicy
from onceward.message.times import Span, millis
from onceward.message.vocabulary import (
    HANDLED,
    Dead,
    Done,
    LeaseInfo,
    RetryAt,
    Settlement,
    unreadable,
)

L = TypeVar("L", bound=LeaseInfo)
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Leases(Protocol[L, S_contra]):
    """How the messages of one source are leased and settled."""

    policy: RetryPolicy
    """Retries of messages that readers put back or never settled."""
    at_most_once: bool
    """Whether a message is acknowledged before its reader gets it."""

    def claim(self, wanted: Any, search: S_contra, taken: Taken[L]) -> Sequence[L]:
        """Lease the next messages that *search* selects, and keep them in *taken*; maybe none."""
        ...

    def problem(self, leased: L) -> Settlement | None:
        """Return the settlement of a message that no reader may see; None for all others."""
        ...

    def settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> None:
        """End a lease; raise LeaseLost if it is no longer held."""
        ...

    def mark(self, tx: StoreTransaction, leased: L) -> None:
        """Record that the reader's group handled a message; raise LeaseLost if it already had."""
        ...

    def extend(self, tx: StoreTransaction, leased: L, until: Millis) -> None:
        """Keep a lease until a moment; raise LeaseLost if it is no longer held."""
        ...


UNREAD: Final = "its reader was cancelled before it got the message"


class Taken(Generic[L]):
    """
    The leases of one call for a caller that may never get them.

    They are kept with the commit, which may be known to no one else: a signal's exception can come
    between any two instructions. So each reader calls ``give_back`` in an except clause of its own:
    at the end of a ``with`` block such an exception would come after the block.
    """

    __slots__ = ("leases",)

    def __init__(self) -> None:
        self.leases: Sequence[L] = ()

    def keep(self, tx: StoreTransaction, leases: Sequence[L]) -> Sequence[L]:
        """Remember leases once the transaction is committed; return them."""
        if leases:
            tx.wake(partial(setattr, self, "leases", leases))  # also if an interrupt is deferred
        return leases

    def keep_one(self, tx: StoreTransaction, lease: L | None) -> Sequence[L]:
        """Remember a lease once the transaction is committed; return it, if there is one."""
        return self.keep(tx, () if lease is None else (lease,))


class Consumer(Generic[L, S]):
    """The readers' side of one source: an inbox, a channel or a mailbox."""

    def __init__(self, deps: RuntimeDeps, leases: Leases[L, S]) -> None:
        self.agent, self.hooks = deps.outbox.db.agent, deps.hooks
        self.deps = deps
        self._db, self._leases = deps.db, leases
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)

    # -- leasing ----------------------------------------------------------------------------

    def take(self, wanted: Any, search: S, taken: Taken[L]) -> Message[Any] | None:
        """Lease the next readable message and return it; None if there is none."""
        found = self.take_many(wanted, search, taken)
        return found[0] if found else None

    def give_back(self, taken: Taken[L]) -> None:
        """Put back what a call has leased that an exception ended, as if it had not been leased."""
        for leased in taken.leases:
            with suppress(OncewardError):  # settled; or the file failed, and the lease runs out
                self.put_back(leased)

    def take_many(self, wanted: Any, search: S, taken: Taken[L]) -> list[Message[Any]]:
        """
        Lease the next messages and return the readable ones; empty if there are none.

        A message that can never be read as *wanted* becomes a dead letter, and an expired one ends.
        """
        try:
            while claimed := self._leases.claim(wanted, search, taken):
                opened = [self._open(leased, wanted) for leased in claimed]
                if messages := [message for message in opened if message is not None]:
                    return messages
        except UNTYPED as error:
            raise_meant(self._db.explain(error), error)
            raise
        return []

    def message(self, leased: L, wanted: Any) -> Message[Any]:
        """Return a leased message with its body read; raises InvalidMessage."""
        frame = Frame.accepted(leased.frame)
        if frame.dataref is not None:
            frame = frame.with_stored_body()
        model = None if isinstance(wanted, str) else wanted
        return Message(
            leased, frame, decode(frame.data, frame.data_base64, model, frame.datacontenttype), self
        )

    def _open(self, leased: L, wanted: Any) -> Message[Any] | None:
        """Return a leased message; None if it was settled instead."""
        try:
            problem = self._leases.problem(leased)
            message = None if problem else self.message(leased, wanted)
        except InvalidMessage as error:
            problem, message = unreadable(error), None
        if problem is not None:
            self._end(leased, problem)
        elif message is not None and self._leases.at_most_once:
            message.ack()
        return message

    def detach(self, leased: Any) -> str:
        """Detach a lease from this process; return the handle for ``attach``."""
        return self._lanes.detach(leased)

    def attach(self, handle: str, wanted: Any) -> Message[Any]:
        """Return a message that was detached, with its body read."""
        return self.message(cast("L", self._lanes.attach(handle)), wanted)

    @property
    def _lanes(self) -> LaneLeases:
        if isinstance(self._leases, LaneLeases):
            return self._leases
        msg = "a mailbox's message is leased by its position: give the position, and read again"
        raise InvalidArgument(msg)

    # -- settling ---------------------------------------------------------------------------

    def ack(self, leased: L) -> StoreTransaction:
        """End the lease of a message that its reader has handled."""
        return self._db.write(partial(self._acknowledge, leased=leased))

    def drop(self, leased: L) -> StoreTransaction:
        """End the message without effects."""
        return self._end(leased, Done("dropped"))

    def reject(self, leased: L, reason: str) -> StoreTransaction:
        """Make the message a dead letter."""
        return self._end(leased, Dead("rejected", reason))

    def retry(self, leased: L, reason: str, after: Span | None) -> StoreTransaction:
        """Put the message back, or make it a dead letter if its retries are used up."""
        policy = self._leases.policy
        if policy.exhausted(leased.attempt):
            return self._end(leased, Dead("attempts_spent", reason))
        delay = (
            policy.delay(leased.attempt, self.deps.rng) if after is None else millis("after", after)
        )
        return self._end(leased, RetryAt(self._db.now() + delay, reason))

    def put_back(self, leased: L) -> StoreTransaction:
        """Put the message back as if it had not been leased."""
        return self._end(leased, RetryAt(self._db.now(), UNREAD, counted=False))

    def extend(self, leased: L, seconds: Span) -> None:
        """Keep the lease for *seconds* from now; raises LeaseLost."""
        wanted = millis("seconds", seconds)
        self._db.write(lambda tx: self._leases.extend(tx, leased, tx.now + wanted))

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender from the agent's own outbox; return the reply's id."""
        to, options = reply_options(message.frame, {})
        return self.deps.outbox.commit(message.session, to, body, options)

    def _end(self, leased: L, settlement: Settlement) -> StoreTransaction:
        return self._db.write(partial(self._settle, leased=leased, settlement=settlement))

    def _acknowledge(self, tx: StoreTransaction, leased: L) -> StoreTransaction:
        self._settle(tx, leased, HANDLED)
        self._leases.mark(tx, leased)
        return tx

    def _settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> StoreTransaction:
        """End a lease; return the transaction, this thread's open one if there is one."""
        self._leases.settle(tx, leased, settlement)
        self._emitter.lease_ended(tx, [(leased, settlement)])
        return tx


HANDLE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")


def never_settled(leased: LeaseInfo, policy: RetryPolicy) -> Dead | None:
    """Return the end of a message whose retries are used up without a reader settling it."""
    if leased.attempt > 1 and policy.exhausted(leased.attempt - 1):
        return Dead("attempts_spent", "no reader settled it", tried=False)
    return None


class LaneLeases:
    """Settle inbox messages by the leases of their lanes."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, policy: RetryPolicy) -> None:
        self._db, self._deps, self.policy = deps.db, deps, policy
        self._owner, self._entered = file_checks.owner_name(), False

    def enter(self) -> None:
        """Let other processes know whether this one lives, before its first lease."""
        if not self._entered:
            self._entered = True
            lease = round(1000 * self._deps.settings.lease)
            self._db.in_flight.enter(self._owner, "reader", lease)

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return the settlement of an expired, damaged or exhausted message; else None."""
        now = 0 if leased.expires_at is None else self._db.now()
        return leased.undeliverable(now) or never_settled(leased, self.policy)

    def settle(self, tx: StoreTransaction, leased: LeasedMessage, settlement: Settlement) -> None:
        """End the lease, and report to the caller of a dispatched task; raises LeaseLost."""
        if settlement is HANDLED and received.ASKS not in leased.frame:
            received.settle_handled(tx, leased)
        else:
            received.settle(tx, [SettledMessage(leased, settlement)], {})
        if tasks.NAMES_CALLER in leased.frame and not isinstance(settlement, RetryAt):
            tasks.tell(tx, self._deps.outbox, leased, tasks.outcome_of(settlement))
        tx.after_commit(partial(self._notify_freed, leased.lane.lane_id))

    def _notify_freed(self, lane_id: int) -> None:
        """Notify other readers of a lane that is free again and in which more messages wait."""
        notifier = self._db.notifier
        if notifier.is_heard("in"):
            with suppress(OncewardError):  # the lease has ended, and its reader need not know
                if claimable.has_more(self._db.read, lane_id):
                    notifier.notify("in")

    def mark(self, tx: StoreTransaction, leased: LeasedMessage) -> None:
        """Do nothing: settling an inbox message has recorded it."""

    def extend(self, tx: StoreTransaction, leased: LeasedMessage, until: Millis) -> None:
        """Keep the lease of the message's lane; raises LeaseLost."""
        if not lanes.extend(tx, leased.lane, until=until):
            raise lease_lost(leased)

    # -- leases that outlive a process ------------------------------------------------------

    def detach(self, leased: LeasedMessage) -> str:
        """Detach a lease from this process; return the handle for ``attach``."""
        secret = new_token()
        if not self._db.write(
            lambda tx: lanes.extend(tx, leased.lane, owner=f"{lanes.DETACHED}/{secret}")
        ):
            raise lease_lost(leased)
        return f"{leased.seq}.{leased.lane.lane_id}.{leased.lane.token}.{leased.attempt}.{secret}"

    def attach(self, handle: str) -> LeasedMessage:
        """
        Return the lease of a handle; settling it proves that it is still held.

        Raises:
            InvalidArgument: *handle* is not what ``detach`` returned.
            LeaseLost: the message was settled, or its lease ran out.

        """
        parts = HANDLE.fullmatch(handle) if isinstance(handle, str) else None
        if parts is None:
            msg = f"this is not a handle: {Hint.DETACHED}"
            raise InvalidArgument(msg)
        seq, lane_id, token, attempt = map(int, parts.groups()[:4])
        lane = Lease(lane_id, token, f"{lanes.DETACHED}/{parts[5]}", isolate=False)
        found = claim.find_held(self._db.read, seq, lane, attempt)
        if found is None:
            msg = (
                "that message is no longer leased: it was settled, or its lease ran out and "
                "another reader has it"
            )
            raise LeaseLost(msg)
        return found


def lease_lost(leased: LeasedMessage) -> LeaseLost:
    """Return the error for a lease that ran out or was taken over."""
    return LeaseLost(f"the lease on message {leased.id} ran out; another reader has it")
