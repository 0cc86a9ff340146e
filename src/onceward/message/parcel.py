"""
Define what travels between two agents: parcels one way, answers the other.

A parcel is a numbered, fixed list of frames for one peer, and the receipts
that wait for it. One parcel is in flight per peer; it is stored before it is
pushed, so a crash pushes the same list again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from onceward.errors import Unreachable
from onceward.message.frame import digest
from onceward.message.vocabulary import Reason

ReceiptState = Literal["stored", "duplicate", "processed", "dropped", "dead", "rejected", "busy"]
"""
The peer's outcome for one frame: ``stored`` (kept, new), ``duplicate`` (kept before, not yet
handled), ``processed`` (handled), ``dropped`` (by a policy, which the reason begins with),
``dead`` (kept in the peer's dead letters), ``rejected`` (never kept, and never will be),
``busy`` (not now).
"""
UNANSWERED: Final[Reason] = "processed without a reply"
"""Beginning of the reason of ``processed`` for a message that asked for a reply and has none."""

Durability = Literal["safe", "fast"]

EPOCH: Final = re.compile("[0-9a-f]{32}")
STRENGTH: Final[dict[str, int]] = {"fast": 0, "safe": 1}


def generation_of(epoch: str) -> int:
    """Return the generation that an epoch begins with, in hexadecimal; 0 where it has none."""
    return int(epoch[:8], 16) if EPOCH.fullmatch(epoch) else 0


class ParcelFrame(NamedTuple):
    """A frame in a parcel: id, stored text, digest, and whether the peer may know it already."""

    id: str
    text: str
    digest: bytes
    redelivered: bool = False


class Receipt(NamedTuple):
    """The peer's outcome for one frame."""

    id: str
    state: ReceiptState
    reason: str | None = None


def downgrade(receipt: Receipt) -> Receipt:
    """Return a receipt of a less durable peer at its worth: processed counts as stored."""
    return receipt._replace(state="stored") if receipt.state == "processed" else receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One push: frames under a number of their stream, and receipts, which need none."""

    sender: str
    recipient: str
    epoch: str
    number: int
    previous: str
    frames: tuple[ParcelFrame, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    durability: Durability = "safe"
    """Durability class of the sender's file, which its receipts are worth."""
    base_position: tuple[str, int] | None = None
    """
    With number 1: epoch and number up to which the peer had answered before.

    A peer that knows less has lost messages.
    """
    unsettled: tuple[str, ...] = ()
    """
    With number 1: last ids of the parcels that were given up since ``base_position``.

    A peer whose stream ends elsewhere has accepted parcels that the sender's
    file does not know, so it judges every frame by its id.
    """
    stream_position: tuple[str, int] | None = None
    """With receipts: epoch and number of the recipient's stream when they were produced."""

    @property
    def last_id(self) -> str:
        """Id of the last frame, which names the parcel's content to the peer."""
        return self.frames[-1].id


Verdict = Literal["accepted", "duplicate", "fork", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The peer's answer to a parcel.

    ``fork`` means that number and predecessor do not continue the stream as the
    peer knows it; ``epoch`` and ``number`` then say what it knows.
    """

    verdict: Verdict
    receipts: tuple[Receipt, ...] = ()
    durability: Durability = "safe"
    epoch: str = ""
    number: int = 0
    retry_after: int = 0
    """With ``busy``: milliseconds after which to try again; 0 leaves that to the sender."""


def refuse_damaged(parcel: Parcel) -> None:
    """Raise Unreachable if a frame was damaged on the way; the same parcel is then pushed again."""
    for carried in parcel.frames:
        if digest(carried.text) != carried.digest:
            msg = f"frame {carried.id} was damaged on the way: its digest does not match"
            raise Unreachable(msg)
