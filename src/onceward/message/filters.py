"""Filters of ``history`` and of mailboxes: what a reader may ask for, all of which must hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from onceward.message.names import PriorityName
from onceward.message.times import Moment
from onceward.message.vocabulary import Kind, MessageState


class CommonFilters(TypedDict, total=False):
    """The keyword arguments of every ``history``; None says nothing."""

    limit: int
    """Most messages of the page; 100 if it is left out."""
    offset: int
    """Messages to pass over first."""
    after: str | None
    """``Page.next`` of the page before; goes on where it ended, however much came since."""
    count: bool
    """Whether ``total_count`` is counted; True if it is left out."""
    sender: str | None
    """Agent that sent it."""
    recipient: str | None
    """Agent that it was sent to."""
    type: str | None
    """Wire name of its type."""
    topic: str | None
    """Its topic, or a pattern of topics."""
    state: MessageState | None
    """Its state now."""
    since: Moment | None
    """Sent or received then or later: a datetime, milliseconds, a date, or how long ago (2h)."""
    until: Moment | None
    """Sent or received before then."""
    kind: Kind | Sequence[Kind] | None
    """Its kind in a channel, or one of several."""
    priority: PriorityName | Sequence[PriorityName] | None
    """Its priority, or one of several."""
    correlation_id: str | None
    """Id of its conversation's first message."""
    content: str | None
    """A regular expression that occurs in the body's text."""


class SessionHistoryFilters(CommonFilters, total=False):
    """The keyword arguments of ``Session.history``."""

    channel: str | None
    """Channel that it was sent to."""


class ChannelHistoryFilters(CommonFilters, total=False):
    """The keyword arguments of ``Channel.history``."""

    session: str | None
    """Conversation that it belongs to."""


class HistoryFilters(SessionHistoryFilters, total=False):
    """The keyword arguments of ``Postbox.history``."""

    session: str | None
    """Conversation that it belongs to."""


class MailboxFilters(TypedDict, total=False):
    """The filters of ``Mailbox.query`` and ``Mailbox.cursor``; None says nothing."""

    topics: str | Sequence[str] | None
    """Its topic: one, or patterns of which one must match."""
    sender: str | None
    """Agent that sent it."""
    session: str | None
    """Conversation that it was sent in."""
    tags: str | Sequence[str] | None
    """A tag of its header ``tags``: one, or several of which one suffices."""
