"""The janitor: forgetting, checkpoints, the clock. Nothing here is needed for correctness."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from onceward.db import migrations
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.errors import OncewardError, SchemaTooNew, StoreClosed
from onceward.model.log import log
from onceward.model.settings import Settings
from onceward.store import (
    dead_letters,
    full_text,
    inbox,
    lanes,
    mailboxes,
    receipts,
    retention,
    runs,
    time_index,
)


class Maintenance:
    """Tidies one file now and then, in slices that let writers pass."""

    def __init__(
        self, db: Database, *, settings: Settings, chore: Callable[[int], int] = lambda _: 0
    ) -> None:
        self._db, self._settings, self._extra_task = db, settings, chore
        self._stopping = Flag()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start tidying in the background."""
        self._thread = Thread(
            target=self._run, name=f"onceward-janitor-{self._db.agent}", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Tidy no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.maintenance_interval):
            try:
                self.run_once()
            except StoreClosed:
                return
            except (
                OncewardError
            ) as error:  # who has nothing to do hears of its file's trouble from here only
                seconds = self._settings.maintenance_interval
                log.failure(
                    "warning", "maintenance waits", error, agent=self._db.agent, seconds=seconds
                )

    def run_once(self) -> int:
        """Do one round; return how many rows were pruned."""
        self._refuse_upgraded()
        before = self._db.now() - round(1000 * self._settings.retention)
        limit = self._settings.retention_slice
        if not (
            disabled_by_environment() or mailboxes.paused(self._db.read)
        ):  # the kill-switch lets nothing expire either
            self._until_done(lambda: self._db.write(lambda tx: mailboxes.expire(tx, limit)))
            self._until_done(lambda: self._db.write(lambda tx: inbox.expire(tx, limit)))
        pruned = sum(self._prune(box, before) for box in ("outbox", "inbox"))
        pruned += self._until_done(
            lambda: self._db.write(lambda tx: retention.prune_marks(tx, before=before, limit=limit))
        )
        pruned += self._until_done(
            lambda: self._db.write(lambda tx: retention.prune_misc(tx, before=before, limit=limit))
        )
        pruned += self._until_done(
            lambda: self._db.write(lambda tx: runs.prune(tx, before=before, limit=limit))
        )
        self._until_done(lambda: self._db.write(lambda tx: tx.run(lanes.FORGET, (0, limit))))
        self._db.write(lambda tx: receipts.prune(tx, before=before))
        self._db.write(dead_letters.forget_replays)
        if pruned:
            self._db.write(lambda tx: tx.rows(retention.VACUUM))
        for box in time_index.AT:
            time_index.catch_up(self._db, box)
        full_text.catch_up(self._db)
        full_text.forget(self._db)
        self._until_done(lambda: self._extra_task(limit))
        self._db.persist_clock()
        self._checkpoint()
        return pruned

    def _refuse_upgraded(self) -> None:
        """Let go of a file that a newer version has upgraded meanwhile: this and every later write raise SchemaTooNew."""
        try:
            self._db.write(migrations.pending)
        except SchemaTooNew:
            with self._db.writer.exclusive():
                self._db.reopen()

    def _prune(self, box: str, before: int) -> int:
        after, pruned = 0, 0
        while after >= 0 and not self._stopping.is_set():
            seen = after
            after, count = self._db.write(
                lambda tx, seen=seen: retention.slice_of(
                    tx, box, after=seen, before=before, limit=self._settings.retention_slice
                )  # type: ignore[misc]
            )
            pruned += count
        return pruned

    def _until_done(self, work: Callable[[], int]) -> int:
        total = 0
        while not self._stopping.is_set() and (count := work()):
            total += count
        return total

    def _checkpoint(self) -> None:
        """Automatic checkpoints do the daily work; a WAL that outgrew its limit is emptied with insistence."""
        self._db.checkpoint(truncate=self._db.wal_bytes() > self._settings.wal_limit)
