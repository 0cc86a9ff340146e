"""
Parse frames, and digest them: one message as it travels, CloudEvents 1.0 in JSON.

The same text is in the sender's outbox, on the wire and in the recipient's inbox. It is composed
once, at send, and never rewritten, unless an operator edits the body of a dead letter at its
recipient. No object in it has a key twice: readers would disagree on the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from math import isinf
from threading import get_ident
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
)
from pydantic_core import from_json, to_json

from onceward.errors import BodyLost, InvalidMessage
from onceward.message.body import BYTES, JSON, Payload, canonical, encode
from onceward.message.clock import Millis
from onceward.message.names import (
    AGENT,
    DEFAULT_SESSION,
    byte_length,
    quoted,
)
from onceward.message.validating import validating
from onceward.message.validators import REPLY_SCHEMA_MAX
from onceward.message.vocabulary import PRIORITIES, Priority


def refuse_repeated_keys(text: str | bytes) -> None:
    """Raise InvalidMessage if an object of a JSON text has a key twice."""
    json.loads(text, object_pairs_hook=unique)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these pairs; raise InvalidMessage for a repeated key."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidMessage(f"key {quoted(twice)} comes twice in one JSON object: write it once")
    return made


SOURCE: Final = "urn:onceward:"
NORMAL: Final = 2
EPHEMERAL: Final = "ephemeral"
"""Extension attribute of messages that a restart of the recipient may drop."""
TAGS: Final = "tags"
"""Extension attribute with a message's tags, separated by commas."""
EXTENSION: Final = re.compile(r"[a-z0-9]{1,20}")
TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")
"""Extension attributes of CloudEvents' distributed tracing, and W3C baggage."""
OF_A_TIME: Final = frozenset(("time", "expirytime", "answerby", *TRACE_CONTEXT))
"""The attributes of a frame that differ if a handler sends its message again."""
KEPT_PARCELS: Final = 4
"""Number of parcels whose frames are kept in memory; those of older ones are read again."""
KEPT_LONGEST: Final = 4096
"""Longest text in characters of a frame that is kept."""
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
"""Text of an attribute; SQL would cut it at a NUL."""
INT32: Final = 2**31
to_json(None)  # a child that is forked during a thread's first call waits for that thread forever


class Frame(BaseModel):
    """
    One message as it travels.

    Attribute names are CloudEvents'; those of the specification's core and of
    its catalogue keep their meaning, the others (recipient, session, topic,
    priority, replyto, channel, kind, mailbox, mailboxkey, pool, answerby,
    replyschema) are extensions of ours.
    Unknown extension attributes are kept, as the specification asks.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, defer_build=True)

    specversion: Literal["1.0"] = "1.0"
    id: Text
    source: Annotated[str, Field(min_length=1, max_length=256)]
    type: Text
    recipient: Annotated[str, Field(pattern=f"^{AGENT.pattern}$", max_length=128)]
    time: AwareDatetime | None = None
    session: Text = DEFAULT_SESSION
    topic: Text | None = None
    priority: Annotated[int, Field(ge=0, le=4)] = NORMAL
    partitionkey: Text | None = None
    correlationid: Text | None = None
    causationid: Text | None = None
    hops: Annotated[int, Field(ge=0, lt=INT32)] = 0
    inreplyto: Text | None = None
    replyto: Text | None = None
    channel: Text | None = None
    kind: Text | None = None
    mailbox: Text | None = None
    mailboxkey: Text | None = None
    pool: Text | None = None
    expirytime: AwareDatetime | None = None
    answerby: AwareDatetime | None = None
    replyschema: Annotated[str, Field(min_length=1, max_length=REPLY_SCHEMA_MAX)] | None = None
    idempotencykey: Text | None = None
    chosenid: StrictBool = False
    subject: Text | None = None
    dataref: Text | None = None
    dataschema: Text | None = None
    datacontenttype: Text = JSON
    data: JsonValue = None
    data_base64: str | None = None

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """
        Return *text* parsed as a frame.

        Raises:
            InvalidMessage: the text is not a frame; a retry cannot help.

        """
        try:
            found = cls._read(text)
            if found.__pydantic_extra__ or found.data_base64 is not None:
                found.check()
            keys = len(found.__pydantic_fields_set__) + count_keys(found.data)
            shown = text if isinstance(text, str) else text.decode()
            plain = len(shown) < REMEMBERED and " :" not in shown and shown.isprintable()
            if (shown.count('":') if plain else key_ends(shown)) != keys:
                refuse_repeated_keys(text)  # a reader keeps one value per key, another is lost
        except (ValueError, RecursionError) as error:
            raise InvalidMessage(f"not a frame: {error}") from error
        return found

    @classmethod
    def accepted(cls, text: str) -> Self:
        """
        Return the frame of an intact inbox row; its names and keys were checked on receipt.

        A kept frame is handed out only once: its handler may change the body.

        Raises:
            InvalidMessage: the text is not a frame; a retry cannot help.

        """
        for kept in _kept:
            if (known := kept.pop(text, None)) is not None:
                return cast("Self", known)
        try:
            return cls._read(text)
        except (ValueError, RecursionError) as error:
            raise InvalidMessage(f"not a frame: {error}") from error

    @classmethod
    def _read(cls, text: str | bytes) -> Self:
        """Read the fields; in CloudEvents a null attribute counts as not set."""
        validating.append(get_ident())
        try:
            found: Self = cls.__pydantic_validator__.validate_json(text)
            extra = found.__pydantic_extra__
            if not extra or None not in extra.values():
                return found
        except ValidationError:
            pass
        finally:
            validating.remove(get_ident())
        return cls.model_validate(_without_nulls(from_json(text)))

    def check(self) -> None:
        """Raise InvalidMessage for bad extension names or two bodies."""
        for name, value in (self.__pydantic_extra__ or {}).items():
            check_extension(name, value)
        if self.data_base64 is not None and self.data is not None:
            raise InvalidMessage("a frame carries data or data_base64, never both")

    @property
    def has_stored_body(self) -> bool:
        """Whether the body is stored outside of the message, by onceward."""
        carried = self.data is not None or self.data_base64 is not None
        return not carried and str(self.dataref).startswith(OUR_REFERENCE)

    def with_stored_body(self) -> Self:
        """
        Return the frame with the body to which its ``dataref`` refers; any other frame as it is.

        Raises:
            BodyLost: the body is missing or changed; a retry cannot help.
            StoreFault: it could not be read now.

        """
        if not self.has_stored_body:
            return self
        if load_body is None:
            raise BodyLost(f"the body is {self.dataref}: open a postbox of its home to read it")
        part = "data_base64" if self.datacontenttype == BYTES else "data"
        return self.model_copy(update={part: from_json(load_body(self)), "dataref": None})

    @property
    def sender(self) -> str:
        """Name of the sending agent."""
        return self.source.removeprefix(SOURCE)

    @property
    def address(self) -> str:
        """Name to which it was sent: the pool that its recipient serves, or the recipient."""
        return self.pool or self.recipient

    @property
    def lane(self) -> str:
        """The unit of order: the ordering key if there is one, else the session."""
        return self.partitionkey or self.session

    @property
    def priority_name(self) -> Priority:
        """The priority by its name."""
        return PRIORITIES[self.priority]

    @property
    def headers(self) -> dict[str, str | int | bool]:
        """The extension attributes that the sender added."""
        extra = self.__pydantic_extra__ or {}
        return {name: value for name, value in extra.items() if name != BODY_ERROR}

    @property
    def own_headers(self) -> dict[str, str | int | bool]:
        """The headers without the trace context, which differs in a repeated send."""
        return {name: value for name, value in self.headers.items() if name not in TRACE_CONTEXT}

    @property
    def content(self) -> str:
        """The same text for all frames whose bodies are equal values, and stored alike."""
        if self.dataref is not None:
            return self.dataref
        if self.data_base64 is not None:
            return self.data_base64
        return canonical(to_json(self.data).decode())

    @property
    def body_error(self) -> str | None:
        """Why the frame has no body; None if it has one."""
        if BODY_ERROR not in (self.__pydantic_extra__ or {}):
            return None
        return "the body is missing: its sender's file had lost it"

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its header, each once, in their order."""
        return split_tags((self.__pydantic_extra__ or {}).get(TAGS))

    @property
    def ephemeral(self) -> bool:
        """Whether a restart of the recipient may drop it."""
        extra = self.__pydantic_extra__
        return extra is not None and extra.get(EPHEMERAL) is True

    @property
    def expires_at(self) -> Millis | None:
        """The moment at which the message expires, in milliseconds; None: never."""
        return None if self.expirytime is None else round(self.expirytime.timestamp() * 1000)

    def is_late(self, received_at: Millis) -> bool:
        """Return whether an answer arrived after the end of its query."""
        return self.answerby is not None and received_at >= self.answerby.timestamp() * 1000


def readdressed(text: str, before: str, after: str) -> str | None:
    """
    Return a frame's text with another recipient; None if it does not name *before*.

    Both are attributes as ``addressed`` writes them. Values hold no unescaped quotation mark.
    """
    return text.replace(before, after, 1) if before in text else None


OUR_REFERENCE: Final = "ni:///sha-256;"
"""Start of our references to stored bodies: RFC 6920 names. Other programs read their own."""
load_body: Callable[[Frame], str] | None = None
"""Returns the JSON text of a stored body; a feature sets it when a file is opened."""

_kept: tuple[dict[str, Frame], ...] = ()
"""Frames of the last parcels by their texts, for each parcel."""


def with_body(text: str, body: Payload, now: Millis) -> str:
    """Return a frame's text with another body; its header of edits keeps the one that it had."""
    found = json.loads(text)
    parts = ("data", "data_base64", "dataref")
    before = {name: found.pop(name) for name in parts if name in found}
    edits = [*json.loads(found.get(EDITS, "[]")), {"at": now} | before]
    found.pop(BODY_ERROR, None)
    found |= {EDITS: json.dumps(edits), "datacontenttype": body.media}
    found["data_base64" if body.media == BYTES else "data"] = json.loads(body.text)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def keep_until_handled(frames: dict[str, Frame]) -> None:
    """Keep a parcel's frames by text for workers of this process; drop the oldest parcel's."""
    global _kept  # noqa: PLW0603 - a tuple that is replaced needs no lock: readers see either
    short = {text: frame for text, frame in frames.items() if len(text) <= KEPT_LONGEST}
    _kept = (*_kept[1 - KEPT_PARCELS :], short)


def split_tags(header: object) -> tuple[str, ...]:
    """Return the tags of a header; none if it is not text."""
    if not isinstance(header, str):
        return ()
    return tuple(dict.fromkeys(filter(None, map(str.strip, header.split(",")))))


def tags_in(text: str) -> tuple[str, ...]:
    """Return the tags of a frame's text; most frames have none, and are not parsed for it."""
    return split_tags(from_json(text).get(TAGS)) if f'"{TAGS}"' in text else ()


def count_keys(value: Any) -> int:
    """
    Return the number of keys in the objects inside a JSON value.

    Raises:
        InvalidMessage: it holds infinity, which JSON readers produce for a large exponent.

    """
    total, parts = 0, [value]
    for part in parts:  # the list grows meanwhile
        kind = type(part)
        if kind is dict:
            total += len(part)
            parts += part.values()
        elif kind is list:
            parts += part
        elif kind is float and isinf(part):
            raise InvalidMessage("a number of the body is too large for a float")
    return total


def _without_nulls(found: Any) -> Any:
    """Return *found* without nulls, which count as not set in CloudEvents."""
    if isinstance(found, dict):
        return {name: value for name, value in found.items() if value is not None}
    return found


BODY_ERROR: Final = "bodyerror"
"""Extension attribute that says why a message has no body."""
EDITS: Final = "bodyedits"
"""Extension attribute with the bodies that a message had before each edit, and when, as JSON."""
RESERVED_ATTRIBUTES: Final = frozenset(Frame.model_fields) | {BODY_ERROR, EDITS}


def check_extension(name: str, value: object) -> None:
    """Raise InvalidMessage unless *name* and *value* may be an extension attribute of a frame."""
    if not isinstance(name, str) or EXTENSION.fullmatch(name) is None:
        raise InvalidMessage(f"header {name!r} must be 1 to 20 lower-case letters and digits")
    if (
        (isinstance(value, str) and (value.isprintable() or not value))
        or value is True
        or value is False
    ):
        return
    if not isinstance(value, int) or not -INT32 <= value < INT32:
        raise InvalidMessage(
            f"header {name!r} must be printable text, a boolean or a 32-bit integer,"
            f" not {quoted(value)}"
        )


DIGEST_BYTES: Final = 16
REMEMBERED: Final = 32_768
"""Characters from which a text's digest is remembered: computing it takes longer than a lookup."""
SPACED: Final = re.compile(r'"[ \t\n\r]+:')
"""A quote, and a colon after spaces that JSON allows between a key and its colon."""
FEW_QUOTES: Final = 1000
"""Characters for each quote of a text that has few."""
_last: tuple[str | None, bytes] = (None, b"")
"""The long text whose digest was computed last, and the digest."""


def digest(text: str) -> bytes:
    """
    Return 128 bits that change with any bit of the frame's text.

    A long text is sealed, stored, read back and carried in turn: a text that equals the last long
    one is not digested again, because comparing them is ten times as fast.
    """
    global _last  # noqa: PLW0603 - a tuple that is replaced needs no lock: readers see either
    known, found = _last
    if text == known:
        return found
    found = sha256(text.encode()).digest()[:DIGEST_BYTES]
    if len(text) >= REMEMBERED:
        _last = text, found
    return found


def key_ends(text: str) -> int:
    """
    Return how often a quote and a colon follow each other; -1 if spaces are between two of them.

    In a long text with few quotes only these are looked at: that is ten times as fast.
    """
    if len(text) < REMEMBERED or text.count('"') > len(text) // FEW_QUOTES:
        spaced = " :" in text or not text.isprintable()
        return -1 if spaced and SPACED.search(text) else text.count('":')
    count, at = 0, text.find('"')
    while at >= 0:
        if SPACED.match(text, at):
            return -1
        count += text.startswith(":", at + 1)
        at = text.find('"', at + 1)
    return count


def body_size(frame: Frame) -> int:
    """Return the size of a frame's body in bytes of UTF-8."""
    if frame.data_base64 is not None:
        return len(frame.data_base64) * 3 // 4 - frame.data_base64[-2:].count("=")
    if isinstance(frame.data, str):
        return byte_length(frame.data)
    return byte_length(encode(frame.data).text)


def session_and_type(frame: str) -> tuple[str, str]:
    """Return the session and the type of a stored frame; empty ones if it is damaged."""
    split = frame.endswith(":")  # its body is stored elsewhere
    try:
        found = Frame.parse(f"{frame}null}}" if split else frame)
    except InvalidMessage:
        return "", ""
    return found.session, found.type


def split_digest(head: str, body_digest: bytes) -> bytes:
    """Return 128 bits over a frame's head and the digest of its body, which is computed once."""
    return sha256(head.encode() + body_digest).digest()[:DIGEST_BYTES]


def same_contents(one: str, other: str) -> bool:
    """Return whether the texts of two frames say the same, apart from their times and traces."""
    try:
        told = [json.loads(text) for text in (one, other)]
    except ValueError:  # one of them is damaged
        return False
    return all(
        each.get(name) == rest.get(name)
        for each, rest in (told, told[::-1])
        for name in each.keys() - OF_A_TIME
    )
