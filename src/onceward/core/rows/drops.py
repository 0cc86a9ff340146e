"""Write what policies dropped: a row for each message, until a summary or a run tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

RECORD: Final = """
INSERT INTO _onceward_drops (id, peer, session, scope, name, policy, line, dropped_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
MARK_SUMMARIZED: Final = "UPDATE _onceward_drops SET summary_id = ? WHERE seq = ?"
GIVE: Final = """
UPDATE _onceward_drops SET run_seq = ?
 WHERE policy = 'summarize' AND scope = 'queue' AND session = ? AND run_seq IS NULL
"""
TAKE_BACK: Final = "UPDATE _onceward_drops SET run_seq = NULL WHERE run_seq = ?"
PRUNE: Final = """
DELETE FROM _onceward_drops
 WHERE seq IN (SELECT seq
                 FROM _onceward_drops
                WHERE dropped_at < :before
                ORDER BY dropped_at LIMIT :limit)
"""


def record(tx: StoreTransaction, rows: Sequence[tuple[Any, ...]]) -> None:
    """Record dropped messages: id, peer, session, scope, name, policy, line for a summary, time."""
    tx.many(RECORD, rows)


def mark_summarized(tx: StoreTransaction, summary_id: str, drops: Sequence[int]) -> None:
    """Record which message tells of drops."""
    tx.many(MARK_SUMMARIZED, [(summary_id, seq) for seq in drops])


def give(tx: StoreTransaction, run: int, session: str) -> None:
    """Let a run tell of the drops of its session."""
    tx.run(GIVE, (run, session))


def take_back(tx: StoreTransaction, run: int) -> None:
    """Let a later run tell of the drops of a run that consumed nothing."""
    tx.run(TAKE_BACK, (run,))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of old rows; return how many."""
    return tx.run(PRUNE, {"before": before, "limit": limit})
