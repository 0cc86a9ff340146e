"""Messages that ended badly, kept whole: moved in one transaction, replayed with their own id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from onceward import lanes
from onceward.clock import Millis
from onceward.counters import bump
from onceward.errors import InvalidMessage
from onceward.tx import Tx

BURY_OUT: Final = """
INSERT INTO dead_letters (origin, id, peer, session, lane, type, topic, rank, reason, last_error, attempts, expires_at, key, frame,
                          digest, created_at, dead_at, channel, kind, correlation_id)
SELECT 'outbox', id, recipient, session, lane, type, topic, rank, :reason, :error, attempts, expires_at, key,
       CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || (SELECT b.text FROM bodies AS b WHERE b.body_id = o.body_id) || '}' END,
       digest, created_at, :now, channel, kind, correlation_id
  FROM outbox AS o WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state IN ('pending', 'sent')
RETURNING id, peer
"""
COUNT_OUT: Final = "SELECT state, count(*) FROM outbox WHERE seq IN (SELECT value FROM json_each(?)) GROUP BY state"
REMOVE_OUT: Final = "DELETE FROM outbox WHERE seq IN (SELECT value FROM json_each(?)) AND state IN ('pending', 'sent')"
TICKETS_FAILED: Final = """
UPDATE tickets SET state = 'failed', reason = ?, ended_at = ? WHERE state = 'open' AND id IN (SELECT value FROM json_each(?))
"""
BURY_IN: Final = """
INSERT INTO dead_letters (origin, id, peer, session, lane, type, topic, rank, reason, last_error, attempts, expires_at, frame,
                          digest, created_at, dead_at, channel, kind, correlation_id, mailbox)
SELECT 'inbox', b.id, b.sender, b.session, coalesce(l.name, b.session), b.type, b.topic, b.rank, :reason, :error, :attempts,
       b.expires_at, b.frame, b.digest, b.received_at, :now, b.channel, b.kind, b.correlation_id, b.mailbox
  FROM inbox AS b LEFT JOIN lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = :seq AND b.state = 'pending'
"""
REMOVE_IN: Final = "DELETE FROM inbox WHERE seq = ?"
FIND: Final = "SELECT seq, origin, id, peer, rank, lane, session FROM dead_letters WHERE id = ?"
REVIVE_OUT: Final = """
INSERT INTO outbox (id, recipient, session, lane, type, topic, rank, parcel, key, frame, digest, created_at, channel, kind, correlation_id)
SELECT id, peer, session, lane, type, topic, rank, 0, key, frame, digest, created_at, channel, kind, correlation_id
  FROM dead_letters WHERE seq = ?
"""
REVIVE_IN: Final = """
INSERT INTO inbox (sender, id, lane_id, session, type, topic, rank, frame, digest, received_at,
                   channel, kind, correlation_id, mailbox)
SELECT peer, id, ?, session, type, topic, rank, frame, digest, created_at, channel, kind, correlation_id, mailbox
  FROM dead_letters WHERE seq = ?
"""
REOPEN: Final = "UPDATE tickets SET state = 'open', reason = NULL, ended_at = NULL WHERE id = ? AND state = 'failed'"
UNMARK: Final = "DELETE FROM processed_messages WHERE sender = ? AND message_id = ? AND outcome = 'dead'"
DROP: Final = "DELETE FROM dead_letters WHERE seq = ?"
DISCARD: Final = "DELETE FROM dead_letters WHERE id = ?"
PURGE: Final = "DELETE FROM dead_letters WHERE dead_at < ?"


def bury_out(tx: Tx, seqs: Iterable[int], *, reason: str, error: str = "") -> list[tuple[str, str]]:
    """Move outgoing messages to the dead letters; return (id, peer) of each."""
    listed = json.dumps(list(seqs))
    states = dict(tx.rows(COUNT_OUT, (listed,)))
    moved = [(str(i), str(p)) for i, p in tx.rows(BURY_OUT, {"reason": reason, "error": error, "now": tx.now, "seqs": listed})]
    tx.run(REMOVE_OUT, (listed,))
    bump(tx, left=states.get("pending", 0), sent=-states.get("sent", 0), dead=len(moved))
    tx.run(TICKETS_FAILED, (reason, tx.now, json.dumps([i for i, _ in moved])))
    return moved


def bury_in(tx: Tx, seq: int, *, reason: str, error: str, attempts: int) -> None:
    """Move an incoming message, whose lease was proved by the caller, to the dead letters."""
    tx.run(BURY_IN, {"seq": seq, "reason": reason, "error": error, "attempts": attempts, "now": tx.now})
    tx.run(REMOVE_IN, (seq,))
    bump(tx, dead=1, ended=1)


def replay(tx: Tx, message_id: str) -> str:
    """
    Put a dead letter back where it came from, with its own id; return that origin.

    A peer that had processed it answers so, and the message ends acked.

    Raises:
        InvalidMessage: no dead letter has this id.

    """
    found = tx.rows(FIND, (message_id,))
    if not found:
        msg = f"no dead letter {message_id}: list them first"
        raise InvalidMessage(msg)
    seq, origin, _, peer, rank, lane, session = found[0]
    if origin == "outbox":
        tx.run(REVIVE_OUT, (seq,))
        tx.run(REOPEN, (message_id,))
    else:
        _revive_in(tx, seq, message_id, (peer, lane, rank, session))
    tx.run(DROP, (seq,))
    bump(tx, replayed=1)
    return str(origin)


def _revive_in(tx: Tx, seq: int, message_id: str, lane: tuple[Any, ...]) -> None:
    peer, name, rank, session = lane
    tx.run(UNMARK, (peer, message_id))
    lane_id = lanes.open_lane(tx, peer, name, rank, session=session)
    tx.rows(REVIVE_IN, (lane_id, seq))
    lanes.wake_heads(tx, [lane_id])


def discard(tx: Tx, message_id: str) -> bool:
    """Forget a dead letter; say whether there was one."""
    return tx.run(DISCARD, (message_id,)) > 0


def purge(tx: Tx, *, before: Millis) -> int:
    """Forget the dead letters that died before a moment; return how many."""
    return tx.run(PURGE, (before,))
