"""Emit the events of each commit's changes to the hooks of one agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from onceward.core.end import sent
from onceward.core.rows.peers import PeerLease
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import (
    Acked,
    BreakerClosed,
    Cancelled,
    DeadLettered,
    Dropped,
    Event,
    Failed,
    MessageBound,
    MessageEvent,
    OtherContents,
    Processed,
    Retried,
    Sent,
    WeakReceipt,
)
from onceward.message.frame import Frame, session_and_type
from onceward.message.parcel import Durability
from onceward.message.vocabulary import Dead, Done, LeaseInfo, Reason, RetryAt, Settlement

NAMES: Final = """
SELECT id, session, type, '', created_at FROM _onceward_outbox
 WHERE id IN (SELECT value FROM json_each(:ids)) AND recipient = :peer
 UNION ALL
SELECT id, session, type, '', received_at FROM _onceward_inbox
 WHERE sender = :peer AND id IN (SELECT value FROM json_each(:ids))
 UNION ALL
SELECT id, session, type, coalesce(last_error, ''), created_at FROM _onceward_dead_letters
 WHERE id IN (SELECT value FROM json_each(:ids)) AND peer = :peer
"""


class Settled(NamedTuple):
    """Messages that an answer changed, by outcome."""

    lease: PeerLease
    moved: sent.Moved
    rejected: tuple[tuple[str, Reason], ...] = ()
    held: bool = True
    """Whether the peer is still leased because it has more to push."""
    closed: bool = False
    weak: Durability | None = None
    lacking: bool = False
    """Whether a frame may have no receipt, or one that says that the peer is busy."""

    @property
    def idle(self) -> bool:
        """Whether the answer changed no row: its outcomes were known, or no row has its ids."""
        moved = self.moved
        return not (moved.any or self.rejected)


class CountedAttempt(NamedTuple):
    """A message of a failed push; ``spent`` is the number of attempts that count."""

    seq: int
    id: str
    attempt: int
    spent: int


class EventEmitter:
    """Builds only the events that a hook listens for."""

    def __init__(self, hooks: Hooks, agent: str) -> None:
        self._hooks, self.agent = hooks, agent

    @property
    def listening(self) -> bool:
        """Whether there is any hook; without one no event needs to be built."""
        return bool(self._hooks._hooks)

    def emit(self, tx: StoreTransaction, *events: Event) -> None:
        """Emit *events* once *tx* is committed."""
        wanted = [event for event in events if self._hooks.wanted(type(event))]
        if wanted:
            told = with_names(tx, wanted)
            tx.after_commit(lambda: self._hooks.emit(told))

    def dead_lettered(self, tx: StoreTransaction, moved: Iterable[tuple[str, str, Reason]]) -> None:
        """Emit that messages (id, peer, reason) became dead letters."""
        agent, at = self.agent, tx.now
        self.emit(
            tx,
            *(
                DeadLettered(agent=agent, at=at, message_id=i, peer=p, reason=r, error="")
                for i, p, r in moved
            ),
        )

    def retried(
        self,
        tx: StoreTransaction,
        peer: str,
        counted: Iterable[CountedAttempt],
        *,
        error: str,
        due_at: Millis,
    ) -> None:
        """Emit that a push of messages failed, and when the peer is tried again."""
        if self._hooks.wanted(Retried):
            named: dict[str, Any] = {"agent": self.agent, "at": tx.now, "peer": peer}
            named |= {"error": error, "due_at": due_at}
            self.emit(
                tx,
                *(Retried(**named, message_id=c.id, attempt=c.attempt) for c in sorted(counted)),
            )

    def lease_ended(
        self,
        tx: StoreTransaction,
        ended: Iterable[tuple[LeaseInfo, Settlement]],
        took: float | None = None,
    ) -> None:
        """Emit how leases of messages ended; read no frame if no hook gets the event."""
        if self.listening:
            agent, at, wanted = self.agent, tx.now, self._hooks.wanted
            told = [each for each in ended if wanted(kind_of(each[1]))]
            self.emit(
                tx, *(settlement_event(*each, agent=agent, at=at, took=took) for each in told)
            )

    def settled(self, tx: StoreTransaction, settled: Settled) -> None:
        """Emit what the answer to a parcel changed; the caller asks whether there is a hook."""
        agent, at, peer = self.agent, tx.now, settled.lease.name
        self.moved(tx, peer, settled.moved)
        if settled.rejected:
            self.dead_lettered(tx, [(i, peer, reason) for i, reason in settled.rejected])
        if settled.closed:
            self.emit(tx, BreakerClosed(agent=agent, at=at, peer=peer))
        if settled.weak is not None:
            self.emit(tx, WeakReceipt(agent=agent, at=at, peer=peer, durability=settled.weak))

    def moved(self, tx: StoreTransaction, peer: str, moved: sent.Moved) -> None:
        """Emit which messages the peer stored, processed or gave up."""
        agent, at = self.agent, tx.now
        if (moved.sent or moved.at_once) and self._hooks.wanted(Sent):
            sent = [i for i in moved.sent if i not in moved.sent_again] + [*moved.at_once]
            self.emit(tx, *(Sent(agent=agent, at=at, message_id=i, peer=peer) for i in sent))
        if moved.acked and self._hooks.wanted(Acked):
            self.emit(
                tx, *(Acked(agent=agent, at=at, message_id=i, peer=peer) for i in moved.acked)
            )
        if moved.dropped and self._hooks.wanted(Dropped):
            self.emit(tx, *(self._dropped(i, peer, reason, at) for i, reason in moved.dropped))
        self.differing(tx, peer, moved.differing)
        if moved.cancelled:
            self.cancelled(tx, [(i, peer, reason) for i, reason in moved.cancelled])
        if moved.failed and self._hooks.wanted(Failed):
            self.emit(
                tx,
                *(
                    Failed(agent=agent, at=at, message_id=i, peer=peer, error=why)
                    for i, why in moved.failed
                ),
            )

    def cancelled(self, tx: StoreTransaction, ended: Iterable[tuple[str, str, str]]) -> None:
        """Emit that messages (id, peer, reason) are cancelled."""
        if self._hooks.wanted(Cancelled):
            agent, at = self.agent, tx.now
            self.emit(
                tx,
                *(
                    Cancelled(agent=agent, at=at, message_id=i, peer=p, reason=r)
                    for i, p, r in ended
                ),
            )

    def differing(self, tx: StoreTransaction, peer: str, ids: Iterable[str]) -> None:
        """Emit that messages came again with other contents."""
        if ids and self._hooks.wanted(OtherContents):
            agent, at = self.agent, tx.now
            told = (OtherContents(agent=agent, at=at, message_id=i, peer=peer) for i in ids)
            self.emit(tx, *told)

    def _dropped(self, message_id: str, peer: str, reason: str, at: Millis) -> Dropped:
        policy, _, scope = reason.partition(": ")
        return Dropped(
            agent=self.agent, at=at, message_id=message_id, peer=peer, scope=scope, policy=policy
        )


class MessageNames(NamedTuple):
    """Session, type, last error and time of a message."""

    session: str
    type: str
    error: str
    """Last error of a dead letter, or empty."""
    at: Millis
    """When it was committed into the outbox or the inbox."""


def find_names(
    tx: StoreTransaction, peer: str, message_ids: Iterable[str]
) -> dict[str, MessageNames]:
    """Return names by id of messages to or from *peer*, without pruned ones."""
    rows = tx.rows(NAMES, {"ids": to_json(list(message_ids)).decode(), "peer": peer})
    return {message_id: MessageNames(*names) for message_id, *names in rows}


def with_names(tx: StoreTransaction, events: Sequence[Event]) -> list[Event]:
    """Return *events*, adding the missing sessions and types of messages."""
    nameless: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, MessageEvent | MessageBound) and not event.type:
            nameless.setdefault(event.peer, []).append(event.message_id)
    names = {peer: find_names(tx, peer, ids) for peer, ids in nameless.items()}
    return [_named(event, names) for event in events]


def _named(event: Event, names: dict[str, dict[str, MessageNames]]) -> Event:
    if not isinstance(event, MessageEvent | MessageBound) or event.type:
        return event
    found = names[event.peer].get(event.message_id)
    if found is None:
        return event
    if isinstance(event, DeadLettered):
        event = replace(event, error=event.error or found.error)
    if isinstance(event, Sent):
        event = replace(event, created_at=found.at)
    return replace(event, session=found.session, type=found.type)


def kind_of(settlement: Settlement) -> type[Event]:
    """Return the event class of a settlement."""
    match settlement:
        case Done():
            return Processed
        case Dead():
            return DeadLettered
        case RetryAt():
            return Retried


def settlement_event(
    leased: LeaseInfo,
    settlement: Settlement,
    *,
    agent: str,
    at: Millis,
    took: float | None = None,
    frame: Frame | None = None,
) -> Event:
    """
    Return the event of how a received message's lease ended; its handler ran *took* seconds.

    The stored frame is read again if there is no *frame*.
    """
    session, kind = session_and_type(leased.frame) if frame is None else (frame.session, frame.type)
    named: dict[str, Any] = {
        "agent": agent,
        "at": at,
        "message_id": leased.id,
        "peer": leased.sender,
        "session": session,
        "type": kind,
    }
    match settlement:
        case Done(outcome=outcome):
            return Processed(**named, outcome=outcome, received_at=leased.received_at, took=took)
        case Dead(reason=reason, error=error):
            return DeadLettered(**named, reason=reason, error=error, took=took)
        case RetryAt(due_at=due_at, error=error):
            return Retried(**named, attempt=leased.attempt, error=error, due_at=due_at, took=took)
