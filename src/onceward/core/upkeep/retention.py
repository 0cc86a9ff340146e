"""Prune settled rows that are old enough, a few hundred per transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.ids import time_prefix


class ArchivedRow(NamedTuple):
    """A row as an archive has it."""

    seq: int
    id: str
    state: str
    ended_at: Millis


# Oldest first by sequence: a row ends after its creation, so the first young row ends the scan.
OUTBOX: Final = """
SELECT seq, state IN ('acked', 'cancelled', 'dropped', 'failed') AND ended_at < :before
  FROM _onceward_outbox
 WHERE seq > :after AND created_at < :before ORDER BY seq LIMIT :limit
"""
# A reply is kept while the handler that asked for it waits for others.
NOT_NEEDED: Final = """NOT (instr(b.frame, '"inreplyto"') AND json_valid(b.frame)
                AND EXISTS (SELECT 1
                              FROM _onceward_pending_replies AS t
                              JOIN _onceward_inbox AS a ON a.seq = t.asker_seq
                             WHERE t.id = b.frame ->> '$.inreplyto'
                               AND t.reply_id = b.id
                               AND a.state = 'pending'))"""
INBOX: Final = f"""
SELECT seq, state <> 'pending' AND ended_at < :before
       AND {NOT_NEEDED}
  FROM _onceward_inbox AS b
 WHERE seq > :after AND received_at < :before ORDER BY seq LIMIT :limit
"""
DROP_OUT: Final = "DELETE FROM _onceward_outbox WHERE seq = ?"
DROP_IN: Final = "DELETE FROM _onceward_inbox WHERE seq = ?"
PRUNED: Final = """
UPDATE _onceward_file_info SET outbox_pruned_at = max(coalesce(outbox_pruned_at, 0), ?)
"""
# Only dedup records of ids that we minted are pruned, below the horizon id: others, and ids that
# their sender chose, are kept for ever. An id is pruned by its own time, too: one from a fast clock
# stays until its time has come, so that the horizon never passes the present.
HEX: Final = "[0-9a-f]"
MINTED: Final = "-".join((HEX * 8, HEX * 4, "7" + HEX * 3, "[89ab]" + HEX * 3, HEX * 12))
OLD_MARKS: Final = f"""
SELECT seq, sender, message_id FROM _onceward_processed_messages
 WHERE processed_at < :before AND message_id GLOB '{MINTED}' AND message_id < :young
   AND NOT EXISTS (SELECT 1 FROM _onceward_chosen_ids AS c
                    WHERE c.sender = _onceward_processed_messages.sender
                      AND c.id = _onceward_processed_messages.message_id)
 ORDER BY seq LIMIT :limit
"""
HORIZON: Final = f"""
UPDATE _onceward_sender_streams
   SET horizon_id = max(horizon_id,
                        (SELECT max(m.message_id)
                           FROM ({OLD_MARKS}) AS m
                          WHERE m.sender = _onceward_sender_streams.sender))
 WHERE sender IN (SELECT sender FROM ({OLD_MARKS}))
"""
MARKS: Final = (
    f"DELETE FROM _onceward_processed_messages WHERE seq IN (SELECT seq FROM ({OLD_MARKS}))"
)
# A ticket waits at least as long as its request does, which is kept until it is settled, and as
# long as the handler that asked, which would ask again without it.
TICKETS: Final = """
DELETE FROM _onceward_pending_replies
 WHERE id IN (SELECT id
                FROM _onceward_pending_replies
               WHERE coalesce(ended_at, max(deadline_at, asked_at), asked_at) < :before
                 AND NOT EXISTS (SELECT 1 FROM _onceward_inbox AS a
                                  WHERE a.seq = asker_seq AND a.state = 'pending')
                 AND (state <> 'open'
                      OR NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o
                                      WHERE o.id = _onceward_pending_replies.id))
               LIMIT :limit)
"""
TRANSITIONS: Final = """
DELETE FROM _onceward_transitions
 WHERE seq IN (SELECT seq FROM _onceward_transitions WHERE at < :before ORDER BY seq LIMIT :limit)
"""
DROPS: Final = """
DELETE FROM _onceward_drops
 WHERE seq IN (SELECT seq
                 FROM _onceward_drops
                WHERE dropped_at < :before
                ORDER BY dropped_at LIMIT :limit)
"""
# A reader that comes back after more late changes than these compares all rows.
LATE_KEPT: Final = 100_000
LATE_CHANGES: Final = f"""
DELETE FROM _onceward_late_changes
 WHERE seq IN (SELECT seq
                 FROM _onceward_late_changes
                WHERE seq <= (SELECT max(seq) FROM _onceward_late_changes) - {LATE_KEPT}
                ORDER BY seq LIMIT :limit)
"""
# Rows that were read back from elsewhere: each must still be as it was there.
ARCHIVED: Final = {
    "outbox": """
DELETE FROM _onceward_outbox
 WHERE seq = ? AND id = ? AND state = ? AND ended_at = ? AND state NOT IN ('pending', 'sent')
RETURNING ended_at
""",
    "inbox": f"""
DELETE FROM _onceward_inbox AS b
 WHERE seq = ? AND id = ? AND state = ? AND ended_at = ? AND state <> 'pending' AND {NOT_NEEDED}
RETURNING ended_at
""",
    "transitions": """
DELETE FROM _onceward_transitions WHERE seq = ? AND id = ? AND to_state = ? AND at = ?
RETURNING at
""",
}
ARCHIVED_MARKS: Final = OLD_MARKS.replace(
    " ORDER BY seq LIMIT :limit",
    """   AND (seq, message_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows))""",
)
VACUUM: Final = "PRAGMA incremental_vacuum(200)"


def slice_of(
    tx: StoreTransaction, box: str, *, after: int, before: Millis, limit: int
) -> tuple[int, int]:
    """
    Prune one slice of ``outbox`` or ``inbox`` beyond sequence *after*.

    Returns (sequence to go on from, -1 at the end; rows pruned).
    """
    select, drop = (OUTBOX, DROP_OUT) if box == "outbox" else (INBOX, DROP_IN)
    rows = tx.rows(select, {"after": after, "before": before, "limit": limit})
    old = [(seq,) for seq, ended in rows if ended]
    tx.many(drop, old)
    if old and box == "outbox":
        note_pruned(tx, before)
    return (rows[-1][0] if len(rows) == limit else -1), len(old)


def note_pruned(tx: StoreTransaction, before: Millis) -> None:
    """Record that messages that ended *before* may be missing: what arrived is no orphan."""
    tx.run(PRUNED, (before,))


def prune_marks(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of dedup records, advancing the horizon id first; return how many."""
    named = {"before": before, "limit": limit, "young": time_prefix(before)}
    tx.run(HORIZON, named)
    return tx.run(MARKS, named)


def prune_misc(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of pending replies, transitions, drops, late changes; return how many rows."""
    named = {"before": before, "limit": limit}
    return sum(tx.run(sql, named) for sql in (TICKETS, TRANSITIONS, DROPS, LATE_CHANGES))


def prune_archived(tx: StoreTransaction, box: str, rows: Sequence[ArchivedRow]) -> int:
    """
    Prune rows of ``outbox``, ``inbox`` or ``transitions`` that are still as given; return how many.

    A row that changed since it was archived stays.
    """
    gone = [ended for row in rows for (ended,) in tx.rows(ARCHIVED[box], row)]
    if gone and box == "outbox":
        note_pruned(tx, max(gone) + 1)
    return len(gone)


def prune_archived_marks(
    tx: StoreTransaction, rows: Sequence[tuple[int, str]], *, before: Millis
) -> int:
    """Prune dedup records (seq, message id) that are older, advancing the horizon id first."""
    named = {"before": before, "young": time_prefix(before), "rows": json.dumps(rows)}
    tx.run(HORIZON.replace(OLD_MARKS, ARCHIVED_MARKS), named)
    return tx.run(MARKS.replace(OLD_MARKS, ARCHIVED_MARKS), named)
