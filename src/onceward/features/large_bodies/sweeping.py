"""
Remove the bodies that no message needs: their messages were pruned, or never committed.

A body is needed while its message has a row in the file of its sender or of its recipient: until
the retention has passed at both, and its dead letter is discarded. Any other file is kept for a
day, as its message may not be committed yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from onceward.core.contract import Opening
from onceward.errors import OncewardError
from onceward.features.large_bodies import places
from onceward.file import read_only
from onceward.file.transaction import Rows
from onceward.message.clock import Millis
from onceward.message.log import log

EACH: Final[Millis] = 3_600_000
"""Milliseconds between two sweeps of an opening."""
UNCOMMITTED: Final = 86_400.0
"""Seconds for which a body is kept whose message may not be committed yet."""
NEEDED: Final = """
SELECT EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = :id)
       OR EXISTS (SELECT 1 FROM _onceward_inbox WHERE sender = :sender AND id = :id)
       OR EXISTS (SELECT 1 FROM _onceward_dead_letters WHERE id = :id)
"""


class Sweeper:
    """Sweeps the bodies that one agent has sent."""

    def __init__(self, opening: Opening) -> None:
        self._db, self._files = opening.deps.db, opening.files
        self._directory = opening.directory
        self._folder = places.bodies_of(Path(self._db.path)) / self._db.agent
        self._next_at: Millis = 0

    def sweep(self) -> None:
        """Remove what no message needs, at most once an hour."""
        now = self._db.now()
        if now < self._next_at or self._db.vfs is not None:
            return
        self._next_at = now + EACH
        for folder in _entries(self._folder):
            names = [each.name for each in _entries(folder.path) if _is_old(each, now / 1000)]
            if folder.name == places.DRAFTS:
                unneeded = names
            else:
                unneeded = self._unneeded(folder.name, names) if names else []
            for name in unneeded:
                Path(folder.path, name).unlink(missing_ok=True)

    def _unneeded(self, recipient: str, names: list[str]) -> list[str]:
        """Return the files whose messages neither the sender's nor the recipient's file has."""
        left = self._not_in(self._db.read, names)
        if not left or recipient == self._db.agent:
            return left
        path = self._files.path(recipient)
        if path is None:  # it may be moved back, as in a restore, unless its agent has left
            return [] if recipient in self._directory.other_agents() else left
        try:
            with read_only.opened(path) as file:
                return self._not_in(file.rows, left)
        except OncewardError as error:
            log.failure("warning", "bodies are kept: their recipient cannot be read", error)
            return []

    def _not_in(self, rows: Rows, names: list[str]) -> list[str]:
        me = self._db.agent
        return [
            name
            for name in names
            if not rows(NEEDED, {"id": places.message_of(name), "sender": me})[0][0]
        ]


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        yield from found


def _is_old(entry: os.DirEntry[str], now: float) -> bool:
    with suppress(FileNotFoundError):
        return entry.stat().st_mtime < now - UNCOMMITTED
    return False


def sweep(opening: Opening, _limit: int) -> int:
    """Remove the bodies that no message of an opening's agent needs; 0: no more is to be done."""
    sweeper: Sweeper = opening.once(Sweeper)
    sweeper.sweep()
    return 0
