"""One run of a postbox's owner: from an opening with engines that found nobody else, to the last close or death."""

from __future__ import annotations

from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.owner_lock import OwnerLock
from onceward.hooks import Hooks
from onceward.model.events import EphemeralDropped
from onceward.model.settings import Settings
from onceward.store import ephemeral


class OwnerSession:
    """
    The part of one opening in a run of the owner.

    As long as any postbox of the file is open somewhere, with engines or
    without, the run goes on. An opening with engines that finds none begins a
    new one, and what the last one left of messages that are marked ephemeral
    is dropped before an engine starts. An opening without engines (a look, a
    command) never begins a run, so it drops nothing.
    """

    def __init__(self, db: Database, settings: Settings, hooks: Hooks, *, vfs: str | None) -> None:
        self._db, self._hooks, self._slice = db, hooks, settings.retention_slice
        self._path, self._patience = None if vfs else db.path, settings.busy_timeout
        self._presence: OwnerLock | None = None

    def begin(self, *, engines: bool) -> int:
        """Begin a run where there is none and engines follow; let others in; return how many messages were dropped."""
        if self._path is None:
            return 0
        self._presence = OwnerLock(self._path, patience=self._patience)
        dropped = (
            self._drop()
            if engines and self._presence.exclusive and not disabled_by_environment()
            else 0
        )
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
        """Close the file, and take part no longer."""
        self._db.close()
        if self._presence is not None:
            self._presence.close()
