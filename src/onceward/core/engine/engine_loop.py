"""
Run the engines of all open files of this process on threads that they share.

An engine is a task: one thread at a time runs it, after a notification or when it is due. One
thread without a task waits for all files at once: it polls their sockets, asks for their versions
and watches the clock. It does itself what it finds, so a message of another process is handled
by the thread that heard of it; a heartbeat has another thread wait in its place should that
take longer than a moment. Threads are added while tasks wait for one, so a task that hangs
delays no other.

A caller of ``notify`` may be interrupted after any call, so a step that was torn can be done
once more: a task that is queued twice runs twice.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Event, Lock, Thread, current_thread, get_ident
from typing import Final, Literal, TypeVar

from onceward.core.handle import lanes
from onceward.core.send.outbox import Outbox
from onceward.errors import OncewardError, OutOfDescriptors, StoreClosed
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.notify import Direction, Notifier
from onceward.file.transaction import Rows, StoreTransaction
from onceward.file.waiter import ONE, wakeup_descriptors
from onceward.hooks import Hooks
from onceward.message.log import log
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.times import Span, seconds

AT_ONCE: Final = 8
"""Threads that are started as soon as tasks wait; the heartbeat starts further ones."""
SPARE: Final = 4
"""Threads without a task that stay, besides the one that waits for the files."""
QUICK_TICK: Final = 0.002
"""Seconds between two looks of the heartbeat right after a task has begun."""
TICK: Final = 0.02
"""Seconds between two looks of the heartbeat; a task that waits longer gets a new thread."""
LINGER: Final = 5
"""Looks of the heartbeat without a running task after which it sleeps."""
STARTED_AT_ONCE: Final = 8
"""Most threads that one look of the heartbeat starts."""
TOGETHER: Final = 0.05
"""Seconds by which a file's version is asked early, so that files are asked in one wake-up."""
LONGEST: Final = 3600.0
"""Most seconds of one wait."""
PAUSE: Final = 1.0
"""Seconds until a task whose run raised is run again."""
State = Literal["new", "idle", "queued", "running", "over"]


class EngineTask:
    """
    Work that one thread at a time does: after ``notify``, and when it is due.

    *run* does what is due and returns the seconds until more is due: 0 for at once, None for
    not before a notification. *beat* looks after a run from the heartbeat: it waits for nothing
    and returns the seconds until it is to look again.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], float | None],
        *,
        beat: Callable[[], float] | None = None,
    ) -> None:
        self.name, self.run, self.beat = name, run, beat
        self.notified = False
        """Whether something may have come since the last run began."""
        self.state: State = "new"
        self.thread = 0
        """The thread that runs it now."""
        self.ended = False
        self.due = math.inf
        self.queued_at = 0.0
        self.over = Event()
        """Set once the task is ended and runs no longer."""


class _File:
    """A file of which the waiting thread hears: its sockets, and when to ask its version."""

    def __init__(self, notifier: Notifier, version: Callable[[], int], poll: float) -> None:
        self.notifier, self.version, self.poll = notifier, version, poll
        self.users = 0
        self.sides: dict[Direction, int] = {}
        self.look_at = notifier.next_poll(poll) if poll > 0 else math.inf


class EngineThreads:
    """The threads of one process, and the tasks that they run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: deque[EngineTask] = deque()
        self._running: set[EngineTask] = set()
        self._threads: set[Thread] = set()
        self._parked: list[Lock] = []
        """Of each thread without a task: the lock on which it stays until it is released."""
        self._waits = self._woken = False
        """Whether a thread waits for the files, and whether its wait was ended."""
        self._waits_until = 0.0
        self._hearing = 0
        """The thread that reads what it has waited for."""
        self._found: EngineTask | None = None
        """The first task that this thread finds, which it runs itself."""
        self._timers: list[tuple[float, int, EngineTask]] = []
        self._number = count()
        self._files: dict[Notifier, _File] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup = _wakeup()
        self._selector.register(self._wakeup[0], selectors.EVENT_READ)
        self._pulse = Event()
        self._heart: Thread | None = None

    # -- tasks ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first thread, if there is none; raises RuntimeError where that cannot be."""
        with self._lock:
            if not self._threads:
                self._start_thread()

    def plan(self, task: EngineTask, seconds: float | None) -> None:
        """Run a task *seconds* from now for the first time, or before that if it is notified."""
        with self._lock:
            if task.state == "new":
                self._plan(task, seconds)
                if self._queue:
                    self._summon()

    def run(self, name: str, work: Callable[[], None]) -> None:
        """
        Do work once, on a thread of its own until it ends.

        Raises:
            RuntimeError: the system gives this process no thread; nothing is done.

        """
        task = EngineTask(name, work)
        with self._lock:
            if not self._threads:
                self._start_thread()
            self._enqueue(task)
            self._summon()

    def notify(self, task: EngineTask) -> None:
        """Run a task soon; one that runs now is run again after that."""
        with self._lock:
            task.notified = True
            if task.state == "idle":
                self._enqueue(task)
                self._summon()

    def notify_one(self, tasks: Sequence[EngineTask]) -> None:
        """Run one of several tasks that do the same; those that run now look again after that."""
        with self._lock:
            idle, queued = None, False
            for task in tasks:
                if task.state == "running":
                    task.notified = True
                elif task.state == "idle":
                    idle = task
                queued |= task.state == "queued"
            if idle is not None and not queued:
                self._enqueue(idle)
                self._summon()

    def end(self, task: EngineTask) -> None:
        """Begin no further run of a task; ``task.over`` is set once none goes on."""
        with self._lock:
            task.ended = True
            if task.state != "running":
                task.state = "over"
                task.over.set()

    def _plan(self, task: EngineTask, seconds: float | None) -> None:
        """Decide what follows a run, or the beginning."""
        task.due = math.inf
        if task.ended:
            task.state = "over"
            task.over.set()
        elif task.notified or seconds == 0.0:
            self._enqueue(task)
        else:
            task.state = "idle"
            if seconds is not None and seconds < math.inf:
                task.due = time.monotonic() + seconds
                heapq.heappush(self._timers, (task.due, next(self._number), task))
                if task.due < self._waits_until:
                    self._wake_waiting()

    def _enqueue(self, task: EngineTask) -> None:
        task.queued_at = time.monotonic()
        if self._hearing == get_ident() and self._found is None:
            self._found = task
        else:
            self._queue.append(task)
        task.state = "queued"

    # -- files ------------------------------------------------------------------------------

    def watch(
        self, notifier: Notifier, side: Direction, version: Callable[[], int], poll: float
    ) -> None:
        """Hear what other processes tell of a file; one ``unwatch`` undoes each call."""
        with self._lock:
            file = self._files.get(notifier)
            if file is None:
                file = self._files[notifier] = _File(notifier, version, poll)
            file.users += 1
            descriptor = notifier.fileno(side)
            if descriptor >= 0 and side not in file.sides:
                self._register(descriptor, (notifier, side))
                file.sides[side] = descriptor
            self._wake_waiting()

    def _register(self, descriptor: int, data: tuple[Notifier, Direction]) -> None:
        """Poll a descriptor; one of the same number that was closed meanwhile is forgotten."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, data)

    def unwatch(self, notifier: Notifier) -> None:
        """Hear no more of a file that no other engine watches."""
        with self._lock:
            file = self._files[notifier]
            file.users -= 1
            if file.users:
                return
            del self._files[notifier]
            for descriptor in file.sides.values():
                with suppress(KeyError, ValueError, OSError):  # closed before
                    self._selector.unregister(descriptor)

    # -- threads ----------------------------------------------------------------------------

    def _start_thread(self) -> None:
        thread = Thread(target=self._serve, name="onceward-engine", daemon=True)
        thread.start()  # before it counts: it may fail, or be interrupted
        self._threads.add(thread)
        if self._heart is None:
            self._heart = Thread(target=self._beat, name="onceward-heartbeat", daemon=True)
            self._heart.start()

    def _summon(self) -> None:
        """Get a thread for the queue: one without a task, the one that waits, or a new one."""
        if self._hearing == get_ident():
            return  # it is about to take a task itself
        for parked in self._parked:
            if parked.locked():
                parked.release()
                return
        if self._waits:
            self._wake_waiting()
        elif len(self._threads) < AT_ONCE:
            with suppress(RuntimeError):
                self._start_thread()

    def _wake_waiting(self) -> None:
        if self._waits and not self._woken:
            os.write(self._wakeup[1], ONE)
            self._woken = True

    def _serve(self) -> None:
        """Run tasks, or wait for the files, or stay for later, while there are not too many."""
        own, parked = current_thread(), Lock()
        parked.acquire()
        task: EngineTask | None
        while True:
            with self._lock:
                if parked in self._parked:
                    self._parked.remove(parked)
                task = self._take()
                waits = task is None and not self._waits
                if waits:
                    self._waits = True
                elif task is None and len(self._parked) >= SPARE:
                    self._threads.discard(own)
                    return
                elif task is None:
                    self._parked.append(parked)
            if task is not None:
                self._run(task, own)
            elif waits:
                self._wait()
            else:
                parked.acquire()

    def _take(self) -> EngineTask | None:
        """Take what this thread has found, or else the first task of the queue."""
        found = None
        if self._hearing == get_ident():
            self._hearing, found, self._found = 0, self._found, None
        while found is not None or self._queue:
            task, found = found or self._queue.popleft(), None
            if task.state != "queued":  # ended, or queued twice
                continue
            task.state, task.notified, task.thread = "running", False, get_ident()
            self._running.add(task)
            if self._queue:  # get a thread for the next one
                self._summon()
            if not self._pulse.is_set():
                self._pulse.set()
            return task
        return None

    def _run(self, task: EngineTask, own: Thread) -> None:
        seconds: float | None = PAUSE
        own.name = task.name
        try:
            seconds = Context().run(task.run)  # values of one agent's handlers reach no other
        except BaseException as error:  # noqa: BLE001 - the thread is not the task's alone
            log.failure("error", "an engine ended early", error, task=task.name)
        own.name = "onceward-engine"
        with self._lock:
            self._running.discard(task)
            task.thread = 0
            self._plan(task, seconds)

    def _wait(self) -> None:
        """Wait until a file has something, a task is due, or the wait is ended."""
        found: list[tuple[selectors.SelectorKey, int]] = []
        try:
            found = self._selector.select(self._seconds())
        except (OSError, ValueError) as error:  # a descriptor was closed at this very moment
            log.failure("warning", "engines look again", error)
        with self._lock:
            self._waits = self._woken = False
            self._hearing = get_ident()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                due, _, task = heapq.heappop(self._timers)
                if task.state == "idle" and task.due == due:
                    self._enqueue(task)
            soon = now + TOGETHER
            looks = [file for file in self._files.values() if file.look_at <= soon]
        try:
            self._hear(found)
            for file in looks:
                file.look_at = file.notifier.next_poll(file.poll)
                if file.notifier.is_due(file.poll):
                    file.notifier.look(file.version)
        except Exception as error:  # noqa: BLE001 - without this thread no engine would hear any more
            log.failure("warning", "engines look again", error)

    def _hear(self, found: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        """Read what was found, and notify whom it is for."""
        for key, _ in found:
            if key.data is None:
                with suppress(BlockingIOError):
                    os.read(self._wakeup[0], 1024)
            else:
                notifier, side = key.data
                notifier.hear(side)

    def _seconds(self) -> float:
        """Return how long the wait may take."""
        with self._lock:
            now = time.monotonic()
            first = self._timers[0][0] if self._timers else math.inf
            look = min((file.look_at for file in self._files.values()), default=math.inf)
            self._waits_until = now if self._queue else min(first, look, now + LONGEST)
            return max(0.0, self._waits_until - now)

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> None:
        """Look after runs; get a thread for the wait and for tasks where there is none."""
        idle = 0
        while True:
            if idle >= LINGER:
                self._pulse.clear()
                if not self._running:
                    self._pulse.wait()
                idle = 0
            time.sleep(self._look_after_runs())
            idle = 0 if self._running else idle + 1
            with self._lock:
                self._relieve()

    def _look_after_runs(self) -> float:
        """Let each run be looked after; return the seconds until the next look."""
        running = self._running.copy()
        rest = TICK if running else QUICK_TICK
        for task in running:
            if task.beat is not None:
                try:
                    rest = min(rest, task.beat())
                except Exception as error:  # noqa: BLE001 - it outlives what it looks after
                    log.failure("warning", "heartbeat goes on", error, task=task.name)
        return rest

    def _relieve(self) -> None:
        before = time.monotonic() - TICK
        late = sum(task.queued_at <= before for task in self._queue)
        missing = min(late, STARTED_AT_ONCE) + (bool(self._running) and not self._waits)
        free = [parked for parked in self._parked if parked.locked()]
        for parked in free[:missing]:
            parked.release()
        with suppress(RuntimeError):
            for _ in range(missing - len(free)):
                self._start_thread()


def _wakeup() -> tuple[int, int]:
    found = wakeup_descriptors()
    if found is None:
        msg = "no engine can start: this process may open no further file: raise ulimit -n"
        raise OutOfDescriptors(msg)
    return found


_threads: dict[int, EngineThreads] = {}


def engine_threads() -> EngineThreads:
    """Return the threads of this process; those of a parent are left to it."""
    found = _threads.get(os.getpid())
    return _threads.setdefault(os.getpid(), EngineThreads()) if found is None else found


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


class EngineLoop(EngineTask):
    """
    Call *look* on a thread of the process until the loop is stopped, never on two at once.

    *look* does what is due and returns the seconds until more is due: 0 for at
    once, None for not before a notification. With a *reaper* a longer wait than
    MAX_IDLE_SECONDS is cut to that, and the leases of dead processes are ended
    before it; None is not cut, as a look returns seconds while any lease is held:
    its end is due. *beat* is called by the heartbeat while a look goes on, see ``EngineTask``.
    An error of *look* is logged, and the loop goes on after *pause* seconds; StoreClosed
    ends it. Of the loops of a *team*, which do the same, a notification wakes one.
    """

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
        self.stopping = Event()
        self._unlisten: Callable[[], None] = lambda: None
        self.started = False
        """Whether the loop runs in the background; else its engine runs on the caller's thread."""

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
        self._threads.start()
        if direction is not None:
            self._unlisten = self._listen(direction, poll)
        self.started = True
        self._threads.plan(self, delay)

    def _listen(self, direction: Direction, poll: float) -> Callable[[], None]:
        notifier, threads = self._db.notifier, self._threads
        team = self._team
        if team is None:
            end = notifier.listen(direction, partial(threads.notify, self))
        else:
            end = team.join(self, notifier, direction)
        threads.watch(notifier, direction, self._db.version_if_open, poll)

        def stop() -> None:
            end()
            threads.unwatch(notifier)

        return stop

    def notify(self) -> None:
        """Look soon; without a thread, take note that there is something to look at."""
        self._threads.notify(self)

    def wake_next(self) -> None:
        """Wake one more loop of the team, as there is more to do than this one does."""
        if self._team is not None:
            self._team.notify()

    def stop(self, timeout: float) -> None:
        """Look no more; wait up to *timeout* seconds for a look that has begun."""
        self.stopping.set()
        unlisten, self._unlisten = self._unlisten, lambda: None
        unlisten()
        self._threads.end(self)
        if self.thread != get_ident():  # else it ends itself
            self.over.wait(timeout)

    @property
    def busy(self) -> bool:
        """Whether a look goes on after ``stop``."""
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
        except Exception as error:  # noqa: BLE001 - an engine outlives every error of its file
            log.failure(
                "warning",
                f"{self._kind} waits",
                error,
                agent=self._db.agent,
                seconds=self._pause,
            )
            return self._pause
        if self._reaper is not None and wait is not None and wait > MAX_IDLE_SECONDS:
            self._reaper.release_leases()
            return MAX_IDLE_SECONDS
        return wait


class Team:
    """Loops that do the same for one file: a notification wakes one of them."""

    def __init__(self) -> None:
        self._tasks: tuple[EngineTask, ...] = ()
        self._unlisten: Callable[[], None] = lambda: None
        self._lock = Lock()

    def join(self, task: EngineTask, notifier: Notifier, side: Direction) -> Callable[[], None]:
        """Add a loop; returns what takes it out again."""
        with self._lock:
            if not self._tasks:
                self._unlisten = notifier.listen(side, self.notify)
            self._tasks = (*self._tasks, task)

        def leave() -> None:
            with self._lock:
                self._tasks = tuple(each for each in self._tasks if each is not task)
                if not self._tasks:
                    self._unlisten()
            self.notify()  # it may have been woken for what it does no more

        return leave

    def notify(self) -> None:
        """Wake one loop that has nothing to do; those that work look again after that."""
        engine_threads().notify_one(self._tasks)


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
