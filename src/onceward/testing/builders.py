"""Build frames and parcels, for tests that simulate the other side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from onceward.message.body import BYTES, encode
from onceward.message.clock import Millis
from onceward.message.frame import SOURCE, Frame, digest
from onceward.message.ids import new_id
from onceward.message.names import DEFAULT_SESSION
from onceward.message.parcel import Parcel, ParcelFrame, Receipt
from onceward.testing.clock import START_AT


def build_frame(
    body: object,
    *,
    sender: str,
    recipient: str,
    session: str = DEFAULT_SESSION,
    at: Millis = START_AT,
) -> Frame:
    """Return the frame of a new message with *body*, as in its sender's file."""
    payload = encode(body)
    value = json.loads(payload.text)
    return Frame(
        id=new_id(),
        source=SOURCE + sender,
        type=payload.type,
        recipient=recipient,
        session=session,
        time=datetime.fromtimestamp(at / 1000, UTC),
        datacontenttype=payload.media,
        data=None if payload.media == BYTES else value,
        data_base64=value if payload.media == BYTES else None,
    )


def spell(frame: Frame) -> str:
    """Return a frame as the text that travels."""
    return frame.model_dump_json(exclude_none=True)


def parcel(
    number: int,
    frames: Iterable[Frame] = (),
    *,
    previous: str = "",
    epoch: str = "first",
    receipts: Sequence[Receipt] = (),
    sender: str = "near",
    recipient: str = "far",
) -> Parcel:
    """Return a parcel with a number and a predecessor of your choice."""
    carried = tuple(ParcelFrame(frame.id, spell(frame), digest(spell(frame))) for frame in frames)
    return Parcel(
        sender=sender,
        recipient=recipient,
        epoch=epoch,
        number=number,
        previous=previous,
        frames=carried,
        receipts=tuple(receipts),
    )
