"""Worlds whose files are restored often, and know it as those of real processes do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from onceward.file import last_seen
from onceward.file.database import Database


def _look_before(database: Database) -> None:
    if database._is_first_use:
        database._seen = last_seen.LastSeen(database.path)


@contextmanager
def known_as_restored() -> Iterator[None]:
    """Let openings through a VFS compare a file with the note beside it, without waiting."""
    with (
        patch.object(Database, "_look_before", _look_before),
        patch.object(last_seen, "CLOSES_WITHIN", 0.0),
    ):
        yield
