"""
Define the options of a send: how each is read, which header it sets, and how a frame names it.

A frame's text is joined from quoted parts instead of dumped from a model, because every send does
it and the body is already serialised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypedDict, cast

from pydantic_core import to_json

from onceward.errors import InvalidMessage
from onceward.message.body import BYTES, JSON
from onceward.message.clock import Millis, iso
from onceward.message.frame import (
    EPHEMERAL,
    INT32,
    NORMAL,
    RESERVED_ATTRIBUTES,
    SOURCE,
    Frame,
    check_extension,
)
from onceward.message.names import (
    DEFAULT_SESSION,
    PriorityName,
    agent_name,
    plain_text,
    quoted,
    rank,
    refuse_options,
    same_names,
)
from onceward.message.times import Point, Span, millis, point
from onceward.message.validators import check_type, reply_schema
from onceward.message.vocabulary import ANSWER, QUESTION


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every ``publish``; all are optional."""

    type: str | None
    """Wire name of the message type; default: the one that its class declares."""
    key: str | None
    """
    The same message under the same key returns the first id; another message raises Conflict.

    It is known until ``retention`` after the end of the message.
    """
    priority: PriorityName
    """critical, urgent (high), normal, low or background."""
    ttl: Span | None
    """Time after which the message expires instead of being handled."""
    delay: Span | None
    """Delay before it may leave: seconds, a timedelta, or text such as 2h."""
    at: Point | None
    """Earliest moment at which it leaves: a datetime, milliseconds, or a date as text."""
    reply_to: str | None
    """Agent that gets the reply; default: the sender."""
    correlation_id: str | None
    """Id of the conversation's first message; replies inherit it."""
    causation_id: str | None
    """Id of the message that this one answers or follows from."""
    hops: int
    """Number of messages that led to this one; default: one more than the message being handled."""
    in_reply_to: str | None
    """Id of the request that this message answers."""
    headers: Mapping[str, str | int | bool] | None
    """Extension attributes of the frame: 1 to 20 lower-case letters and digits."""
    ordering_key: str | None
    """The unit of order; default: the session."""
    ephemeral: bool
    """Whether a restart of the recipient may drop the message before a reader takes it."""
    message_id: str | None
    """The caller's own id, under which sending again is safe."""


class SendOptions(PublishOptions, total=False):
    """The keyword arguments of every ``send``."""

    topic: str | None
    """Topic of the message; handlers can be selected by it."""


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of a scheduled message: those of a send that apply to each of many."""

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
    The options of a message including internal ones; checked by ``parse_options``.

    ``Composer.compose`` turns them into ``FrameHeaders``, which is frozen.
    """

    channel: str | None
    """The channel that the message belongs to."""
    kind: str | None
    """The kind of a channel's message."""
    answer_by: int | None
    """When the query that the message answers ends, in milliseconds."""
    mailbox: str | None
    """The mailbox that the message is for."""
    mailbox_key: str | None
    """Key for which that mailbox keeps the newest message."""
    reply_schema: str | None
    """The JSON schema of the expected reply."""
    ends_at: int | None
    """When that mailbox expires, in milliseconds: the message does not outlive it."""
    system: bool
    """Whether a reserved topic may be published."""
    max_size: int | None
    """Maximum bytes of the body, if a channel allows fewer than the file."""
    ids: Callable[[str, str], str] | None
    """Returns the id of a message to a recipient, of a type; None for new ones."""


PLAIN: Final = MessageOptions()
"""No options."""
Read = Callable[[MessageOptions, Millis], Any]
"""Reads one of the given options, checked; a span counts from the given time."""


def _text(name: str) -> Read:
    def read(given: MessageOptions, _: Millis) -> str | None:
        value = cast("Mapping[str, str | None]", given)[name]
        return None if value is None else plain_text(name, value)

    return read


def _plain(name: str) -> Read:
    return lambda given, _: cast("Mapping[str, Any]", given)[name]


def _reply_to(given: MessageOptions, _: Millis) -> str | None:
    name = given["reply_to"]
    return None if name is None else agent_name(name)


def _hops(given: MessageOptions, _: Millis) -> int:
    hops = given["hops"]
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops < INT32:
        raise InvalidMessage(f"hops {quoted(hops)} must be a number of messages")
    return hops


def _due(given: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message may leave; None for at once."""
    delay, at = given.get("delay"), given.get("at")
    if at is not None:
        if delay is not None:
            msg = "at and delay both say when the message may leave: give one of them"
            raise InvalidMessage(msg)
        due_at = point("at", at, error=InvalidMessage)
        return due_at if due_at > now else None
    wait = 0 if delay is None else millis("delay", delay, error=InvalidMessage)
    return now + wait if wait else None


def _expiry(given: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message expires: after its time to live, or earlier with its mailbox."""
    ttl, ends_at = given.get("ttl"), given.get("ends_at")
    expires_at = None if ttl is None else now + millis("ttl", ttl, error=InvalidMessage)
    if ends_at is None or expires_at is None:
        return ends_at if expires_at is None else expires_at
    return min(expires_at, ends_at)


def given_headers(options: MessageOptions | SendOptions) -> Mapping[str, Any]:
    """Return the caller's extension attributes; raise InvalidMessage unless it is a mapping."""
    headers = options.get("headers")
    if headers is None:
        return {}
    if not isinstance(headers, dict) and not isinstance(headers, Mapping):
        msg = f"headers={quoted(headers)} must be a mapping of names to values"
        raise InvalidMessage(msg)
    return headers


def _extensions(given: MessageOptions, _: Millis) -> dict[str, Any] | None:
    """Return the checked extension attributes of a message, or None."""
    ephemeral = given.get("ephemeral")
    headers: dict[str, Any] = dict(given_headers(given))
    if ephemeral is True:
        headers[EPHEMERAL] = True
    elif ephemeral is not None and ephemeral is not False:
        msg = f"ephemeral={quoted(ephemeral)} must be True or False"
        raise InvalidMessage(msg)
    for name, value in headers.items():
        if name in RESERVED_ATTRIBUTES:
            msg = f"header {name!r} is an attribute of the frame: use send's argument"
            raise InvalidMessage(msg)
        check_extension(name, value)
    return headers or None


READ: Final[Mapping[str, tuple[str, Read]]] = {
    "topic": ("topic", _plain("topic")),  # checked by the rules of its session
    "priority": ("rank", lambda given, _: rank(given["priority"])),
    "ordering_key": ("ordering_key", _text("ordering_key")),
    "correlation_id": ("correlation_id", _text("correlation_id")),
    "causation_id": ("causation_id", _text("causation_id")),
    "in_reply_to": ("in_reply_to", _text("in_reply_to")),
    "reply_to": ("reply_to", _reply_to),
    "ttl": ("expires_at", _expiry),
    "ends_at": ("expires_at", _expiry),
    "delay": ("due_at", _due),
    "at": ("due_at", _due),
    "key": ("key", _text("key")),
    "message_id": ("chosen_id", lambda given, _: given["message_id"] is not None),
    "hops": ("hops", _hops),
    "headers": ("headers", _extensions),
    "ephemeral": ("headers", _extensions),
    "channel": ("channel", _text("channel")),
    "kind": ("kind", _text("kind")),
    "mailbox": ("mailbox", _text("mailbox")),
    "mailbox_key": ("mailbox_key", _text("mailbox_key")),
    "reply_schema": ("reply_schema", _plain("reply_schema")),
    "answer_by": ("answer_by", _plain("answer_by")),
}
"""For each option the field of ``FrameHeaders`` that it sets, and its reader."""
NO_FIELD: Final = frozenset({"type", "system", "max_size", "ids"})
"""Options that the composer reads: they set no field, or choose the message's template."""


same_names("a message", MessageOptions.__annotations__, READ.keys() | NO_FIELD)


def read_options(given: MessageOptions, now: Millis) -> dict[str, Any]:
    """Return the fields of a message's headers that its options set, checked."""
    fields: dict[str, Any] = {}
    for name in given:
        if name not in NO_FIELD:
            field, read = READ[name]
            fields[field] = read(given, now)
    return fields


class FrameHeaders(NamedTuple):
    """The checked options of a send: all of a message except its id, time and body."""

    sender: str
    recipient: str
    type: str
    media: str = JSON
    session: str = DEFAULT_SESSION
    topic: str | None = None
    rank: int = NORMAL
    ordering_key: str | None = None
    lane: str = DEFAULT_SESSION
    """The ordering key, or else the session; not part of the frame."""
    correlation_id: str | None = None
    causation_id: str | None = None
    hops: int = 0
    in_reply_to: str | None = None
    reply_to: str | None = None
    expires_at: Millis | None = None
    answer_by: Millis | None = None
    key: str | None = None
    channel: str | None = None
    kind: str | None = None
    mailbox: str | None = None
    mailbox_key: str | None = None
    reply_schema: str | None = None
    chosen_id: bool = False
    headers: dict[str, Any] | None = None
    due_at: Millis | None = None
    """When the message may leave, None for at once; not part of the frame."""


def frame_prefix(headers: FrameHeaders) -> str:
    """Return the part of a frame's text that all frames with the same headers share."""
    head, tail = frame_ends(headers)
    return f"{head}{options_text(headers)}{tail}"


def frame_ends(headers: FrameHeaders) -> tuple[str, str]:
    """Return the parts of a frame's prefix before and after its options."""
    e = headers
    head, body = _before_recipient(e), "data_base64" if e.media == BYTES else "data"
    return (
        f'{head}{json_string(e.recipient)},"session":{json_string(e.session)}',
        f',"datacontenttype":{json_string(e.media)},"{body}":',
    )


def split_prefix(headers: FrameHeaders) -> tuple[str, str]:
    """Return the shared parts before and after the recipient, the only difference in a fan-out."""
    before, whole = _before_recipient(headers), frame_prefix(headers)
    return before, whole[len(before) + len(json_string(headers.recipient)) :]


def _before_recipient(e: FrameHeaders) -> str:
    return f'","source":{json_string(SOURCE + e.sender)},"type":{json_string(e.type)},"recipient":'


BEFORE_TIME: Final = '{"specversion":"1.0","time":"'
BEFORE_ID: Final = '","id":"'
"""The start of a frame's text; its id, the prefix of its headers, and the body follow."""


def render_head(prefix: str, message_id: str, created_at: Millis) -> str:
    """Return a frame's text up to its body, which is stored elsewhere."""
    return f"{BEFORE_TIME}{iso(created_at)}{BEFORE_ID}{message_id}{prefix}"


def options_text(e: FrameHeaders) -> str:
    """Return the attributes of a frame that its options set, empty without options."""
    text = "" if e.rank == NORMAL else f',"priority":{e.rank}'
    for name, value in (
        ("topic", e.topic),
        ("partitionkey", e.ordering_key),
        ("correlationid", e.correlation_id),
        ("causationid", e.causation_id),
        ("inreplyto", e.in_reply_to),
        ("replyto", e.reply_to),
        ("idempotencykey", e.key),
        ("channel", e.channel),
        ("kind", e.kind),
        ("mailbox", e.mailbox),
        ("mailboxkey", e.mailbox_key),
        ("replyschema", e.reply_schema),
    ):
        if value is not None:
            text += f',"{name}":{json_string(value)}'
    if e.hops:
        text += f',"hops":{e.hops}'
    if e.expires_at is not None:
        text += f',"expirytime":"{iso(e.expires_at)}"'
    if e.answer_by is not None:
        text += f',"answerby":"{iso(e.answer_by)}"'
    if e.chosen_id:
        text += ',"chosenid":true'
    for name, header in (e.headers or {}).items():
        text += f',"{name}":{to_json(header).decode()}'
    return text


@lru_cache(maxsize=4096)
def json_string(text: str) -> str:
    """Return *text* as a JSON string; names repeat, so the last few thousand are remembered."""
    return to_json(text).decode()


def addressed(recipient: str, pool: str | None = None) -> str:
    """Return the attributes of a frame that say where it goes: the recipient, and its pool."""
    served = "" if pool is None else f',"pool":{json_string(pool)}'
    return f',"recipient":{json_string(recipient)}{served},'


def parse_options(given: SendOptions | PublishOptions) -> MessageOptions:
    """Return the keyword arguments of a send; raises TypeError for a name that is not an option."""
    unknown = given.keys() - SendOptions.__annotations__.keys()
    if unknown:
        more = "; a session has its own send"
        refuse_options("a send", unknown, SendOptions.__annotations__, more)
    return cast("MessageOptions", given)


def asking_options(given: SendOptions, reply: object) -> MessageOptions:
    """Return the options of a request whose reply is read at once; see ``request_options``."""
    if reply is None:
        check_type("reply", reply)
    return request_options(given, reply)


def request_options(given: SendOptions, reply: object) -> MessageOptions:
    """
    Return the options of a request, with the schema of the *reply* that it expects.

    Raises:
        InvalidArgument: no reply can be read as *reply*.

    """
    schema, named = reply_schema(reply), parse_options(given)
    return named if schema is None else {**named, "reply_schema": schema}


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
    given = parse_options(named)
    if _may_be_asked_again(frame):
        given.setdefault("kind", ANSWER)
    return frame.replyto or frame.sender, given


def _may_be_asked_again(frame: Frame) -> bool:
    """Return whether a restored sender makes this request under the same id again."""
    same_id = frame.kind == QUESTION or frame.idempotencykey is not None or frame.chosenid
    return same_id and frame.replyto == frame.sender
