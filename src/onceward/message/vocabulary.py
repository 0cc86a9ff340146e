"""
Define closed sets of names, and the states of a message, as tables.

Each set is a Literal for type checkers and a tuple of its names, in order, for
checks at run time. The schema repeats the sets as CHECKs and the tables as guard
triggers; tests compare both. The diagrams in the docs are drawn from the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

from onceward.errors import BodyLost, InvalidMessage
from onceward.message.clock import Millis
from onceward.message.error_text import Raised, storable

Priority = Literal["critical", "urgent", "normal", "low", "background"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
"""Priority name by rank, 0 first."""

LimitScope = Literal["outbox", "session", "lane", "channel", "store"]
LIMIT_SCOPES: Final[tuple[LimitScope, ...]] = get_args(LimitScope)
"""Scope that a limit counts: the whole outbox, one session, lane or channel, or the file."""

FileScope = Literal["file", "send", "accept", "handler"]
"""
Other limits of a file: its size, its rate of sending, its rate of accepting from a sender, and the
calls of a handler.
"""

Overflow = Literal["reject", "hold", "drop_old", "drop_new", "summarize"]
OVERFLOWS: Final[tuple[Overflow, ...]] = get_args(Overflow)
"""
Policy for a message that a limit has no capacity for.

``reject`` refuses the new message, ``hold`` keeps it back, ``drop_new`` records
it as dropped, ``drop_old`` drops the oldest instead, and ``summarize`` does so
and sends a summary.
"""
QueueOverflow = Literal["reject", "drop_old", "summarize"]
QUEUE_OVERFLOWS: Final[tuple[QueueOverflow, ...]] = get_args(QueueOverflow)
"""The same for a full session queue; a message that it rejects becomes a dead letter."""

QueueMode = Literal["steer", "followup", "collect", "queue", "interrupt"]
QUEUE_MODES: Final[tuple[QueueMode, ...]] = get_args(QueueMode)
Aborted = Literal["deliver", "return"]
ABORTED: Final[tuple[Aborted, ...]] = get_args(Aborted)

OutboxState = Literal["pending", "sent", "acked", "failed", "cancelled", "dropped"]
OUTBOX_STATES: Final[tuple[str, ...]] = get_args(OutboxState)
InboxState = Literal["pending", "processed", "dropped", "expired", "cancelled"]
INBOX_STATES: Final[tuple[str, ...]] = get_args(InboxState)
RunState = Literal["open", "done", "waiting", "aborted", "failed"]
RequestState = Literal["open", "answered", "late", "failed"]

ChannelType = Literal["direct", "group", "broadcast", "pubsub"]
ChannelRole = Literal["owner", "member", "observer"]
CHANNEL_ROLES: Final[tuple[ChannelRole, ...]] = get_args(ChannelRole)
ChannelState = Literal["active", "paused", "draining", "closed"]
PARKED: Final = 9_000_000_000_000_000
"""The date of a lane whose head waits for the turn of its group."""
Missed = Literal["one", "all", "skip"]
MISSED: Final[tuple[Missed, ...]] = get_args(Missed)
"""
Policy of a schedule for dates that passed while no process sent its messages.

``one`` sends one message for the latest of them, ``all`` one for each, and ``skip`` none for a date
more than a minute ago.
"""

Overlap = Literal["queue", "skip"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
"""
Policy of a schedule for a date whose previous message is unfinished.

``queue`` sends it, so that it waits behind the previous one; ``skip`` sends none.
"""

PauseMode = Literal["hold", "reject"]
"""Policy of a paused channel for messages: keep them back, or refuse them."""

ReaderMode = Literal["cursor", "lease"]
READER_MODES: Final[tuple[ReaderMode, ...]] = get_args(ReaderMode)
"""Mode of reading a mailbox that stores a position."""

JoinRole = Literal["member", "observer"]
DeliveryMode = Literal["at_most_once", "at_least_once", "exactly_once"]
StatusState = Literal["waiting", "running", "done", "failed"]
"""How far a message is."""
AckStatus = Literal["received", "in_progress", "completed", "failed"]
DeadLetterOrigin = Literal["outbox", "inbox", "queue"]
MessageState = Literal[
    "pending", "sending", "sent", "acked", "failed", "cancelled", "processing", "processed",
    "dropped", "expired", "dead",
]  # fmt: skip
"""State of a message in the sender's outbox, the recipient's inbox or the dead letters."""
Reason = Literal[
    "rejected", "attempts_spent", "unhandled", "expired", "invalid", "too_large",
    "hops_exceeded", "stale", "no_mailbox", "channel_closed", "overflow", "corrupt", "dead",
    "dropped", "drop_old", "drop_new", "summarize", "removed", "superseded", "ephemeral",
    "cancelled", "deleted", "processed without a reply", "delivered to an aborted run",
]  # fmt: skip
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
"""
Reason of a dead letter, and start of the reason of a refused or ended message.

Details follow after a colon and a space. A page explains each to users.
"""
Kind = Literal[
    "text", "command", "query", "response", "notification", "broadcast", "acknowledgment", "error",
]  # fmt: skip
"""Kind of a channel's message."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Outcome = Literal["processed", "dropped", "expired", "cancelled"]
"""End of a message in the inbox."""
HistoryBox = Literal["out", "in", "outbox", "inbox", "queue"]
"""Box of a message of the history: out, in, or where its dead letter is from."""
BreakerState = Literal["closed", "open", "half_open"]
QueueState = Literal["paused", "running", "empty", "ready", "waiting"]
"""State of a session's queue."""
DropPolicy = Literal["drop_old", "drop_new", "summarize"]
"""Policy that dropped a message."""
DropScope = LimitScope | Literal["queue"]
"""Scope in which a policy dropped a message: of a limit, or a session's queue."""
SentState = Literal[
    "pending", "sending", "sent", "acked", "failed", "cancelled", "dropped", "dead", "absent",
]  # fmt: skip
"""State of a message that was sent, as ``state`` returns it."""
CancelOutcome = Literal["cancelled", "too_late", "asked"]
"""
Outcome of cancelling a message.

``cancelled``: it takes no effect, now or later; ``too_late``: it had ended; ``asked``: it has left,
and its recipient decides.
"""
StepState = Literal["done", "waiting", "retrying", "given_up", "failed"]
"""State of a step: stored, asleep, to be called again, failed for now, or failed permanently."""
LaneState = Literal["ready", "waiting", "leased", "empty"]


OUTBOX: Final[dict[tuple[str, str], str]] = {
    ("pending", "sent"): "the peer stored it; its handler has not run yet",
    ("pending", "acked"): "the peer processed it, or only storing was requested",
    ("pending", "failed"): "the peer keeps it as a dead letter",
    ("pending", "cancelled"): "withdrawn before it left, or ended by the peer before its effect",
    ("pending", "dropped"): "a named policy dropped it, here or at the peer",
    ("sent", "pending"): "no outcome by the ack deadline: ask again",
    ("sent", "acked"): "the peer processed it",
    ("sent", "failed"): "the peer gave it up and keeps it as a dead letter",
    ("sent", "dropped"): "a named policy of the peer dropped it",
    ("sent", "cancelled"): "the peer ended it before it took effect",
    ("acked", "dropped"): "only storing was requested, and a policy of the peer dropped it",
    ("acked", "cancelled"): "only storing was requested, and the peer cancelled it later",
    ("acked", "pending"): "the peer's file was rolled back: it needs the message again",
    ("failed", "pending"): "the peer's file was rolled back: it needs the message again",
    ("failed", "acked"): "the peer replayed its dead letter and processed it",
}
"""Legal moves of an outbox row and why; ``sending`` is ``pending`` in the parcel in flight."""

INBOX: Final[dict[tuple[str, str], str]] = {
    ("pending", "processed"): "its handler's writes and this mark are one commit",
    ("pending", "dropped"): "the handler or a named policy dropped it",
    ("pending", "expired"): "its time to live ran out before it was handled",
    ("pending", "cancelled"): "its sender, or its own agent, cancelled it before it took effect",
}
"""Legal moves of an inbox row; ``processing`` is ``pending`` inside a leased lane."""

RUNS: Final[dict[tuple[str, str], str]] = {
    ("open", "done"): "the handler returned: effects, messages, dedup records and this are one "
    "commit",
    ("open", "aborted"): "preempted, stopped, or its process died: the same commit returns "
    "unconsumed messages",
    ("open", "failed"): "the handler raised: its messages wait for another attempt, or are dead "
    "letters",
}
"""Legal moves of a run and why; an ended run never reopens, its messages may get another."""


@dataclass(frozen=True, slots=True)
class Done:
    """Handled: ``outcome`` is processed, dropped or expired, and ``reason`` says why."""

    outcome: Outcome = "processed"
    reason: str | None = None


HANDLED: Final = Done()
"""The settlement of most messages."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Not now: it may be claimed again at ``due_at``."""

    due_at: Millis
    error: str
    counted: bool = True
    """Whether the attempt counts against the budget."""
    raised: Raised | None = field(default=None, compare=False, repr=False)
    """The failed call that is retried; None if no handler raised."""

    def __post_init__(self) -> None:
        """Make the text of the error storable."""
        object.__setattr__(self, "error", storable(self.error))


@dataclass(frozen=True, slots=True)
class Waits(RetryAt):
    """Not now: its handler waits for a reply and is called again at ``due_at`` at the latest."""


PROGRESS: Final = "onceward.progress"
"""Kind and type of a message that reports the progress of a request's handler."""
CANCEL: Final = "onceward.cancel"
"""Kind and type of a message that asks its recipient to cancel another message of its sender."""
QUESTION: Final = "onceward.question"
"""Kind of a handler's request: the message of its handler waits for the reply."""
ANSWER: Final = "onceward.answer"
"""Kind of a reply to a request that its sender may make again under the same id."""
LOST: Final = "onceward.lost"
"""Kind and type of a restored file's question for the messages that it had sent."""
FOUND: Final = "onceward.found"
"""Kind and type of the answer to it."""
AWAITS: Final = "waits for the reply to "
"""Start of the reason of a message whose handler waits for a reply."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Never: it becomes a dead letter with ``reason``; ``error`` keeps the details."""

    reason: Reason
    error: str = ""
    tried: bool = True
    """Whether a handler or a reader got the message this time."""
    raised: Raised | None = field(default=None, compare=False, repr=False)
    """The failed call that ended it; None if no handler raised."""

    def __post_init__(self) -> None:
        """Make the text of the error storable."""
        object.__setattr__(self, "error", storable(self.error))


def unreadable(error: InvalidMessage) -> Dead:
    """Return the settlement of a message whose body can never be read."""
    return Dead("corrupt" if isinstance(error, BodyLost) else "rejected", str(error), tried=False)


ATTEMPT_NEVER_ENDED: Final = (
    "no attempt is left: its handler never finished (process killed or lease lost), or the "
    "budget was lowered"
)
"""Details of a dead letter that is not claimed again; its handler's last error is appended."""
Settlement = Done | RetryAt | Dead
"""How a lease ends."""


class LeaseInfo(Protocol):
    """The fields of a lease that a message and its consumer read."""

    @property
    def id(self) -> str:
        """Id of the message."""
        ...

    @property
    def sender(self) -> str:
        """Agent that sent it."""
        ...

    @property
    def frame(self) -> str:
        """The stored frame."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        ...

    @property
    def received_at(self) -> Millis:
        """When the message was committed into the inbox."""
        ...


def reason_text(reason: Reason, detail: str = "") -> str:
    """Return a reason as it is stored and sent to peers: alone, or with ``: `` and details."""
    return f"{reason}: {storable(detail)}" if detail else reason


def reason_of(text: str) -> Reason | None:
    """Return the reason that a text begins with; None if the vocabulary does not have it."""
    word = text.partition(": ")[0]
    return word if word in REASONS else None
