"""
Run the engines of all open files of this process on threads that they share.

An engine is a task: one thread at a time runs it, after a notification or when it is due. One
thread without a task waits for all files at once: it polls the socket of the process, checks the
files' versions and watches the clock. It does the found work itself, so a message of another
process is handled by the thread that received the notice; if that takes long, the heartbeat makes
another thread wait instead. Threads are added while tasks wait for one, so a hanging task delays no
other.

A caller of ``notify`` may be interrupted after any call, so an interrupted step can be repeated: a
task that is queued twice runs twice.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock, Thread, current_thread, get_ident
from typing import Final, Literal, cast

from onceward.core.run.file_watch import FileWatch, Readable
from onceward.file import forks, open_files
from onceward.file.notify import Direction, Notifier
from onceward.message.clock import monotonic
from onceward.message.log import log

AT_ONCE: Final = 8
"""Threads that are started as soon as tasks wait; the heartbeat starts more."""
SPARE: Final = 4
"""Idle threads that stay, besides the one that waits for the files."""
QUICK_TICK: Final = 0.002
"""Seconds between two heartbeats just after a task has begun."""
TICK: Final = 0.02
"""Seconds between two heartbeats; a task that waits longer gets a new thread."""
DOZE: Final = 0.25
"""Maximum seconds between two heartbeats while nothing begins, waits or is notified."""
STARTED_AT_ONCE: Final = 8
"""Maximum threads that one heartbeat starts."""
LONGEST: Final = 3600.0
"""Maximum seconds of one wait."""
PAUSE: Final = 1.0
"""Seconds until a task that raised runs again."""
State = Literal["new", "idle", "queued", "running", "over"]


class EngineTask:
    """
    Work that one thread at a time does: after ``notify``, and when it is due.

    *run* does all due work and returns the seconds until more is due: 0: at once, None: not before
    a notification. The heartbeat calls *beat* during a run: it never waits, and returns the seconds
    until its next call.
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
        """Whether new work may have come since the last run began."""
        self.state: State = "new"
        self.thread = 0
        """The thread that runs it now."""
        self.ended = False
        self.due = math.inf
        self.alarm: _Alarm | None = None
        """Looks whether it is due, not later than ``due``."""
        self.queued_at = 0.0
        self.over: Event | None = None
        """Set once the task has ended and no longer runs; None if nothing waits for that."""


@dataclass(order=True, slots=True)
class _Alarm:
    """A time at which the waiting thread looks whether a task is due."""

    at: float
    number: int
    task: EngineTask | None = field(compare=False)
    """None if the task has ended or has an earlier alarm: an alarm keeps no closed file."""


class EngineThreads:
    """The threads of one process, and the tasks that they run."""

    def __init__(self) -> None:
        self._forks = forks.count
        self._lock = forks.new_lock()
        self._queue: deque[EngineTask] = deque()
        self._running: set[EngineTask] = set()
        self._holding: set[int] = set()
        """The threads that now wake no other."""
        self._threads: set[int] = set()
        """The identities of the threads that run tasks."""
        self._parked: list[Lock] = []
        """For each idle thread, the lock on which it waits."""
        self._waits = self._woken = False
        """Whether a thread waits for the files, and whether its wait was ended."""
        self._waits_until = 0.0
        self._alarms: list[_Alarm] = []
        self._number = count()
        self.rests = open_files.Rests(open_files.trim)
        """Frees the memory of files that are not in use."""
        self._rest = EngineTask("onceward-rest", self.rests.rest_quiet_files)
        self.files = FileWatch(self._lock)
        """The files that it watches."""
        self._rests = False
        """Whether the heartbeat waits for a task."""
        self._dozes = False
        """Whether it waits for its next beat, and may be woken before."""
        self._news = False
        """Whether a task with beats has begun or was notified since the last beat."""
        self._pulse = Lock()
        self._pulse.acquire()
        self._heart: Thread | None = None

    # -- tasks ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the first thread, if there is none; raise RuntimeError if that fails."""
        with self._lock:
            if not self._threads:
                self._start_thread()

    @property
    def running(self) -> bool:
        """Whether there is a thread that runs tasks."""
        return bool(self._threads)

    def plan(self, task: EngineTask, seconds: float | None) -> None:
        """Run a task for the first time *seconds* from now, or earlier if notified."""
        with self._lock:
            if task.state == "new":
                self._plan(task, seconds)
                if self._queue:
                    self._summon()

    def run(self, name: str, work: Callable[[], None]) -> None:
        """
        Run *work* once, on its own thread.

        Raises:
            RuntimeError: the system cannot start a thread; nothing is done.

        """
        task = EngineTask(name, work)
        task.ended = True  # an error does not repeat it
        with self._lock:
            if not self._threads:
                self._start_thread()
            self._enqueue(task)
            self._summon()

    def notify(self, task: EngineTask) -> None:
        """Run a task soon; a running one runs again afterwards."""
        with self._lock:
            task.notified = True
            if task.state == "idle":
                self._enqueue(task)
                self._summon()
            elif task.beat is not None:
                self._hurry()

    def run_here(self, task: EngineTask, run: Callable[[], float | None]) -> bool:
        """Call *run* for an idle task on the calling thread; return False if it is not idle."""
        with self._lock:
            if task.state != "idle":
                return False
            self._begin(task)
            if task.beat is not None:
                self._hurry()
        self._run_begun(task, run)
        return True

    def beat_soon(self, task: EngineTask) -> None:
        """Beat a running task soon, although its last beat asked for a later one."""
        with self._lock:
            if task.state == "running":
                self._hurry()

    def hold_wakes(self) -> None:
        """
        Wake no thread for tasks that this one notifies, before ``wake_held`` or its task's end.

        A woken thread would only wait for the interpreter while this one still works. At the end of
        its task this one takes the next task itself. If that takes long, the heartbeat gets a
        thread for it; there is none for a thread without a task, so such a thread holds nothing.
        """
        if get_ident() in self._threads:
            self._holding.add(get_ident())

    def wake_held(self) -> None:
        """Get a thread for the tasks that this one has notified since ``hold_wakes``."""
        with self._lock:
            self._holding.discard(get_ident())
            if self._queue:
                self._summon()

    def notify_one(self, tasks: Sequence[EngineTask]) -> None:
        """Run one of several tasks that do the same work; running ones run again afterwards."""
        with self._lock:
            idle, queued = None, False
            for task in tasks:
                if task.state == "running":
                    task.notified = True
                    self._hurry()
                elif task.state == "idle":
                    idle = task
                queued |= task.state == "queued"
            if idle is not None and not queued:
                self._enqueue(idle)
                self._summon()

    def end(self, task: EngineTask) -> None:
        """Begin no further run of a task; ``task.over`` is set once it no longer runs."""
        with self._lock:
            task.ended = True
            if task.state != "running":
                self._finish(task)

    def _plan(self, task: EngineTask, seconds: float | None) -> None:
        """Decide what follows a run or the start."""
        task.due = math.inf
        if task.ended:
            self._finish(task)
        elif task.notified or seconds == 0.0:
            self._enqueue(task)
        else:
            task.state = "idle"
            if seconds is not None and seconds < math.inf:
                task.due = monotonic() + seconds
                self._set_alarm(task)

    def _set_alarm(self, task: EngineTask) -> None:
        """Have a task looked at when it is due, or at an earlier alarm that it already has."""
        if task.alarm is not None and task.alarm.at <= task.due:
            return
        self._drop_alarm(task)
        task.alarm = _Alarm(task.due, next(self._number), task)
        heapq.heappush(self._alarms, task.alarm)
        if task.due < self._waits_until:
            self._wake_waiting()

    @staticmethod
    def _drop_alarm(task: EngineTask) -> None:
        if task.alarm is not None:
            task.alarm.task = None
            task.alarm = None

    def _finish(self, task: EngineTask) -> None:
        task.state = "over"
        self._drop_alarm(task)
        if task.over is not None:
            task.over.set()

    def _enqueue(self, task: EngineTask) -> None:
        task.queued_at = monotonic()
        self._queue.append(task)
        task.state = "queued"
        if self._dozes:
            self._wake_heart()

    # -- files ------------------------------------------------------------------------------

    def watch(
        self, notifier: Notifier, side: Direction, version: Callable[[], int], poll: float
    ) -> None:
        """Listen for other processes' commits to a file; one ``files.remove`` undoes each call."""
        self.plan(self._rest, open_files.REST_PERIOD)
        with self._lock:
            self.files.add(notifier, side, version, poll)
            self._wake_waiting()

    def poll(self, source: Readable) -> None:
        """Call ``hear`` of *source* on the thread that waits, while its descriptor is readable."""
        with self._lock:
            self.files.poll(source)
            self._wake_waiting()

    # -- threads ----------------------------------------------------------------------------

    def _start_thread(self) -> None:
        thread = Thread(target=self._serve, name="onceward-engine", daemon=True)
        thread.start()  # before counting it: it may fail, or be interrupted
        self._threads.add(cast("int", thread.ident))
        if self._heart is None:
            self._heart = Thread(target=self._beat, name="onceward-heartbeat", daemon=True)
            self._heart.start()

    def _summon(self) -> None:
        """Get a thread for the queue: one without a task, the one that waits, or a new one."""
        if get_ident() in self._holding:
            return  # it is about to take a task, or to wake a thread for it
        for parked in reversed(self._parked):
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
            self.files.end_wait()
            self._woken = True

    def _serve(self) -> None:
        """Run tasks, wait for the files, or stay idle, while there are not too many threads."""
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
                    self._threads.discard(get_ident())
                    return
                elif task is None:
                    self._parked.append(parked)
            if task is not None:
                own.name = task.name
                self._run_begun(task, task.run)
                own.name = "onceward-engine"
            elif waits:
                self._wait()
            else:
                parked.acquire()

    def _take(self) -> EngineTask | None:
        """Take the first task of the queue."""
        self._holding.discard(get_ident())
        while self._queue:
            task = self._queue.popleft()
            if task.state != "queued":  # ended, or queued twice
                continue
            self._begin(task)
            if self._queue:  # get a thread for the next one
                self._summon()
            if self._rests:
                self._rests = False
                self._pulse.release()
            elif task.beat is not None:
                self._hurry()
            return task
        return None

    def _begin(self, task: EngineTask) -> None:
        task.state, task.notified, task.thread = "running", False, get_ident()
        self._running.add(task)

    def _run_begun(self, task: EngineTask, run: Callable[[], float | None]) -> None:
        seconds: float | None = PAUSE
        try:
            # context variables of one agent's handlers reach no other
            seconds = Context().run(run)
        except BaseException as error:  # noqa: BLE001 - other tasks share the thread
            forks.leave_if_forked(self._forks, error)
            log.failure("error", "an engine failed", error, task=task.name)
        if forks.count != self._forks:  # the task was forked on its way
            forks.leave()
        with self._lock:
            self._running.discard(task)
            task.thread = 0
            self._plan(task, seconds)

    def _wait(self) -> None:
        """Wait until a file has something, a task is due, or the wait is ended."""
        found = self.files.wait(self._seconds())
        with self._lock:
            self.files.clear(found, woken=self._woken)
            self._waits = self._woken = False
            self._holding.add(get_ident())  # it is about to take a task
            now = monotonic()
            while self._alarms and self._alarms[0].at <= now:
                self._ring(heapq.heappop(self._alarms), now)
            looks = self.files.due(now)
        self.files.look(found, looks)

    def _ring(self, alarm: _Alarm, now: float) -> None:
        """Queue the task of an alarm if it is due, else set it another one."""
        task = alarm.task
        if task is not None:
            task.alarm = None
            if task.state == "idle" and task.due <= now:
                self._enqueue(task)
            elif task.state == "idle" and task.due < math.inf:
                self._set_alarm(task)

    def _seconds(self) -> float:
        """Return how long the wait may take."""
        with self._lock:
            now = monotonic()
            first = self._alarms[0].at if self._alarms else math.inf
            soonest = min(first, self.files.next_look, now + LONGEST)
            self._waits_until = now if self._queue else soonest
            return max(0.0, self._waits_until - now)

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> None:
        """Beat the running tasks; add a thread for the wait and for tasks if there is none."""
        while True:
            with self._lock:
                self._rests = rests = not self._running
                self._news = False
            if rests:
                self._pulse.acquire()
            self._doze(self._look_after_runs())
            with self._lock:
                self._relieve()

    def _doze(self, seconds: float) -> None:
        """Wait for the next beat: at least QUICK_TICK, and not longer than a task can wait."""
        time.sleep(QUICK_TICK)
        with self._lock:
            if self._news or seconds <= QUICK_TICK:
                return
            if self._queue or not self._waits:  # a thread may be missing
                seconds = TICK
            self._dozes = True
        self._pulse.acquire(timeout=seconds - QUICK_TICK)
        with self._lock:
            self._dozes = False
            self._pulse.acquire(blocking=False)  # it may have been released after the wait

    def _hurry(self) -> None:
        """Have the heartbeat look soon at a task that it beats."""
        self._news = True
        if self._dozes:
            self._wake_heart()

    def _wake_heart(self) -> None:
        self._dozes = False  # first: a caller may be interrupted
        self._pulse.release()

    def _look_after_runs(self) -> float:
        """Call the beat of each running task; return the seconds until the next one."""
        running = self._running.copy()
        rest = DOZE if running else QUICK_TICK
        for task in running:
            if task.beat is not None:
                try:
                    rest = min(rest, task.beat())
                except Exception as error:  # noqa: BLE001 - it must survive the errors of tasks
                    log.failure("warning", "an error of the heartbeat", error, task=task.name)
        return rest

    def _relieve(self) -> None:
        before = monotonic() - TICK
        late = sum(task.queued_at <= before for task in self._queue) if self._queue else 0
        missing = min(late, STARTED_AT_ONCE) + (bool(self._running) and not self._waits)
        if not missing:
            return
        free = [parked for parked in self._parked if parked.locked()]
        for parked in free[:missing]:
            parked.release()
        if missing > len(free):
            with suppress(RuntimeError):
                for _ in range(missing - len(free)):
                    self._start_thread()


_threads: dict[int, EngineThreads] = {}
"""The threads of this process by the number of forks that led to it."""


def engine_threads() -> EngineThreads:
    """Return the threads of this process, never those of its parent."""
    found = _threads.get(forks.count)
    return _threads.setdefault(forks.count, EngineThreads()) if found is None else found
