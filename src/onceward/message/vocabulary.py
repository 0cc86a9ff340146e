"""
Define the closed sets of names that code, schema, settings and command share.

Each set is a Literal for type checkers and a tuple of its names, in order, for
checks at run time. The CHECKs of the schema repeat them; a test compares both.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Priority = Literal["critical", "urgent", "normal", "low", "background"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
"""Priority name by rank, 0 first."""

LimitScope = Literal["outbox", "session", "lane", "channel", "store"]
LIMIT_SCOPES: Final[tuple[LimitScope, ...]] = get_args(LimitScope)
"""Scope that a limit counts: the whole outbox, one session, lane or channel, or the file."""

FileScope = Literal["file", "send", "accept"]
"""Other limits of a file: its size, its rate of sending, its rate of accepting from a sender."""

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
InboxState = Literal["pending", "processed", "dropped", "expired"]
INBOX_STATES: Final[tuple[str, ...]] = get_args(InboxState)
RunState = Literal["open", "done", "aborted", "failed"]
RUN_STATES: Final[tuple[str, ...]] = get_args(RunState)
RequestState = Literal["open", "answered", "late", "failed"]
REQUEST_STATES: Final[tuple[str, ...]] = get_args(RequestState)

ChannelType = Literal["direct", "group", "broadcast", "pubsub"]
CHANNEL_TYPES: Final[tuple[ChannelType, ...]] = get_args(ChannelType)
ChannelRole = Literal["owner", "member", "observer"]
CHANNEL_ROLES: Final[tuple[ChannelRole, ...]] = get_args(ChannelRole)
ChannelState = Literal["active", "paused", "draining", "closed"]
CHANNEL_STATES: Final[tuple[str, ...]] = get_args(ChannelState)
Missed = Literal["one", "all", "skip"]
MISSED: Final[tuple[Missed, ...]] = get_args(Missed)
"""
Policy of a schedule for dates that passed while no process sent its messages.

``one`` sends one message for the latest of them, ``all`` one for each, and
``skip`` none for a date that passed more than a minute ago.
"""

Overlap = Literal["queue", "skip"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
"""
Policy of a schedule for a date whose previous message is unfinished.

``queue`` sends it, so that it waits behind the previous one; ``skip`` sends none.
"""

PauseMode = Literal["hold", "reject"]
PAUSE_MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)
"""Policy of a paused channel for messages: keep them back, or refuse them."""

ReaderMode = Literal["cursor", "lease"]
READER_MODES: Final[tuple[ReaderMode, ...]] = get_args(ReaderMode)
"""Mode of reading a mailbox that stores a position."""

JoinRole = Literal["member", "observer"]
DeliveryMode = Literal["at_most_once", "at_least_once", "exactly_once"]
AckStatus = Literal["received", "in_progress", "completed", "failed"]
DeadLetterOrigin = Literal["outbox", "inbox", "queue"]
MessageState = Literal[
    "pending",
    "sending",
    "sent",
    "acked",
    "failed",
    "cancelled",
    "processing",
    "processed",
    "dropped",
    "expired",
    "dead",
]
"""State of a message in the sender's outbox, the recipient's inbox or the dead letters."""
Reason = Literal[
    "rejected",
    "max_retries_exceeded",
    "unhandled",
    "expired",
    "invalid",
    "too_large",
    "hops_exceeded",
    "stale",
    "no_mailbox",
    "channel_closed",
    "overflow",
    "corrupt",
    "dead",
    "dropped",
    "drop_old",
    "drop_new",
    "summarize",
    "removed",
    "superseded",
    "ephemeral",
    "cancelled",
    "deleted",
    "processed without a reply",
    "delivered to an aborted run",
]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
"""
Reason of a dead letter, and beginning of the reason of a refused or ended message.

Details follow behind a colon and a blank. A page explains each to users.
"""
Kind = Literal[
    "text",
    "command",
    "query",
    "response",
    "notification",
    "broadcast",
    "acknowledgment",
    "error",
]
"""Kind of a channel's message."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Outcome = Literal["processed", "dropped", "expired"]
"""End of a message in the inbox."""
HistoryBox = Literal["out", "in", "outbox", "inbox", "queue"]
"""Box of a message of the history: out, in, or where its dead letter is from."""
BreakerState = Literal["closed", "open", "half_open"]
BREAKER_STATES: Final[tuple[BreakerState, ...]] = get_args(BreakerState)
QueueState = Literal["paused", "running", "empty", "ready", "waiting"]
"""State of a session's queue."""
DropPolicy = Literal["drop_old", "drop_new", "summarize"]
"""Policy that dropped a message."""
DropScope = LimitScope | Literal["queue"]
"""Scope in which a policy dropped a message: of a limit, or a session's queue."""
SentState = Literal[
    "pending",
    "sending",
    "sent",
    "acked",
    "failed",
    "cancelled",
    "dropped",
    "dead",
    "absent",
]
"""State of a message that was sent, as ``resolve`` returns it."""
LaneState = Literal["ready", "waiting", "leased", "empty"]
