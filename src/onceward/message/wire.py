"""
Encode parcels, answers and notices for networks, as CloudEvents in JSON; decode them strictly.

The body of a parcel is a batch: ``[EVENT``, a line feed, ``,FRAME`` for each frame, ``]``. The
event, of type ``onceward.parcel``, is one line and holds everything except the frames. The frames
follow byte for byte as they are stored: they are split by the lengths in the event and never parsed
here. The body of an answer is one event, of type ``onceward.answer``. ``schema/wire.schema.json``
describes both. A notice, also one event, is any other word between two agents.

A decoder ignores members that it does not know and the writer does not require, see ``protocol``;
members with a fixed list of values get no new value without a new wire version.

A decoder checks only the form. The transport proves that the bytes come from the agent that they
name; digests, names and frames are checked when a parcel is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, Literal, NotRequired, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from onceward.errors import InvalidParcel, UnsupportedVersion
from onceward.message.clock import Millis
from onceward.message.frame import SOURCE, key_ends, refuse_repeated_keys
from onceward.message.ids import new_id
from onceward.message.names import AGENT, quoted
from onceward.message.parcel import (
    GREETING,
    OLDEST,
    REASON_MAX,
    RECEIPTS_MAX,
    TAKEOVER,
    Answer,
    Durability,
    Parcel,
    ParcelFrame,
    Receipt,
    ReceiptState,
    Verdict,
    answer_bytes,
    encoded_size,
    frame_bytes,
    receipt_bytes,
)
from onceward.message.protocol import CODECS, VERSION, Feature, Speaks, refuse_newer
from onceward.message.validators import describe_errors, parsed

__all__ = [
    "ANSWER_TYPE",
    "CONTENT_TYPE",
    "FRAMES_MAX",
    "REASON_MAX",
    "RECEIPTS_MAX",
    "UNSETTLED_MAX",
    "VERSION",
    "answer_bytes",
    "decode_answer",
    "decode_parcel",
    "encode_answer",
    "encode_parcel",
    "encoded_size",
    "frame_bytes",
    "receipt_bytes",
]

CONTENT_TYPE: Final = CODECS[0]
"""Media type of a parcel."""
ANSWER_TYPE: Final = "application/cloudevents+json"
"""Media type of an answer."""
PARCEL: Final = "parcel"
ANSWER: Final = "answer"
FRAMES_MAX: Final = 10_000
"""Maximum frames of a parcel, the same as for ``parcel_max_messages``."""
UNSETTLED_MAX: Final = 64
"""Maximum ids in ``unsettled``."""

Id = Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")]
Agent = Annotated[str, Field(max_length=128, pattern=f"^{AGENT.pattern}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Version = Annotated[int, Field(ge=OLDEST, le=VERSION)]
Requires = dict[Feature, Annotated[str, Field(max_length=64)]]


STRICT: Final = ConfigDict(strict=True, extra="ignore", use_attribute_docstrings=True)


class _Strict(BaseModel):
    """Accept exact types; ignore keys that are not declared."""

    model_config = STRICT | {"frozen": True}


# A parcel has thousands of frames and receipts: a dict is built and freed faster than a model.
class _Frame(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]

    id: Id
    """Message id of the frame."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """First 16 bytes of the SHA-256 of the frame, in hexadecimal."""
    length: Count
    """Length of the frame in bytes, as it follows."""
    redelivered: NotRequired[Annotated[bool, Field(json_schema_extra={"default": False})]]
    """Whether the recipient may already know the message."""


class _Receipt(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]

    id: Id
    """Id of the message that it reports on."""
    state: ReceiptState
    """Outcome of the message."""
    reason: NotRequired[
        Annotated[
            Annotated[str, Field(max_length=REASON_MAX)] | None,
            Field(json_schema_extra={"default": None}),
        ]
    ]
    """Reason, as text."""


class _Position(_Strict):
    epoch: Id
    """Name of a stream."""
    number: Count
    """Number of a parcel in it."""


class _ParcelData(_Strict):
    version: Version
    """Wire version of the event."""
    sender: Agent
    """Agent that sends the parcel."""
    recipient: Agent
    """Agent that the parcel is for."""
    epoch: Id
    """Name of the sender's stream."""
    number: Count
    """Number of the parcel in the stream."""
    previous: Id
    """Id of the previous parcel's last frame; empty for the first parcel."""
    durability: Durability
    """Durability class of the sender's file, which applies to its receipts."""
    frames: Annotated[list[_Frame], Field(max_length=FRAMES_MAX)]
    """The frames that follow, in order."""
    receipts: Annotated[list[_Receipt], Field(max_length=RECEIPTS_MAX)]
    """Outcomes of messages that the recipient sent."""
    unsettled: Annotated[list[Id], Field(max_length=UNSETTLED_MAX)]
    """With number 1: last ids of the parcels that were given up since the base position."""
    base_position: _Position | None = None
    """With number 1: position up to which the recipient had answered before."""
    stream_position: _Position | None = None
    """With receipts: position of the recipient's stream when they were produced."""
    greeting: Annotated[str, Field(pattern=GREETING)] | None = None
    """Says that the sender's file was restored, or answers the recipient that says so."""
    takeover: Annotated[str, Field(pattern=TAKEOVER)] | None = None
    """Number, time and machine of the takeover that the sender's file comes from."""
    known_takeover: Annotated[str, Field(pattern=TAKEOVER)] | None = None
    """The newest takeover of the recipient that the sender knows."""
    requires: Requires | None = None
    """Members without which it means something else, and the release that brought each."""


class _AnswerData(_Strict):
    version: Version
    """Wire version of the event."""
    sender: Agent
    """The agent that answers."""
    recipient: Agent
    """The agent that sent the parcel."""
    parcel: _Position
    """Epoch and number of the answered parcel."""
    verdict: Verdict
    """Whether the parcel was accepted; fork means that it does not continue its stream."""
    durability: Durability
    """Durability class of the answering agent's file."""
    receipts: Annotated[list[_Receipt], Field(max_length=FRAMES_MAX)]
    """Outcomes of the frames; a frame without a receipt is pushed again."""
    epoch: Id
    """With fork: the stream that the recipient knows."""
    number: Count
    """With fork: the last accepted number of that stream."""
    base_position: _Position | None = None
    """With fork: the position before the epoch of that stream."""
    retry_after: Count
    """With busy: milliseconds after which to try again; 0 leaves that to the sender."""
    takeover: Annotated[str, Field(pattern=TAKEOVER)] | None = None
    """The takeover of the answering file; with superseded, the one that replaced the sender's."""
    room: Count | None = None
    """Further messages of its pools that the recipient takes from any sender; a hint."""
    newest: Count | None = None
    """Wire version that its writer reads, if that is newer than the parcel's."""
    requires: Requires | None = None
    """Members without which it means something else, and the release that brought each."""


class _Event(_Strict):
    specversion: Literal["1.0"]
    """Version of CloudEvents."""
    id: Annotated[str, Field(min_length=1, max_length=256)]
    """Id of this attempt; each push of the same parcel has its own."""
    source: str
    """The sending agent, as urn:onceward:NAME."""
    type: str
    datacontenttype: Literal["application/json"]
    """Media type of the data."""
    data: _ParcelData | _AnswerData


class _ParcelEvent(_Event):
    type: Literal["onceward.parcel"]
    """Marks the event as a parcel."""
    data: _ParcelData
    """The parcel without its frames."""


class _AnswerEvent(_Event):
    type: Literal["onceward.answer"]
    """Marks the event as an answer."""
    data: _AnswerData
    """The answer."""


E = TypeVar("E", _ParcelEvent, _AnswerEvent)


def encode_parcel(parcel: Parcel) -> bytes:
    """
    Return *parcel* as bytes of its wire version that ``decode_parcel`` reads back.

    Raises:
        InvalidParcel: one of its names or ids cannot be encoded, such as one with a NUL.

    """
    try:
        texts = [frame.text.encode() for frame in parcel.frames]
        event = _event("onceward.parcel", parcel.sender, _parcel_data(parcel, map(len, texts)))
        _ParcelEvent.model_validate(event)
        head = to_json(event)
    except (ValueError, TypeError) as error:
        raise _invalid(PARCEL, error) from error
    return b"".join((b"[", head, b"\n", *(b"," + text for text in texts), b"]"))


def decode_parcel(body: bytes) -> Parcel:
    """
    Return the parcel that *body* encodes.

    Raises:
        InvalidParcel: it is malformed.
        UnsupportedVersion: it needs a newer onceward; the error names it.

    """
    head, line_feed, rest = body.partition(b"\n")
    if not line_feed or head[:1] != b"[":
        msg = "not a parcel: a parcel begins with '[', an event on one line and a line feed"
        raise InvalidParcel(msg)
    event = _read(_ParcelEvent, PARCEL, head[1:])
    data = event.data
    return Parcel(
        sender=data.sender,
        recipient=data.recipient,
        epoch=data.epoch,
        number=data.number,
        previous=data.previous,
        durability=data.durability,
        frames=_cut(data.frames, rest),
        receipts=_receipts(data.receipts),
        unsettled=tuple(data.unsettled),
        base_position=_position(data.base_position),
        stream_position=_position(data.stream_position),
        greeting=data.greeting,
        takeover=data.takeover,
        known_takeover=data.known_takeover,
        version=data.version,
    )


def encode_answer(answer: Answer, parcel: Parcel) -> bytes:
    """
    Return the recipient's answer to *parcel* as bytes that ``decode_answer`` reads back.

    Raises:
        InvalidParcel: one of its names or ids cannot be encoded, such as one with a NUL.

    """
    data = {
        "version": parcel.version,
        "sender": parcel.recipient,
        "recipient": parcel.sender,
        "parcel": {"epoch": parcel.epoch, "number": parcel.number},
        "verdict": answer.verdict,
        "durability": answer.durability,
        "receipts": _told(answer.receipts),
        "epoch": answer.epoch,
        "number": answer.number,
        "retry_after": answer.retry_after,
        **({} if answer.takeover is None else {"takeover": answer.takeover}),
        **({} if answer.room is None else {"room": answer.room}),
        **_placed("base_position", answer.base_position),
        **({} if parcel.version == VERSION else {"newest": VERSION}),
    }
    try:
        event = _event("onceward.answer", parcel.recipient, data)
        _AnswerEvent.model_validate(event)
        return to_json(event)
    except (ValueError, TypeError) as error:
        raise _invalid(ANSWER, error) from error


def decode_answer(body: bytes, parcel: Parcel) -> Answer:
    """
    Return the answer to *parcel* that *body* encodes.

    Raises:
        InvalidParcel: it is malformed, answers another parcel, or has a receipt for a frame that
            is not in the parcel.
        UnsupportedVersion: it needs a newer onceward; the error names it.

    """
    data = _read(_AnswerEvent, ANSWER, body).data
    found = data.sender, data.recipient, (data.parcel.epoch, data.parcel.number)
    if found != (parcel.recipient, parcel.sender, (parcel.epoch, parcel.number)):
        raise InvalidParcel(f"not an answer to this parcel: it says {quoted(found, 200)}")
    strange = {each["id"] for each in data.receipts} - {each.id for each in parcel.frames}
    if strange or len(data.receipts) > len(parcel.frames):
        msg = f"not an answer to this parcel: receipts for other frames {quoted(sorted(strange))}"
        raise InvalidParcel(msg)
    return Answer(
        verdict=data.verdict,
        receipts=_receipts(data.receipts),
        durability=data.durability,
        epoch=data.epoch,
        number=data.number,
        base_position=_position(data.base_position),
        retry_after=data.retry_after,
        takeover=data.takeover,
        room=data.room,
        newest=data.newest or 0,
    )


# -- pieces --------------------------------------------------------------------------------------


def _event(kind: str, sender: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": new_id(),
        "source": SOURCE + sender,
        "type": kind,
        "datacontenttype": "application/json",
        "data": data,
    }


def _parcel_data(parcel: Parcel, lengths: Iterable[int]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "version": parcel.version,
        "sender": parcel.sender,
        "recipient": parcel.recipient,
        "epoch": parcel.epoch,
        "number": parcel.number,
        "previous": parcel.previous,
        "durability": parcel.durability,
        "frames": [_listed(*each) for each in zip(parcel.frames, lengths, strict=True)],
        "receipts": _told(parcel.receipts),
        "unsettled": list(parcel.unsettled),
    }
    for name in ("base_position", "stream_position"):
        data |= _placed(name, getattr(parcel, name))
    for name in ("greeting", "takeover", "known_takeover"):
        if (text := getattr(parcel, name)) is not None:
            data[name] = text
    return data


def _listed(frame: ParcelFrame, length: int) -> dict[str, Any]:
    listed = {"id": frame.id, "digest": frame.digest.hex(), "length": length}
    return listed | {"redelivered": True} if frame.redelivered else listed


def _told(receipts: Iterable[Receipt]) -> list[dict[str, Any]]:
    return [
        {"id": message_id, "state": state}
        if reason is None
        else {"id": message_id, "state": state, "reason": reason[:REASON_MAX]}
        for message_id, state, reason in receipts
    ]


def _read(kind: type[E], what: str, text: bytes) -> E:
    """Read one event; refuse a repeated key, which readers would interpret differently."""
    try:
        event = parsed(kind, text)
        if key_ends(text.decode()) != _keys(event.data):
            refuse_repeated_keys(text)
    except (ValueError, RecursionError) as error:
        _refuse_newer(what, text)
        raise _invalid(what, error) from error
    if event.source != SOURCE + event.data.sender:
        msg = f"not a valid {what}: its source {quoted(event.source)} is not its sender"
        raise InvalidParcel(msg)
    return event


def _refuse_newer(what: str, text: bytes) -> None:
    """Raise UnsupportedVersion if an event is not read because it needs a newer onceward."""
    try:
        data = from_json(text)["data"]
        if isinstance(data["version"], int):
            refuse_newer(what, data)
    except UnsupportedVersion:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return


def _keys(data: _ParcelData | _AnswerData) -> int:
    """Return the number of keys in an event and its data."""
    inner: list[BaseModel | None] = [data]
    listed = sum(map(len, data.receipts))
    if isinstance(data, _ParcelData):
        inner += [data.base_position, data.stream_position]
        listed += sum(map(len, data.frames))
    else:
        inner += [data.parcel]
    named = sum(len(each.model_fields_set) for each in inner if each) + len(data.requires or ())
    return len(_Event.model_fields) + named + listed


def _cut(listed: list[_Frame], rest: bytes) -> tuple[ParcelFrame, ...]:
    """Split the bytes after the event into frames."""
    ends = list(accumulate(each["length"] + 1 for each in listed))
    starts = [0, *ends]
    if len(rest) != starts[-1] + 1 or rest[-1:] != b"]":
        msg = f"not a parcel: {len(rest)} bytes follow its event, its frames take {starts[-1] + 1}"
        raise InvalidParcel(msg)
    if any(rest[start : start + 1] != b"," for start in starts[:-1]):
        raise InvalidParcel("not a parcel: a frame does not begin where its length says")
    try:
        return tuple(
            ParcelFrame(
                each["id"],
                rest[start + 1 : end].decode(),
                bytes.fromhex(each["digest"]),
                each.get("redelivered", False),
            )
            for each, start, end in zip(listed, starts, ends, strict=False)
        )
    except UnicodeDecodeError as error:
        raise InvalidParcel("not a parcel: a frame is not UTF-8") from error


def _receipts(listed: list[_Receipt]) -> tuple[Receipt, ...]:
    return tuple(Receipt(each["id"], each["state"], each.get("reason")) for each in listed)


def _placed(name: str, position: tuple[str, int] | None) -> dict[str, dict[str, Any]]:
    """Return a position under its name; nothing for None."""
    return {} if position is None else {name: {"epoch": position[0], "number": position[1]}}


def _position(found: _Position | None) -> tuple[str, int] | None:
    return None if found is None else (found.epoch, found.number)


def _invalid(what: str, error: Exception) -> InvalidParcel:
    told = describe_errors(error) if isinstance(error, ValidationError) else str(error)
    return InvalidParcel(f"not a valid {what}: {told[:500]}")


NoticeKind = Literal["ping", "pong", "collect", "nothing", "refused", "too_large", "unread"]
"""
``ping`` asks for ``pong``; ``collect`` asks for a parcel, ``nothing`` answers that none waits;
``refused`` and ``too_large`` say that a parcel was not accepted and never will be; ``unread`` that
it needs a newer onceward. ``pong``, ``collect`` and ``unread`` state what their writer speaks.
"""
SPEAKING: Final = frozenset({"pong", "collect", "unread"})
NOTICE_MAX: Final = 8192
"""Largest encoded notice in bytes."""
DETAIL_MAX: Final = 500
PREFIX: Final = "onceward."


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A word from one agent to another that is neither a parcel nor an answer."""

    kind: NoticeKind
    sender: str
    recipient: str
    at: Millis = 0
    """Time by the sender's clock."""
    limit: int = 0
    """With ``too_large``: maximum bytes of a parcel."""
    detail: str = ""
    """Reason, as text; a longer one is truncated."""
    speaks: Speaks | None = None
    """Wire versions, codecs and features of its sender, if the notice states them."""


Texts = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100)]


class _Speaks(_Strict):
    release: Annotated[str, Field(max_length=64)]
    oldest: Count
    newest: Count
    codecs: Texts
    features: Texts

    def value(self) -> Speaks:
        """Return the statement as a value."""
        return Speaks(
            release=self.release,
            oldest=self.oldest,
            newest=self.newest,
            codecs=tuple(self.codecs),
            features=tuple(self.features),
        )


class _NoticeData(_Strict):
    version: Version
    sender: Agent
    recipient: Agent
    at: Count
    limit: Count
    detail: Annotated[str, Field(max_length=DETAIL_MAX)]
    speaks: _Speaks | None = None


class _NoticeEvent(_Event):
    data: _NoticeData  # type: ignore[assignment]  # a notice has its own


def encode_notice(notice: Notice) -> bytes:
    """Return *notice* as bytes that ``decode_notice`` reads back."""
    data = {
        "version": OLDEST,
        "sender": notice.sender,
        "recipient": notice.recipient,
        "at": notice.at,
        "limit": notice.limit,
        "detail": notice.detail[:DETAIL_MAX].encode(errors="replace").decode(),
    }
    if notice.kind in SPEAKING:
        data["speaks"] = asdict(notice.speaks or Speaks.here())
    return to_json(_event(PREFIX + notice.kind, notice.sender, data))


def decode_notice(body: bytes) -> Notice:
    """
    Return the notice that *body* encodes.

    Raises:
        InvalidParcel: it is not a notice.
        UnsupportedVersion: it needs a newer onceward; the error names it.

    """
    try:
        event = parsed(_NoticeEvent, body)
        refuse_repeated_keys(body)
    except (ValueError, RecursionError) as error:
        _refuse_newer("notice", body)
        raise InvalidParcel(f"not a notice: {str(error)[:200]}") from error
    kind, data = event.type.removeprefix(PREFIX), event.data
    if kind not in get_args(NoticeKind) or event.source != SOURCE + data.sender:
        raise InvalidParcel("not a notice: its type or source does not match")
    return Notice(
        kind=cast("NoticeKind", kind),
        sender=data.sender,
        recipient=data.recipient,
        at=data.at,
        limit=data.limit,
        detail=data.detail,
        speaks=None if data.speaks is None else data.speaks.value(),
    )
