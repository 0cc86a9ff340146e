"""
Encode parcels and answers for processes of one user on one machine.

A request is ``REQUEST``, then a parcel; an answer is ``ANSWER``, then the answer, without text if
the parcel was not accepted. Both processes may write the file itself, so a decoder checks only the
form: names, digests and frames are checked when the parcel is accepted.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final

from pydantic_core import from_json, to_json

from onceward.message.parcel import Answer, Parcel, ParcelFrame, Receipt

LINK: Final = ".parcels"
"""End of the name of a socket, and of the links to it."""
MARK: Final = b"owp1"
"""Begins a request and names this encoding; a process of another version speaks another one."""
REQUEST: Final = struct.Struct("!4sIQQQ")
"""Mark, length of the parcel, number of the request, device and inode of the recipient's file."""
ANSWER: Final = struct.Struct("!QBI")
"""Number of the request, outcome, and length of the answer."""
ACCEPTED: Final = 0
REFUSED: Final = 1
"""The parcel was not accepted now: too many at once, or an error."""
NOT_HERE: Final = 2
"""The process has no worker of that file."""
LONGEST: Final = 64 << 10
"""Maximum bytes of an encoded parcel or answer: a socket takes so many without a reader."""
CREDENTIALS: Final = struct.Struct("3i")
HAS_CREDENTIALS: Final = hasattr(socket, "SO_PEERCRED")


def other_end(sock: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection, as this process sees them."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(found)
    return pid, uid


def refuse_others(sock: socket.socket, pid: int | None = None) -> None:
    """
    Raise PermissionError unless a process of this user is at the other end: *pid*, if given.

    A process of another container has another number here. Where the system does not tell, the mode
    of the socket's folder keeps other users out.
    """
    if not HAS_CREDENTIALS:
        return
    number, user = other_end(sock)
    if user != os.geteuid() or pid not in {None, number}:
        msg = "the socket is that of another user, or of another container"
        raise PermissionError(msg)


def encode_parcel(parcel: Parcel) -> bytes:
    """Return a parcel as bytes; raise ValueError for text that is not Unicode."""
    frames = [(each.id, each.text, each.digest.hex(), each.redelivered) for each in parcel.frames]
    return to_json([
        parcel.sender, parcel.recipient, parcel.epoch, parcel.number, parcel.previous,
        parcel.durability, parcel.base_position, parcel.unsettled, parcel.stream_position,
        frames, parcel.receipts, parcel.takeover, parcel.known_takeover,
    ])  # fmt: skip


def decode_parcel(text: bytes) -> Parcel:
    """Return the parcel; raise ValueError or TypeError for another text."""
    (
        sender, recipient, epoch, number, previous,
        durability, base_position, unsettled, stream_position, frames, receipts, takeover, known,
    ) = from_json(text)  # fmt: skip
    return Parcel(
        sender=sender,
        recipient=recipient,
        epoch=epoch,
        number=number,
        previous=previous,
        durability=durability,
        frames=tuple([ParcelFrame(i, t, bytes.fromhex(d), again) for i, t, d, again in frames]),
        receipts=_receipts(receipts),
        unsettled=tuple(unsettled),
        base_position=_position(base_position),
        stream_position=_position(stream_position),
        takeover=takeover,
        known_takeover=known,
    )


def encode_answer(answer: Answer) -> bytes:
    """Return an answer as bytes; raise ValueError for text that is not Unicode."""
    return to_json([
        answer.verdict, answer.receipts, answer.durability,
        answer.epoch, answer.number, answer.retry_after, answer.takeover, answer.room,
    ])  # fmt: skip


def decode_answer(text: bytes) -> Answer:
    """Return the answer; raise ValueError or TypeError for another text."""
    verdict, receipts, durability, epoch, number, retry_after, takeover, room = from_json(text)
    return Answer(
        verdict=verdict,
        receipts=_receipts(receipts),
        durability=durability,
        epoch=epoch,
        number=number,
        retry_after=retry_after,
        takeover=takeover,
        room=room,
    )


def _receipts(listed: Any) -> tuple[Receipt, ...]:
    return tuple([Receipt(*each) for each in listed])


def _position(found: Any) -> tuple[str, int] | None:
    return None if found is None else (found[0], found[1])
