"""Run background work on a thread, with what it shares: look, wait for a notification, pause."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, TypeVar

from onceward.core.handle import lanes
from onceward.core.send.outbox import Outbox
from onceward.errors import OncewardError, StoreClosed
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.notify import Direction
from onceward.file.rows import Rows
from onceward.file.transaction import StoreTransaction
from onceward.file.waiter import Waiter
from onceward.hooks import Hooks
from onceward.message.log import log
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.times import Span, seconds

T = TypeVar("T")
Due = Callable[[float | None], float | None]
"""From the seconds that are left to the seconds until the next look without a notification."""

MAX_IDLE_SECONDS: Final = 1.0
"""Longest wait of a loop that leases: the owner of a lease may die without a notification."""
EVERY: Final = 0.5
"""Seconds between two checks, each of which asks the system about every owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDeps:
    """The dependencies that consumers, workers and runs share."""

    db: Database
    """The file that is read and settled: the agent's own, or the one that keeps a mailbox."""
    settings: Settings
    hooks: Hooks
    outbox: Outbox
    """Writes into the agent's own outbox."""
    rng: random.Random
    """Source of the jitter of retries."""
    policy: RetryPolicy
    """Retries of messages that a handler or a reader failed."""


class DeadOwnerReaper:
    """
    Releases the leases of processes that have surely died.

    *owners* reads the owners of leases, *free* ends those of one owner.
    """

    def __init__(
        self,
        db: Database,
        *,
        owners: Callable[[Rows], list[str]],
        free: Callable[[StoreTransaction, str], object],
    ) -> None:
        self._db, self._owners, self._free = db, owners, free
        self._looked = float("-inf")

    def release_leases(self) -> None:
        """Release leases of dead owners, once per interval; a busy file waits for the next."""
        if time.monotonic() - self._looked < EVERY:
            return
        self._looked = time.monotonic()
        with suppress(OncewardError):
            if any(map(file_checks.is_dead, self._owners(self._db.read))):
                self._db.write(self._release)

    def _release(self, tx: StoreTransaction) -> None:
        for owner in self._owners(tx.rows):
            if file_checks.is_dead(owner):
                self._free(tx, owner)


class EngineLoop:
    """
    Call *look* on a thread of its own until the loop is stopped.

    *look* does what is due and returns the seconds until more is due: 0 for at
    once, None for not before a notification. With a *reaper* a longer wait than
    MAX_IDLE_SECONDS is cut to that, and the leases of dead processes are ended
    before it; None is not cut, as a look returns seconds while any lease is held:
    its end is due. *watch* is called before each wait, and during it each time the
    seconds that it returned are over. An error of *look* is logged, and the loop
    goes on after *pause* seconds; StoreClosed ends it.
    """

    def __init__(
        self,
        db: Database,
        name: str,
        look: Callable[[], float | None],
        *,
        reaper: DeadOwnerReaper | None = None,
        watch: Callable[[], float] | None = None,
        pause: float = MAX_IDLE_SECONDS,
    ) -> None:
        self._db, self._name, self._look, self._watch = db, name, look, watch
        self._reaper, self._pause = reaper, pause
        self.notified: Event | Waiter = Event()
        self.stopping = Event()
        self._thread: Thread | None = None
        self.started = False
        """Whether the loop has a thread; without one its engine runs on the caller's."""

    def start(
        self, direction: Direction | None = None, *, poll: float = 0.0, delay: float = 0.0
    ) -> None:
        """
        Start looking, *delay* seconds from now, and after each notification of *direction*.

        *poll* is the interval in seconds at which the file itself is asked for
        commits of other processes, should their notification get lost.
        """
        if self._reaper is not None:
            self._reaper.release_leases()
        if direction is not None:
            self.notified = self._db.waiter(direction, poll)
        self._thread = named_thread(self._db, self._name, lambda: self._work(delay))
        self.started = True
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Look no more; wait up to *timeout* seconds for a look that has begun."""
        self.stopping.set()
        self.notified.set()
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def busy(self) -> bool:
        """Whether a look goes on after ``stop``."""
        return self._thread is not None and self._thread.is_alive()

    def _work(self, wait: float | None) -> None:
        try:
            self._run(wait)
        finally:
            if isinstance(self.notified, Waiter):
                self.notified.close()

    def _run(self, wait: float | None) -> None:
        while True:
            if wait != 0.0:
                self._wait(wait)
            self.notified.clear()
            if self.stopping.is_set():  # after the clear, which may have cleared what stop set
                return
            wait = self._look_safely()

    def _wait(self, seconds: float | None) -> None:
        """Wait for a notification; watch meanwhile."""
        if self._watch is None:
            self.notified.wait(seconds)
            return
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = self._watch()
            if end is not None:
                left = min(left, end - time.monotonic())
            if left <= 0 or self.notified.wait(left):
                return

    def _look_safely(self) -> float | None:
        try:
            wait = self._look()
        except StoreClosed:
            self.stopping.set()
            return 0.0
        except Exception as error:  # noqa: BLE001 - an engine outlives every error of its file
            log.failure(
                "warning",
                f"{self._name} waits",
                error,
                agent=self._db.agent,
                seconds=self._pause,
            )
            return self._pause
        if self._reaper is not None and wait is not None and wait > MAX_IDLE_SECONDS:
            self._reaper.release_leases()
            return MAX_IDLE_SECONDS
        return wait


def named_thread(db: Database, name: str, target: Callable[[], None]) -> Thread:
    """Return a daemon thread, not started yet, named after its work and its agent."""
    return Thread(target=target, name=f"onceward-{name}-{db.agent}", daemon=True)


def lane_reaper(db: Database) -> DeadOwnerReaper:
    """Return what ends the lane leases of processes that have died."""
    return DeadOwnerReaper(db, owners=lanes.owners, free=lanes.end_dead_worker)


def until_found(
    db: Database, look: Callable[[], T | None], timeout: Span | None, *, poll: float, due: Due
) -> T | None:
    """
    Look now and after every commit until *look* finds something, and return that.

    Returns None when nothing was found for *timeout* seconds; a timeout of None
    waits for ever.
    """
    wait = None if timeout is None else seconds("timeout", timeout)
    found = look()
    if found is not None or wait == 0:
        return found
    deadline = None if wait is None else time.monotonic() + wait
    notified = db.waiter("in", poll)
    try:
        while (found := look()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            notified.wait(due(left))
            notified.clear()
    finally:
        notified.close()
    return found
