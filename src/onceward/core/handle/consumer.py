"""Lease messages for the readers of this process and settle them as a reader says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from onceward.core import requests
from onceward.core.engine.engine_loop import RuntimeDeps
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle import inbox, lanes
from onceward.core.handle.inbox import ClaimRequest, LeasedMessage, SettledMessage
from onceward.core.handle.message import Message
from onceward.errors import InvalidMessage, LeaseLost
from onceward.file import file_checks
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.body import decode, message_type
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.names import plain_text
from onceward.message.retry import RetryPolicy
from onceward.message.send_options import reply_options
from onceward.message.states import Dead, Done, LeaseInfo, RetryAt, Settlement
from onceward.message.times import Span, millis

L = TypeVar("L", bound=LeaseInfo)
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Leases(Protocol[L, S_contra]):
    """How the messages of one source are leased and settled."""

    policy: RetryPolicy
    """Retries of messages that readers put back or never settled."""
    at_most_once: bool
    """Whether a message is acknowledged before its reader is given it."""

    def claim(self, wanted: Any, search: S_contra) -> Sequence[L]:
        """Lease the next messages that *search* names; empty where there is none."""
        ...

    def problem(self, leased: L) -> Settlement | None:
        """Return how a message ends that no reader may see, None for all others."""
        ...

    def settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> None:
        """End a lease; raises LeaseLost where it is no longer held."""
        ...

    def mark(self, tx: StoreTransaction, leased: L) -> None:
        """Record that the reader's group has handled a message; raises LeaseLost if it had."""
        ...

    def extend(self, tx: StoreTransaction, leased: L, until: Millis) -> None:
        """Keep a lease until a moment; raises LeaseLost where it is no longer held."""
        ...


class Consumer(Generic[L, S]):
    """The readers' side of one source: an inbox, a channel or a mailbox."""

    def __init__(self, deps: RuntimeDeps, leases: Leases[L, S]) -> None:
        self.agent, self.hooks = deps.outbox.db.agent, deps.hooks
        self.deps = deps
        self._db, self._leases = deps.db, leases
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)

    # -- leasing ----------------------------------------------------------------------------

    def take(self, wanted: Any, search: S) -> Message[Any] | None:
        """Lease the next readable message and return it, None where there is none."""
        found = self.take_many(wanted, search)
        return found[0] if found else None

    def take_many(self, wanted: Any, search: S) -> list[Message[Any]]:
        """
        Lease the next messages and return those that can be read, empty where there is none.

        On the way a message that can never be read as *wanted* becomes a dead
        letter, and one that has expired ends.
        """
        while claimed := self._leases.claim(wanted, search):
            opened = [self._open(leased, wanted) for leased in claimed]
            if messages := [message for message in opened if message is not None]:
                return messages
        return []

    def message(self, leased: L, wanted: Any) -> Message[Any]:
        """Return a leased message with its body read; raises InvalidMessage."""
        frame = Frame.parse(leased.frame)
        model = None if isinstance(wanted, str) else wanted
        return Message(leased, frame, decode(frame.data, frame.data_base64, model), self)

    def _open(self, leased: L, wanted: Any) -> Message[Any] | None:
        """Return a leased message, None where it was settled instead."""
        try:
            problem = self._leases.problem(leased)
            message = None if problem else self.message(leased, wanted)
        except InvalidMessage as error:
            problem, message = Dead("rejected", str(error), tried=False), None
        if problem is not None:
            self._end(leased, problem)
        elif message is not None and self._leases.at_most_once:
            message.ack()
        return message

    # -- settling ---------------------------------------------------------------------------

    def ack(self, leased: L) -> StoreTransaction:
        """End the lease of a message that its reader has handled."""
        return self._write(lambda tx: self._acknowledge(tx, leased))

    def drop(self, leased: L) -> StoreTransaction:
        """End the message without effects."""
        return self._end(leased, Done("dropped"))

    def reject(self, leased: L, reason: str) -> StoreTransaction:
        """Make the message a dead letter."""
        return self._end(leased, Dead("rejected", reason))

    def retry(self, leased: L, reason: str, after: Span | None) -> StoreTransaction:
        """Put the message back, or make it a dead letter where its budget is spent."""
        policy = self._leases.policy
        if policy.exhausted(leased.attempt):
            return self._end(leased, Dead("max_retries_exceeded", reason))
        delay = (
            policy.delay(leased.attempt, self.deps.rng) if after is None else millis("after", after)
        )
        return self._end(leased, RetryAt(self._db.now() + delay, reason))

    def extend(self, leased: L, seconds: Span) -> None:
        """Keep the lease for *seconds* from now; raises LeaseLost."""
        wanted = millis("seconds", seconds)
        self._db.write(lambda tx: self._leases.extend(tx, leased, tx.now + wanted))

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender from the agent's own outbox; return the reply's id."""
        to, options = reply_options(message.frame, {})
        return self.deps.outbox.commit(message.session, to, body, options)

    def _end(self, leased: L, settlement: Settlement) -> StoreTransaction:
        return self._write(lambda tx: self._settle(tx, leased, settlement))

    def _write(self, work: Callable[[StoreTransaction], None]) -> StoreTransaction:
        """Run *work* in this thread's open transaction if there is one; return that transaction."""

        def settled(tx: StoreTransaction) -> StoreTransaction:
            work(tx)
            return tx

        return self._db.write(settled)

    def _acknowledge(self, tx: StoreTransaction, leased: L) -> None:
        self._settle(tx, leased, Done())
        self._leases.mark(tx, leased)

    def _settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> None:
        self._leases.settle(tx, leased, settlement)
        self._emitter.lease_ended(tx, [(leased, settlement)])


def never_settled(leased: LeaseInfo, policy: RetryPolicy) -> Dead | None:
    """Return the end of a message whose readers have spent its budget without settling it."""
    if leased.attempt > 1 and policy.exhausted(leased.attempt - 1):
        return Dead("max_retries_exceeded", "readers never settled it", tried=False)
    return None


class LaneLeases:
    """Settle inbox messages by the leases of their lanes."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, policy: RetryPolicy) -> None:
        self._db, self._deps, self.policy = deps.db, deps, policy
        self._owner = file_checks.owner_name()

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return how an expired, damaged or exhausted message ends, None for all others."""
        return leased.undeliverable(self._db.now()) or never_settled(leased, self.policy)

    def settle(self, tx: StoreTransaction, leased: LeasedMessage, settlement: Settlement) -> None:
        """End the lease, and tell the caller of a dispatched task; raises LeaseLost."""
        inbox.settle(tx, [SettledMessage(leased, settlement)], {})
        if not isinstance(settlement, RetryAt):
            requests.tell(tx, self._deps.outbox, leased, requests.outcome_of(settlement))

    def mark(self, tx: StoreTransaction, leased: LeasedMessage) -> None:
        """Do nothing: settling an inbox message has recorded it."""

    def extend(self, tx: StoreTransaction, leased: LeasedMessage, until: Millis) -> None:
        """Keep the lease of the message's lane; raises LeaseLost."""
        if not lanes.extend(tx, leased.lane, until=until):
            raise lease_lost(leased)


class InboxLeases(LaneLeases):
    """Lease the messages of an inbox; what is searched is a session, None for any."""

    def __init__(self, deps: RuntimeDeps) -> None:
        super().__init__(deps, deps.policy)

    def claim(self, wanted: Any, search: str | None) -> Sequence[LeasedMessage]:
        """Lease the next message of the types that *wanted* names."""
        paused_at, ready, due_at = lanes.agenda(self._db.read)
        due = ready or (due_at is not None and due_at <= self._db.now())
        types = type_names(wanted)
        if disabled_by_environment() or paused_at is not None or not due:
            return ()
        request = ClaimRequest(messages=1, lanes=-1 if types else 8, session=search, types=types)
        lease_for = round(1000 * self._deps.settings.lease)
        with self._db.outside_handler():
            claimed = self._db.write(
                lambda tx: inbox.claim(tx, request, owner=self._owner, until=tx.now + lease_for)
            )
        return claimed[0] if claimed else ()


InboxConsumer = Consumer[LeasedMessage, str | None]


def lease_lost(leased: LeasedMessage) -> LeaseLost:
    """Return the error of a lease that ran out or was taken over."""
    return LeaseLost(f"the lease on message {leased.id} ran out; another reader has it")


def type_names(wanted: Any) -> tuple[str, ...] | None:
    """Return the wire names that ``receive(wanted)`` looks for, None for any."""
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return (plain_text("type", wanted),)
    if isinstance(wanted, type) and (
        issubclass(wanted, BaseModel) or hasattr(wanted, "__message_type__") or wanted not in PLAIN
    ):
        return (message_type(wanted),)
    return PLAIN[wanted]


PLAIN: dict[Any, tuple[str, ...]] = {
    dict: ("json",),
    list: ("json",),
    str: ("text",),
    bytes: ("bytes",),
}
