"""
Remove the bodies that no message needs: their messages were pruned, or never committed.

A body is needed while its message has a row in the file of its sender or of its recipient: until
the retention has passed at both, and its dead letter is discarded. Any other body is kept for a
day, as its message may not be committed yet.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from onceward.core.contract import Opening
from onceward.errors import OncewardError
from onceward.features.large_bodies import places, stores
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
        self._store = opening.once(stores.store_of)
        self._next_at: Millis = 0

    def sweep(self) -> None:
        """Remove what no message needs, at most once an hour."""
        now = self._db.now()
        if now < self._next_at:
            return
        self._next_at = now + EACH
        try:
            self._sweep(now / 1000 - UNCOMMITTED)
        except OncewardError as error:
            log.failure("warning", "bodies are kept: their store fails", error)

    def _sweep(self, before: float) -> None:
        """Remove what no message needs and was stored before *before*."""
        for recipient, found in groupby(
            self._store.names(self._db.agent), lambda each: places.recipient_of(each[0])
        ):
            names = [name for name, at in found if at.timestamp() < before]
            for name in names if recipient == places.DRAFTS else self._unneeded(recipient, names):
                self._store.delete(name)

    def _unneeded(self, recipient: str, names: list[str]) -> list[str]:
        """Return the bodies whose messages neither the sender's nor the recipient's file has."""
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
            if (message := places.message_of(name))
            and not rows(NEEDED, {"id": message, "sender": me})[0][0]
        ]


def sweep(opening: Opening, _limit: int) -> int:
    """Remove the bodies that no message of an opening's agent needs; 0: no more is to be done."""
    if opening.deps.db.vfs is None or opening.deps.settings.large_body_store is not None:
        sweeper: Sweeper = opening.once(Sweeper)
        sweeper.sweep()
    return 0
