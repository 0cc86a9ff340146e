"""Hold the rules of an inbox, and the work of features in the commit that stores its frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from onceward.core.run.event_emitter import EventEmitter
from onceward.file.directory import DirectoryHandle
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame
from onceward.message.parcel import STRENGTH, Durability, ParcelFrame

Judge = Callable[[DirectoryHandle, str, list["ParsedFrame"]], list["ParsedFrame"]]
"""Checks frames for an agent of a home; a refused one has a problem."""


class KeyedMessage(NamedTuple):
    """A message of a mailbox that keeps the newest message of each key."""

    mailbox: str
    key: str
    id: str


Take = Callable[[StoreTransaction, str, Frame], bool]
"""Accepts a frame from its sender; returns whether the frame is done."""
LetGo = Callable[[StoreTransaction, list[int]], Sequence[str]]
"""Lets go of messages that end; returns the ids of requests whose replies are awaited no more."""


class CancelsMessages(Protocol):
    """Cancels messages of an inbox, for its agent or at their sender's request."""

    def end(self, tx: StoreTransaction, seqs: Sequence[int], reason: str) -> set[int]:
        """End the unfinished ones of the messages; return their sequences."""

    def take(self, tx: StoreTransaction, sender: str, asked: Sequence[Frame]) -> None:
        """Decide the requests of a sender, and report each decision in the same commit."""


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
    keyed: Callable[[StoreTransaction, str, Sequence[KeyedMessage]], None] | None = None
    """Gets the new messages of mailboxes that have a key, in order."""
    ends: LetGo | None = None
    """Lets go of messages that end from outside, by their sequences, before they end."""
    canceller: Callable[[EventEmitter, Sequence[LetGo]], CancelsMessages] | None = None
    """Creates the canceller of an inbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPolicy:
    """The agent of an inbox, and the rules for accepting."""

    agent: str
    durability: Durability
    max_body: int = 1 << 20
    max_inbox: int = 1_000_000
    accept_weaker: bool = False
    max_hops: int = 64
    network: bool = False
    """Whether parcels come from other machines: senders without a rule get the network's rule."""
    features: Sequence[Arrives] = ()
    """The work of features in the commit that stores frames, in order."""
    hears: Sequence[Take] = ()
    """Those that accept awaited types, if the file declares some."""
    cancel: Callable[[StoreTransaction, str, Sequence[Frame]], None] | None = None
    """Decides a sender's requests to cancel messages."""

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
