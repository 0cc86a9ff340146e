"""The outbox: what was sent, and how far each message has come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from zlib import crc32

from pydantic_core import to_json

from onceward.core.send.bodies import (
    BODY_DIGEST,
    FULL_FRAME,
    insert_body,
    release_body,
    split_digest,
)
from onceward.errors import Conflict
from onceward.file.connection import ConstraintError, schema_damage
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.frame import Frame, digest
from onceward.message.parcel import UNANSWERED, Receipt
from onceward.message.quoting import quoted

if TYPE_CHECKING:
    from onceward.observed import ObservedSend

FIND_DUPLICATE: Final = f"""
SELECT id, {FULL_FRAME} FROM _onceward_outbox AS o WHERE id = ? OR (recipient = ? AND key = ?)
"""
FIND_DEAD: Final = """
SELECT id
  FROM _onceward_dead_letters
 WHERE origin = 'outbox' AND (id = ?1 OR (peer = ?2 AND key = ?3))
 ORDER BY id <> ?1
 LIMIT 1
"""
COMPARED: Final = {
    "recipient": "recipient",
    "type": "type",
    "session": "session",
    "topic": "topic",
    "priority": "priority",
    "partitionkey": "ordering_key",
    "inreplyto": "in_reply_to",
    "replyto": "reply_to",
    "idempotencykey": "key",
    "channel": "channel",
    "kind": "kind",
    "mailbox": "mailbox",
    "own_headers": "headers",
}
"""Attributes of a frame that the recipient acts on, and the options that set them."""
READY: Final = f"""
SELECT seq, id, {FULL_FRAME}, digest, expires_at, pushed, attempts, lane, rank, sent_at,
       CASE WHEN body_id IS NOT NULL THEN frame END, {BODY_DIGEST}
  FROM _onceward_outbox AS o
 WHERE recipient = ? AND state = 'pending' AND due_at IS NULL AND held_by IS NULL
 ORDER BY rank, seq
 LIMIT ?
"""
BY_SEQ: Final = f"""
SELECT o.seq, o.id, {FULL_FRAME}, o.digest, o.expires_at, o.pushed, o.attempts, o.lane,
       o.rank, o.sent_at,
       CASE WHEN o.body_id IS NOT NULL THEN o.frame END, {BODY_DIGEST}
  FROM json_each(?) AS j JOIN _onceward_outbox AS o ON o.seq = j.value
 ORDER BY j.key
"""
SENT: Final = """
UPDATE _onceward_outbox
   SET state = 'sent', sent_at = :now, held_by = NULL, pushed = 1, parcel_ordinal = :parcel,
       attempts = attempts + (:parcel IS NOT NULL),
       free_attempts = CASE WHEN :held THEN attempts + (:parcel IS NOT NULL)
                            WHEN sent_at IS NULL THEN attempts + (:parcel IS NOT NULL) - 1
                            ELSE free_attempts END,
       due_at = CASE WHEN NOT :held OR sent_at IS NULL THEN :ask_1
                     WHEN :now - sent_at < 2 * :pause THEN :ask_2
                     WHEN :now - sent_at < 4 * :pause THEN :ask_4
                     WHEN :now - sent_at < 8 * :pause THEN :ask_8
                     ELSE :ask_16 END
 WHERE id IN (SELECT value FROM json_each(:ids)) AND recipient = :peer AND state = 'pending'
RETURNING id
"""
ASK_PAUSES: Final = (1, 2, 4, 8, 16)
"""
Pauses before a peer is asked about a message, in times of the first one.

Each is prolonged by up to a quarter, to a moment that all messages of the peer share:
what was sent at about the same time is asked about in one push.
"""
SENT_BEFORE: Final = """
SELECT id
  FROM _onceward_outbox
 WHERE id IN (SELECT value FROM json_each(?)) AND recipient = ?
   AND state = 'pending' AND sent_at IS NOT NULL
"""
ACKED: Final = """
UPDATE _onceward_outbox
   SET state = 'acked', sent_at = coalesce(sent_at, :now), ended_at = :now, due_at = NULL,
       held_by = NULL, pushed = 1, reason = NULL, attempts = attempts + (:parcel IS NOT NULL),
       parcel_ordinal = coalesce(:parcel, parcel_ordinal)
 WHERE id IN (SELECT value FROM json_each(:ids)) AND recipient = :peer AND state = :was
RETURNING id, sent_at = :now
"""
FAILED: Final = """
UPDATE _onceward_outbox
   SET state = 'failed', sent_at = coalesce(sent_at, :now), ended_at = :now, due_at = NULL,
       held_by = NULL, pushed = 1, reason = :reason, attempts = attempts + (:parcel IS NOT NULL),
       parcel_ordinal = coalesce(:parcel, parcel_ordinal)
 WHERE id = :id AND recipient = :peer AND state = :was
RETURNING id
"""
DROPPED: Final = """
UPDATE _onceward_outbox
   SET state = 'dropped', sent_at = coalesce(sent_at, :now), ended_at = :now, due_at = NULL,
       held_by = NULL, reason = :reason, pushed = 1,
       parcel_ordinal = coalesce(:parcel, parcel_ordinal)
 WHERE id = :id AND recipient = :peer AND state = :was
RETURNING id
"""
LATE: Final = """
UPDATE _onceward_dead_letters SET late_outcome = :state, late_at = :now
 WHERE origin = 'outbox'
   AND peer = :peer
   AND id IN (SELECT value FROM json_each(:ids))
   AND late_outcome IS NULL
"""
TICKET_FAILED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = ?, ended_at = ?
 WHERE id = ? AND state = 'open'
"""
REQUEST_FAILED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = :reason, ended_at = :now
 WHERE id = :id AND recipient = :peer AND state = 'open'
"""
DUE: Final = """
SELECT seq, state, attempts - free_attempts
  FROM _onceward_outbox
 WHERE due_at <= ?
 ORDER BY due_at, seq LIMIT ?
"""
REQUEUE: Final = """
UPDATE _onceward_outbox
   SET due_at = NULL
 WHERE seq IN (SELECT value FROM json_each(?)) AND +due_at <= ? AND state = 'pending'
"""
# The row itself must be due, not only its entry in a damaged index:
# it would be pushed again without a pause.
ASK: Final = """
UPDATE _onceward_outbox
   SET state = 'pending', due_at = NULL
 WHERE seq IN (SELECT value FROM json_each(?)) AND +due_at <= ? AND state = 'sent'
"""
EXPIRED: Final = """
SELECT seq FROM _onceward_outbox
 WHERE expires_at <= ? AND expires_at IS NOT NULL AND state = 'pending' AND sent_at IS NULL
 ORDER BY expires_at LIMIT ?
"""
IN_PARCEL: Final = """
SELECT o.seq, o.id, o.state, o.lane, o.rank, o.attempts, o.free_attempts
  FROM json_each(?) AS j JOIN _onceward_outbox AS o ON o.seq = j.value
 ORDER BY j.key
"""
HOLD_BACK: Final = """
UPDATE _onceward_outbox SET due_at = ?, pushed = 1
 WHERE seq = ? AND state = 'pending'
"""
# Whether the peer of row o may know it: it was in a parcel that was answered or given up, is in
# the one in flight, or was written before this file was put back or copied.
PUSHED: Final = """
(o.pushed
 OR o.seq IN (SELECT j.value
                FROM _onceward_peers AS p, json_each(p.in_flight_seqs) AS j
               WHERE p.in_flight_seqs IS NOT NULL)
 OR o.seq <= coalesce((SELECT p.redelivered_upto_seq
                         FROM _onceward_peers AS p
                        WHERE p.name = o.recipient), 0))
"""
CANCEL: Final = f"""
UPDATE _onceward_outbox AS o
   SET state = 'cancelled', due_at = NULL, held_by = NULL, ended_at = ?, reason = 'cancelled'
 WHERE id = ? AND state = 'pending' AND NOT {PUSHED}
"""
CANCELLED: Final = "SELECT 1 FROM _onceward_outbox WHERE id = ? AND state = 'cancelled'"
RESEND: Final = """
UPDATE _onceward_outbox SET state = 'pending', due_at = NULL, ended_at = NULL
 WHERE recipient = ?
   AND state = ?
   AND (parcel_ordinal > ? OR parcel_ordinal IS NULL)
   AND (state = 'sent' OR expires_at IS NULL OR expires_at > ?)
RETURNING id
"""
OLDEST: Final = "SELECT id FROM _onceward_outbox WHERE recipient = ? ORDER BY seq LIMIT 1"

ID: Final = attrgetter("id")


class OutgoingMessage(NamedTuple):
    """A message that only needs to be stored: one field for each column, and its body."""

    id: str
    recipient: str
    session: str
    lane: str
    type: str
    topic: str | None
    rank: int
    due_at: Millis | None
    held_by: str | None
    """``channel:NAME`` or ``limit:SCOPE:NAME``; None where nothing holds it."""
    expires_at: Millis | None
    key: str | None
    frame: str
    digest: bytes
    created_at: Millis
    channel: str | None
    kind: str | None
    correlation_id: str | None
    in_reply_to: str | None = None
    body_id: int | None = None
    """The stored body, where the body stands beside the message and the frame ends before it."""
    body: str | None = None
    """The text of a body that stands beside the message; no column of the outbox."""
    chosen_id: bool = False
    """Whether the caller chose the id, as the frame says, too; no column of the outbox."""
    sending: ObservedSend | None = None
    """The send that it belongs to, where observers see it; no column of the outbox."""

    @property
    def text(self) -> str:
        """The whole frame, with its body."""
        return self.frame if self.body is None else f"{self.frame}{self.body}}}"

    @property
    def caller_chose_id(self) -> bool:
        """Whether the caller chose the id or a key, so that the message may be known already."""
        return self.chosen_id or self.key is not None


COLUMNS: Final = OutgoingMessage._fields[: OutgoingMessage._fields.index("body")]
"""The columns that a new message fills, in the order of its fields."""
ROW: Final = itemgetter(slice(len(COLUMNS)))
"""The bindings of ``INSERT``, for a message."""
CHOSEN: Final = attrgetter("chosen_id")
KEY: Final = attrgetter("key")
INSERT: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(COLUMNS)})
VALUES ({", ".join("?" * len(COLUMNS))})
"""


class OutboxRow(NamedTuple):
    """A message on its way out, as the dispatcher reads it."""

    seq: int
    id: str
    frame: str
    digest: bytes | None
    expires_at: Millis | None
    pushed: int
    attempts: int
    lane: str
    rank: int
    sent_at: Millis | None
    head: str | None = None  # where the body is stored once: the frame up to it
    body_digest: bytes | None = None

    def expired(self, now: Millis) -> bool:
        """Whether it has expired; of a message that the peer has stored the peer decides."""
        return self.sent_at is None and self.expires_at is not None and self.expires_at <= now

    @property
    def intact(self) -> bool:
        """Whether the frame is what was written; rows from plain SQL carry no digest yet."""
        if self.head is None:
            return self.digest is None or digest(self.frame) == self.digest
        if self.body_digest is None:
            return True  # its body is gone, and the frame says so
        sealed = self.digest is None or split_digest(self.head, self.body_digest) == self.digest
        return sealed and digest(self.frame[len(self.head) : -1]) == self.body_digest

    @property
    def frame_digest(self) -> bytes:
        """The digest of the whole frame, as it is carried."""
        return digest(self.frame) if self.head is not None or self.digest is None else self.digest


def undelivered(tasks: str) -> str:
    """
    Return the statement that tells callers, once each, that their *tasks* were never handled.

    *tasks* selects ``id``, ``session``, ``error`` and ``head`` of messages, tasks or not; the
    head is a frame, or the frame with another body.
    """
    return f"""
INSERT INTO onceward_send (recipient, type, session, key, body)
SELECT i.agent, 'worker_result', json_extract(d.head, '$.callersession'), 'worker_result:' || d.id,
       json_object('dispatch_id', d.id, 'session', d.session, 'outcome', 'undelivered',
                   'error', d.error, 'run_id', NULL, 'result', NULL, 'partial', NULL)
  FROM _onceward_file_info AS i, ({tasks}) AS d
 WHERE instr(d.head, '"callersession"')
   AND json_type(d.head, '$.callersession') = 'text'
   AND NOT EXISTS (SELECT 1
                     FROM _onceward_outbox AS r
                    WHERE r.recipient = i.agent AND r.key = 'worker_result:' || d.id)
"""


def add(tx: StoreTransaction, message: OutgoingMessage) -> str:
    """
    Store a message; return its id, or the id of the same message stored before.

    A body beside the message is stored too, unless ``body_id`` names it already.

    Raises:
        Conflict: the id or key stands for another message.
        QueueFull, Paused: from the admission trigger; nothing was written.

    """
    beside = message.body is not None and message.body_id is None
    stored = with_body(tx, message) if beside else message
    if tx.batching and stored.body_id is None and not stored.caller_chose_id:
        tx.gather(INSERT, ROW(stored))
        return stored.id
    try:
        tx.run(INSERT, ROW(stored))
    except ConstraintError as error:
        if beside:
            release_body(tx, cast("int", stored.body_id))
        if "UNIQUE" not in str(error):
            raise schema_damage(error) from error.__cause__
        return _duplicate(tx, message)
    return message.id


def with_body(tx: StoreTransaction, message: OutgoingMessage) -> OutgoingMessage:
    """Store the body that stands beside a message; return the message with its number."""
    return message._replace(body_id=insert_body(tx, cast("str", message.body)))


def any_may_be_known(messages: Sequence[OutgoingMessage]) -> bool:
    """Return whether the caller chose the id or a key of one of *messages*."""
    return any(map(CHOSEN, messages)) or any(map(KEY, messages))


def is_known(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Return whether a message of this id or key was stored before."""
    return bool(tx.rows(FIND_DUPLICATE, (message.id, message.recipient, message.key)))


def _duplicate(tx: StoreTransaction, message: OutgoingMessage) -> str:
    """Return the id of the same message stored before; raises Conflict where it is another one."""
    known = tx.rows(FIND_DUPLICATE, (message.id, message.recipient, message.key))
    if len(known) > 1:
        two = sorted((str(row[0]) for row in known), key=lambda each: each != message.id)
        msg = (
            f"id {two[0]} and key {quoted(message.key)} to {message.recipient} stand for two"
            " messages: choose another id or key"
        )
        raise Conflict(
            msg,
            message_id=two[0],
            key=message.key,
            differs=("message_id",),
            reason="sent before",
        )
    [(known_id, frame)] = known
    differs = tuple(_differences(Frame.parse(frame), message))
    if not differs:
        return str(known_id)
    raise _conflict(message, str(known_id), differs)


def _conflict(message: OutgoingMessage, known_id: str, differs: tuple[str, ...]) -> Conflict:
    """Return the error that names the id, or the key, that stands for another message."""
    by_id = known_id == message.id
    name = "id" if by_id else "key"
    said = f"id {message.id}" if by_id else f"key {quoted(message.key)} to {message.recipient}"
    msg = (
        f"{said} already stands for message {known_id} with another {', '.join(differs)}:"
        f" choose another {name}, or send the same message"
    )
    return Conflict(
        msg,
        message_id=known_id,
        key=None if by_id else message.key,
        differs=differs,
        reason="sent before",
    )


def _differences(known: Frame, message: OutgoingMessage) -> Iterator[str]:
    """
    Yield the options that make a message another one than that of the same id or key.

    Spans and moments are those of the first; ids of the conversation are only told.
    """
    sent = Frame.parse(message.text)
    if message.chosen_id and known.id != sent.id:
        yield "message_id"
    if to_json(known.data) != to_json(sent.data) or known.data_base64 != sent.data_base64:
        yield "body"
    for attribute, option in COMPARED.items():
        if getattr(known, attribute) != getattr(sent, attribute):
            yield option


def refuse_dead(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Raise Conflict if the id or key is a dead letter: it is replayed, not sent again."""
    for (dead,) in tx.rows(FIND_DEAD, (message.id, message.recipient, message.key)):
        by_id = dead == message.id
        what = f"id {dead}" if by_id else f"key {quoted(message.key)} to {message.recipient}"
        name = "id" if by_id else "key"
        msg = f"{what} is dead letter {dead}: replay it, or choose another {name}"
        key = None if by_id else message.key
        raise Conflict(msg, message_id=dead, key=key, reason="dead letter")


def ready(tx: StoreTransaction, peer: str, limit: int) -> list[OutboxRow]:
    """Return what may be packed for *peer* now, in the order of handing over."""
    return list(starmap(OutboxRow, tx.rows(READY, (peer, limit))))


def by_seq(tx: StoreTransaction, seqs: Sequence[int]) -> list[OutboxRow]:
    """Return the rows of a stored parcel, in its order; rows that are gone are missing."""
    return [OutboxRow(*row) for row in tx.rows(BY_SEQ, (json.dumps(seqs),))]


NONE_AGAIN: Final[frozenset[str]] = frozenset()


class Moved(NamedTuple):
    """Which messages changed state by a batch of receipts."""

    sent: tuple[str, ...] = ()
    acked: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[str, ...] = ()
    """Requests that ended without a reply."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(id, reason) of messages that a policy of the peer dropped."""
    sent_again: frozenset[str] = NONE_AGAIN
    """Those of ``sent`` that the peer was known to hold: it was asked for their outcome."""
    at_once: tuple[str, ...] = ()
    """Those of ``acked`` that the peer was not known to hold."""


NOTHING_MOVED: Final = Moved()


def settle(
    tx: StoreTransaction,
    peer: str,
    receipts: Iterable[Receipt],
    *,
    ask_at: Millis,
    stored_ends: bool,
    parcel: int | None = None,
) -> Moved:
    """
    Take the peer's word for its messages, a constant number of statements for any number of them.

    A receipt may come early, late or twice: states only ever move forward.
    """
    by_state: dict[str, list[Receipt]] = {}
    unanswered: list[Receipt] = []
    for receipt in receipts:
        by_state.setdefault(receipt.state, []).append(receipt)
        if receipt.reason is not None and receipt.reason.startswith(UNANSWERED):
            unanswered.append(receipt)
    done = list(map(ID, by_state.get("processed", ())))
    stored = list(map(ID, by_state.get("stored", ())))
    held = list(map(ID, by_state.get("duplicate", ())))
    if stored_ends:
        done, stored, held = done + stored + held, [], []
    acked, at_once = _ack(tx, peer, done, parcel) if done else ([], [])
    sent = _sent(tx, peer, stored, ask_at, parcel, held=False) if stored else []
    again = NONE_AGAIN
    if held:
        again = frozenset(i for (i,) in tx.rows(SENT_BEFORE, (json.dumps(held), peer)))
        sent += _sent(tx, peer, held, ask_at, parcel, held=True)
    failed: list[tuple[str, str]] = []
    for receipt in by_state.get("dead", ()):
        if _fail(tx, peer, receipt, parcel):
            failed += ((receipt.id, receipt.reason or "dead"),)
    return Moved(
        tuple(sent),
        tuple(acked),
        tuple(failed),
        _fail_requests(tx, peer, unanswered) if unanswered else (),
        _drop(tx, peer, by_state["dropped"], parcel) if "dropped" in by_state else (),
        again,
        tuple(at_once),
    )


def _drop(
    tx: StoreTransaction, peer: str, receipts: Sequence[Receipt], parcel: int | None
) -> tuple[tuple[str, str], ...]:
    """End messages that a policy of the peer dropped, known to be stored or not."""
    dropped: list[tuple[str, str]] = []
    for receipt in receipts:
        reason = receipt.reason or "dropped"
        named = {"id": receipt.id, "peer": peer, "now": tx.now, "reason": reason, "parcel": parcel}
        for was, deltas in (
            ("sent", {"sent": -1}),
            ("pending", {"ended_pending": 1}),
            ("acked", {"acked": -1}),
        ):
            if tx.rows(DROPPED, named | {"was": was}):
                bump(tx, outbox_dropped=1, **deltas)
                tx.run(TICKET_FAILED, (f"dropped: {reason}", tx.now, receipt.id))
                dropped.append((receipt.id, reason))
                break
    return tuple(dropped)


def _fail_requests(
    tx: StoreTransaction, peer: str, unanswered: Sequence[Receipt]
) -> tuple[str, ...]:
    """End the wait for replies to requests that their recipient ended without one."""
    failed: list[str] = []
    for receipt in unanswered:
        named = {"reason": receipt.reason, "now": tx.now, "id": receipt.id, "peer": peer}
        if tx.run(REQUEST_FAILED, named):
            failed.append(receipt.id)
    return tuple(failed)


def _sent(
    tx: StoreTransaction,
    peer: str,
    ids: list[str],
    ask_at: Millis,
    parcel: int | None,
    *,
    held: bool,
) -> list[str]:
    """
    Mark what the peer stored; what it *held* before proves it busy and spends no budget.

    The pause before it is asked about doubles each time.
    """
    pause, offset = ask_at - tx.now, crc32(peer.encode())
    named: dict[str, Any] = {
        "ids": json.dumps(ids),
        "peer": peer,
        "now": tx.now,
        "pause": pause,
        "parcel": parcel,
        "held": held,
    }
    for times in ASK_PAUSES:
        due = tx.now + times * pause
        named[f"ask_{times}"] = due + (offset - due) % max(1, times * pause // 4)
    moved = [str(i) for (i,) in tx.rows(SENT, named)]
    bump(tx, ended_pending=len(moved), sent=len(moved))
    return moved


def _ack(
    tx: StoreTransaction, peer: str, ids: list[str], parcel: int | None
) -> tuple[list[str], list[str]]:
    """End messages that the peer processed; return their ids, and those stored until now."""
    moved: list[str] = []
    at_once: list[str] = []
    named = {"ids": json.dumps(ids), "peer": peer, "now": tx.now, "parcel": parcel}
    for was, deltas in (
        ("sent", {"sent": -1}),
        ("pending", {"ended_pending": 1}),
        ("failed", {"failed": -1}),
    ):
        if len(moved) < len(ids):
            found = tx.rows(ACKED, named | {"was": was})
            moved += [str(i) for i, _ in found]
            if was == "pending":
                at_once = [str(i) for i, is_new in found if is_new]
            bump(tx, **{name: by * len(found) for name, by in deltas.items()})
    bump(tx, acked=len(moved))
    if len(moved) < len(ids):
        tx.run(LATE, {"ids": named["ids"], "peer": peer, "now": tx.now, "state": "processed"})
    return moved, at_once


def _fail(tx: StoreTransaction, peer: str, receipt: Receipt, parcel: int | None) -> bool:
    named = {
        "id": receipt.id,
        "peer": peer,
        "now": tx.now,
        "reason": receipt.reason or "dead",
        "parcel": parcel,
    }
    for was, deltas in (("sent", {"sent": -1}), ("pending", {"ended_pending": 1})):
        if tx.rows(FAILED, named | {"was": was}):
            bump(tx, failed=1, **deltas)
            tx.run(TICKET_FAILED, (named["reason"], tx.now, receipt.id))
            return True
    return False


def requeue_due(
    tx: StoreTransaction, limit: int, exhausted: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """
    Make due rows ready: parked ones, and sent ones whose outcome is unknown.

    The outcome of a sent row is asked for by pushing it again.

    Returns how many are ready now, and the sequences of those that were stored
    again and again but never processed: they are not asked about any more. A
    message that was stored once is always asked about.
    """
    due = tx.rows(DUE, (tx.now, limit))
    parked = [seq for seq, state, _ in due if state == "pending"]
    stored = [
        (seq, attempts > 1 and exhausted(attempts)) for seq, s, attempts in due if s == "sent"
    ]
    unanswered = [seq for seq, spent in stored if spent]
    again = [seq for seq, spent in stored if not spent]
    woken = tx.run(REQUEUE, (json.dumps(parked), tx.now)) if parked else 0
    if again:
        moved = tx.run(ASK, (json.dumps(again), tx.now))
        bump(tx, ended_pending=-moved, sent=-moved, retries=moved)
        woken += moved
    return woken, unanswered


def expired(tx: StoreTransaction, limit: int) -> list[int]:
    """Return the messages, by their sequence, whose time ran out before they were stored."""
    return [seq for (seq,) in tx.rows(EXPIRED, (tx.now, limit))]


def oldest(tx: StoreTransaction, peer: str) -> str | None:
    """Return the id of the oldest message for *peer* that is retained, None where there is none."""
    found = tx.rows(OLDEST, (peer,))
    return str(found[0][0]) if found else None


def resend(tx: StoreTransaction, peer: str, *, after: int) -> int:
    """Make everything pending again that left in a parcel later than *after*; return how many."""
    total = 0
    for was, deltas in (
        ("sent", {"sent": -1}),
        ("acked", {"acked": -1}),
        ("failed", {"failed": -1}),
    ):
        count = len(tx.rows(RESEND, (peer, was, after, tx.now)))
        bump(tx, ended_pending=-count, **{name: by * count for name, by in deltas.items()})
        total += count
    return total


def cancel(tx: StoreTransaction, message_id: str) -> bool:
    """Withdraw a message that has not left yet; say whether it was still possible."""
    if not tx.run(CANCEL, (tx.now, message_id)):
        return bool(
            tx.rows(CANCELLED, (message_id,))
        )  # asked twice, or repeated after a COMMIT whose outcome was lost
    bump(tx, ended_pending=1, cancelled=1)
    tx.run(TICKET_FAILED, ("cancelled", tx.now, message_id))
    return True


class ParcelRow(NamedTuple):
    """
    A message of a parcel that was answered.

    ``attempts`` counts each handing over, ``free_attempts`` those that spend no budget.
    """

    seq: int
    id: str
    state: str
    lane: str
    rank: int
    attempts: int
    free_attempts: int

    @property
    def ordering(self) -> tuple[str, int]:
        """The unit of order that it belongs to."""
        return self.lane, self.rank


def in_parcel(tx: StoreTransaction, seqs: Sequence[int]) -> list[ParcelRow]:
    """Return the rows of a parcel, in its order; dead letters are missing."""
    return [ParcelRow(*row) for row in tx.rows(IN_PARCEL, (json.dumps(seqs),))]


def hold_back(tx: StoreTransaction, seq: int, *, due_at: Millis | None) -> None:
    """Let a message that no answer names wait for its lane, as one that perhaps has left."""
    tx.run(HOLD_BACK, (due_at, seq))
