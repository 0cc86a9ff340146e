"""
Find again what a restored file had sent, at the peers that have it.

A peer that answers the greeting of a restored file is asked for the messages that came after the
last one that the file knows. It sends them in pages, each with the outcomes of its messages, and
the commit that stores a page asks for the next one. Questions and pages are ordinary messages: they
go over every transport, come once, and go on after a restart. A message that is larger than a page
has one of its own, after which nothing is asked for: a transport may refuse it as too large, which
does not end the search. A message that is found again is stored as sent, with its outcome; a
handler or a request that sends it again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

from onceward.core.end import received, sent
from onceward.core.rows import arrived, dead_letters, outbox
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send import internal
from onceward.core.send.add import add_found, add_if_possible
from onceward.errors import InvalidMessage
from onceward.file import identity
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame, digest
from onceward.message.options import FrameHeaders
from onceward.message.parcel import REASON_MAX, Parcel, Receipt, ReceiptState
from onceward.message.settings import Settings
from onceward.message.vocabulary import FOUND, LOST, PRIORITIES

PAGE: Final = 200
"""Maximum messages of a page."""
PAGE_BYTES: Final = 256 << 10
"""Maximum bytes of a page of several messages."""
ESCAPED: Final = 2
"""A frame is JSON, so it takes at most this many times its bytes as text in JSON."""
REASON: Final = 200
"""Maximum characters of a reason in a page."""
EACH: Final = 6 * REASON // ESCAPED
"""Bytes of a page, before they are escaped, that are kept for the outcome of each message."""
SCANNED: Final = 5_000
"""Maximum messages of all senders among which a page looks for those of its sender."""
ToldMessage = tuple[str, ReceiptState, str | None]
"""Frame, outcome and reason of a message."""
Count = Annotated[int, Field(ge=0, lt=2**63)]


class LostQuestion(BaseModel):
    """Which messages of its sender a restored file asks for."""

    known: str = ""
    """With the first question: the id of the last one that it knows; empty if it knows none."""
    after: Count = 0
    upto: Count | None = None
    """With later ones: the part of the recipient's inbox that is left, by sequence."""
    max_bytes: Count


class FoundPage(BaseModel):
    """Messages that a recipient has from a restored sender, and the part that is left."""

    after: Count
    upto: Count
    sent: Annotated[list[ToldMessage], Field(max_length=PAGE)]


B = TypeVar("B", LostQuestion, FoundPage)


def ask(tx: StoreTransaction, parcel: Parcel) -> None:
    """Ask a peer that has greeted for the messages that this file has lost, once per restore."""
    known = identity.take_lost_after(tx, parcel.sender)
    if known is not None:
        headers = _headers(parcel.recipient, parcel.sender, LOST, str(parcel.greeting))
        _send(tx, headers, LostQuestion(known=known, max_bytes=identity.max_body(tx)))


def tell(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Answer a restored sender with pages of the messages that this file has from it."""
    asked = _read(LostQuestion, frame)
    for place, page in enumerate(() if asked is None else _pages(tx, sender, asked)):
        headers = _headers(frame.recipient, sender, FOUND, f"{frame.id}:{place}")
        _send(tx, headers._replace(in_reply_to=frame.id), page)
    return True


def keep(settings: Settings, tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Store a page of messages that a peer has from this file, and ask for the next one."""
    page = _read(FoundPage, frame)
    if page is None or not outbox.has_sent(tx, frame.inreplyto or "", sender, LOST):
        return True
    found: list[Receipt] = []
    for text, state, reason in page.sent:
        message_id = _store(tx, frame.recipient, sender, text)
        if message_id is not None:
            found.append(Receipt(message_id, state, reason and reason[:REASON_MAX]))
    ask_at = tx.now + round(1000 * settings.ack_timeout)
    sent.settle(tx, sender, found, ask_at=ask_at, stored_ends=settings.ack == "stored")
    if page.after < page.upto:
        rest = LostQuestion(after=page.after, upto=page.upto, max_bytes=identity.max_body(tx))
        _send(tx, _headers(frame.recipient, sender, LOST, frame.id), rest)
    return True


def _headers(agent: str, peer: str, kind: str, cause: str) -> FrameHeaders:
    """Return the headers of a question or page that comes after all ordinary messages, once."""
    return FrameHeaders(
        sender=agent, recipient=peer, type=kind, kind=kind, key=f"{kind}:{cause}",
        rank=PRIORITIES.index("background"), ordering_key=LOST, lane=LOST,
    )  # fmt: skip


def _send(tx: StoreTransaction, headers: FrameHeaders, body: BaseModel) -> None:
    add_if_possible(tx, internal.compose(headers, body.model_dump(), tx.now))


def _read(kind: type[B], frame: Frame) -> B | None:
    """Return the body of a message as *kind*; None if it is none."""
    try:
        return kind.model_validate(frame.data)
    except ValidationError:
        return None


def _pages(tx: StoreTransaction, sender: str, asked: LostQuestion) -> Iterator[FoundPage]:
    """Yield the next messages of a sender: a page of them, and one that is larger than a page."""
    after, upto = asked.after, asked.upto
    if upto is None:
        after, upto = arrived.seq_of(tx, sender, asked.known), arrived.newest(tx)
    last, listed = arrived.sizes_of(tx, sender, (after, upto), slice_=SCANNED, limit=PAGE)
    most = min(identity.max_body(tx), asked.max_bytes) // ESCAPED - EACH
    room = full = min(PAGE_BYTES // ESCAPED, most)
    chosen: list[int] = []
    alone: list[int] = []
    for seq, size in listed:
        if size > most:
            continue  # no message can carry it
        if size <= room:
            chosen.append(seq)
            room -= size + EACH
        elif size > full and not alone:
            alone.append(seq)
        else:
            last = seq - 1
            break
    if chosen or last < upto:
        yield FoundPage(after=last, upto=upto, sent=_told(tx, sender, chosen))
    if alone:
        yield FoundPage(after=upto, upto=upto, sent=_told(tx, sender, alone))


def _told(tx: StoreTransaction, sender: str, seqs: list[int]) -> list[ToldMessage]:
    """Return frame, outcome and reason of messages of a sender."""
    told: list[ToldMessage] = []
    for text, *known in arrived.outcomes_of(tx, sender, seqs):
        _, state, reason = received.present(*known)
        told.append((text, state, reason and reason[:REASON]))
    return told


def _store(tx: StoreTransaction, agent: str, peer: str, text: str) -> str | None:
    """Store a message that was found again; return its id, None if it is known or not ours."""
    try:
        of = Frame.parse(text)
    except InvalidMessage:
        return None
    if (of.sender, of.recipient) != (agent, peer):
        return None
    if dead_letters.gave_up(tx, peer, of.id):  # its outcome is noted there
        return of.id
    headers = FrameHeaders(
        sender=agent, recipient=peer, type=of.type, session=of.session, topic=of.topic,
        rank=of.priority, lane=of.partitionkey or of.session, correlation_id=of.correlationid,
        in_reply_to=of.inreplyto, expires_at=of.expires_at, key=of.idempotencykey,
        channel=of.channel, kind=of.kind,
    )  # fmt: skip
    message = OutgoingMessage(
        headers=headers, id=of.id, recipient=peer, frame=text, digest=digest(text),
        created_at=tx.now if of.time is None else round(1000 * of.time.timestamp()),
    )  # fmt: skip
    return of.id if add_found(tx, message) else None
