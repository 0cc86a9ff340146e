"""Encode what two agents tell each other beside parcels and answers, as CloudEvents in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from onceward.errors import InvalidParcel
from onceward.message.clock import Millis
from onceward.message.frame import SOURCE
from onceward.message.ids import new_id
from onceward.message.unique_keys import refuse_repeated_keys
from onceward.message.wire import VERSION, Agent, Count

NoticeKind = Literal["ping", "pong", "collect", "nothing", "refused", "too_large"]
"""
``ping`` asks for ``pong``; ``collect`` asks for a parcel, ``nothing`` is the answer where none
waits; ``refused`` and ``too_large`` say that a parcel was not taken and never will be.
"""
NOTICE_MAX: Final = 8192
"""Largest encoded notice in bytes."""
DETAIL_MAX: Final = 500
PREFIX: Final = "onceward."


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A word of one agent to another that is no parcel and no answer."""

    kind: NoticeKind
    sender: str
    recipient: str
    at: Millis = 0
    """Time of the sender's clock."""
    limit: int = 0
    """With ``too_large``: the most bytes that a parcel may have."""
    detail: str = ""
    """Why, in words; a longer text is cut."""


class _NoticeData(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    sender: Agent
    recipient: Agent
    at: Count
    limit: Count
    detail: Annotated[str, Field(max_length=DETAIL_MAX)]


class _NoticeEvent(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    specversion: Literal["1.0"]
    id: Annotated[str, Field(min_length=1, max_length=256)]
    source: str
    type: str
    datacontenttype: Literal["application/json"]
    data: _NoticeData


def encode_notice(notice: Notice) -> bytes:
    """Return *notice* as bytes that ``decode_notice`` reads back."""
    data = {
        "version": VERSION,
        "sender": notice.sender,
        "recipient": notice.recipient,
        "at": notice.at,
        "limit": notice.limit,
        "detail": notice.detail[:DETAIL_MAX].encode(errors="replace").decode(),
    }
    return to_json(
        {
            "specversion": "1.0",
            "id": new_id(),
            "source": SOURCE + notice.sender,
            "type": PREFIX + notice.kind,
            "datacontenttype": "application/json",
            "data": data,
        }
    )


def decode_notice(body: bytes) -> Notice:
    """Return the notice that *body* encodes; raises InvalidParcel where it is none."""
    try:
        event = _NoticeEvent.model_validate_json(body)
        refuse_repeated_keys(body)
    except (ValueError, RecursionError) as error:
        msg = f"not a notice: {str(error)[:200]}"
        raise InvalidParcel(msg) from error
    kind, data = event.type.removeprefix(PREFIX), event.data
    if kind not in get_args(NoticeKind) or event.source != SOURCE + data.sender:
        msg = "not a notice: its type or source is another"
        raise InvalidParcel(msg)
    return Notice(
        kind=cast("NoticeKind", kind),
        sender=data.sender,
        recipient=data.recipient,
        at=data.at,
        limit=data.limit,
        detail=data.detail,
    )
