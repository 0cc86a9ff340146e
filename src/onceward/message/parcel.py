"""
Define parcels from one agent to another, the answers, and their bounds.

A parcel is a numbered, fixed list of frames for one peer, and the receipts
that wait for it. One parcel is in flight per peer; it is stored before it is
pushed, so a crash pushes the same list again. An inbound rule bounds what the
frames of a peer may name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, Literal, NamedTuple, Self

from pydantic_core import to_json

from onceward.errors import Unreachable
from onceward.message.frame import Frame, digest
from onceward.message.names import byte_length, quoted
from onceward.message.topics import SYSTEM, check_pattern, matches
from onceward.message.vocabulary import Reason

OLDEST: Final = 1
"""The oldest wire version that is spoken, that of the release before at the latest."""
ReceiptState = Literal[
    "stored", "duplicate", "processed", "dropped", "cancelled", "dead", "rejected", "busy"
]
"""
The peer's outcome for one frame: ``stored`` (kept, new), ``duplicate`` (kept before, not yet
handled), ``processed`` (handled), ``dropped`` (by a policy, which the reason begins with),
``cancelled`` (before it took effect), ``dead`` (kept in the peer's dead letters), ``rejected`` (not
kept, and never will be), ``busy`` (not now).
"""
UNANSWERED: Final[Reason] = "processed without a reply"
"""Start of the reason of ``processed`` for a request that got no reply."""

Durability = Literal["safe", "fast"]

EPOCH: Final = re.compile("[0-9a-f]{32}")
RESTORED: Final = "restored:"
"""Begins the greeting of a sender whose file was restored; an id of that event follows."""
ANSWER: Final = "answer:"
"""Begins the greeting with which a peer answers it, under the same id."""
GREETING: Final = f"^({RESTORED}|{ANSWER})[0-9a-f]{{24}}$"
STRENGTH: Final[dict[str, int]] = {"fast": 0, "safe": 1}


TAKEOVER: Final = r"^[0-9]{8} [0-9]{13} [^\x00 ]{1,200}( [^\x00 ]{1,500})?$"
"""
Text of a takeover: its number, time and machine, and the url to which the agent has moved.

The newest one is the greatest text.
"""


class Takeover(NamedTuple):
    """The parts of a takeover."""

    number: int
    at: int
    machine: str
    url: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of a takeover's text."""
        number, at, machine, *url = text.split(" ")
        return cls(int(number), int(at), machine, *url)

    @property
    def text(self) -> str:
        """The takeover as it is stored and pushed."""
        told = f"{self.number:08d} {self.at:013d} {self.machine.replace(' ', '_')[:200]}"
        return told if self.url is None else f"{told} {self.url}"


def generation_of(epoch: str) -> int:
    """Return the generation at the start of an epoch, in hexadecimal; 0 if it has none."""
    return int(epoch[:8], 16) if EPOCH.fullmatch(epoch) else 0


OTHER_CONTENTS: Final = "the message that came first has other contents, and stays"
"""End of the reason in a receipt for a message that came again, and is not the same."""


class ParcelFrame(NamedTuple):
    """A frame in a parcel: id, stored text, digest, and whether the peer may already know it."""

    id: str
    text: str
    digest: bytes
    redelivered: bool = False


UNENDED: Final = frozenset(("stored", "duplicate"))
"""States of a receipt whose message has not ended."""


STATE: Final = attrgetter("state")


class Receipt(NamedTuple):
    """The peer's outcome for one frame."""

    id: str
    state: ReceiptState
    reason: str | None = None


def downgrade(receipt: Receipt) -> Receipt:
    """Return a receipt of a less durable peer, whose processed counts as stored."""
    return receipt._replace(state="stored") if receipt.state == "processed" else receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One push: frames under a stream number, and receipts, which need no number."""

    sender: str
    recipient: str
    epoch: str
    number: int
    previous: str
    frames: tuple[ParcelFrame, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    durability: Durability = "safe"
    """Durability class of the sender's file, which applies to its receipts."""
    base_position: tuple[str, int] | None = None
    """
    With number 1: epoch and number up to which the peer had answered before.

    A peer that knows less has lost messages.
    """
    unsettled: tuple[str, ...] = ()
    """
    With number 1: last ids of the parcels that were given up since ``base_position``.

    A peer whose stream ends elsewhere has accepted parcels that the sender's file does not know, so
    it checks every frame by its id.
    """
    stream_position: tuple[str, int] | None = None
    """With receipts: epoch and number of the recipient's stream when they were produced."""
    greeting: str | None = None
    """
    ``restored:ID`` if the sender's file was restored, ``answer:ID`` to such a greeting of the peer.

    A parcel with it is judged by its position although it may have no frames.
    """

    takeover: str | None = None
    """The takeover that the sender's file comes from, see ``Takeover``; None if it has none."""
    known_takeover: str | None = None
    """The newest takeover of the recipient that the sender knows: an older file is not used."""
    version: int = field(default=OLDEST, compare=False)
    """Wire version in which it travels, and is answered."""

    @property
    def is_from_restored(self) -> bool:
        """Whether the sender's file was restored since it pushed before."""
        return self.greeting is not None and self.greeting.startswith(RESTORED)

    @property
    def last_id(self) -> str:
        """Id of the last frame, which names the parcel's content to the peer; empty without one."""
        return self.frames[-1].id if self.frames else ""


def in_version(parcel: Parcel, version: int) -> Parcel:
    """Return a parcel that travels in a wire version."""
    return parcel if parcel.version == version else replace(parcel, version=version)


Verdict = Literal["accepted", "duplicate", "fork", "busy", "superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The peer's answer to a parcel.

    ``fork`` means that number and predecessor do not continue the stream of the peer, which
    ``epoch`` and ``number`` describe.
    """

    verdict: Verdict
    receipts: tuple[Receipt, ...] = ()
    durability: Durability = "safe"
    epoch: str = ""
    number: int = 0
    base_position: tuple[str, int] | None = None
    """With ``fork``: the position before the epoch of that stream; None without a stream."""
    retry_after: int = 0
    """With ``busy``: milliseconds after which to try again; 0 leaves that to the sender."""
    takeover: str | None = None
    """
    The takeover that the recipient's file comes from.

    With ``superseded``: the one after which the sender's file is not used any more.
    """
    room: int | None = None
    """
    Further messages of its pools that the recipient takes from any sender; None: not told.

    A hint: the recipient may refuse none of those that it gets beyond it.
    """
    newest: int = field(default=0, compare=False)
    """Wire version that the peer reads, if it is newer than that of the parcel."""

    @property
    def ends(self) -> bool:
        """Whether a message of the parcel has ended: its receipt is final."""
        return not UNENDED.issuperset(map(STATE, self.receipts))


def refuse_damaged(parcel: Parcel) -> None:
    """Raise Unreachable if a frame was damaged on the way; the same parcel is then pushed again."""
    for carried in parcel.frames:
        if digest(carried.text) != carried.digest:
            msg = f"frame {carried.id} was damaged on the way: its digest does not match"
            raise Unreachable(msg)


RECEIPTS_MAX: Final = 100_000
"""Maximum receipts of a parcel."""
REASON_MAX: Final = 1000
"""Maximum characters of a receipt's reason; an encoder truncates longer ones."""
ENVELOPE: Final = 640
"""Bytes of an event without names, ids, frames and receipts, at most; a test measures it."""
FRAME: Final = len(f',{{"id":,"digest":"{"0" * 32}","length":{2**63},"redelivered":false}},')
RECEIPT: Final = len('{"id":,"state":"processed","reason":null},')
LONGEST_ID: Final = 6 * 256 + 2
LONGEST_REASON: Final = 6 * REASON_MAX + 2
"""Bytes of the longest reason as JSON, where a control character takes six."""
LONGEST_TAKEOVER: Final = len(f',"takeover":"{0:08} {0:013}  "') + 6 * (200 + 500)
"""Bytes of the longest takeover in an answer, see ``Takeover``."""
LONGEST_BASE: Final = len(f',"base_position":{{"epoch":,"number":{2**63}}}') + LONGEST_ID


def encoded_size(parcel: Parcel) -> int:
    """Return an upper bound of an encoded parcel's bytes, near its true size."""
    positions = filter(None, (parcel.base_position, parcel.stream_position))
    texts = [parcel.sender, parcel.sender, parcel.recipient, parcel.epoch, parcel.previous]
    texts += [*parcel.unsettled, *(epoch for epoch, _ in positions)]
    return (
        ENVELOPE
        + _optional_bytes(parcel)
        + sum(_text_bytes(text) + 1 for text in texts)
        + sum(frame_bytes(each.id, byte_length(each.text)) for each in parcel.frames)
        + sum(map(receipt_bytes, parcel.receipts))
    )


def _optional_bytes(parcel: Parcel) -> int:
    """Return the bytes of the texts that few parcels have."""
    optional = (
        ("greeting", parcel.greeting),
        ("takeover", parcel.takeover),
        ("known_takeover", parcel.known_takeover),
    )
    return sum(len(name) + 4 + _text_bytes(text) for name, text in optional if text is not None)


def frame_bytes(message_id: str, length: int) -> int:
    """Return the maximum bytes that a frame of *length* bytes adds to an encoded parcel."""
    return FRAME + _text_bytes(message_id) + length


def receipt_bytes(receipt: Receipt) -> int:
    """Return the maximum bytes that a receipt adds to an encoded parcel or answer."""
    reason = receipt.reason
    told = 0 if reason is None else _text_bytes(reason[:REASON_MAX])
    return RECEIPT + _text_bytes(receipt.id) + told


def answer_bytes(parcel: Parcel) -> int:
    """Return the maximum bytes of an answer to *parcel*, as a reader's limit."""
    texts = parcel.sender, parcel.recipient, parcel.recipient, parcel.epoch
    return (
        ENVELOPE
        + LONGEST_ID
        + LONGEST_TAKEOVER
        + LONGEST_BASE
        + sum(map(_text_bytes, texts))
        + sum(RECEIPT + LONGEST_REASON + _text_bytes(each.id) for each in parcel.frames)
    )


def _text_bytes(text: str) -> int:
    return len(to_json(text))


@dataclass(frozen=True, slots=True)
class InboundRule:
    """
    The types, channels and mailboxes, as patterns, that messages of a peer may name.

    No peer may use topics under ``_system``.
    """

    types: tuple[str, ...] | None = None
    """None for all types except those under ``_system``."""
    channels: tuple[str, ...] = ()
    mailboxes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, types: Iterable[str] | None, channels: Iterable[str], mailboxes: Iterable[str]
    ) -> Self:
        """Return the rule of these patterns; raise TopicError for an invalid one."""
        return cls(
            None if types is None else tuple(map(check_pattern, types)),
            tuple(map(check_pattern, channels)),
            tuple(map(check_pattern, mailboxes)),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rule that a peer's row holds."""
        types, channels, mailboxes = json.loads(text)
        return cls(None if types is None else tuple(types), tuple(channels), tuple(mailboxes))

    def text(self) -> str:
        """Return the rule as it is stored."""
        return json.dumps([self.types, self.channels, self.mailboxes])

    def problem(self, frame: Frame) -> str:
        """Return the name in *frame* that violates the rule, or an empty text."""
        named = (
            ("type", frame.type, self.types),
            ("topic", frame.topic, None),
            ("channel", frame.channel, self.channels),
            ("mailbox", frame.mailbox, self.mailboxes),
        )
        for attribute, name, patterns in named:
            if name is not None and not _allowed(patterns, name):
                return f"{attribute} {quoted(name)}"
        return ""


NETWORK_RULE: Final = InboundRule()
"""The rule of network peers without their own rule."""


def _allowed(patterns: Iterable[str] | None, name: str) -> bool:
    if patterns is None:
        return name.partition(".")[0] != SYSTEM
    return any(matches(pattern, name) for pattern in patterns)
