"""Looking at a file: numbers, history, threads, words; nothing here consumes anything."""

from __future__ import annotations

from typing import Any

from onceward.ground.db import Database
from onceward.seeing import history, search, views


class Looks:
    """Reads of an open postbox."""

    _db: Database

    def stats(self) -> dict[str, int]:
        """Return present numbers and totals that survive pruning."""
        return views.stats(self._db)

    def history(self, **filters: Any) -> views.Page:
        """Return past messages, newest first; see ``history.look``; consumes nothing."""
        return history.look(self._db, **filters)

    def thread(self, message_id: str) -> list[views.Past]:
        """Return the conversation that a message belongs to, oldest first; consumes nothing."""
        return history.thread(self._db, message_id)

    def search(self, text: str, *, limit: int = 100, offset: int = 0) -> views.Page:
        """Return past messages whose body holds all words of *text*, best match first; see ``search.words``."""
        return search.words(self._db, text, limit=limit, offset=offset)
