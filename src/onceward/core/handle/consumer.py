"""Lease messages for the readers of this process and settle them as a reader says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from onceward.core.engine.deps import RuntimeDeps
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle.context import reply_options
from onceward.core.handle.message import LeaseInfo, Message
from onceward.errors import InvalidMessage
from onceward.file.transaction import StoreTransaction
from onceward.message.body import decode
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.retry import RetryPolicy
from onceward.message.states import Dead, Done, RetryAt, Settlement
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
        return self.deps.sender.commit(message.session, to, body, options)

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
