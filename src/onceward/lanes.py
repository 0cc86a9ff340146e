"""Lanes: the unit of order and of leasing on the way in. One lease holds a lane, and with it its next messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from onceward.clock import Millis
from onceward.errors import LeaseLost
from onceward.tx import Tx

OPEN: Final = """
INSERT INTO lanes (sender, name, rank, session) VALUES (?, ?, ?, ?)
ON CONFLICT (sender, name, rank) DO UPDATE SET session = excluded.session
RETURNING lane_id
"""
HEADS: Final = """
UPDATE lanes SET head = (SELECT min(seq) FROM inbox WHERE lane_id = lanes.lane_id AND state = 'pending')
 WHERE lane_id IN (SELECT value FROM json_each(?)) AND head IS NULL
"""
WAKE: Final = "UPDATE lanes SET due_at = NULL, owner = NULL, claimed = NULL WHERE due_at <= ?"
READY: Final = """
SELECT lane_id, token, attempts, head FROM lanes
 WHERE head IS NOT NULL AND due_at IS NULL
 ORDER BY rank, head
 LIMIT ?
"""
READY_FOR: Final = """
SELECT lane_id, token, attempts, head FROM lanes
 WHERE head IS NOT NULL AND due_at IS NULL AND session = ?
 ORDER BY rank, head
 LIMIT ?
"""
LEASE: Final = """
UPDATE lanes SET owner = ?, token = token + 1, due_at = ?, claimed = ?, attempts = attempts + 1
 WHERE lane_id = ? AND token = ? AND owner IS NULL
"""
PROLONG: Final = "UPDATE lanes SET due_at = ? WHERE lane_id = ? AND token = ? AND owner = ?"
SETTLE: Final = """
UPDATE lanes
   SET head = (SELECT min(seq) FROM inbox WHERE lane_id = lanes.lane_id AND state = 'pending'),
       owner = CASE WHEN :rest IS NULL THEN NULL ELSE owner END,
       claimed = :rest,
       due_at = CASE WHEN :rest IS NULL THEN :due_at ELSE due_at END,
       attempts = :attempts
 WHERE lane_id = :lane AND token = :token AND owner = :owner
"""
CLEAR: Final = "UPDATE lanes SET due_at = NULL WHERE lane_id = ? AND head IS NULL AND owner IS NULL"
AGENDA: Final = """
SELECT (SELECT frozen_at FROM identity),
       EXISTS (SELECT 1 FROM lanes WHERE head IS NOT NULL AND due_at IS NULL),
       (SELECT min(due_at) FROM lanes WHERE due_at IS NOT NULL)
"""
NEXT_DUE: Final = "SELECT min(due_at) FROM lanes WHERE due_at IS NOT NULL"
FORGET: Final = """
DELETE FROM lanes WHERE lane_id IN (
    SELECT lane_id FROM lanes AS l
     WHERE head IS NULL AND owner IS NULL AND due_at IS NULL AND lane_id > ?
       AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.lane_id = l.lane_id AND state = 'pending')
     ORDER BY lane_id LIMIT ?)
"""


@dataclass(frozen=True, slots=True)
class LaneLease:
    """The right to work on one lane until its token changes hands."""

    lane_id: int
    token: int
    owner: str
    attempts: int
    """How often its head has been claimed, this claim included."""


def open_lane(tx: Tx, sender: str, name: str, rank: int, *, session: str) -> int:
    """Return the number of a lane, made on first use."""
    [(lane_id,)] = tx.rows(OPEN, (sender, name, rank, session))
    return int(lane_id)


def wake_heads(tx: Tx, lane_ids: list[int]) -> None:
    """Give lanes that were empty their first message."""
    tx.run(HEADS, (json.dumps(lane_ids),))


def wake_due(tx: Tx) -> int:
    """Free the lanes whose backoff or lease has run out: recovery is claiming."""
    return tx.run(WAKE, (tx.now,))


def ready(tx: Tx, limit: int, session: str | None = None) -> list[tuple[int, int, int, int]]:
    """Return (lane, token, attempts, head) of lanes that may be claimed, urgent and old ones first."""
    if session is None:
        return [(lane, token, attempts, head) for lane, token, attempts, head in tx.rows(READY, (limit,))]
    return [(lane, token, attempts, head) for lane, token, attempts, head in tx.rows(READY_FOR, (session, limit))]


def lease(tx: Tx, lane: tuple[int, int, int, int], seqs: list[int], *, owner: str, until: Millis) -> LaneLease:
    """Lease a ready lane for *seqs*."""
    lane_id, token, attempts, _ = lane
    if not tx.run(LEASE, (owner, until, json.dumps(seqs), lane_id, token)):
        msg = f"lane {lane_id} was leased in between"
        raise LeaseLost(msg)
    return LaneLease(lane_id, token + 1, owner, attempts + 1)


def prolong(tx: Tx, held: LaneLease, *, until: Millis) -> bool:
    """Keep the lease longer; False where it is lost."""
    return tx.run(PROLONG, (until, held.lane_id, held.token, held.owner)) > 0


def settle(tx: Tx, held: LaneLease, *, rest: list[int], due_at: Millis | None, attempts: int) -> None:
    """
    Move the lane's head on; with *rest* empty the lease ends and the lane may be claimed from *due_at* on.

    Raises:
        LeaseLost: somebody else works on the lane; the caller's transaction must be rolled back.

    """
    named = {
        "rest": json.dumps(rest) if rest else None,
        "due_at": due_at,
        "attempts": attempts,
        "lane": held.lane_id,
        "token": held.token,
        "owner": held.owner,
    }
    if not tx.run(SETTLE, named):
        msg = f"the lease on lane {held.lane_id} ran out; another worker has it"
        raise LeaseLost(msg)
    if due_at is not None and not rest:
        tx.run(CLEAR, (held.lane_id,))
