"""Maintain the data of history: indexes of past messages, and a row per transition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onceward.core.maintenance import ArchivedRow
from onceward.features.history import full_text, time_index
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

OBJECTS: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB '_onceward_transitions_*'"
)
OLD: Final = """
DELETE FROM _onceward_transitions
 WHERE seq IN (SELECT seq
                 FROM (SELECT seq, at FROM _onceward_transitions ORDER BY seq LIMIT :limit)
                WHERE at < :before)
"""
# Rows that were read back from an archive: each must be unchanged since.
ARCHIVED: Final = """
DELETE FROM _onceward_transitions
 WHERE seq = :seq AND id = :id AND to_state = :state AND at = :ended_at
"""


def switch(db: Database, *, on: bool) -> None:
    """Enable or disable the record for all processes; existing rows stay."""
    present = bool(db.read(OBJECTS))
    if present != on:
        db.write(_on if on else _off)


def _on(tx: StoreTransaction) -> None:
    tx.rows(Path(__file__).with_name("transitions.sql").read_text(encoding="utf-8"))


def _off(tx: StoreTransaction) -> None:
    for (name,) in tx.rows(OBJECTS):
        tx.run(f'DROP TRIGGER "{name}"')


def index(db: Database) -> None:
    """Index messages that have ended since the last round."""
    for box in time_index.AT:
        time_index.catch_up(db, box)
    full_text.catch_up(db)
    full_text.forget(db)


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete transitions before *before*, the oldest first; return how many."""
    return tx.run(OLD, {"before": before, "limit": limit})


def prune_archived(tx: StoreTransaction, rows: Sequence[ArchivedRow]) -> int:
    """Delete transitions that an archive holds and that are unchanged since; return how many."""
    return sum(tx.run(ARCHIVED, row._asdict()) for row in rows)
