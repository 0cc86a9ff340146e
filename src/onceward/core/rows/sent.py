"""Change waiting and sent messages of the outbox: ask again, resend, expire, cancel."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.frame import BODY_ERROR
from onceward.message.vocabulary import SentState

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


TICKET_FAILED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = ?, ended_at = ?
 WHERE id = ? AND state = 'open'
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
PRUNED: Final = """
UPDATE _onceward_file_info SET outbox_pruned_at = max(coalesce(outbox_pruned_at, 0), ?)
"""
CANCEL: Final = f"""
UPDATE _onceward_outbox AS o
   SET state = 'cancelled', due_at = NULL, held_by = NULL, ended_at = ?, reason = 'cancelled'
 WHERE id = ? AND state = 'pending' AND NOT {pushed("o")}
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
UNSENT: Final = """
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0)
       - (SELECT value FROM _onceward_counters WHERE name = 'ended_pending')
"""
STATE: Final = """
SELECT coalesce((SELECT state FROM onceward_outbox WHERE id = :id),
                (SELECT 'dead' FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id),
                'absent')
"""


def fail_request(tx: StoreTransaction, message_id: str, reason: str) -> None:
    """If a message that ended here is a request, end the wait for its reply."""
    tx.run(TICKET_FAILED, (reason, tx.now, message_id))


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
                    WHERE r.recipient = i.agent AND r.key = 'worker_result:' || d.id)
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


def requeue_due(
    tx: StoreTransaction, limit: int, exhausted: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """
    Make due rows ready: delayed ones, and sent ones whose outcome is unknown.

    Pushing a sent row again asks for its outcome.

    Return how many are ready now, and the sequences of those that were repeatedly stored but never
    processed: the peer is not asked about them again. It is always asked about a message that was
    stored once.
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
    """Return the messages, by sequence, that expired before they were stored."""
    return [seq for (seq,) in tx.rows(EXPIRED, (tx.now, limit))]


def oldest(tx: StoreTransaction, peer: str) -> str | None:
    """Return the id of the oldest retained message for *peer*, or None."""
    found = tx.rows(OLDEST, (peer,))
    return str(found[0][0]) if found else None


def resend(tx: StoreTransaction, peer: str, *, after: int) -> int:
    """Make all messages pending again that left in a parcel later than *after*; return how many."""
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
    """Withdraw a message that has not left yet; return whether that was possible."""
    if not tx.run(CANCEL, (tx.now, message_id)):
        return bool(
            tx.rows(CANCELLED, (message_id,))
        )  # called twice, or repeated after a COMMIT whose outcome was lost
    bump(tx, ended_pending=1, cancelled=1)
    fail_request(tx, message_id, "cancelled")
    return True


def tell_cancelled(tx: StoreTransaction, message_ids: Sequence[str]) -> None:
    """Report the end of cancelled tasks to the sessions that dispatched them."""
    tx.run(TASKS_CANCELLED, (json.dumps(message_ids),))


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


def note_pruned(tx: StoreTransaction, before: Millis) -> None:
    """Record that messages that ended *before* may be missing, so their receipts are no orphans."""
    tx.run(PRUNED, (before,))


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
