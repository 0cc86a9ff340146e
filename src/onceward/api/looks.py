"""Looking at a file: numbers, history, threads, words, and whether all has left; nothing here consumes anything."""

from __future__ import annotations

from typing import Any, Final

from onceward.db.database import Database
from onceward.runtime.engine import until_found
from onceward.store import full_text, history, queries

AGAIN: Final = 0.02
"""Seconds between two looks: what leaves rings at the recipient, not here."""


class Looks:
    """Reads of an open postbox."""

    _db: Database

    def __repr__(self) -> str:
        """Name the agent and its file."""
        return f"<{type(self).__name__} of {self._db.agent}: {self._db.path}>"

    def stats(self) -> dict[str, int]:
        """Return present numbers and totals that survive pruning."""
        return queries.stats(self._db)

    def flush(self, timeout: float | None = 30.0) -> int:
        """
        Wait until nothing waits to leave: every message is stored in its recipient's file, or at its end.

        Returns how many still wait after *timeout* seconds (None: it waits for ever): their recipients are
        away or busy, or they have a delay. They stay in the file, and leave with
        whoever opens it next.
        """
        db = self._db
        left = until_found(
            db,
            lambda: 0 if queries.unsent(db) == 0 else None,
            timeout,
            poll=0,
            due=lambda left: min(AGAIN, left or AGAIN),
        )
        return queries.unsent(db) if left is None else left

    def history(self, **filters: Any) -> queries.Page:
        """Return past messages, newest first; see ``history.look``; consumes nothing."""
        return history.find(self._db, **filters)

    def thread(self, message_id: str) -> list[queries.HistoryEntry]:
        """Return the conversation that a message belongs to, oldest first; consumes nothing."""
        return history.thread(self._db, message_id)

    def search(self, text: str, *, limit: int = 100, offset: int = 0) -> queries.Page:
        """Return past messages whose body holds all words of *text*, best match first; see ``search.words``."""
        return full_text.words(self._db, text, limit=limit, offset=offset)
