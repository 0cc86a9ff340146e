"""Record which messages are ephemeral, and drop them on a restart."""

from __future__ import annotations

import json
from typing import Final

from onceward.core.handle import inbox
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.reasons import reason_text

MARK: Final = (
    "UPDATE _onceward_inbox SET ephemeral = 1 WHERE sender = ? AND id = ? AND state = 'pending'"
)
# Leased messages are not dropped, by a lane's lease or a group's; nor are those of a run.
LEFT: Final = """
SELECT b.seq, b.mailbox IS NOT NULL FROM _onceward_inbox AS b
 WHERE b.ephemeral IS NOT NULL AND b.state = 'pending' AND b.run_seq IS NULL AND b.seq > :after
   AND b.seq NOT IN (SELECT j.value
                       FROM _onceward_lanes AS l, json_each(l.leased_seqs) AS j
                      WHERE l.leased_seqs IS NOT NULL)
   AND b.seq NOT IN (SELECT h.seq
                       FROM _onceward_mailbox_leases AS h
                      WHERE h.owner IS NOT NULL AND h.due_at > :now)
 ORDER BY b.seq LIMIT :limit
"""
DROP: Final = """
UPDATE _onceward_inbox
   SET state = 'dropped', ended_at = ?, reason = ?
 WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'pending'
"""
REASON: Final = reason_text("ephemeral", "not taken before a restart")
FROZEN: Final = "SELECT 1 FROM _onceward_file_info WHERE paused_at IS NOT NULL"


def mark(tx: StoreTransaction, messages: list[tuple[str, str]]) -> None:
    """Record messages that were just stored, by sender and id, as ephemeral."""
    tx.many(MARK, messages)


def drop(tx: StoreTransaction, *, after: int, limit: int) -> tuple[int, int]:
    """
    Drop the next ephemeral messages that no reader has taken.

    Returns how many, and the sequence to go on from, -1 at the end. Their senders
    get the receipt of every dropped message: it is settled.
    """
    if tx.rows(FROZEN):
        return 0, -1
    found = tx.rows(LEFT, {"after": after, "limit": limit, "now": tx.now})
    seqs = [int(seq) for seq, _ in found]
    boxed = json.dumps([seq for seq, in_box in found if in_box])
    inbox.end_unclaimed(tx, [int(seq) for seq, in_box in found if not in_box], "dropped", REASON)
    gone = tx.run(DROP, (tx.now, REASON, boxed))
    bump(tx, dropped=gone, ended=gone, ephemeral_dropped=len(seqs))
    return len(seqs), seqs[-1] if len(seqs) == limit else -1
