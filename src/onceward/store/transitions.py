"""The trail: every transition as a row, written by triggers that are only there while it is switched on."""

from __future__ import annotations

from typing import Final

from onceward.db.database import Database
from onceward.db.migrations import folder
from onceward.db.transaction import Tx

NAMES: Final = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'trail_%'"


def switch(db: Database, *, on: bool) -> None:
    """Switch the trail on or off for all processes; what it holds stays."""
    present = bool(db.read(NAMES))
    if present != on:
        db.write(_on if on else _off)


def _on(tx: Tx) -> None:
    tx.rows((folder() / "trail.sql").read_text(encoding="utf-8"))


def _off(tx: Tx) -> None:
    for (name,) in tx.rows(NAMES):
        tx.run(f'DROP TRIGGER "{name}"')
