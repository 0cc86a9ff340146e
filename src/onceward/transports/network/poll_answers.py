"""Answer parcels that came by a poll, and read such answers."""

from __future__ import annotations

from typing import Final

from onceward.core.deliver.transport import Accept
from onceward.errors import (
    DeliveryError,
    InvalidParcel,
    Refused,
    Unreachable,
    UnsupportedVersion,
)
from onceward.message import wire
from onceward.message.log import log
from onceward.message.parcel import Answer, Parcel
from onceward.message.wire import Notice, NoticeKind, decode_notice, encode_notice

HOLD: Final = 15.0
"""Maximum seconds for which a poll is held while no parcel waits."""
PAUSES: Final = (1.0, 30.0)
"""Minimum and maximum pause in seconds after a failed poll; it doubles."""


def answered(accept: Accept, parcel: Parcel) -> bytes:
    """Pass a parcel to its agent, and return the answer as its peer reads it."""
    try:
        return wire.encode_answer(accept(parcel), parcel)
    except Refused as error:
        return not_accepted("refused", parcel, str(error))
    except Exception as error:  # noqa: BLE001 - the thread survives every error of an agent
        agent, peer = parcel.recipient, parcel.sender
        log.failure("warning", "parcel not accepted", error, agent=agent, peer=peer)
        return not_accepted("nothing", parcel, type(error).__name__)


def not_accepted(kind: NoticeKind, parcel: Parcel, detail: str) -> bytes:
    """Return the notice that a parcel was not accepted; it names the parcel by its number."""
    told = Notice(
        kind=kind,
        sender=parcel.recipient,
        recipient=parcel.sender,
        at=parcel.number,
        detail=detail,
    )
    return encode_notice(told)


def read_answer(answer: bytes, parcel: Parcel) -> Answer | DeliveryError:
    """Return the answer to a parcel, or the peer's error; raise InvalidParcel."""
    try:
        return wire.decode_answer(answer, parcel)
    except UnsupportedVersion as error:
        return error
    except InvalidParcel:
        notice = decode_notice(answer)
    if notice.kind == "unread":
        return UnsupportedVersion(f"the peer did not read it: {notice.detail}")
    if notice.at != parcel.number or notice.kind not in {"refused", "nothing"}:
        raise InvalidParcel("a notice about another parcel")
    kind = Refused if notice.kind == "refused" else Unreachable
    return kind(notice.detail or "the peer gave no reason")
