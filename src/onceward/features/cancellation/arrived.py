"""Cancel messages that have arrived: one commit ends each, and its handler's lease."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from onceward.core.accept.policy import Endings
from onceward.core.end import sent
from onceward.core.rows import inbox, senders, tickets
from onceward.core.send import internal
from onceward.core.send.add import NO_ASKER, add_if_possible
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame
from onceward.message.ids import OWN_ID
from onceward.message.options import FrameHeaders
from onceward.message.parcel import UNANSWERED, Receipt
from onceward.message.vocabulary import CANCEL, PRIORITIES, reason_text

CANCELLED: Final = "cancelled"
"""A recipient's decision: the message is cancelled."""
TOO_LATE: Final = "too late"
"""Start of a recipient's decision that it is too late; the state of the message follows."""
UNKNOWN: Final = "outside the deduplication window"
"""State of a message whose record may already be pruned."""
ASKED: Final = """
SELECT o.state, i.agent, o.id, o.recipient, o.session
  FROM json_each(?) AS j
  JOIN _onceward_outbox AS o ON o.id = j.value
  JOIN _onceward_file_info AS i
 WHERE o.ended_at IS NULL OR o.state = 'acked'
 ORDER BY o.seq
"""
PRESENT: Final = """
SELECT b.seq, b.state, p.outcome,
       coalesce((SELECT horizon_id FROM _onceward_sender_streams WHERE sender = :sender), '')
  FROM (SELECT 1) AS one
  LEFT JOIN _onceward_inbox AS b ON b.sender = :sender AND b.id = :id
  LEFT JOIN _onceward_processed_messages AS p
    ON p.sender = :sender AND p.message_id = :id AND p.consumer = ''
"""


class ArrivedMessage(NamedTuple):
    """The state of a sender's message, as its recipient knows it."""

    seq: int | None
    state: str | None
    outcome: str | None
    horizon_id: str

    @property
    def known_as(self) -> str | None:
        """Return how it ended, otherwise its state; None for one that never came."""
        return self.outcome or self.state


class SentRequest(NamedTuple):
    """A request that has left, for asking its recipient to cancel it."""

    agent: str
    id: str
    recipient: str
    session: str


def heard(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Return True: a request to cancel is decided once all messages of its parcel are stored."""
    del tx, sender, frame
    return True


def decide(endings: Endings, tx: StoreTransaction, sender: str, frames: Sequence[Frame]) -> None:
    """Decide which messages a sender may still cancel, once those of its parcel are stored."""
    Canceller(endings).take(tx, sender, frames)


class Canceller:
    """Cancels messages of an inbox, for its agent or at their sender's request."""

    def __init__(self, endings: Endings) -> None:
        self._endings, self._emitter = endings, endings.emitter

    def end(self, tx: StoreTransaction, seqs: Sequence[int], reason: str) -> set[int]:
        """End the waiting and running ones of the messages; return their sequences."""
        ended = self._endings.cancel(tx, seqs, reason)
        if ended.unawaited:
            self._cancel_requests(tx, ended.unawaited, reason)
        return ended.seqs

    def _cancel_requests(self, tx: StoreTransaction, ids: Sequence[str], reason: str) -> None:
        """
        Cancel the requests of ended messages' handlers, whose replies are no longer awaited.

        A request that has not left is withdrawn; the recipients of the others are asked.
        """
        _, _, said = reason.partition(": ")
        for state, *row in tx.rows(ASKED, (json.dumps(ids),)):
            request = SentRequest(*row)
            if state == "pending" and sent.cancel(tx, request.id):
                self._emitter.cancelled(tx, [(request.id, request.recipient, reason)])
            elif request.recipient == request.agent:
                found = self.look_up(tx, request.agent, request.id)
                self.end(tx, [] if found.seq is None else [found.seq], reason)
            else:
                ask_to_cancel(tx, request, said)

    def take(self, tx: StoreTransaction, sender: str, asked: Sequence[Frame]) -> None:
        """Decide the requests of a sender, and report each decision in the same commit."""
        for frame in asked:
            decision = self._decide(tx, sender, frame)
            told = Receipt(frame.id, "processed", reason_text(UNANSWERED, decision))
            inbox.note_reason(tx, sender, frame.id, str(told.reason))  # for one that asks again
            senders.add_receipts(tx, [(sender, told)])

    def _decide(self, tx: StoreTransaction, sender: str, frame: Frame) -> str:
        message_id = frame.causationid or ""
        found = self.look_up(tx, sender, message_id)
        reason = cancel_reason(frame.data)
        if found.seq is not None and self.end(tx, [found.seq], reason):
            return CANCELLED
        if found.known_as is not None:
            same = found.known_as == CANCELLED
            return CANCELLED if same else f"{TOO_LATE}: {found.known_as}"
        if message_id <= found.horizon_id and OWN_ID.fullmatch(message_id):
            return f"{TOO_LATE}: {UNKNOWN}"
        senders.mark_one(tx, sender, message_id, frame.session, CANCELLED)
        senders.add_receipts(tx, [(sender, Receipt(message_id, "cancelled", reason))])
        return CANCELLED

    @staticmethod
    def look_up(tx: StoreTransaction, sender: str, message_id: str) -> ArrivedMessage:
        """Return the stored state of a message."""
        return ArrivedMessage(*tx.rows(PRESENT, {"sender": sender, "id": message_id})[0])


def cancel_reason(said: object) -> str:
    """Return the reason of a cancelled message as it is stored."""
    return reason_text("cancelled", said[:200] if isinstance(said, str) else "")


def ask_to_cancel(tx: StoreTransaction, asked: SentRequest, reason: str) -> None:
    """Ask the recipient of a request to cancel it, if the outbox accepts one more message."""
    key = f"{CANCEL}:{asked.id}"
    headers = FrameHeaders(
        sender=asked.agent,
        recipient=asked.recipient,
        type=CANCEL,
        kind=CANCEL,
        session=asked.session,
        rank=PRIORITIES.index("critical"),
        ordering_key=key,
        lane=key,
        key=key,
        causation_id=asked.id,
    )
    message = internal.compose(headers, reason or None, tx.now)
    if add_if_possible(tx, message):
        tickets.open_one(tx, message.id, asked.session, asked.recipient, tx.now, None, *NO_ASKER)
