"""Write the dead letters: rows that left the outbox or the inbox whole, with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from onceward.core.rows.outbox import frame_of, pushed
from onceward.file.database import Database
from onceward.file.sql_parts import column_names, columns
from onceward.file.transaction import StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.record import MessageRecord
from onceward.message.topics import check_pattern, matches
from onceward.message.vocabulary import ATTEMPT_NEVER_ENDED, DeadLetterOrigin, Reason

INSERT_FROM_OUTBOX: Final = f"""
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, topic, rank, reason,
                                    last_error, attempts, expires_at, key, frame, digest,
                                    created_at, dead_at, channel, kind, correlation_id, replays,
                                    pushed)
SELECT 'outbox', id, recipient, session, lane, type, topic, rank, :reason, :error,
       attempts + :tried, expires_at, key,
       {frame_of("o")}, CASE WHEN o.body_id IS NULL THEN digest END, created_at, :now, channel,
       kind, correlation_id, replays,
       NOT :unknown AND {pushed("o")}
  FROM _onceward_outbox AS o
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state IN ('pending', 'sent')
RETURNING id, peer
"""
INSERT_FROM_INBOX: Final = """
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, topic, rank, reason,
                                    last_error, attempts, expires_at, frame, digest, created_at,
                                    dead_at, channel, kind, correlation_id, mailbox, replays,
                                    inbox_seq)
SELECT 'inbox', b.id, b.sender, b.session, coalesce(l.name, b.session), b.type, b.topic, b.rank,
       :reason,
       CASE :error WHEN :unended THEN :error || coalesce('; it failed last with ' || b.reason, '')
            ELSE :error END, :attempts,
       b.expires_at, b.frame, b.digest, b.received_at, :now, b.channel, b.kind, b.correlation_id,
       b.mailbox, b.replays, b.seq
  FROM _onceward_inbox AS b LEFT JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = :seq AND b.state = 'pending'
"""
FIND: Final = """
SELECT d.origin, d.id, d.peer, d.rank, d.lane, d.session,
       d.origin = 'outbox' AND NOT d.pushed AND d.expires_at <= :now AND i.paused_at IS NULL
       AND d.frame ->> '$.expirytime' IS NOT NULL, d.mailbox IS NOT NULL
  FROM _onceward_dead_letters AS d, _onceward_file_info AS i WHERE d.seq = :seq
"""
GAVE_UP: Final = """
SELECT 1 FROM _onceward_dead_letters WHERE origin = 'outbox' AND peer = ? AND id = ?
"""
DROP: Final = "DELETE FROM _onceward_dead_letters WHERE seq = ?"
# Not if another process has edited it meanwhile.
EDIT: Final = """
UPDATE _onceward_dead_letters SET frame = :edited, digest = :digest
 WHERE seq = :seq AND origin = 'inbox' AND frame = :frame
"""
SENT_UNTIL: Final = (
    " RETURNING CASE origin WHEN 'outbox' THEN max(dead_at, coalesce(late_at, 0)) END"
)
LATE: Final = """
UPDATE _onceward_dead_letters SET late_outcome = :state, late_at = :now
 WHERE origin = 'outbox'
   AND peer = :peer
   AND id IN (SELECT value FROM json_each(:ids))
   AND late_outcome IS NULL
"""
OF_QUEUE: Final = """
UPDATE _onceward_dead_letters SET queue = :queue
 WHERE origin = 'inbox' AND peer = :sender AND id = :id
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class DeadLetter(MessageRecord):
    """A failed message, and the details of its failure."""

    reason: Reason
    """Why it failed."""
    dead_at: Millis
    last_error: str | None
    late_outcome: str | None
    """Its outcome at the recipient, reported after it became a dead letter here."""
    replays: int
    """How often it was replayed and failed again."""
    seq: int
    """Order in which they failed; two senders may have chosen the same id."""

    @property
    def origin(self) -> DeadLetterOrigin:
        """The queue in which it failed: ``outbox``, ``inbox`` or ``queue``."""
        return cast("DeadLetterOrigin", self.box)


SELECT: Final = """
SELECT seq, topic FROM onceward_dead_letters
 WHERE (:id IS NULL OR id = :id)
   AND (:reason IS NULL OR reason = :reason)
   AND (:origin IS NULL OR origin = :origin)
   AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:session IS NULL OR session = :session)
   AND (:before IS NULL OR dead_at < :before) AND (:type IS NULL OR type = :type)
 ORDER BY seq
"""
COLUMNS: Final = column_names(DeadLetter)
SELECTED: Final = columns(
    DeadLetter, "d.", state="'dead'", at="d.created_at", text="d.frame", box="d.origin"
)
BY_SEQ: Final = f"""
SELECT {SELECTED}
  FROM json_each(?) AS j JOIN onceward_dead_letters AS d ON d.seq = j.value
 ORDER BY d.seq
"""


def add_from_outbox(
    tx: StoreTransaction,
    seqs: Sequence[int],
    *,
    reason: Reason,
    error: str,
    unknown: bool,
    tried: bool,
) -> list[tuple[str, str]]:
    """Copy outgoing messages that have not ended to the dead letters; return (id, peer) of each."""
    named = {"reason": reason, "error": error, "now": tx.now, "seqs": json.dumps(seqs)}
    moved = tx.rows(INSERT_FROM_OUTBOX, named | {"unknown": unknown, "tried": tried})
    return [(str(message_id), str(peer)) for message_id, peer in moved]


def add_from_inbox(
    tx: StoreTransaction, seq: int, *, reason: Reason, error: str, attempts: int
) -> bool:
    """Copy an incoming message to the dead letters; return whether it waited."""
    named = {
        "seq": seq,
        "reason": reason,
        "error": error,
        "attempts": attempts,
        "now": tx.now,
        "unended": ATTEMPT_NEVER_ENDED,
    }
    return tx.run(INSERT_FROM_INBOX, named) > 0


class Returning(NamedTuple):
    """A dead letter on its way back to the queue that it came from."""

    origin: str
    id: str
    peer: str
    rank: int
    lane: str
    session: str
    expired: int
    """Whether it expired before it left, so that its peer would refuse it."""
    boxed: int
    """Whether it was in a mailbox."""


def returning(tx: StoreTransaction, seq: int) -> Returning | None:
    """Return what a replay needs of a dead letter, if it still exists."""
    found = tx.rows(FIND, {"seq": seq, "now": tx.now})
    return Returning(*found[0]) if found else None


def remove(tx: StoreTransaction, seq: int) -> None:
    """Delete a dead letter that has returned."""
    tx.run(DROP, (seq,))


def discard(tx: StoreTransaction, seq: int) -> list[Millis | None]:
    """Delete a dead letter, if it exists; return when a sent one changed last, or None."""
    return [at for (at,) in tx.rows(DROP + SENT_UNTIL, (seq,))]


def edit(tx: StoreTransaction, seq: int, frame: str, edited: str) -> bool:
    """Replace the *frame* of a received dead letter; return False if it is another one now."""
    named = {"seq": seq, "frame": frame, "edited": edited, "digest": digest(edited)}
    return tx.run(EDIT, named) > 0


def of_seq(db: Database, seq: int) -> list[DeadLetter]:
    """Return the dead letter of that number, if it still exists."""
    return _of_seqs(db, [seq])


def of_id(db: Database, message_id: str) -> list[DeadLetter]:
    """Return the dead letters of one id, oldest first."""
    conditions = dict.fromkeys(("reason", "origin", "peer", "session", "before", "type"))
    return find(db, {**conditions, "id": message_id}, limit=-1)


def find(
    db: Database, conditions: Mapping[str, Any], topic: str | None = None, *, limit: int
) -> list[DeadLetter]:
    """Return the oldest dead letters, oldest first; a condition of None does not filter."""
    seqs = _seqs(db, conditions, topic)
    return _of_seqs(db, seqs[:limit] if limit >= 0 else seqs)


def find_newest(
    db: Database, conditions: Mapping[str, Any], topic: str | None = None, *, limit: int
) -> list[DeadLetter]:
    """Return the newest dead letters, newest first; a condition of None does not filter."""
    newest = _seqs(db, conditions, topic)[::-1]
    return _of_seqs(db, newest[:limit] if limit >= 0 else newest)[::-1]


def _seqs(db: Database, conditions: Mapping[str, Any], topic: str | None) -> list[int]:
    if topic is not None:
        check_pattern(topic)
    found = db.ask(SELECT, conditions)
    return [seq for seq, its in found if topic is None or (its is not None and matches(topic, its))]


def _of_seqs(db: Database, seqs: list[int]) -> list[DeadLetter]:
    rows = db.ask(BY_SEQ, (json.dumps(seqs),))
    return [DeadLetter(**dict(zip(COLUMNS, row, strict=True))) for row in rows]


def gave_up(tx: StoreTransaction, recipient: str, message_id: str) -> bool:
    """Return whether a message to a recipient is a dead letter of this file."""
    return bool(tx.rows(GAVE_UP, (recipient, message_id)))


def note_late(tx: StoreTransaction, peer: str, ids: Sequence[str], outcome: str) -> None:
    """Record what a peer reported of messages after they became dead letters here."""
    statement, bound = listed(ids, LATE)
    tx.run(statement, {"state": outcome, "now": tx.now, "peer": peer, "ids": bound})


def set_queue(tx: StoreTransaction, queue: str, messages: Sequence[tuple[str, str]]) -> None:
    """Record which session's queue refused messages (sender, id)."""
    tx.many(OF_QUEUE, [{"queue": queue, "sender": s, "id": i} for s, i in messages])
