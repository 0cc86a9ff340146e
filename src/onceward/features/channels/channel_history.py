"""Bound the history of a channel in one file: the newest messages, and all that have not ended."""

from __future__ import annotations

from typing import Final

from onceward.core.upkeep import retention
from onceward.file.transaction import StoreTransaction

NEWEST_TO_GO: Final = """
SELECT seq FROM _onceward_{box} WHERE channel = ? ORDER BY seq DESC LIMIT 1 OFFSET ?
"""
# A key stands for its message until retention ends it.
OUTBOX: Final = """
DELETE FROM _onceward_outbox
 WHERE seq IN (SELECT seq
                 FROM _onceward_outbox
                WHERE channel = ? AND seq <= ? AND ended_at IS NOT NULL AND key IS NULL
                ORDER BY seq LIMIT ?)
RETURNING ended_at
"""
# The dedup record is what tells a duplicate once the row is gone.
INBOX: Final = """
DELETE FROM _onceward_inbox
 WHERE seq IN (SELECT seq
                 FROM _onceward_inbox AS b
                WHERE channel = ? AND seq <= ? AND ended_at IS NOT NULL
                  AND EXISTS (SELECT 1
                                FROM _onceward_processed_messages AS p
                               WHERE p.sender = b.sender AND p.message_id = b.id)
                ORDER BY seq LIMIT ?)
RETURNING ended_at
"""
PRUNE: Final = {"outbox": OUTBOX, "inbox": INBOX}


def prune(tx: StoreTransaction, channel: str, *, count: int, limit: int) -> int:
    """
    Delete a slice of the ended messages of a channel, sparing the newest *count* of each box.

    Returns how many; 0 where none is left to delete.
    """
    gone = 0
    for box, sql in PRUNE.items():
        found = tx.rows(NEWEST_TO_GO.format(box=box), (channel, count))
        ended = tx.rows(sql, (channel, found[0][0], limit)) if found else []
        gone += len(ended)
        if ended and box == "outbox":
            retention.note_pruned(tx, max(ended)[0] + 1)
    return gone
