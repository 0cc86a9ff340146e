"""
Write the requests that this agent made, and the results that are kept for those it handled.

A request is open until its reply comes, its recipient ends it without one, it is cancelled, or it
becomes a dead letter; a reply that comes later still answers one that failed, but not a late one.
After a restore a reply may come before its request is made again, which is then answered at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from onceward.file.transaction import StoreTransaction
from onceward.message.body import Payload
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.vocabulary import LeaseInfo

OPEN: Final = """
INSERT INTO _onceward_pending_replies (id, session, recipient, asked_at, deadline_at,
                                       asker_seq, asker_index, asker_digest, kept)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
   SET session = excluded.session, asked_at = excluded.asked_at, deadline_at = excluded.deadline_at,
       asker_seq = excluded.asker_seq, asker_index = excluded.asker_index,
       asker_digest = excluded.asker_digest, kept = excluded.kept
 WHERE asker_seq IS NULL AND excluded.asker_seq IS NOT NULL
"""
ANSWER_EARLY: Final = """
INSERT INTO _onceward_pending_replies (id, session, recipient, state, asked_at, reply_id, ended_at)
SELECT :id, :session, :sender, 'answered', :now, :reply, :now
 WHERE NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = :id AND found_again IS NULL)
ON CONFLICT (id) DO NOTHING
"""
# A limit may have dropped the request in the same transaction: no reply will come.
END_DROPPED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', ended_at = :now,
       reason = 'dropped: ' || (SELECT reason FROM _onceward_outbox WHERE id = :id)
 WHERE id = :id AND state = 'open'
   AND EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = :id AND state = 'dropped')
"""
NOTE_PROGRESS: Final = """
UPDATE _onceward_pending_replies
   SET progress = :body, progress_at = :now
 WHERE id = :id AND recipient = :sender AND state = 'open'
"""
REDIRECT: Final = "UPDATE _onceward_pending_replies SET recipient = ? WHERE id = ?"
GATHER: Final = """
UPDATE _onceward_pending_replies SET gathered = 1 WHERE id IN (SELECT value FROM json_each(?))
"""
ADOPT: Final = "UPDATE _onceward_pending_replies SET asker_index = ? WHERE id = ?"
ANSWER: Final = """
UPDATE _onceward_pending_replies
   SET state = CASE WHEN deadline_at < :now THEN 'late' ELSE 'answered' END, reply_id = :reply,
       ended_at = coalesce(ended_at, :now)
 WHERE id = :id AND state IN ('open', 'failed')
"""
FAIL: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = :reason, ended_at = :now
 WHERE id = :id AND state = 'open'
"""
FAIL_AT: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = :reason, ended_at = :now
 WHERE id = :id AND recipient = :peer AND state = 'open'
"""
FAIL_ALL: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = :reason, ended_at = :now
 WHERE state = 'open' AND id IN (SELECT value FROM json_each(:ids))
"""
# For a handler that asked, the request has failed at each of its calls.
REOPEN: Final = """
UPDATE _onceward_pending_replies
   SET state = 'open', reason = NULL, ended_at = NULL
 WHERE id = ? AND state = 'failed' AND asker_seq IS NULL
"""
# Of the requests that the handler made before its message died, those with a reply that exists or
# may still come are reused; failed or late ones are asked again.
FORGET_ASKED: Final = """
UPDATE _onceward_pending_replies AS t
   SET asker_seq = NULL, asker_index = NULL
 WHERE asker_seq = (SELECT inbox_seq FROM _onceward_dead_letters WHERE seq = :seq)
   AND (asker_index < 0
        OR CASE state
           WHEN 'open' THEN deadline_at <= :now
           WHEN 'answered' THEN NOT EXISTS (SELECT 1
                                              FROM _onceward_inbox AS b
                                             WHERE b.id = t.reply_id AND b.sender = t.recipient)
           ELSE 1 END)
"""
HAND_OVER: Final = """
UPDATE _onceward_pending_replies
   SET asker_seq = :asker, asker_index = -1 - asker_index, reason = NULL
 WHERE asker_seq = (SELECT inbox_seq FROM _onceward_dead_letters WHERE seq = :seq)
"""
FAIL_OF_ASKERS: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', reason = 'cancelled', ended_at = :now
 WHERE state = 'open' AND kept = 0
   AND asker_seq IN (SELECT b.seq
                       FROM json_each(:seqs) AS j JOIN _onceward_inbox AS b ON b.seq = j.value
                      WHERE b.state = 'pending' AND b.lane_id IS NOT NULL)
RETURNING id
"""
# A ticket is kept at least as long as its request, which is kept until it is settled, and as long
# as the handler that asked, which would ask again without it.
PRUNE: Final = """
DELETE FROM _onceward_pending_replies
 WHERE id IN (SELECT id
                FROM _onceward_pending_replies
               WHERE asked_at < :before
                 AND coalesce(ended_at, max(deadline_at, asked_at), asked_at) < :before
                 AND NOT EXISTS (SELECT 1 FROM _onceward_inbox AS a
                                  WHERE a.seq = asker_seq AND a.state = 'pending')
                 AND (state <> 'open'
                      OR NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o
                                      WHERE o.id = _onceward_pending_replies.id))
               LIMIT :limit)
"""
# A new row, so that a result is not deleted as early as the first progress of its message.
KEEP_RESULT: Final = """
INSERT OR REPLACE INTO _onceward_results
       (sender, message_id, stored_at, until_at, bytes, media, result, progress)
VALUES (:sender, :id, :now, :until_at, :bytes, :media, :result,
        (SELECT progress FROM _onceward_results WHERE message_id = :id AND sender = :sender))
RETURNING seq
"""
# Of a message that has not ended; a late worker changes no result.
KEEP_PROGRESS: Final = """
INSERT OR REPLACE INTO _onceward_results (sender, message_id, stored_at, until_at, bytes, progress)
SELECT sender, id, :now, :until_at, :bytes, :progress
  FROM _onceward_inbox WHERE seq = :seq AND state = 'pending'
RETURNING seq
"""
FORGET_RESULTS: Final = "DELETE FROM _onceward_results WHERE seq <= ?"
RESULTS_OF_FILE: Final = 10_000
"""Maximum kept results of a file."""
RESULT_BYTES: Final = 64 << 20
"""Maximum total size of the kept results of a file after a round of maintenance."""
PRUNE_RESULTS: Final = f"""
DELETE FROM _onceward_results
 WHERE seq IN (SELECT seq
                 FROM (SELECT seq, until_at, sum(bytes) OVER (ORDER BY seq DESC) AS total
                         FROM _onceward_results)
                WHERE until_at < :now OR total > {RESULT_BYTES}
                LIMIT :limit)
"""


def open_one(tx: StoreTransaction, *values: Any) -> None:
    """
    Open a request, once; *values* are the columns of ``OPEN``.

    A handler's request whose reply came early is answered.
    """
    tx.run(OPEN, values)


def answer_early(tx: StoreTransaction, reply: Frame) -> bool:
    """
    Keep a reply for a request that this file does not know; return False if it knows it.

    A restored file gets replies to requests that its handlers will make again.
    """
    named = {"id": reply.inreplyto, "session": reply.session, "sender": reply.sender}
    return tx.run(ANSWER_EARLY, named | {"reply": reply.id, "now": tx.now}) > 0


def redirect(tx: StoreTransaction, message_id: str, recipient: str) -> None:
    """Expect the reply to a request, if it is one, from another agent."""
    tx.run(REDIRECT, (recipient, message_id))


def end_dropped(tx: StoreTransaction, message_id: str) -> None:
    """Fail a request that a limit dropped as it was sent."""
    tx.run(END_DROPPED, {"id": message_id, "now": tx.now})


def answer(tx: StoreTransaction, message_id: str, reply_id: str) -> bool:
    """Answer a request, or record the reply as late; return whether one waited."""
    return tx.run(ANSWER, {"id": message_id, "reply": reply_id, "now": tx.now}) > 0


def note_progress(tx: StoreTransaction, message_id: str, sender: str, body: str) -> None:
    """Store the last progress that the recipient of an open request reported."""
    named = {"id": message_id, "sender": sender, "body": body, "now": tx.now}
    tx.run(NOTE_PROGRESS, named)


def gather(tx: StoreTransaction, message_ids: Sequence[str]) -> None:
    """Make requests wake their handler together."""
    tx.run(GATHER, (json.dumps(message_ids),))


def adopt(tx: StoreTransaction, message_id: str, number: int) -> None:
    """Give a request the place in its handler at which it is asked again."""
    tx.run(ADOPT, (number, message_id))


def fail(tx: StoreTransaction, message_id: str, reason: str) -> None:
    """Fail an open request that ended here."""
    tx.run(FAIL, {"reason": reason, "now": tx.now, "id": message_id})


def fail_at(tx: StoreTransaction, peer: str, message_id: str, reason: str | None) -> bool:
    """Fail an open request that its recipient ended without a reply; return whether it was open."""
    named = {"reason": reason, "now": tx.now, "id": message_id, "peer": peer}
    return tx.run(FAIL_AT, named) > 0


def fail_all(tx: StoreTransaction, message_ids: Sequence[str], reason: str) -> None:
    """Fail the open requests among messages that became dead letters."""
    named = {"reason": reason, "now": tx.now, "ids": json.dumps(message_ids)}
    tx.run(FAIL_ALL, named)


def fail_of(tx: StoreTransaction, askers: Sequence[int]) -> list[str]:
    """Fail the open requests of handlers of waiting messages, but for kept ones; return ids."""
    named = {"seqs": json.dumps(askers), "now": tx.now}
    return [message_id for (message_id,) in tx.rows(FAIL_OF_ASKERS, named)]


def reopen(tx: StoreTransaction, message_id: str) -> None:
    """Open the request of a replayed dead letter again, unless a handler asked it."""
    tx.run(REOPEN, (message_id,))


def pass_on(tx: StoreTransaction, dead_letter: int, asker: int) -> None:
    """
    Give a replayed message the requests that its handler made before it died.

    Those with a reply that exists or may still come are reused; failed or late ones are asked
    again.
    """
    tx.run(FORGET_ASKED, {"now": tx.now, "seq": dead_letter})
    tx.run(HAND_OVER, {"asker": asker, "seq": dead_letter})


def keep_result(
    tx: StoreTransaction, of: LeaseInfo, value: Payload, *, size: int, until_at: Millis
) -> None:
    """Keep what the handler of a message returned; forget the oldest if there are too many."""
    named = {
        "sender": of.sender,
        "id": of.id,
        "now": tx.now,
        "until_at": until_at,
        "bytes": size,
        "media": value.media,
        "result": value.text,
    }
    _forget_oldest(tx, tx.rows(KEEP_RESULT, named))


def keep_progress(
    tx: StoreTransaction, seq: int, text: str, *, size: int, until_at: Millis
) -> None:
    """Keep the last progress that the handler of a message reported, as JSON."""
    named = {"seq": seq, "now": tx.now, "until_at": until_at, "bytes": size, "progress": text}
    _forget_oldest(tx, tx.rows(KEEP_PROGRESS, named))


def _forget_oldest(tx: StoreTransaction, kept: Sequence[tuple[int]]) -> None:
    for (seq,) in kept:
        tx.run(FORGET_RESULTS, (seq - RESULTS_OF_FILE,))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of old requests, and of results whose time is over; return how many."""
    named = {"before": before, "limit": limit, "now": tx.now}
    return tx.run(PRUNE, named) + tx.run(PRUNE_RESULTS, named)
