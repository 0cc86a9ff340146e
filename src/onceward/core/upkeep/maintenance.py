"""Prune, expire, index and checkpoint one file; correctness does not depend on any of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from onceward.core.accept import receipts
from onceward.core.engine.engine_loop import EngineLoop
from onceward.core.handle import inbox, lanes
from onceward.core.upkeep import health, retention
from onceward.errors import SchemaTooNew
from onceward.file import migrations
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.settings import Settings

Prune = Callable[..., int]
"""Deletes up to *limit* rows that ended before *before*; returns how many."""


class Upkeep(NamedTuple):
    """Work that a feature has done in each round of maintenance."""

    expire: Callable[[StoreTransaction, int], int] | None = None
    """Ends up to so many expired messages; returns how many."""
    prune: Prune | None = None
    keep: Callable[[Database], None] | None = None
    """Brings indexes up to date."""


class Maintenance:
    """Maintains one file at intervals, in slices between which writers have their turn."""

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        upkeep: Sequence[Upkeep] = (),
        extra_tasks: Sequence[Callable[[int], int]] = (),
    ) -> None:
        self._db, self._settings, self._extra_tasks = db, settings, extra_tasks
        self._expires = [each.expire for each in upkeep if each.expire is not None]
        self._prunes = [each.prune for each in upkeep if each.prune is not None]
        self._indexes = [each.keep for each in upkeep if each.keep is not None]
        self._loop = EngineLoop(db, "maintenance", self._look, pause=settings.maintenance_interval)

    def start(self) -> None:
        """Start maintaining in the background, for the first time after one interval."""
        self._loop.start(delay=self._settings.maintenance_interval)

    def stop(self, timeout: float) -> None:
        """End after the present slice; wait up to *timeout* seconds for it."""
        self._loop.stop(timeout)

    def _look(self) -> float:
        self.run_once()
        return self._settings.maintenance_interval

    def run_once(self) -> int:
        """Do one round; return how many rows were pruned."""
        self._refuse_upgraded()
        before = self._db.now() - round(1000 * self._settings.retention)
        limit = self._settings.retention_slice
        self._expire(limit)
        pruned = sum(self._prune(box, before) for box in ("outbox", "inbox"))
        for prune in (retention.prune_marks, retention.prune_misc, *self._prunes):
            pruned += self._write_slices(
                lambda tx, prune=prune: prune(tx, before=before, limit=limit)  # type: ignore[misc]
            )
        self._write_slices(partial(lanes.forget_empty, limit=limit))
        self._db.write(lambda tx: receipts.prune(tx, before=before))
        if pruned:
            self._db.write(lambda tx: tx.rows(retention.VACUUM))
        for index in self._indexes:
            index(self._db)
        self._db.persist_clock()
        self._checkpoint()
        for task in self._extra_tasks:  # last: the directory that they read may be broken
            self._until_done(partial(task, limit))
        return pruned

    def _refuse_upgraded(self) -> None:
        """Close a file that a newer version has upgraded; every later write raises SchemaTooNew."""
        try:
            self._db.write(migrations.pending)
        except SchemaTooNew:
            with self._db.writer.exclusive():
                self._db.reopen()

    def _expire(self, limit: int) -> None:
        """End what has expired; nothing expires while the file or the environment is paused."""
        if disabled_by_environment() or health.paused(self._db.read):
            return
        for expire in (*self._expires, inbox.expire):
            self._write_slices(lambda tx, expire=expire: expire(tx, limit))  # type: ignore[misc]

    def _prune(self, box: str, before: int) -> int:
        after, pruned = 0, 0
        while after >= 0 and not self._loop.stopping.is_set():
            seen = after
            after, count = self._db.write(
                lambda tx, seen=seen: retention.slice_of(
                    tx, box, after=seen, before=before, limit=self._settings.retention_slice
                )  # type: ignore[misc]
            )
            pruned += count
        return pruned

    def _write_slices(self, work: Callable[[StoreTransaction], int]) -> int:
        """Commit *work* again and again until it changes nothing; return how many rows it did."""
        return self._until_done(lambda: self._db.write(work))

    def _until_done(self, work: Callable[[], int]) -> int:
        total = 0
        while not self._loop.stopping.is_set() and (count := work()):
            total += count
        return total

    def _checkpoint(self) -> None:
        """Truncate a WAL above its limit; below it SQLite's automatic checkpoints do the work."""
        self._db.checkpoint(truncate=self._db.wal_bytes() > self._settings.wal_limit)
        self._db.readers.close_idle()
