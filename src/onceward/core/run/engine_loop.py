"""Run background work on a thread: look, wait for a notification, pause."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, get_ident
from typing import Final, TypeVar

from onceward.core.rows import holders
from onceward.core.run import recovery
from onceward.core.run.threads import EngineTask, engine_threads
from onceward.core.send.add import Outbox
from onceward.errors import OncewardError, StoreClosed
from onceward.file import file_checks, forks
from onceward.file.database import Database
from onceward.file.notify import Direction, Notifier
from onceward.file.transaction import Rows, StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import monotonic
from onceward.message.log import log
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.times import Span, seconds

T = TypeVar("T")
Due = Callable[[float | None], float | None]
"""Maps the remaining seconds to the seconds until the next look without a notification."""

MAX_IDLE_SECONDS: Final = 1.0
"""Longest wait of a loop that leases: the owner of a lease may die without a notification."""
EVERY: Final = 0.5
"""Seconds between two checks of all owners of leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDeps:
    """The dependencies that consumers, workers and runs share."""

    db: Database
    """The file to read and settle: the agent's own, or the one with a mailbox."""
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
    Releases the leases of processes that have certainly died.

    *owners* reads the owners of leases, *free* ends the leases of some. *gone* returns owners
    whose process does not hold its lock any more.
    """

    def __init__(
        self,
        db: Database,
        *,
        owners: Callable[[Rows], list[str]],
        free: Callable[..., None],
        gone: Callable[[], set[str]] = set,
    ) -> None:
        self._db, self._owners, self._free, self._gone = db, owners, free, gone
        self._looked = float("-inf")

    def release_leases(self) -> None:
        """Release leases of dead owners, once per interval; skip a busy file."""
        if monotonic() - self._looked < EVERY:
            return
        self._looked = monotonic()
        with suppress(OncewardError):
            gone = self._gone()
            if gone or any(map(file_checks.is_dead, self._owners(self._db.read))):
                self._db.write(partial(self._release, gone=gone))

    def _release(self, tx: StoreTransaction, gone: set[str]) -> None:
        dead = gone.union(filter(file_checks.is_dead, self._owners(tx.rows)))
        self._free(tx, *dead)


class EngineLoop(EngineTask):
    """
    Call *look* on a thread of the process until the loop is stopped, never concurrently.

    *look* does all due work and returns the seconds until more is due: 0: at once, None: not before
    a notification. With a *reaper* a wait is limited to MAX_IDLE_SECONDS, and the leases of dead
    processes are ended before it; None is not limited, because a look returns seconds while any
    lease is held: its end is due. The heartbeat calls *beat* during a look, see ``EngineTask``. An
    error of *look* is logged, and the loop continues after *pause* seconds; StoreClosed ends it. Of
    the loops of a *team*, which do the same work, a notification wakes one.
    """

    over: Event

    def __init__(
        self,
        db: Database,
        name: str,
        look: Callable[[], float | None],
        *,
        reaper: DeadOwnerReaper | None = None,
        beat: Callable[[], float] | None = None,
        team: Team | None = None,
        pause: float = MAX_IDLE_SECONDS,
    ) -> None:
        super().__init__(f"onceward-{name}-{db.agent}", self._look_safely, beat=beat)
        self._db, self._kind, self._look = db, name, look
        self._reaper, self._pause, self._team = reaper, pause, team
        self._threads = engine_threads()
        self.over, self.stopping = Event(), Event()
        self._unlisten: Callable[[], None] = lambda: None
        self.started = False
        """Whether the loop runs in the background; else its engine runs on the caller's thread."""

    def start(
        self, direction: Direction | None = None, *, poll: float = 0.0, delay: float = 0.0
    ) -> None:
        """
        Start looking, *delay* seconds from now, and after each notification of *direction*.

        *poll* is the interval in seconds at which the file itself is checked for commits of other
        processes, in case their notification is lost.
        """
        if self._reaper is not None:
            self._reaper.release_leases()
        self._threads.start()
        if direction is not None:
            self._unlisten = self._listen(direction, poll)
        self.started = True
        self._threads.plan(self, delay)

    def _listen(self, direction: Direction, poll: float) -> Callable[[], None]:
        notifier, threads, team = self._db.notifier, self._threads, self._team
        notifier.begin(self._db.version_if_open)
        threads.watch(notifier, direction, self._db.version_if_open, poll)
        if team is None:
            end = notifier.listen(direction, partial(threads.notify, self))
        else:
            end = team.join(self, notifier, direction)

        def stop() -> None:
            end()
            threads.files.remove(notifier)

        return stop

    def notify(self) -> None:
        """Look soon; without a thread, record that a look is due."""
        self._threads.notify(self)

    def end_soon(self) -> None:
        """Let the thread of the present look run the tasks that it notifies until its end."""
        if self.thread == get_ident():
            self._threads.hold_wakes()

    def beat_soon(self) -> None:
        """Have the heartbeat beat soon, although the last beat asked for a later one."""
        self._threads.beat_soon(self)

    def wake_next(self) -> None:
        """Wake one more loop of the team, because there is more work."""
        if self._team is not None:
            self._team.notify()

    def stop(self, timeout: float) -> None:
        """Stop looking; wait up to *timeout* seconds for a running look."""
        self.stopping.set()
        unlisten, self._unlisten = self._unlisten, lambda: None
        unlisten()
        self._threads.end(self)
        if self.thread != get_ident():  # else it ends itself
            self.over.wait(timeout)

    @property
    def busy(self) -> bool:
        """Whether a look is still running after ``stop``."""
        return self.started and not self.over.is_set()

    def _look_safely(self) -> float | None:
        if self.stopping.is_set():
            return None
        try:
            wait = self._look()
        except StoreClosed:
            self.stopping.set()
            self._threads.end(self)
            return None
        except Exception as error:  # noqa: BLE001 - an engine survives every error of its file
            log.failure(
                "warning",
                f"{self._kind} waits",
                self._db.explain(error),
                agent=self._db.agent,
                seconds=self._pause,
            )
            return self._pause
        if self._reaper is not None and wait:
            self._reaper.release_leases()
            return min(wait, MAX_IDLE_SECONDS)
        return wait


class Team:
    """Loops that do the same work for one file: a notification wakes one of them."""

    def __init__(self) -> None:
        self._tasks: tuple[EngineTask, ...] = ()
        self._unlisten: Callable[[], None] = lambda: None
        self._lock = forks.new_lock()

    def join(self, task: EngineTask, notifier: Notifier, side: Direction) -> Callable[[], None]:
        """Add a loop; return the function that removes it."""
        with self._lock:
            if not self._tasks:
                self._unlisten = notifier.listen(side, self.notify)
            self._tasks = (*self._tasks, task)

        def leave() -> None:
            with self._lock:
                self._tasks = tuple(each for each in self._tasks if each is not task)
                if not self._tasks:
                    self._unlisten()
            self.notify()  # it may have been woken for work that it no longer does

        return leave

    def notify(self) -> None:
        """Wake one idle loop; busy ones look again after their work."""
        engine_threads().notify_one(self._tasks)


def lane_reaper(db: Database) -> DeadOwnerReaper:
    """Return the reaper of the lane leases of dead processes."""
    return DeadOwnerReaper(
        db, owners=holders.owners, free=recovery.end_dead_worker, gone=db.in_flight.dead_owners
    )


def until_found(
    db: Database, look: Callable[[], T | None], timeout: Span | None, *, poll: float, due: Due
) -> T | None:
    """
    Look now and after every commit until *look* finds something, and return that.

    Return None if nothing was found for *timeout* seconds; a timeout of None waits forever.
    """
    wait = None if timeout is None else seconds("timeout", timeout)
    found = look()
    if found is not None or wait == 0:
        return found
    deadline = None if wait is None else monotonic() + wait
    notified = db.waiter("in", poll)
    try:
        while (found := look()) is None:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return None
            notified.wait(due(left))
            notified.clear()
    finally:
        notified.close()
    return found


def at_least_each(poll: float, left: float | None) -> float:
    """Return the seconds until the next check, which sees an end that notified no reader."""
    return poll if left is None else min(poll, left)
