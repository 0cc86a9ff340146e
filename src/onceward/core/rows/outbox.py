"""Change waiting and sent messages of the outbox: ask again, resend, expire, cancel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from onceward.file.database import Database
from onceward.file.sql_parts import EndedRows
from onceward.file.transaction import Rows, StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.frame import BODY_ERROR, DIGEST_BYTES, digest, readdressed, split_digest
from onceward.message.names import byte_length
from onceward.message.options import FrameHeaders, addressed
from onceward.message.parcel import ParcelFrame
from onceward.message.vocabulary import SentState

if TYPE_CHECKING:
    from onceward.observed import ObservedSend

MISSING: Final = f'null,"{BODY_ERROR}":"missing"'
"""Placeholder for a lost body: its message is delivered nevertheless."""


def frame_of(row: str) -> str:
    """Return the SQL expression of the whole frame of an outbox *row*, with its body."""
    return f"""
CASE WHEN {row}.body_id IS NULL THEN {row}.frame
     ELSE {row}.frame
          || coalesce((SELECT b.text FROM _onceward_bodies AS b WHERE b.body_id = {row}.body_id),
                      '{MISSING}')
          || '}}' END
"""


def body_digest_of(row: str) -> str:
    """Return the SQL expression of the digest of an outbox *row*'s separate body."""
    return f"(SELECT b.digest FROM _onceward_bodies AS b WHERE b.body_id = {row}.body_id)"


def pushed(row: str) -> str:
    """
    Return the SQL expression for whether the peer of an outbox *row* may know it.

    It was in a parcel that was answered or given up, is in the one in flight, or was written before
    this file was restored or copied.
    """
    return f"""
({row}.pushed
 OR {row}.seq IN (SELECT j.value
                FROM _onceward_peers AS p, json_each(p.in_flight_seqs) AS j
               WHERE p.in_flight_seqs IS NOT NULL)
 OR {row}.seq <= coalesce((SELECT p.redelivered_upto_seq
                         FROM _onceward_peers AS p
                        WHERE p.name = {row}.recipient), 0))
"""


PARK: Final = "UPDATE _onceward_outbox SET due_at = ? WHERE seq = ? AND state = 'pending'"
FAIL_ONE: Final = """
UPDATE _onceward_outbox
   SET due_at = :due_at, attempts = attempts + 1, pushed = 1, reason = :error
 WHERE id = :id AND state = 'pending'
"""
# A message failed alone: its lane waits, at least as long as for an older message.
BLOCK: Final = """
INSERT INTO _onceward_blocked_lanes (recipient, lane, rank, head_seq, due_at)
SELECT recipient, lane, rank, seq, ?
  FROM _onceward_outbox
 WHERE id = ?
ON CONFLICT (recipient, lane, rank) DO UPDATE
   SET due_at = max(due_at, excluded.due_at), head_seq = min(head_seq, excluded.head_seq)
RETURNING due_at
"""
# Their heads are due again.
UNBLOCK: Final = "DELETE FROM _onceward_blocked_lanes WHERE due_at <= ?"
# A peer that stored the message once has it: a later failed push spends no budget.
SPEND: Final = """
UPDATE _onceward_outbox
   SET attempts = attempts + 1, reason = :error,
       free_attempts = free_attempts + (NOT :all AND sent_at IS NOT NULL)
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending'
RETURNING seq, id, attempts,
          CASE WHEN NOT :all AND sent_at IS NOT NULL THEN 0 ELSE attempts - free_attempts END
"""
DROP: Final = """
UPDATE _onceward_outbox
   SET state = 'dropped', due_at = NULL, ended_at = :now, reason = :reason
 WHERE seq = :seq
"""
REPLACE: Final = """
UPDATE _onceward_outbox
   SET state = 'cancelled', due_at = NULL, ended_at = ?, reason = 'superseded'
 WHERE id = ? AND state = 'pending'
"""
FREE_ALL: Final = """
UPDATE _onceward_outbox
   SET held_by = NULL
 WHERE state = 'pending' AND held_by GLOB 'limit:*'
"""
FREE_NEXT: Final = """
UPDATE _onceward_outbox
   SET held_by = NULL
 WHERE seq = (SELECT seq FROM _onceward_limits_next)
"""
FREE_ORPHANS: Final = """
UPDATE _onceward_outbox SET held_by = NULL
 WHERE held_by GLOB 'limit:*' AND NOT EXISTS (
       SELECT 1
         FROM _onceward_limits AS l
        WHERE l.overflow = 'hold' AND _onceward_outbox.held_by GLOB 'limit:' || l.scope || ':*'
          AND (l.name = '*' OR _onceward_outbox.held_by = 'limit:' || l.scope || ':' || l.name))
"""
FREE_CHANNEL: Final = """
UPDATE _onceward_outbox SET held_by = NULL WHERE seq IN (
    SELECT seq
      FROM _onceward_outbox
     WHERE channel = ? AND ended_at IS NULL AND held_by = 'channel:' || channel
     ORDER BY seq LIMIT ?)
"""
# A key belongs to its message until that is pruned.
OLD_OF_CHANNEL: Final = """
DELETE FROM _onceward_outbox
 WHERE seq IN (SELECT seq
                 FROM _onceward_outbox
                WHERE channel = :channel AND seq <= :upto AND ended_at IS NOT NULL AND key IS NULL
                ORDER BY seq LIMIT :limit)
RETURNING ended_at
"""
STATES: Final = """
SELECT state, count(*)
  FROM _onceward_outbox
 WHERE seq IN (SELECT value FROM json_each(?))
 GROUP BY state
"""
REMOVE_UNENDED: Final = """
DELETE FROM _onceward_outbox
 WHERE seq IN (SELECT value FROM json_each(?)) AND state IN ('pending', 'sent')
"""
# A replayed message does not expire here again: its frame says so to the peer, which decides.
RETURN: Final = """
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, topic, rank, due_at, expires_at,
                              pushed, key, frame, digest, created_at, channel, kind,
                              correlation_id, replays)
SELECT id, peer, session, lane, type, topic, rank, :due_at,
       CASE WHEN expires_at > :now THEN expires_at END, pushed, key, frame, digest, created_at,
       channel, kind, correlation_id, replays + 1
  FROM _onceward_dead_letters WHERE seq = :seq
"""
# Oldest first by sequence: a row ends after its creation, so a slice of young rows ends the scan,
# which would otherwise read a large file completely.
SLICE: Final = """
SELECT seq, created_at < :before,
       state IN ('acked', 'cancelled', 'dropped', 'failed') AND ended_at < :before
  FROM _onceward_outbox
 WHERE seq > :after ORDER BY seq LIMIT :limit
"""
REMOVE: Final = "DELETE FROM _onceward_outbox WHERE seq = ?"
MARK_PUSHED: Final = """
UPDATE _onceward_outbox SET pushed = 1 WHERE seq IN (SELECT value FROM json_each(?)) AND NOT pushed
"""
REMOVE_ARCHIVED: Final = """
DELETE FROM _onceward_outbox
 WHERE seq = :seq AND id = :id AND state = :state AND ended_at = :ended_at
   AND state NOT IN ('pending', 'sent')
RETURNING ended_at
"""
ENDED: Final = EndedRows(SLICE, REMOVE, REMOVE_ARCHIVED, OLD_OF_CHANNEL)
CANCEL: Final = f"""
UPDATE _onceward_outbox AS o
   SET state = 'cancelled', due_at = NULL, held_by = NULL, ended_at = ?, reason = 'cancelled'
 WHERE id = ? AND state = 'pending' AND NOT {pushed("o")}
"""
CANCELLED: Final = "SELECT 1 FROM _onceward_outbox WHERE id = ? AND state = 'cancelled'"
RESEND: Final = """
UPDATE _onceward_outbox SET state = 'pending', due_at = NULL, ended_at = NULL
 WHERE recipient = :peer
   AND state = :was
   AND (parcel_ordinal > :after OR parcel_ordinal IS NULL)
   AND (state = 'sent' OR expires_at IS NULL OR expires_at > :now)
RETURNING id
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
OLDEST: Final = "SELECT id FROM _onceward_outbox WHERE recipient = ? ORDER BY seq LIMIT 1"
UNSENT: Final = """
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0)
       - (SELECT value FROM _onceward_counters WHERE name = 'ended_pending')
"""
STATE: Final = """
SELECT coalesce((SELECT state FROM onceward_outbox WHERE id = :id),
                (SELECT 'dead' FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id),
                'absent')
"""


def expired(tx: StoreTransaction, limit: int) -> list[int]:
    """Return the messages, by sequence, that expired before they were stored."""
    return [seq for (seq,) in tx.rows(EXPIRED, (tx.now, limit))]


def oldest(tx: StoreTransaction, peer: str) -> str | None:
    """Return the id of the oldest retained message for *peer*, or None."""
    found = tx.rows(OLDEST, (peer,))
    return str(found[0][0]) if found else None


class ParcelRow(NamedTuple):
    """
    A message of a parcel that was answered.

    ``attempts`` counts each delivery, ``free_attempts`` those that spend no budget.
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
        """Its unit of order."""
        return self.lane, self.rank


def in_parcel(tx: StoreTransaction, seqs: Sequence[int]) -> list[ParcelRow]:
    """Return the rows of a parcel, in order, without dead letters."""
    return [ParcelRow(*row) for row in tx.rows(IN_PARCEL, (json.dumps(seqs),))]


def hold_back(tx: StoreTransaction, seq: int, *, due_at: Millis | None) -> None:
    """Make a message that no answer names wait for its lane; it may have left."""
    tx.run(HOLD_BACK, (due_at, seq))


def unsent(db: Database) -> int:
    """Return how many messages are waiting to leave."""
    [(count,)] = db.read(UNSENT)
    return int(count)


def state(db: Database, message_id: str) -> SentState:
    """
    Return the state of a message that this agent sent.

    It is pending, sending, sent, acked, failed, cancelled, dropped, dead, or absent.
    """
    [(found,)] = db.read(STATE, {"id": message_id})
    return cast("SentState", found)


OWN: Final = ("id", "recipient", "frame", "digest", "created_at", "due_at", "held_by", "body_id")
SHARED: Final = (
    *("session", "lane", "type", "topic", "rank", "expires_at", "key"),
    *("channel", "kind", "correlation_id", "in_reply_to"),
)
COLUMNS: Final = (*OWN, *SHARED)
"""The columns of a new message: its own fields, and those of its headers."""
ROW: Final = attrgetter(*OWN, *(f"headers.{name}" for name in SHARED))
"""The bindings of ``INSERT``, for a message."""
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
# A message that was found again at its recipient was in a parcel that this file does not know.
INSERT_FOUND: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(COLUMNS)}, pushed, found_again)
VALUES ({", ".join("?" * len(COLUMNS))}, 1, 1)
"""
FIND_FOUND: Final = """
SELECT id FROM _onceward_outbox
 WHERE (id = ?1 OR (addressed_to = ?2 AND key = ?3)) AND found_again = 1
"""
FOUND_STATE: Final = "SELECT state FROM _onceward_outbox WHERE id = ? AND found_again = 1"
END_FOUND: Final = """
UPDATE _onceward_outbox SET state = 'acked', due_at = NULL, held_by = NULL, ended_at = ?
 WHERE id = ? AND ended_at IS NULL
"""
REMOVE_FOUND: Final = "DELETE FROM _onceward_outbox WHERE id = ?"
HAS_SENT: Final = "SELECT 1 FROM _onceward_outbox WHERE id = ? AND recipient = ? AND kind = ?"
INSERT_BODY: Final = "INSERT INTO _onceward_bodies (text, digest) VALUES (?, ?) RETURNING body_id"
RELEASE_BODY: Final = "DELETE FROM _onceward_bodies WHERE body_id = ?"
RELEASE_UNUSED_BODY: Final = """
DELETE FROM _onceward_bodies
 WHERE body_id = ?1 AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = ?1)
"""
FIND_DUPLICATE: Final = f"""
SELECT id, {frame_of("o")} FROM _onceward_outbox AS o WHERE id = ?
    OR (addressed_to = ? AND key = ?)
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
   SET state = 'acked', ended_at = :now
 WHERE id = :id AND recipient = :agent AND state = 'sent' AND due_at IS NULL AND reason IS NULL
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


# Of a message that no peer can know; the guard of the table refuses any other.
ASSIGN: Final = f"""
UPDATE _onceward_outbox AS o
   SET pool = recipient, recipient = :member, frame = :frame, digest = :digest
 WHERE seq = :seq AND pool IS NULL AND state = 'pending' AND NOT {pushed("o")}
"""
TAKE_BACK: Final = f"""
UPDATE _onceward_outbox AS o
   SET recipient = pool, pool = NULL, due_at = NULL, frame = :frame, digest = :digest
 WHERE seq = :seq AND pool IS NOT NULL AND state = 'pending' AND NOT {pushed("o")}
"""
OF_POOLS: Final = """
SELECT pool, recipient, lane, count(*)
  FROM _onceward_outbox
 WHERE pool IS NOT NULL AND ended_at IS NULL
 GROUP BY pool, recipient, lane
"""
UNKNOWN_TO_MEMBER: Final = f"""
SELECT {ROW_READ}
  FROM {WITH_BODY}
 WHERE o.pool = ? AND o.recipient = ? AND o.ended_at IS NULL AND o.state = 'pending'
   AND NOT {pushed("o")}
 ORDER BY o.seq
"""


class OutgoingMessage(NamedTuple):
    """A message that only needs to be stored."""

    headers: FrameHeaders
    """Its options, which all copies of a message share, except for the recipient."""
    id: str
    recipient: str
    frame: str
    digest: bytes
    created_at: Millis
    due_at: Millis | None = None
    held_by: str | None = None
    """``channel:NAME`` or ``limit:SCOPE:NAME``; None if nothing holds it."""
    body_id: int | None = None
    """The number of a body that is stored separately; the frame then ends before it."""
    body: str | None = None
    """The text of a body that is stored separately; not a column of the outbox."""
    sending: ObservedSend | None = None
    """Its send, for observers; not a column of the outbox."""
    repeatable: bool = False
    """Whether a handler sends it under this id each time; not a column of the outbox."""

    @property
    def session(self) -> str:
        """The conversation."""
        return self.headers.session

    @property
    def type(self) -> str:
        """Wire name of its type."""
        return self.headers.type

    @property
    def correlation_id(self) -> str | None:
        """Id of the conversation's first message; None if it is the first."""
        return self.headers.correlation_id

    @property
    def text(self) -> str:
        """The whole frame, with its body."""
        return self.frame if self.body is None else f"{self.frame}{self.body}}}"


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


def of_pools(read: Rows) -> list[tuple[str, str, str, int]]:
    """Return pool, recipient, lane and number of the messages of pools that have not ended."""
    return read(OF_POOLS, ())


def unknown_to_member(tx: StoreTransaction, pool: str, member: str) -> list[OutboxRow]:
    """Return the messages of a pool that were given to a member which cannot know them."""
    return [OutboxRow(*row) for row in tx.rows(UNKNOWN_TO_MEMBER, (pool, member))]


def assign(tx: StoreTransaction, row: OutboxRow, pool: str, member: str) -> bool:
    """Give a message of a pool to a member; False if a peer may know it, or its text is odd."""
    to = _sent_to(row, addressed(pool), addressed(member, pool))
    return to is not None and tx.run(ASSIGN, to | {"member": member}) > 0


def take_back(tx: StoreTransaction, row: OutboxRow, pool: str, member: str) -> bool:
    """Take a message of a pool back from a member that cannot know it."""
    to = _sent_to(row, addressed(member, pool), addressed(pool))
    return to is not None and tx.run(TAKE_BACK, to) > 0


def _sent_to(row: OutboxRow, before: str, after: str) -> dict[str, Any] | None:
    """Return the values of a row whose frame names another recipient; None for an odd frame."""
    frame = readdressed(row.frame, before, after)
    if frame is None:
        return None
    sealed = row.digest
    if sealed is not None:
        beside = row.body_digest if row.beside else None
        sealed = digest(frame) if beside is None else split_digest(frame, beside)
    return {"seq": row.seq, "frame": frame, "digest": sealed}


def insert_body(tx: StoreTransaction, text: str) -> int:
    """Store a body and return its number; it is deleted with the last message that uses it."""
    [(body_id,)] = tx.rows(INSERT_BODY, (text, digest(text)))
    return int(body_id)


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


def by_seq(tx: StoreTransaction, seqs: Sequence[int]) -> list[OutboxRow]:
    """Return the rows of a stored parcel, in order, without deleted ones."""
    return [OutboxRow(*row) for row in tx.rows(BY_SEQ, (json.dumps(seqs),))]


def undelivered(tasks: str, outcome: str = "undelivered") -> str:
    """
    Return the statement that reports to callers, once each, that their *tasks* never ran.

    *tasks* selects ``id``, ``session``, ``error`` and ``head`` of any messages; the head is a
    frame, or the frame with another body.
    """
    return f"""
INSERT INTO onceward_send (recipient, type, session, key, body)
SELECT i.agent, 'worker_result', json_extract(d.head, '$.callersession'), 'worker_result:' || d.id,
       json_object('dispatch_id', d.id, 'session', d.session, 'outcome', '{outcome}',
                   'error', d.error, 'run_id', NULL, 'result', NULL, 'partial', NULL)
  FROM _onceward_file_info AS i, ({tasks}) AS d
 WHERE instr(d.head, '"callersession"')
   AND json_type(d.head, '$.callersession') = 'text'
   AND NOT EXISTS (SELECT 1
                     FROM _onceward_outbox AS r
                    WHERE r.addressed_to = i.agent AND r.key = 'worker_result:' || d.id)
"""


TASKS_CANCELLED: Final = undelivered(
    """
SELECT id, session, reason AS error,
       CASE WHEN body_id IS NULL THEN frame ELSE frame || 'null}' END AS head
  FROM _onceward_outbox
 WHERE id IN (SELECT value FROM json_each(?))
""",
    "cancelled",
)


TASKS_FAILED: Final = undelivered("""
SELECT id, session, reason || ': ' || coalesce(last_error, '') AS error, frame AS head
  FROM _onceward_dead_letters
 WHERE origin = 'outbox' AND id IN (SELECT value FROM json_each(?))
""")


def tell_cancelled(tx: StoreTransaction, message_ids: Sequence[str]) -> None:
    """Report the end of cancelled tasks to the sessions that dispatched them."""
    tx.run(TASKS_CANCELLED, (json.dumps(message_ids),))


def insert(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Insert a new message."""
    tx.run(INSERT, ROW(message))


def gather(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Insert a new message together with others of the transaction."""
    tx.gather(INSERT, ROW(message))


def insert_all(tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> None:
    """Insert many new messages at once."""
    tx.insert(INSERT, list(map(ROW, messages)))


def insert_sent(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Insert a message that enters the agent's own inbox in the same commit."""
    tx.run(INSERT_SENT, (*ROW(message), tx.now))


def insert_found(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Insert a message that a restored file had sent, as its recipient has it."""
    tx.run(INSERT_FOUND, ROW(message))


def find_found(
    tx: StoreTransaction, message_id: str, recipient: str, key: str | None
) -> str | None:
    """Return the id of the message with an id or key if it was found again at its recipient."""
    for (found,) in tx.rows(FIND_FOUND, (message_id, recipient, key)):
        return str(found)
    return None


def remove_found(tx: StoreTransaction, message_id: str) -> str | None:
    """Remove a message that was found again; return its state before, None if it was not."""
    for (state,) in tx.rows(FOUND_STATE, (message_id,)):
        tx.run(END_FOUND, (tx.now, message_id))  # one that is not settled cannot be deleted
        tx.run(REMOVE_FOUND, (message_id,))
        return str(state)
    return None


def has_sent(tx: StoreTransaction, message_id: str, recipient: str, kind: str) -> bool:
    """Return whether a message of that id and kind was sent to *recipient*."""
    return bool(tx.rows(HAS_SENT, (message_id, recipient, kind)))


def insert_dropped(tx: StoreTransaction, message: OutgoingMessage, reason: str) -> None:
    """Insert a message that ends as dropped: it has an id, a reason and a time."""
    tx.rows(INSERT_DROPPED, (*ROW(message), tx.now, reason))


def of_id_or_key(
    tx: StoreTransaction, message_id: str, recipient: str, key: str | None
) -> list[tuple[str, str]]:
    """Return id and frame of the messages that have an id, or a key to a recipient."""
    return tx.rows(FIND_DUPLICATE, (message_id, recipient, key))


def dead_of_id_or_key(
    tx: StoreTransaction, message_id: str, recipient: str, key: str | None
) -> list[tuple[str]]:
    """Return the id of the dead letter that has an id, or a key to a recipient."""
    return tx.rows(FIND_DEAD, (message_id, recipient, key))


def release_body(tx: StoreTransaction, body_id: int) -> None:
    """Delete a stored body that no message refers to."""
    tx.run(RELEASE_BODY, (body_id,))


def release_unused_bodies(tx: StoreTransaction, body_ids: Sequence[int]) -> None:
    """Delete those stored bodies to which no message refers."""
    tx.many(RELEASE_UNUSED_BODY, [(body_id,) for body_id in body_ids])


def take_own(tx: StoreTransaction, seqs: Sequence[int]) -> int:
    """Mark messages that entered the agent's own inbox; return how many."""
    statement, bound = listed(seqs, TAKE_OWN)
    return tx.run(statement, {"now": tx.now, "seqs": bound})


def ack_own(tx: StoreTransaction, agent: str, message_id: str) -> bool:
    """End a handled message of an agent to itself, not yet counted; False if it was in a parcel."""
    return tx.run(ACKED_OWN, {"now": tx.now, "id": message_id, "agent": agent}) > 0


def sent_before(tx: StoreTransaction, peer: str, ids: Sequence[str]) -> frozenset[str]:
    """Return those pending messages that the peer was known to have."""
    return frozenset(i for (i,) in tx.rows(SENT_BEFORE, (json.dumps(ids), peer)))


def set_sent(tx: StoreTransaction, ids: Sequence[str], named: dict[str, Any]) -> list[str]:
    """Mark messages that the peer stored, and when it is asked about each; return those changed."""
    statement, bound = listed(ids, SENT)
    return list(chain.from_iterable(tx.rows(statement, named | {"ids": bound})))


def set_acked(
    tx: StoreTransaction, ids: Sequence[str], named: dict[str, Any]
) -> list[tuple[str, int]]:
    """End messages that were in state ``was``; return the id of each, and whether it was new."""
    statement, bound = listed(ids, ACKED)
    return tx.rows(statement, named | {"ids": bound})


def set_failed(tx: StoreTransaction, named: dict[str, Any]) -> bool:
    """End a message in state ``was`` that is a dead letter there; return whether it was."""
    return bool(tx.rows(FAILED, named))


def end_there(tx: StoreTransaction, named: dict[str, Any]) -> bool:
    """End a message in state ``was`` as its peer ended it; return whether it was."""
    return bool(tx.rows(ENDED_THERE, named))


def set_cancelled(tx: StoreTransaction, message_id: str) -> bool:
    """Withdraw a message that its peer cannot know; return whether that was possible."""
    return tx.run(CANCEL, (tx.now, message_id)) > 0


def is_cancelled(tx: StoreTransaction, message_id: str) -> bool:
    """Return whether a message was withdrawn."""
    return bool(tx.rows(CANCELLED, (message_id,)))


def set_pending(tx: StoreTransaction, peer: str, was: str, *, after: int) -> int:
    """Make messages in a state pending again that left in a later parcel; return how many."""
    named = {"peer": peer, "was": was, "after": after, "now": tx.now}
    return len(tx.rows(RESEND, named))


def due(tx: StoreTransaction, limit: int) -> list[tuple[int, str, int]]:
    """Return (sequence, state, deliveries that spent budget) of rows that are due."""
    return tx.rows(DUE, (tx.now, limit))


def unpark(tx: StoreTransaction, seqs: Sequence[int]) -> int:
    """End the delay of pending rows that are due; return how many."""
    return tx.run(REQUEUE, (json.dumps(seqs), tx.now))


def ask_again(tx: StoreTransaction, seqs: Sequence[int]) -> int:
    """Make sent rows that are due pending, so that their peer is asked; return how many."""
    return tx.run(ASK, (json.dumps(seqs), tx.now))


def park(tx: StoreTransaction, parked: Sequence[tuple[Millis | None, int]]) -> None:
    """Delay pending messages (until, sequence)."""
    tx.many(PARK, parked)


def block_lane(tx: StoreTransaction, message_id: str, *, error: str, due_at: Millis) -> Millis:
    """Back off one message that failed alone, with its lane; return until when."""
    [(lane_due_at,)] = tx.rows(BLOCK, (due_at, message_id))
    tx.run(FAIL_ONE, {"id": message_id, "error": error[:500], "due_at": lane_due_at})
    return cast("Millis", lane_due_at)


def unblock_lanes(tx: StoreTransaction) -> None:
    """Release the lanes whose heads are due again."""
    tx.run(UNBLOCK, (tx.now,))


def spend(tx: StoreTransaction, named: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Count a delivery of messages; return sequence, id, attempts and those that spent budget."""
    return tx.rows(SPEND, named)


def mark_pushed(tx: StoreTransaction, seqs: Sequence[int]) -> None:
    """Record that the peer may know messages."""
    tx.run(MARK_PUSHED, (json.dumps(seqs),))


def drop(tx: StoreTransaction, seq: int, reason: str) -> None:
    """End a message as dropped by a policy."""
    tx.run(DROP, {"now": tx.now, "reason": reason, "seq": seq})


def supersede(tx: StoreTransaction, message_id: str) -> int:
    """End a pending message that a newer one replaces; return 1 if it was pending."""
    return tx.run(REPLACE, (tx.now, message_id))


def free_all(tx: StoreTransaction) -> None:
    """Let all messages go that a limit holds."""
    tx.run(FREE_ALL)


def free_next(tx: StoreTransaction) -> bool:
    """Let the next message go that its limit need not hold; return whether there was one."""
    return tx.run(FREE_NEXT) > 0


def free_orphans(tx: StoreTransaction) -> None:
    """Let messages go whose limit no longer exists."""
    tx.run(FREE_ORPHANS)


def free_of_channel(tx: StoreTransaction, channel: str, limit: int) -> int:
    """Let a slice of the messages go that a channel held; return how many."""
    return tx.run(FREE_CHANNEL, (channel, limit))


def states(tx: StoreTransaction, seqs: Sequence[int]) -> dict[str, int]:
    """Return how many of some messages are in each state."""
    return dict(tx.rows(STATES, (json.dumps(seqs),)))


def remove_unended(tx: StoreTransaction, seqs: Sequence[int]) -> None:
    """Delete rows that have not ended, because they are dead letters now."""
    tx.run(REMOVE_UNENDED, (json.dumps(seqs),))


def add_returned(tx: StoreTransaction, dead_letter: int, *, due_at: Millis | None) -> None:
    """Insert the message of a dead letter again, with its id and key."""
    tx.rows(RETURN, {"due_at": due_at, "now": tx.now, "seq": dead_letter})


def tell_dead(tx: StoreTransaction, message_ids: Sequence[str]) -> None:
    """Report tasks that became dead letters to the sessions that dispatched them."""
    tx.run(TASKS_FAILED, (json.dumps(message_ids),))
