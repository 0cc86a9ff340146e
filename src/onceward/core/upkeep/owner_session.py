"""Detect that a file's owner was restarted: drop ephemeral messages, suspect what it handled."""

from __future__ import annotations

from onceward.core.handle import lanes
from onceward.core.upkeep import ephemeral
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.owner_lock import OwnerLock
from onceward.hooks import Hooks
from onceward.message.events import EphemeralDropped
from onceward.message.settings import Settings


class OwnerSession:
    """
    One opening's share in a session of the file's owner.

    A session goes on as long as some process has a postbox of the file open,
    with engines or without. An opening with engines that finds no other begins
    a new session: messages marked ephemeral that the last session left are
    dropped before an engine starts, and messages that a worker of it may have
    died of are claimed alone. An opening without engines (a read, a
    command) never begins a session, so it drops nothing.
    """

    def __init__(self, db: Database, settings: Settings, hooks: Hooks, *, vfs: str | None) -> None:
        self._db, self._hooks, self._slice = db, hooks, settings.retention_slice
        self._path, self._patience = None if vfs else db.path, settings.busy_timeout
        self._presence: OwnerLock | None = None

    def begin(self, *, engines: bool) -> int:
        """
        Join the session, or begin one if there is none and *engines* are to start.

        Returns how many ephemeral messages were dropped.
        """
        if self._path is None:
            return 0
        self._presence = OwnerLock(self._path, patience=self._patience)
        first = engines and self._presence.exclusive
        if first and lanes.has_workers(self._db.read):
            self._db.write(lanes.end_workers)
        dropped = self._drop() if first and not disabled_by_environment() else 0
        self._presence.share()
        if dropped:
            self._hooks.hold(
                EphemeralDropped(agent=self._db.agent, at=self._db.now(), count=dropped)
            )
        return dropped

    def _drop(self) -> int:
        after, dropped = 0, 0
        while after >= 0:
            count, after = self._db.write(
                lambda tx, after=after: ephemeral.drop(tx, after=after, limit=self._slice)  # type: ignore[misc]
            )
            dropped += count
        if dropped:
            self._db.notifier.notify("out")
        return dropped

    def end(self) -> None:
        """Close the file and leave the session."""
        self._db.close()
        if self._presence is not None:
            self._presence.close()
