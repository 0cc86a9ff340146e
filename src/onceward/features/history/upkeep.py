"""Bring the indexes of past messages up to date, in maintenance."""

from __future__ import annotations

from onceward.features.history import full_text, time_index
from onceward.file.database import Database


def index(db: Database) -> None:
    """Index what has ended since the last round."""
    for box in time_index.AT:
        time_index.catch_up(db, box)
    full_text.catch_up(db)
    full_text.forget(db)
