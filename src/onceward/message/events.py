"""
Define one frozen record per fact, passed to hooks after the commit that made it true.

An event reaches the hooks of the process that committed. Facts that all processes
need are in the views and, where enabled, in the table of transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from onceward.message.clock import Millis
from onceward.message.parcel import Durability
from onceward.message.vocabulary import Outcome, QueueMode, Reason, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact about one message or one peer; ``name`` is what hooks subscribe to."""

    name: ClassVar[str] = "event"
    agent: str
    """Agent whose file it happened in."""
    at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent(Event):
    """A fact about one message."""

    message_id: str
    peer: str
    """The other agent: the recipient of a sent message, the sender of a received one."""
    session: str = ""
    """Session of the message; empty if the file has no row of the message."""
    type: str = ""
    """Type of the message; empty if the file has no row of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(MessageEvent):
    """The message was committed into the outbox."""

    name: ClassVar[str] = "enqueued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(MessageEvent):
    """
    The peer stored the message durably.

    Emitted once, right before ``acked`` if one answer reports both; again only if the peer's file
    was restored and stores it again.
    """

    name: ClassVar[str] = "sent"
    created_at: Millis | None = None
    """When it was committed into the outbox; None if the file has no row of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked(MessageEvent):
    """The peer processed the message, which settles it."""

    name: ClassVar[str] = "acked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(MessageEvent):
    """
    An attempt failed, and the next is not before ``due_at``; ``attempt`` counts from 1.

    A push that reached no peer is not an attempt: ``delivery_failed`` reports it. Nor is a call of
    a handler that ends to wait for a reply; it has no event.
    """

    name: ClassVar[str] = "retried"
    attempt: int
    error: str
    due_at: Millis
    took: float | None = None
    """Seconds that its handler ran; None if no handler was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(MessageEvent):
    """The message failed at the peer or here; ``dead_letters`` of one of them keeps it."""

    name: ClassVar[str] = "failed"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(MessageEvent):
    """The message was moved to this file's dead letters."""

    name: ClassVar[str] = "dead_lettered"
    reason: Reason
    error: str
    took: float | None = None
    """Seconds that its handler ran; None if no handler was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(MessageEvent):
    """The message was committed into the inbox."""

    name: ClassVar[str] = "received"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(MessageEvent):
    """A known frame arrived again and changed nothing."""

    name: ClassVar[str] = "duplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherContents(MessageEvent):
    """
    The message came a second time under its id, with other contents; the first one stays.

    A handler that was called again after a restore of its file has sent something else. Both files
    report it, and list it in ``onceward_differing_messages``.
    """

    name: ClassVar[str] = "other_contents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(MessageEvent):
    """A frame was refused on receipt and not stored; the sender keeps it as a dead letter."""

    name: ClassVar[str] = "rejected"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed(MessageEvent):
    """The handler's effects and the dedup record were committed."""

    name: ClassVar[str] = "processed"
    outcome: Outcome
    received_at: Millis | None = None
    """When it was committed into the inbox; None if unknown."""
    took: float | None = None
    """Seconds that its handler ran; None if no handler was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(Event):
    """The agent polled a session and got ``matched`` messages; its cursor moved."""

    name: ClassVar[str] = "polled"
    session: str
    topics: tuple[str, ...]
    matched: int
    cursor_from: int
    cursor_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(Event):
    """Expired messages were ended on request."""

    name: ClassVar[str] = "expired"
    session: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(MessageEvent):
    """
    A policy dropped the message at a limit, here or at the recipient.

    ``onceward_drops`` of the file with that policy keeps a record of it.
    """

    name: ClassVar[str] = "dropped"
    scope: str
    """Scope and name of the full limit: ``session run-42``; for a recipient's drop its reason."""
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(MessageEvent):
    """The message was cancelled, here or by the peer: it takes no effect."""

    name: ClassVar[str] = "cancelled"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EphemeralDropped(Event):
    """
    A restart dropped ``count`` ephemeral messages that no reader had taken.

    Delivered to the first hook that is registered after opening.
    """

    name: ClassVar[str] = "ephemeral_dropped"
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NearlyFull(Event):
    """90 % of the file's capacity is in use."""

    name: ClassVar[str] = "nearly_full"
    used: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEvent(Event):
    """A fact about one peer."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFailed(PeerEvent):
    """A push reached no peer, or was refused; the peer is not tried before ``due_at``."""

    name: ClassVar[str] = "delivery_failed"
    error: str
    due_at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(PeerEvent):
    """Too many failures in a row: the peer is not tried until ``due_at``."""

    name: ClassVar[str] = "breaker_opened"
    due_at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(PeerEvent):
    """The peer answers again."""

    name: ClassVar[str] = "breaker_closed"


ForkCause = Literal["own_file", "peer_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForked(PeerEvent):
    """
    Our stream to the peer did not match the peer's record; a new epoch was opened.

    *cause* is ``own_file`` if this agent's file was restored from a backup or a second copy of it
    is in use, ``peer_file`` if the peer's file was restored or replaced.
    """

    name: ClassVar[str] = "stream_forked"
    cause: ForkCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRolledBack(PeerEvent):
    """
    The peer's file lost its newest part, so ``resent`` messages are sent again.

    Messages older than ``retained_from`` are no longer kept here.
    """

    name: ClassVar[str] = "peer_rolled_back"
    resent: int
    retained_from: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WalDeleted(Event):
    """
    Another program deleted the ``-wal`` of the agent's open file, and this process noticed it.

    If it is not *saved*, commits since the last checkpoint may be lost, because a process had
    created a new one. ``box.state(id)`` says which messages the file still has.
    """

    name: ClassVar[str] = "wal_deleted"
    path: str
    saved: bool
    """Whether all commits of the deleted file are in the database now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakReceipt(PeerEvent):
    """The peer's durability is weaker, so its receipts do not settle; see ``accept_weaker``."""

    name: ClassVar[str] = "weak_receipt"
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Event):
    """A fact about one session's run."""

    session: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(RunEvent):
    """A run was committed with its messages."""

    name: ClassVar[str] = "run_started"
    mode: QueueMode
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBound(RunEvent):
    """A message left its session's queue for a run."""

    name: ClassVar[str] = "message_bound"
    message_id: str
    peer: str
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(RunEvent):
    """A run's effects and its end were committed; ``state`` is done, waiting or failed."""

    name: ClassVar[str] = "run_ended"
    state: RunState
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAborted(RunEvent):
    """A run was ended from outside; ``consumed`` says whether its messages count as delivered."""

    name: ClassVar[str] = "run_aborted"
    cause: str
    consumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLeft(RunEvent):
    """The call of an aborted run had not returned in time, and no longer counts."""

    name: ClassVar[str] = "run_left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflowed(Event):
    """A session's queue was full: it ``dropped`` waiting messages, ``refused`` ones are dead."""

    name: ClassVar[str] = "overflowed"
    session: str
    dropped: int
    refused: int


def _names() -> dict[str, type[Event]]:
    # Not from __subclasses__, which also lists the classes that slots=True replaced.
    kinds = [each for each in globals().values() if isinstance(each, type)]
    named = [each for each in kinds if issubclass(each, Event) and "name" in vars(each)]
    return {kind.name: kind for kind in sorted(named, key=lambda kind: kind.name) if kind != Event}


EVENTS: Final = _names()
"""Event class by name, for ``on(name, …)`` and the reference page."""
