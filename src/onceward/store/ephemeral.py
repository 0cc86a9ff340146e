"""Messages that a restart may drop: which they are, and the drop itself."""

from __future__ import annotations

import json
from typing import Final

from onceward.db.transaction import StoreTransaction
from onceward.store import inbox
from onceward.store.counters import bump

MARK: Final = "UPDATE inbox SET ephemeral = 1 WHERE sender = ? AND id = ? AND state = 'pending'"
# What somebody has in hand is not dropped: neither under a lane's lease nor under a group's. Nor what a run is bound to.
LEFT: Final = """
SELECT b.seq, b.mailbox IS NOT NULL FROM inbox AS b
 WHERE b.ephemeral IS NOT NULL AND b.state = 'pending' AND b.run_id IS NULL AND b.seq > :after
   AND b.seq NOT IN (SELECT j.value FROM lanes AS l, json_each(l.claimed) AS j WHERE l.claimed IS NOT NULL)
   AND b.seq NOT IN (SELECT h.seq FROM handouts AS h WHERE h.owner IS NOT NULL AND h.due_at > :now)
 ORDER BY b.seq LIMIT :limit
"""
DROP: Final = """
UPDATE inbox SET state = 'dropped', ended_at = ?, reason = 'dropped' WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'pending'
"""
REASON: Final = """
UPDATE inbox SET reason = 'ephemeral: not taken before a restart' WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'dropped'
"""
FROZEN: Final = "SELECT 1 FROM identity WHERE paused_at IS NOT NULL"


def mark(tx: StoreTransaction, messages: list[tuple[str, str]]) -> None:
    """Note of messages that were just stored, by sender and id, that a restart may drop them."""
    tx.many(MARK, messages)


def drop(tx: StoreTransaction, *, after: int, limit: int) -> tuple[int, int]:
    """
    Drop the next messages that nobody has taken; return how many, and where to go on: -1 at the end.

    Their senders are told what they are told of every message that was
    dropped: that there is nothing more to do for it.
    """
    if tx.rows(FROZEN):
        return 0, -1
    found = tx.rows(LEFT, {"after": after, "limit": limit, "now": tx.now})
    seqs = [int(seq) for seq, _ in found]
    boxed = json.dumps([seq for seq, in_box in found if in_box])
    inbox.end_unclaimed(tx, [int(seq) for seq, in_box in found if not in_box], "dropped")
    gone = tx.run(DROP, (tx.now, boxed))
    tx.run(REASON, (json.dumps(seqs),))
    bump(tx, dropped=gone, ended=gone, ephemeral_dropped=len(seqs))
    return len(seqs), seqs[-1] if len(seqs) == limit else -1
