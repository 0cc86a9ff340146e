"""Define the rules of an inbox, and what features do with messages that arrive there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from onceward.core.end import received
from onceward.core.run.event_emitter import EventEmitter
from onceward.file.directory import DirectoryHandle
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame
from onceward.message.parcel import STRENGTH, Durability, ParcelFrame
from onceward.message.settings import Settings
from onceward.message.vocabulary import FOUND, LOST

LetGo = Callable[[StoreTransaction, list[int]], Sequence[str]]
"""Lets go of messages that end; returns the ids of requests whose replies are awaited no more."""


class CancelledMessages(NamedTuple):
    """The messages that a cancellation has ended."""

    seqs: set[int]
    """The messages that waited or were handled, by their sequences."""
    unawaited: Sequence[str]
    """Ids of requests whose replies are awaited no more."""


class Endings:
    """Ends messages of one inbox from outside, in the caller's transaction."""

    def __init__(self, emitter: EventEmitter, let_go: Sequence[LetGo]) -> None:
        self.emitter, self._let_go = emitter, let_go

    def cancel(self, tx: StoreTransaction, seqs: Sequence[int], reason: str) -> CancelledMessages:
        """
        Cancel the waiting and running ones of the messages.

        Each lease on one of them ends, so that its handler's writes roll back.
        """
        unawaited = [each for let_go in self._let_go for each in let_go(tx, list(seqs))]
        ended = received.end_unclaimed(tx, seqs, "cancelled", reason)
        if ended:
            self.emitter.cancelled(tx, [(i, s, reason) for _, s, i in ended])
        return CancelledMessages({seq for seq, _, _ in ended}, unawaited)


Judge = Callable[[DirectoryHandle, str, list["ParsedFrame"]], list["ParsedFrame"]]
"""Checks frames for an agent of a home; a refused one has a problem."""


Take = Callable[[StoreTransaction, str, Frame], bool]
"""Accepts a frame from its sender; returns whether the frame is done."""
Stored = Callable[[Endings, StoreTransaction, str, Sequence[Frame]], None]
"""Gets stored frames of a sender, in order, with what ends messages."""


Told = Mapping[str | None, Sequence[Frame]]
"""Stored frames by the kind by which features asked for them."""


class Arrives(NamedTuple):
    """
    The work of a feature for messages that arrive.

    All but *judge* is done in the commit that stores their frames.
    """

    judge: Judge | None = None
    """Checks, for an agent of a home, the frames of a parcel before they are stored."""
    takes: Mapping[str | None, Take] = {}
    """
    By kind: accepts a frame; returns whether it is done, so that no handler gets it.

    None is for frames without a kind, in files that declare types for which handlers wait.
    """
    stored: Mapping[str | None, Stored] = {}
    """
    By kind: gets the frames that were taken, once all of their parcel are stored.

    None is for messages of mailboxes that have a key.
    """
    ends: LetGo | None = None
    """Lets go of messages that end from outside, by their sequences, before they end."""

    @staticmethod
    def takes_by_kind(features: Sequence[Arrives], settings: Settings) -> dict[str | None, Take]:
        """Return what accepts the frames of each kind: of a feature, and of a restored file."""
        takes: dict[str | None, Take] = {LOST: _tell_lost, FOUND: partial(_keep_found, settings)}
        for each in features:
            takes.update(each.takes)
        return takes


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPolicy:
    """The agent of an inbox, and the rules for accepting."""

    agent: str
    durability: Durability
    max_body: int = 1 << 20
    max_inbox: int = 1_000_000
    accept_weaker: bool = False
    max_hops: int = 64
    takeover: str | None = None
    """The takeover that the file comes from, which each answer tells."""
    network: bool = False
    """Whether parcels come from other machines: senders without a rule get the network's rule."""
    takes: Mapping[str | None, Take] = field(default_factory=dict)
    """Accept frames, by kind."""
    stored: Callable[[StoreTransaction, str, Told], None] | None = None
    """Tells features that frames are stored."""

    def trusts(self, other: Durability) -> bool:
        """Return whether receipts of this durability settle our messages."""
        return self.accept_weaker or STRENGTH[other] >= STRENGTH[self.durability]


class ParsedFrame(NamedTuple):
    """A frame that was read before taking a lock: its content, or why it is permanently refused."""

    carried: ParcelFrame
    frame: Frame | None
    problem: str = ""
    digest: bytes = b""


Inspect = Callable[[list[ParsedFrame]], list[ParsedFrame]]
"""
Checks frames for mailboxes and of channels outside the transaction; a refused one has a problem.
"""


def _tell_lost(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Tell a restored sender which messages this file has from it; return True."""
    from onceward.core.accept import lost  # noqa: PLC0415 - after a restore only

    return lost.tell(tx, sender, frame)


def _keep_found(settings: Settings, tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Store messages that a peer has from this restored file; return True."""
    from onceward.core.accept import lost  # noqa: PLC0415 - after a restore only

    return lost.keep(settings, tx, sender, frame)
