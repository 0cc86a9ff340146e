"""Define the options of a send: everything besides recipient and body, listed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict, cast

from onceward.message.frame import Frame
from onceward.message.names import PriorityName, refuse_options
from onceward.message.times import Point, Span


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every ``publish``; all may be left out."""

    type: str | None
    """Wire name of the message type; by default the one its class declares."""
    key: str | None
    """The same message under the same key returns the first id; another one raises Conflict."""
    priority: PriorityName
    """critical, urgent (high), normal, low or background."""
    ttl: Span | None
    """Span after which the message expires instead of being handled."""
    delay: Span | None
    """Span before it may leave: seconds, a timedelta, or text such as 2h."""
    at: Point | None
    """Moment before which it does not leave: a datetime, milliseconds, or a date as text."""
    reply_to: str | None
    """Agent that the reply goes to; by default the sender."""
    correlation_id: str | None
    """Id of the conversation's first message; replies carry it on."""
    causation_id: str | None
    """Id of the message that this one answers or follows from."""
    hops: int
    """Messages that led to this one; by default one more than of the message being handled."""
    in_reply_to: str | None
    """Id of the request that this message answers."""
    headers: Mapping[str, str | int | bool] | None
    """Extension attributes of the frame: 1 to 20 lower-case letters and digits."""
    ordering_key: str | None
    """The unit of order; by default the session."""
    ephemeral: bool
    """Whether a restart of the recipient may drop the message while no reader has taken it."""
    message_id: str | None
    """An id of the caller's own, under which sending again is safe."""


class SendOptions(PublishOptions, total=False):
    """The keyword arguments of every ``send``."""

    topic: str | None
    """Topic that it is published under; handlers may be chosen by it."""


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of a scheduled message; those of a send that hold for each of many."""

    type: str | None
    priority: PriorityName
    ttl: Span | None
    topic: str | None
    reply_to: str | None
    correlation_id: str | None
    headers: Mapping[str, str | int | bool] | None
    ordering_key: str | None
    ephemeral: bool


class MessageOptions(SendOptions, total=False):
    """
    The options of a message with those that only the library sets; checked by ``parse_options``.

    ``Composer.compose`` turns them into ``FrameHeaders``, which is frozen.
    """

    channel: str | None
    """The channel that the message belongs to."""
    kind: str | None
    """The kind of a channel's message."""
    answer_by: int | None
    """When the query ends that the message answers, in milliseconds."""
    mailbox: str | None
    """The mailbox that the message is for."""
    mailbox_key: str | None
    """Key of which that mailbox keeps the newest message."""
    ends_at: int | None
    """When that mailbox expires, in milliseconds: the message does not outlive it."""
    system: bool
    """Whether a reserved topic may be published."""
    max_size: int | None
    """Most bytes of the body, where a channel allows fewer than the file."""


PLAIN: Final = MessageOptions()
"""No options at all: what all messages of one type to one recipient share is then remembered."""


def parse_options(given: SendOptions | PublishOptions) -> MessageOptions:
    """Return the keyword arguments of a send; raises TypeError for a name that is no option."""
    unknown = given.keys() - SendOptions.__annotations__.keys()
    if unknown:
        more = "; a session has a send of its own"
        refuse_options("a send", unknown, SendOptions.__annotations__, more)
    return cast("MessageOptions", given)


def reply_options(frame: Frame, options: SendOptions) -> tuple[str, MessageOptions]:
    """Return the recipient of a reply and the options that tie it to its message."""
    tied: SendOptions = {
        "in_reply_to": frame.id,
        "causation_id": frame.id,
        "hops": frame.hops + 1,
        "correlation_id": frame.correlationid or frame.id,
    }
    named: SendOptions = tied | options
    if frame.priority_name != "normal":
        named.setdefault("priority", frame.priority_name)
    return frame.replyto or frame.sender, parse_options(named)
