"""
Keep the outbox: add messages in the caller's transaction, each once; read and settle them.

A separately stored body exists once, for all messages that share it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from zlib import crc32

from onceward.core.rows import sent
from onceward.core.rows.sent import MISSING, frame_of
from onceward.core.send import limits
from onceward.core.send.compose import Composer, Fanout, OutgoingMessage, SendResult, split_digest
from onceward.core.send.limits import AdmissionControl, DropCandidate, DropNew, Hold
from onceward.errors import Conflict
from onceward.file.connection import ConstraintError, raise_meant, schema_damage
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction, bump, listed
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Enqueued
from onceward.message.frame import DIGEST_BYTES, Frame, FrameHeaders, digest
from onceward.message.names import byte_length, quoted
from onceward.message.options import PLAIN, MessageOptions
from onceward.message.parcel import UNANSWERED, ParcelFrame, Receipt
from onceward.message.vocabulary import reason_text

if TYPE_CHECKING:
    from onceward.observed import ObservedSend

OWN: Final = ("id", "recipient", "frame", "digest", "created_at", "due_at", "held_by", "body_id")
SHARED: Final = (
    *("session", "lane", "type", "topic", "rank", "expires_at", "key"),
    *("channel", "kind", "correlation_id", "in_reply_to"),
)
COLUMNS: Final = (*OWN, *SHARED)
"""The columns of a new message: its own fields, and those of its headers."""
ROW: Final = attrgetter(*OWN, *(f"headers.{name}" for name in SHARED))
"""The bindings of ``INSERT``, for a message."""
CHOSEN: Final = attrgetter("headers.chosen_id")
KEY: Final = attrgetter("headers.key")
INSERT: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(COLUMNS)})
VALUES ({", ".join("?" * len(COLUMNS))})
"""
INSERT_DROPPED: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(COLUMNS)}, state, ended_at, reason)
VALUES ({", ".join("?" * len(COLUMNS))}, 'dropped', ?, ?)
"""
INSERT_SENT: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(COLUMNS)}, state, sent_at, attempts, pushed)
VALUES ({", ".join("?" * len(COLUMNS))}, 'sent', ?, 1, 1)
"""
INSERT_BODY: Final = "INSERT INTO _onceward_bodies (text, digest) VALUES (?, ?) RETURNING body_id"
RELEASE_BODY: Final = "DELETE FROM _onceward_bodies WHERE body_id = ?"
RELEASE_UNUSED_BODY: Final = """
DELETE FROM _onceward_bodies
 WHERE body_id = ?1 AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = ?1)
"""
FIND_DUPLICATE: Final = f"""
SELECT id, {frame_of("o")} FROM _onceward_outbox AS o WHERE id = ? OR (recipient = ? AND key = ?)
"""
FIND_DEAD: Final = """
SELECT id
  FROM _onceward_dead_letters
 WHERE origin = 'outbox' AND (id = ?1 OR (peer = ?2 AND key = ?3))
 ORDER BY id <> ?1
 LIMIT 1
"""
ROW_READ: Final = """
       o.seq, o.id, o.frame, o.digest, o.expires_at, o.pushed, o.attempts, o.lane,
       o.rank, o.sent_at, o.body_id IS NOT NULL, b.text, b.digest
"""
"""The columns of an ``OutboxRow``."""
WITH_BODY: Final = "_onceward_outbox AS o LEFT JOIN _onceward_bodies AS b ON b.body_id = o.body_id"
READY: Final = f"""
SELECT {ROW_READ},
       (SELECT k.due_at
          FROM _onceward_blocked_lanes AS k
         WHERE k.recipient = o.recipient AND k.lane = o.lane AND k.rank = o.rank)
  FROM {WITH_BODY}
 WHERE recipient = ? AND state = 'pending' AND due_at IS NULL AND held_by IS NULL
 ORDER BY rank, seq
 LIMIT ?
"""
# Its own url, a parcel in flight, a backoff, a blocked lane or a rate leave all messages of an
# agent to itself to parcels.
NO_PARCELS_TO_ITSELF: Final = """
       NOT EXISTS (SELECT 1 FROM _onceward_peers
                    WHERE name = :agent
                      AND (url IS NOT NULL OR in_flight_seqs IS NOT NULL OR owner IS NOT NULL
                           OR due_at IS NOT NULL OR failures > 0 OR inbound_rule IS NOT NULL))
   AND NOT EXISTS (SELECT 1 FROM _onceward_blocked_lanes WHERE recipient = :agent)
   AND NOT EXISTS (SELECT 1 FROM _onceward_rate_limits WHERE name = 'accept')
"""
IN_INBOX: Final = """
coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
- (SELECT value FROM _onceward_counters WHERE name = 'ended')
"""
READY_OWN: Final = f"""
SELECT {ROW_READ},
       o.pushed
       OR EXISTS (SELECT 1 FROM _onceward_inbox AS i WHERE i.sender = :agent AND i.id = o.id)
       OR EXISTS (SELECT 1 FROM _onceward_processed_messages AS m
                   WHERE m.sender = :agent AND m.message_id = o.id),
       {IN_INBOX}
  FROM {WITH_BODY}
 WHERE o.recipient = :agent AND o.state = 'pending' AND o.due_at IS NULL AND o.held_by IS NULL
   AND (SELECT paused_at FROM _onceward_file_info) IS NULL AND {NO_PARCELS_TO_ITSELF}
 ORDER BY o.rank, o.seq
 LIMIT :limit
"""
# The lane of a new message of an agent to itself, unless the message must wait behind others.
OPEN_TO_OWN: Final = f"""
SELECT lane_id
  FROM _onceward_lanes
 WHERE sender = :agent AND name = :lane AND rank = :rank
   AND (session = :session OR session IS NULL)
   AND NOT EXISTS (SELECT 1 FROM _onceward_outbox
                    WHERE recipient = :agent AND state = 'pending' AND due_at IS NULL
                      AND held_by IS NULL)
   AND NOT EXISTS (SELECT 1 FROM _onceward_awaited_types)
   AND {IN_INBOX} < :max_inbox AND {NO_PARCELS_TO_ITSELF}
"""
TAKE_OWN: Final = """
UPDATE _onceward_outbox
   SET state = 'sent', sent_at = :now, pushed = 1, free_attempts = attempts,
       attempts = attempts + 1
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending'
"""
BY_SEQ: Final = f"""
SELECT {ROW_READ}
  FROM json_each(?) AS j JOIN {WITH_BODY}
 WHERE o.seq = j.value
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
Pauses before a peer is asked about a message, as multiples of the first one.

Each is prolonged by up to a quarter, to a moment that all messages of the peer share: one push asks
about messages that were sent at about the same time.
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
# A message to oneself that was never in a parcel: the rest of its row is as ACKED leaves it.
ACKED_OWN: Final = """
UPDATE _onceward_outbox
   SET state = 'acked', ended_at = ?
 WHERE id = ? AND recipient = ? AND state = 'sent' AND due_at IS NULL AND reason IS NULL
"""
FAILED: Final = """
UPDATE _onceward_outbox
   SET state = 'failed', sent_at = coalesce(sent_at, :now), ended_at = :now, due_at = NULL,
       held_by = NULL, pushed = 1, reason = :reason, attempts = attempts + (:parcel IS NOT NULL),
       parcel_ordinal = coalesce(:parcel, parcel_ordinal)
 WHERE id = :id AND recipient = :peer AND state = :was
RETURNING id
"""
ENDED_THERE: Final = """
UPDATE _onceward_outbox
   SET state = :to, sent_at = coalesce(sent_at, :now), ended_at = :now, due_at = NULL,
       held_by = NULL, reason = :reason, pushed = 1,
       parcel_ordinal = coalesce(:parcel, parcel_ordinal)
 WHERE id = :id AND recipient = :peer AND state = :was
RETURNING id
"""
States = tuple[tuple[str, str, int], ...]
"""States of messages, each with the counter that it changes, and by how much."""
SENT_FIRST: Final[States] = (
    ("sent", "sent", -1),
    ("pending", "ended_pending", 1),
    ("failed", "failed", -1),
)
PENDING_FIRST: Final[States] = (SENT_FIRST[1], SENT_FIRST[0], SENT_FIRST[2])
FEW: Final = 8
"""States of messages that may be handled before the answer to their parcel is settled here."""
LATE: Final = """
UPDATE _onceward_dead_letters SET late_outcome = :state, late_at = :now
 WHERE origin = 'outbox'
   AND peer = :peer
   AND id IN (SELECT value FROM json_each(:ids))
   AND late_outcome IS NULL
"""
REQUEST_FAILED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = :reason, ended_at = :now
 WHERE id = :id AND recipient = :peer AND state = 'open'
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
ID: Final = attrgetter("id")


class OutboxRow(NamedTuple):
    """A message on its way out, as the dispatcher reads it."""

    seq: int
    id: str
    frame: str
    """The whole frame, or the part before a separately stored body."""
    digest: bytes | None
    expires_at: Millis | None
    pushed: int
    attempts: int
    lane: str
    rank: int
    sent_at: Millis | None
    beside: int = 0
    """Whether the body is stored separately."""
    body: str | None = None
    body_digest: bytes | None = None
    blocked_until: Millis | None = None
    """Until when its lane waits behind a message that failed individually, or None."""

    def expired(self, now: Millis) -> bool:
        """Whether it has expired; if the peer has stored the message, the peer decides."""
        return self.sent_at is None and self.expires_at is not None and self.expires_at <= now

    @property
    def intact(self) -> bool:
        """Whether the frame is unchanged since it was written; rows from SQL have no digest yet."""
        if not self.beside:
            text = self.frame.encode()  # digest, without its call
            return self.digest is None or sha256(text).digest()[:DIGEST_BYTES] == self.digest
        if self.body is None or self.body_digest is None:
            return True  # its body is lost, and the frame says so
        sealed = self.digest is None or split_digest(self.frame, self.body_digest) == self.digest
        return sealed and digest(self.body) == self.body_digest

    @property
    def body_bytes(self) -> int:
        """Bytes that a separately stored body adds to the frame; 0 if there is none."""
        return byte_length(self.body or MISSING) + 1 if self.beside else 0

    def carried(self, *, again: bool = False) -> ParcelFrame:
        """Return its frame as it travels, with the digest of the whole."""
        if self.beside:
            text = f"{self.frame}{self.body or MISSING}}}"
            return ParcelFrame(self.id, text, digest(text), again)
        return ParcelFrame(self.id, self.frame, self.digest or digest(self.frame), again)


class OwnRow(NamedTuple):
    """A message of an agent to itself, on its way into the inbox."""

    row: OutboxRow
    known: int
    """Whether the inbox may already have had it."""
    waiting: int
    """How many messages wait in the inbox."""

    def is_plain(self, now: Millis) -> bool:
        """Return whether it is new, not expired and undamaged."""
        return not self.known and not self.row.expired(now) and self.row.intact


class Outbox:
    """The outbox of one file: composes messages, and adds them in a transaction."""

    def __init__(self, db: Database, composer: Composer, hooks: Hooks) -> None:
        self.db = db
        """The file whose outbox this is."""
        self.composer = composer
        """Composes the messages to add."""
        self.compose = composer.compose
        """Checks and serialises one message."""
        self.admission = AdmissionControl(db, hooks)
        """Applies the limits of the file to a message."""
        self.audited: Callable[[Sequence[OutgoingMessage], Millis], None] | None = None
        """Called after the commit with the stored messages, for the audit."""
        self._hooks = hooks
        self._notify_due = partial(db.notifier.notify, "out")

    def add(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """
        Store a message in the caller's transaction; return its id, new or known.

        Raises:
            Conflict: the id or key belongs to another message.
            OutboxLimit, FileLimit, RateLimited, Paused: nothing was written.

        """
        try:
            if message.caller_chose_id:
                _refuse_dead(tx, message)
            if self._unlimited(tx):
                try:
                    message_id = _store(tx, message)
                except ConstraintError as error:
                    if not self.admission.is_limit_error(error):
                        raise
                else:
                    if message_id == message.id:
                        self._announce(tx, (message,))
                    elif message.sending is not None:
                        message.sending.known()
                    return message_id
            with tx.nested():
                return self._add_within_limits(tx, message)
        except Exception as error:
            if message.sending is not None:
                message.sending.failed(self.db.translate_error(error))
            raise

    def add_own(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """
        Store a message to the agent itself, in outbox and inbox if it may be there at once.

        After an error the transaction or savepoint must be undone.
        """
        if tx.own is None or not self._unlimited(tx) or not tx.own.store(tx, message):
            return self.add(tx, message)
        self._announce(tx, (message,))
        del tx.outgoing[message.recipient]  # nothing is left to be moved
        tx.own.tell_stored(tx, message.id)
        return message.id

    def _unlimited(self, tx: StoreTransaction) -> bool:
        """Return whether the file has no limits, without opening a reader's connection."""
        known = self.admission.unlimited
        return self.admission.reload(tx.rows) if known is None else known

    def _add_within_limits(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """Store, hold or drop a message as the limits of the file decide; return its id."""
        if _is_known(tx, message):
            message_id = self._announced(tx, message)  # sent before: it is stored, or it conflicts
            if message.sending is not None:
                message.sending.known()
            return message_id
        match decision := self.admission.admit(tx, message):
            case DropNew(limit):
                _store_dropped(tx, message, reason_text("drop_new", limit.reached))
                limits.record_drop(tx, message, limit)
                limits.tell_callers(tx, [message.id])
                return message.id
            case Hold(limit, evicted):
                message_id = self._announced(tx, message._replace(held_by=limit.held))
            case _:
                message_id, evicted = self._announced(tx, message), decision.evicted
        limits.tell_callers(tx, [each.id for each in evicted])
        self._summarize(tx, evicted)
        return message_id

    def _announced(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """Store a message and announce it if it is new; return its id, or that of the first one."""
        message_id = _store(tx, message)
        if message_id == message.id:
            self._announce(tx, (message,))
        return message_id

    def _summarize(self, tx: StoreTransaction, evicted: Sequence[DropCandidate]) -> None:
        """Send each session a summary of the messages that a limit with ``summarize`` dropped."""
        told = [(v.recipient, v.session) for v in evicted if v.full.overflow == "summarize"]
        for recipient, session in dict.fromkeys(told):
            drops, lines, replaced = limits.unsummarized_drops(tx, recipient, session)
            body = {"dropped": len(drops), "lines": lines}
            options = MessageOptions(type=limits.SUMMARY, priority="urgent")
            summary = self.composer.compose_at(session, recipient, body, options, tx.now)
            limits.mark_summarized(tx, _store(tx, summary), drops, replaced)

    def commit(self, session: str, to: str, body: object, options: MessageOptions = PLAIN) -> str:
        """Commit one message, in this thread's open transaction if it has one; return its id."""
        message = self.compose(session, to, body, options)
        add = self.add_own if to == self.db.agent else self.add
        return self.db.write(partial(add, message=message))

    def add_many(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> list[str]:
        """Store many messages in the caller's transaction, in order; return their ids."""
        if self._unlimited(tx) and not _any_may_be_known(messages):
            stored = [each if each.body is None else _with_body(tx, each) for each in messages]
            if self._insert(tx, stored):
                return [each.id for each in messages]
            beside = [(each.body_id,) for each in stored if each.body_id is not None]
            tx.many(RELEASE_UNUSED_BODY, beside)
        return [self.add(tx, each) for each in messages]

    def add_sharing(
        self, tx: StoreTransaction, messages: Sequence[OutgoingMessage], body_id: int
    ) -> list[str]:
        """Store messages that share a stored body; return their ids, new or known."""
        shared = [each._replace(body_id=body_id) for each in messages]
        plain = self._unlimited(tx) and not _any_may_be_known(shared)
        if plain and self._insert(tx, shared):
            return [each.id for each in shared]
        return [self.add(tx, each) for each in shared]

    def _insert(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> bool:
        """Insert many rows at once; return False if the file now has limits, which must decide."""
        try:
            tx.insert(INSERT, list(map(ROW, messages)))
        except ConstraintError as error:
            if self.admission.is_limit_error(error):
                return False
            raise_meant(self.db.translate_error(error), error)
            raise
        self._announce(tx, messages)
        return True

    def _announce(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> None:
        """Wake the dispatcher and report stored messages to hooks and audit after the commit."""
        tx.message_ids += map(ID, messages)
        for each in messages:
            if each.due_at is None:
                tx.outgoing[each.recipient] = None
            else:
                tx.wakeups[self._notify_due] = None
        if self.audited is not None:
            tx.after_commit(partial(self.audited, messages, tx.now))
        if self._hooks.observers:
            for sending in {each.sending for each in messages} - {None}:
                tx.after_commit(cast("ObservedSend", sending).committed)
        if self._hooks._hooks and self._hooks.wanted(Enqueued):
            agent, at = self.db.agent, tx.now
            events = [
                Enqueued(
                    agent=agent,
                    at=at,
                    message_id=each.id,
                    peer=each.recipient,
                    session=each.session,
                    type=each.type,
                )
                for each in messages
            ]
            tx.after_commit(partial(self._hooks.emit, events))

    def known_id(self, message: OutgoingMessage) -> str | None:
        """
        Return the id of the same message stored before; None if there is none.

        Raises:
            Conflict: another message has its id or key.

        """
        return self.db.snapshot(
            lambda tx: _duplicate(tx, message) if _is_known(tx, message) else None
        )

    def add_fanout(
        self, tx: StoreTransaction, fanout: Fanout, body_id: int | None = None
    ) -> SendResult:
        """
        Store all copies of a message or none; its body may already be stored.

        With a key, a recipient that already got it is skipped.
        """
        if not fanout.messages:
            return fanout.result
        try:
            with tx.nested():
                kept = insert_body(tx, fanout.body) if body_id is None else body_id
                ids = self.add_sharing(tx, fanout.messages, kept)
                if body_id is None:
                    tx.run(RELEASE_UNUSED_BODY, (kept,))
        except Exception as error:
            raise_meant(self.db.translate_error(error), error)
            raise
        copies = zip((each.recipient for each in fanout.messages), ids, strict=True)
        return SendResult(fanout.id, tuple(copies))


def insert_body(tx: StoreTransaction, text: str) -> int:
    """Store a body and return its number; it is deleted with the last message that uses it."""
    [(body_id,)] = tx.rows(INSERT_BODY, (text, digest(text)))
    return int(body_id)


def _release_body(tx: StoreTransaction, body_id: int) -> None:
    """Delete a stored body that no message refers to."""
    tx.run(RELEASE_BODY, (body_id,))


def _store(tx: StoreTransaction, message: OutgoingMessage) -> str:
    """
    Store a message; return its id, or the id of the same message stored before.

    A separate body is also stored, unless ``body_id`` names a stored one.

    Raises:
        Conflict: the id or key belongs to another message.
        OutboxLimit, Paused: from the admission trigger; nothing was written.

    """
    beside = message.body is not None and message.body_id is None
    stored = _with_body(tx, message) if beside else message
    if tx.batching and stored.body_id is None and not stored.caller_chose_id:
        tx.gather(INSERT, ROW(stored))
        return stored.id
    try:
        tx.run(INSERT, ROW(stored))
    except ConstraintError as error:
        if beside:
            _release_body(tx, cast("int", stored.body_id))
        if "UNIQUE" not in str(error):
            raise schema_damage(error) from error.__cause__
        return _duplicate(tx, message)
    return message.id


def add_if_possible(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Store one of the library's own messages; return False if it is known or refused."""
    try:
        with tx.nested():
            tx.run(INSERT, ROW(message))
    except ConstraintError:
        return False
    tx.outgoing[message.recipient] = None
    return True


def _store_dropped(tx: StoreTransaction, message: OutgoingMessage, reason: str) -> None:
    """Store a message as dropped: it has an id, a reason and a time, and never leaves."""
    beside = message.body is not None and message.body_id is None
    stored = _with_body(tx, message) if beside else message
    gone = stored._replace(due_at=None, held_by=None)
    tx.rows(INSERT_DROPPED, (*ROW(gone), tx.now, reason))


def _with_body(tx: StoreTransaction, message: OutgoingMessage) -> OutgoingMessage:
    """Store the separate body of a message; return the message with its number."""
    return message._replace(body_id=insert_body(tx, cast("str", message.body)))


def _any_may_be_known(messages: Sequence[OutgoingMessage]) -> bool:
    """Return whether the caller chose the id or a key of one of *messages*."""
    return any(map(CHOSEN, messages)) or any(map(KEY, messages))


def _is_known(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Return whether a message of this id or key was stored before."""
    return bool(tx.rows(FIND_DUPLICATE, (message.id, message.recipient, message.headers.key)))


def _duplicate(tx: StoreTransaction, message: OutgoingMessage) -> str:
    """Return the id of the same message stored before; raise Conflict if it is another one."""
    known = tx.rows(FIND_DUPLICATE, (message.id, message.recipient, message.headers.key))
    if len(known) > 1:
        two = sorted((str(row[0]) for row in known), key=lambda each: each != message.id)
        msg = f"id {two[0]} and {_key_of(message)} belong to two messages: choose another id or key"
        raise Conflict(
            msg,
            message_id=two[0],
            key=message.headers.key,
            differs=("message_id",),
            reason="sent before",
        )
    [(known_id, frame)] = known
    differs = tuple(_differences(Frame.parse(frame), message))
    if not differs:
        return str(known_id)
    raise _conflict(message, str(known_id), differs)


def _key_of(message: OutgoingMessage) -> str:
    return f"key {quoted(message.headers.key)} to {message.recipient}"


def _conflict(message: OutgoingMessage, known_id: str, differs: tuple[str, ...]) -> Conflict:
    """Return the error that names the id or key of another message."""
    by_id = known_id == message.id
    name = "id" if by_id else "key"
    said = f"id {message.id}" if by_id else _key_of(message)
    msg = (
        f"{said} already belongs to message {known_id} with another {', '.join(differs)}:"
        f" choose another {name}, or send the same message"
    )
    return Conflict(
        msg,
        message_id=known_id,
        key=None if by_id else message.headers.key,
        differs=differs,
        reason="sent before",
    )


def _differences(known: Frame, message: OutgoingMessage) -> Iterator[str]:
    """
    Yield the options in which a message differs from the one with the same id or key.

    Spans, moments and ids of the conversation are not compared.
    """
    sent = Frame.parse(message.text)
    if message.headers.chosen_id and known.id != sent.id:
        yield "message_id"
    if known.content != sent.content:
        yield "body"
    for attribute, option in COMPARED.items():
        if getattr(known, attribute) != getattr(sent, attribute):
            yield option


def _refuse_dead(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Raise Conflict if the id or key is a dead letter: it is replayed, not sent again."""
    for (dead,) in tx.rows(FIND_DEAD, (message.id, message.recipient, message.headers.key)):
        by_id = dead == message.id
        what = f"id {dead}" if by_id else _key_of(message)
        name = "id" if by_id else "key"
        msg = f"{what} is dead letter {dead}: replay it, or choose another {name}"
        key = None if by_id else message.headers.key
        raise Conflict(msg, message_id=dead, key=key, reason="dead letter")


def ready(tx: StoreTransaction, peer: str, limit: int) -> list[OutboxRow]:
    """Return the messages that may be packed for *peer* now, in order of delivery."""
    return list(starmap(OutboxRow, tx.rows(READY, (peer, limit))))


def ready_own(tx: StoreTransaction, agent: str, limit: int) -> list[OwnRow]:
    """Return the messages of an agent to itself that may enter its inbox now, in order."""
    found = tx.rows(READY_OWN, {"agent": agent, "limit": limit})
    return [OwnRow(OutboxRow(*row[:-2]), *row[-2:]) for row in found]


def open_to_own(
    tx: StoreTransaction, agent: str, headers: FrameHeaders, max_inbox: int
) -> int | None:
    """Return the lane of a new message of an agent to itself; None if it must wait for others."""
    named = {
        "agent": agent,
        "lane": headers.lane,
        "rank": headers.rank,
        "session": headers.session,
        "max_inbox": max_inbox,
    }
    for (lane_id,) in tx.rows(OPEN_TO_OWN, named):
        return int(lane_id)
    return None


def add_sent(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Store a message that enters the agent's own inbox in the same commit."""
    tx.run(INSERT_SENT, (*ROW(message), tx.now))
    bump(tx, ended_pending=1, sent=1)


def take_own(tx: StoreTransaction, agent: str, rows: Sequence[OwnRow], done: list[str]) -> Moved:
    """Mark messages that entered the agent's own inbox; end those of *done*, handled ones."""
    take, seqs = listed([each.row.seq for each in rows], TAKE_OWN)
    count = tx.run(take, {"now": tx.now, "seqs": seqs})
    bump(tx, ended_pending=count, sent=count)
    acked = _ack(tx, agent, done, None)[0] if done else ()
    return Moved(tuple(each.row.id for each in rows), tuple(acked))


def ack_own(tx: StoreTransaction, agent: str, message_id: str) -> bool:
    """End a handled message of an agent to itself, not yet counted; False: ``settle`` must."""
    return tx.run(ACKED_OWN, (tx.now, message_id, agent)) > 0


def by_seq(tx: StoreTransaction, seqs: Sequence[int]) -> list[OutboxRow]:
    """Return the rows of a stored parcel, in order, without deleted ones."""
    return [OutboxRow(*row) for row in tx.rows(BY_SEQ, (json.dumps(seqs),))]


NONE_AGAIN: Final[frozenset[str]] = frozenset()


class Moved(NamedTuple):
    """The messages whose state a batch of receipts changed."""

    sent: tuple[str, ...] = ()
    acked: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[str, ...] = ()
    """Requests that ended without a reply."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(id, reason) of messages that a policy of the peer dropped."""
    cancelled: tuple[tuple[str, str], ...] = ()
    """(id, reason) of messages that the peer cancelled."""
    sent_again: frozenset[str] = NONE_AGAIN
    """Those of ``sent`` that the peer was known to have: it was asked for their outcome."""
    at_once: tuple[str, ...] = ()
    """Those of ``acked`` that the peer was not known to have."""

    @property
    def ended(self) -> bool:
        """Return whether a message has ended, or a request without a reply."""
        return bool(self.acked or self.failed or self.unanswered or self.dropped or self.cancelled)

    @property
    def any(self) -> bool:
        """Return whether a message has changed its state."""
        return bool(self.sent or self.acked or self.failed or self.dropped or self.cancelled)


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
    Apply a peer's receipts, in a constant number of statements.

    A receipt may come early, late or twice: states only ever move forward.
    """
    by_state: dict[str, list[Receipt]] = {}
    unanswered: list[Receipt] = []
    for receipt in receipts:
        by_state.setdefault(receipt.state, []).append(receipt)
        if receipt.reason is not None and receipt.reason.startswith(UNANSWERED):
            unanswered.append(receipt)
    done = list(map(ID, by_state.pop("processed", ())))
    if done and not (by_state or unanswered):  # most parcels and all messages to oneself
        acked, at_once = _ack(tx, peer, done, parcel)
        return Moved(acked=tuple(acked), at_once=tuple(at_once))
    stored = list(map(ID, by_state.get("stored", ())))
    held = list(map(ID, by_state.get("duplicate", ())))
    if stored_ends:
        done, stored, held = done + stored + held, [], []
    if stored and tx.ended:  # by receipts that came before this answer was settled
        ended = set(tx.ended)
        stored = [message_id for message_id in stored if message_id not in ended]
    acked, at_once = _ack(tx, peer, done, parcel) if done else ([], [])
    moved = _sent(tx, peer, stored, ask_at, parcel, held=False) if stored else []
    again = NONE_AGAIN
    if held:
        again = frozenset(i for (i,) in tx.rows(SENT_BEFORE, (json.dumps(held), peer)))
        moved += _sent(tx, peer, held, ask_at, parcel, held=True)
    failed: list[tuple[str, str]] = []
    for receipt in by_state.get("dead", ()):
        if _fail(tx, peer, receipt, parcel):
            failed += ((receipt.id, receipt.reason or "dead"),)
    return Moved(
        tuple(moved),
        tuple(acked),
        tuple(failed),
        _fail_requests(tx, peer, unanswered) if unanswered else (),
        _end_there(tx, peer, by_state["dropped"], parcel) if "dropped" in by_state else (),
        _end_there(tx, peer, by_state["cancelled"], parcel) if "cancelled" in by_state else (),
        again,
        tuple(at_once),
    )


COUNTERS: Final = {"dropped": "outbox_dropped", "cancelled": "cancelled"}
"""Counter of the messages that a peer ended in a state."""


def _end_there(
    tx: StoreTransaction, peer: str, receipts: Sequence[Receipt], parcel: int | None
) -> tuple[tuple[str, str], ...]:
    """End messages that the peer dropped or cancelled, known to be stored or not."""
    ended: list[tuple[str, str]] = []
    for receipt in receipts:
        to, reason = receipt.state, receipt.reason or receipt.state
        named = {"id": receipt.id, "peer": peer, "now": tx.now, "reason": reason, "parcel": parcel}
        named |= {"to": to}
        for was, deltas in (
            ("sent", {"sent": -1}),
            ("pending", {"ended_pending": 1}),
            ("acked", {"acked": -1}),
        ):
            if tx.rows(ENDED_THERE, named | {"was": was}):
                bump(tx, **{COUNTERS[to]: 1}, **deltas)
                told = reason if reason.startswith(to) else f"{to}: {reason}"
                sent.fail_request(tx, receipt.id, told)
                ended.append((receipt.id, reason))
                break
    if ended and receipts[0].state == "cancelled":
        sent.tell_cancelled(tx, [message_id for message_id, _ in ended])
    return tuple(ended)


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
    Mark messages that the peer stored; those it *held* before show it busy and spend no budget.

    The pause before it is asked about doubles each time.
    """
    pause, offset = ask_at - tx.now, crc32(peer.encode())
    statement, bound = listed(ids, SENT)
    named: dict[str, Any] = {
        "ids": bound,
        "peer": peer,
        "now": tx.now,
        "pause": pause,
        "parcel": parcel,
        "held": held,
    }
    for times in ASK_PAUSES:
        due = tx.now + times * pause
        named[f"ask_{times}"] = due + (offset - due) % max(1, times * pause // 4)
    moved: list[str] = list(chain.from_iterable(tx.rows(statement, named)))
    bump(tx, ended_pending=len(moved), sent=len(moved))
    return moved


def _ack(
    tx: StoreTransaction, peer: str, ids: list[str], parcel: int | None
) -> tuple[list[str], list[str]]:
    """End messages that the peer processed; return their ids, and those stored until now."""
    moved: list[str] = []
    at_once: list[str] = []
    end, late, bound = listed(ids, ACKED, LATE)
    named = {"ids": bound, "peer": peer, "now": tx.now, "parcel": parcel}
    counts: dict[str, int] = {}
    for was, counter, by in _states_before(tx, peer, len(ids)):
        if len(moved) < len(ids):
            found = tx.rows(end, named | {"was": was})
            moved += [str(i) for i, _ in found]
            if was == "pending":
                at_once = [str(i) for i, is_new in found if is_new]
            counts[counter] = by * len(found)
    bump(tx, acked=len(moved), **counts)
    tx.ended += moved
    if len(moved) < len(ids):
        tx.run(late, named | {"state": "processed"})
    return moved, at_once


def _states_before(tx: StoreTransaction, peer: str, count: int) -> States:
    """Return the states that messages may have had before they were acked, likely ones first."""
    to_oneself = tx.own is not None and tx.own.agent == peer
    return SENT_FIRST if to_oneself or count > FEW else PENDING_FIRST


def _fail(tx: StoreTransaction, peer: str, receipt: Receipt, parcel: int | None) -> bool:
    reason = receipt.reason or "dead"
    named = {"id": receipt.id, "peer": peer, "now": tx.now, "reason": reason, "parcel": parcel}
    for was, deltas in (("sent", {"sent": -1}), ("pending", {"ended_pending": 1})):
        if tx.rows(FAILED, named | {"was": was}):
            bump(tx, failed=1, **deltas)
            sent.fail_request(tx, receipt.id, reason)
            return True
    return False
