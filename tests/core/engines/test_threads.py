"""Threads that the engines of a process share: what waits for what, and how many there are."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Semaphore, get_ident
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Postbox, Tuning
from onceward.core.handle.worker import Worker
from onceward.core.run import threads as engine_threads_module
from onceward.core.run.threads import AT_ONCE, EngineTask, EngineThreads
from onceward.events import Acked
from onceward.file.notify import Notifier

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""
NOTE: ContextVar[str] = ContextVar("note", default="none")
COUNT = """
import sys, threading
from onceward import Agent, Postbox
from onceward.core.run import threads

threads.TICK = 60.0  # no task is late, however slow the machine is: late ones get more threads
folder, count = sys.argv[1], int(sys.argv[2])
agents = [Agent(f"a{number}-of-{count}") for number in range(count)]
for agent in agents:
    agent.on("*")(lambda _: None)
boxes = [Postbox(f"{folder}/{agent.name}.db", agent=agent) for agent in agents]
for number, box in enumerate(boxes):
    box.send(agents[number - 1].name, number)
while sum(box.file.stats()["processed"] for box in boxes) < count:
    threading.Event().wait(0.01)
print(threading.active_count(), flush=True)
for box in boxes:
    box.close()
"""


@pytest.fixture
def threads() -> EngineThreads:
    """Return threads of their own, which are left without a task at the end."""
    return EngineThreads()


class Counted:
    """Work that counts its runs and may be held up."""

    def __init__(self, *, held: bool = False) -> None:
        self.began, self.go_on, self.runs = Event(), Event(), 0
        if not held:
            self.go_on.set()

    def __call__(self) -> None:
        """Run once."""
        self.runs += 1
        self.began.set()
        assert self.go_on.wait(LIMIT)


class Waited(EngineTask):
    """A task whose end a test waits for."""

    def __init__(
        self, work: Callable[[], float | None], beat: Callable[[], float] | None = None
    ) -> None:
        super().__init__("onceward-test", work, beat=beat)
        self.over: Event = Event()


def planned(
    threads: EngineThreads, work: Callable[[], float | None], seconds: float | None = None
) -> Waited:
    """Return a task that was planned."""
    threads.start()
    task = Waited(work)
    threads.plan(task, seconds)
    return task


def ended(threads: EngineThreads, *tasks: Waited) -> bool:
    """End tasks and return whether none of them runs any more."""
    for task in tasks:
        threads.end(task)
    return [True] * len(tasks) == [task.over.wait(LIMIT) for task in tasks]


def test_a_task_runs_when_it_is_due_and_after_each_notification(threads: EngineThreads) -> None:
    """One that is due at once runs; then a notification runs it, and nothing else does."""
    work = Counted()
    task = planned(threads, work, 0.0)
    assert work.began.wait(LIMIT)
    until(lambda: task.state == "idle")
    work.began.clear()
    threads.notify(task)
    assert work.began.wait(LIMIT)

    assert ended(threads, task)
    assert 2 == work.runs


def test_a_task_that_was_notified_while_it_ran_runs_again(threads: EngineThreads) -> None:
    """What came after its look is looked at, and never by a second thread meanwhile."""
    work = Counted(held=True)
    task = planned(threads, work, 0.0)
    assert work.began.wait(LIMIT)
    threads.notify(task)
    during = work.runs
    work.go_on.set()
    until(lambda: work.runs == 2)

    assert ended(threads, task)
    assert (1, 2) == (during, work.runs)


def test_tasks_that_hang_delay_no_other(threads: EngineThreads) -> None:
    """More of them than threads are started at once; one more task still runs, and one in time."""
    hanging = [Counted(held=True) for _ in range(AT_ONCE + 8)]
    tasks = [planned(threads, work, 0.0) for work in hanging]
    assert [True] * len(hanging) == [work.began.wait(LIMIT) for work in hanging]
    one, later = Counted(), Counted()
    tasks += [planned(threads, one, 0.0), planned(threads, later, 0.01)]

    assert (True, True) == (one.began.wait(LIMIT), later.began.wait(LIMIT))
    for work in hanging:
        work.go_on.set()
    assert ended(threads, *tasks)


class Pulse:
    """The lock on which a heartbeat waits, and for how long it does so now."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.release, self.seconds = lock, lock.release, 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
        """Wait."""
        self.seconds = timeout
        return bool(self._lock.acquire(blocking, timeout))


@pytest.fixture
def dozes(threads: EngineThreads, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let no heartbeat come by the clock while nothing happens; tell whether it waits for long."""
    monkeypatch.setattr(engine_threads_module, "DOZE", 10 * LIMIT)
    monkeypatch.setattr(threads, "_pulse", pulse := Pulse(threads._pulse))
    return lambda: threads._dozes and pulse.seconds > LIMIT


def test_tasks_that_hang_delay_no_other_between_rare_beats(
    threads: EngineThreads, dozes: Callable[[], bool]
) -> None:
    """A task that waits for a thread wakes the heartbeat, which gets it one."""
    hanging = [Counted(held=True) for _ in range(AT_ONCE)]
    tasks = [planned(threads, work, 0.0) for work in hanging]
    assert [True] * len(hanging) == [work.began.wait(LIMIT) for work in hanging]
    until(dozes)
    more = [Counted(held=True) for _ in range(8)]
    tasks += [planned(threads, work, 0.0) for work in more]

    assert [True] * len(more) == [work.began.wait(LIMIT) for work in more]
    for work in hanging + more:
        work.go_on.set()
    assert ended(threads, *tasks)


def test_a_thread_waits_for_the_files_between_rare_beats(
    threads: EngineThreads, dozes: Callable[[], bool]
) -> None:
    """The one that waits takes a task that hangs: another one waits instead, and watches time."""
    hanging = [Counted(held=True) for _ in range(2)]
    tasks = [planned(threads, hanging[0], 0.0)]
    until(dozes)
    tasks.append(planned(threads, hanging[1], 0.0))
    assert hanging[1].began.wait(LIMIT)
    later = Counted()
    tasks.append(planned(threads, later, 0.01))

    assert later.began.wait(LIMIT)
    for work in hanging:
        work.go_on.set()
    assert ended(threads, *tasks)


class Beaten(Waited):
    """A task that runs until it may end, and wants rare beats."""

    def __init__(self, beat: Callable[[], object]) -> None:
        self.work = Counted(held=True)

        def rare() -> float:
            beat()
            return 10 * LIMIT

        super().__init__(self.work, rare)


def test_a_rare_beat_comes_soon_when_something_happens(
    threads: EngineThreads, dozes: Callable[[], bool]
) -> None:
    """A notification, a call that ends and a task that begins: each has its beat at once."""
    beats, others = Semaphore(0), Semaphore(0)
    task, other = Beaten(beats.release), Beaten(others.release)
    threads.start()
    threads.plan(task, 0.0)

    def beaten_after(happens: Callable[[], object], beats: Semaphore = beats) -> bool:
        until(dozes)
        while beats.acquire(blocking=False):
            pass
        happens()
        return beats.acquire(timeout=LIMIT)

    def begin() -> None:
        with threads._lock:
            other.state = "queued"
            threads._queue.append(other)
            threads._take()

    assert beaten_after(lambda: threads.notify(task))
    assert beaten_after(lambda: threads.notify_one([task]))
    assert beaten_after(lambda: threads.beat_soon(task))
    assert beaten_after(begin, others)
    threads._running.discard(other)
    task.work.go_on.set()
    assert ended(threads, task)


def test_what_happens_during_a_beat_causes_the_next_one(
    threads: EngineThreads, dozes: Callable[[], bool]
) -> None:
    """A notification that comes before the heartbeat waits is not lost."""
    asked, notified, again = Event(), Event(), Event()

    def beat() -> None:
        if notified.is_set():
            again.set()
        elif asked.is_set():
            notified.set()
            threads.notify(task)

    task = Beaten(beat)
    threads.start()
    threads.plan(task, 0.0)
    until(dozes)
    asked.set()
    threads.beat_soon(task)

    assert again.wait(LIMIT)
    task.work.go_on.set()
    assert ended(threads, task)


@pytest.fixture
def no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no heartbeat get a thread."""
    monkeypatch.setattr(engine_threads_module, "TICK", LIMIT)
    monkeypatch.setattr(engine_threads_module, "QUICK_TICK", LIMIT)


@pytest.mark.usefixtures("no_heartbeat")
def test_a_thread_that_holds_its_wakes_takes_the_next_task_itself(threads: EngineThreads) -> None:
    """It starts no thread for the task that it notified, and runs it at the end of its own."""
    ran: list[int] = []
    second = planned(threads, lambda: ran.append(get_ident()))

    def others_rest() -> bool:
        parked = [each for each in threads._parked if each.locked()]
        return len(parked) + threads._waits == len(threads._threads) - 1

    def work() -> None:
        until(others_rest)
        before = len(threads._threads)
        threads.hold_wakes()
        threads.notify(second)
        ran.extend([get_ident(), len(threads._threads) - before])

    first = planned(threads, work, 0.0)
    until(lambda: len(ran) == 3)

    assert [ran[0], 0, ran[0]] == ran
    assert ended(threads, first, second)


@pytest.mark.usefixtures("no_heartbeat")
def test_a_thread_wakes_another_one_for_what_it_held(threads: EngineThreads) -> None:
    """After ``wake_held`` another thread runs the task, while the first one still works."""
    second = Counted()
    notified = planned(threads, second)
    ran: list[bool] = []

    def work() -> None:
        threads.hold_wakes()
        threads.notify(notified)
        threads.wake_held()
        ran.append(second.began.wait(LIMIT))

    first = planned(threads, work, 0.0)
    until(lambda: ran)

    assert [True] == ran
    assert ended(threads, first, notified)


def test_a_thread_that_holds_its_wakes_for_long_delays_no_task(threads: EngineThreads) -> None:
    """The heartbeat gets another thread for the task that it notified."""
    second = Counted()
    notified = planned(threads, second)
    ran: list[bool] = []

    def work() -> None:
        threads.hold_wakes()
        threads.notify(notified)
        ran.append(second.began.wait(LIMIT))

    first = planned(threads, work, 0.0)
    until(lambda: ran)

    assert [True] == ran
    assert ended(threads, first, notified)


@pytest.mark.usefixtures("no_heartbeat")
def test_a_thread_that_runs_no_task_holds_no_wakes(threads: EngineThreads) -> None:
    """A caller's thread wakes a thread at once, because it takes no task itself."""
    work = Counted()
    task = planned(threads, work)
    threads.hold_wakes()
    threads.notify(task)

    assert work.began.wait(LIMIT)
    assert ended(threads, task)


def test_threads_without_a_task_end(threads: EngineThreads) -> None:
    """After many tasks that ran at once a few threads stay."""
    hanging = [Counted(held=True) for _ in range(AT_ONCE + 8)]
    tasks = [planned(threads, work, 0.0) for work in hanging]
    assert [True] * len(hanging) == [work.began.wait(LIMIT) for work in hanging]
    most = len(threads._threads)
    for work in hanging:
        work.go_on.set()
    until(lambda: len(threads._threads) <= 5)

    assert most > AT_ONCE
    assert ended(threads, *tasks)


def test_one_of_several_that_wait_is_woken(threads: EngineThreads) -> None:
    """A notification for tasks that do the same runs one; each that runs looks again after it."""
    works = [Counted(held=True) for _ in range(4)]
    tasks = [planned(threads, work) for work in works]
    runs = []
    for number in range(1, 5):
        threads.notify_one(tasks)
        until(lambda number=number: sum(work.runs for work in works) == number)  # type: ignore[misc]
        runs.append([task.notified for task in tasks].count(True))
    for work in works:
        work.go_on.set()

    assert ended(threads, *tasks)
    assert [0, 1, 2, 3] == runs


def test_a_task_that_runs_is_told_beside_one_that_is_queued(threads: EngineThreads) -> None:
    """The queued one does the work, but one that runs must see, too, that the file was paused."""
    queued, running = (EngineTask("onceward-test", lambda: None) for _ in range(2))
    queued.state, running.state = "queued", "running"
    threads.notify_one([queued, running])

    assert (False, True) == (queued.notified, running.notified)


def test_a_thread_that_was_woken_does_not_take_the_wake_up_of_the_next_one(
    threads: EngineThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One still reads what it has waited for, while another waits already and is woken."""
    hear, select = threads.files._hear, threads.files._selector.select
    reads, waits, has_read = Event(), Event(), Event()

    def hear_late(found: Any) -> bool:
        if not reads.is_set():
            reads.set()
            assert waits.wait(LIMIT)
            lost = hear(found)
            has_read.set()
            return lost
        return hear(found)

    def select_late(seconds: float | None = None) -> Any:
        if reads.is_set() and not has_read.is_set():
            late = Counted()
            planned(threads, late, 0.01)
            ran.append(late)
            waits.set()
            assert has_read.wait(LIMIT)
        return select(seconds)

    ran: list[Counted] = []
    planned(threads, Counted(), 7200.0)
    until(lambda: threads._waits)
    monkeypatch.setattr(threads.files, "_hear", hear_late)
    monkeypatch.setattr(threads.files._selector, "select", select_late)
    planned(threads, Counted(), 3000.0)  # it is due before the other: the wait is ended
    assert reads.wait(LIMIT)
    threads.run("onceward-test", Counted())

    assert has_read.wait(LIMIT)
    until(lambda: ran[0].runs)


def test_an_ended_task_begins_no_run(threads: EngineThreads) -> None:
    """One that waits is over at once, one that runs when its run ends; neither runs again."""
    waiting, running = Counted(), Counted(held=True)
    tasks = planned(threads, waiting), planned(threads, running, 0.0)
    assert running.began.wait(LIMIT)
    for task in tasks:
        threads.end(task)
        threads.notify(task)
    over = [task.over.is_set() for task in tasks]
    running.go_on.set()

    assert [True] * len(tasks) == [task.over.wait(LIMIT) for task in tasks]
    assert ([True, False], (0, 1)) == (over, (waiting.runs, running.runs))


def test_an_ended_task_is_freed(threads: EngineThreads) -> None:
    """The time at which it was due keeps neither it nor the file that it works for."""
    work = Counted()
    task = planned(threads, work, 3600.0)
    assert ended(threads, task)
    freed = weakref.ref(work)
    del task, work
    gc.collect()

    assert freed() is None


def test_a_closed_postbox_is_freed(tmp_path: Path) -> None:
    """A process that opens and closes files all day keeps none of them in memory."""
    agent = Agent("a")
    handled = Event()

    @agent.on("job")
    async def job(_: int) -> None:
        handled.set()

    box = Postbox(tmp_path / "a.db", agent=agent, tuning=Tuning(maintenance_interval=3600.0))
    box.send("a", 1, type="job")
    assert handled.wait(LIMIT)
    box.close()
    freed = weakref.ref(box)
    del box

    until(lambda: gc.collect() >= 0 and freed() is None)


def test_a_task_has_one_alarm_however_often_it_runs(threads: EngineThreads) -> None:
    """A due time after the alarm is looked at when the alarm rings; an earlier one gets its own."""
    task = Waited(lambda: None)
    threads.plan(task, 10.0)
    [first] = threads._alarms
    for _ in range(3):
        threads._plan(task, 20.0)
    assert [first] == threads._alarms

    threads._ring(threads._alarms.pop(), first.at)
    [second] = threads._alarms
    assert ("idle", task.due, task) == (task.state, second.at, second.task)

    threads._plan(task, 5.0)
    assert (task.due, None) == (min(threads._alarms).at, second.task)
    threads._ring(min(threads._alarms), task.due)
    assert "queued" == task.state


def test_a_task_that_raises_costs_no_thread(
    threads: EngineThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """What no engine expects, as an exit, is logged, and the threads go on."""

    def leave() -> None:
        raise SystemExit

    tasks = [planned(threads, leave, 0.0)]
    other = Counted()
    until(lambda: "SystemExit" in caplog.text)
    tasks.append(planned(threads, other, 0.0))

    assert other.began.wait(LIMIT)
    assert ended(threads, *tasks)


def test_work_that_raises_is_not_repeated(
    threads: EngineThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """What is run once, such as a call of a session's handler, has no second try here."""
    work = Counted()

    def fail() -> None:
        work()
        raise SystemExit

    threads.run("onceward-test", fail)
    until(lambda: "SystemExit" in caplog.text)
    until(lambda: not threads._running)

    assert (1, []) == (work.runs, threads._alarms)


def test_values_of_a_context_reach_no_other_task(threads: EngineThreads) -> None:
    """What a handler of one agent binds, as fields of its log, is not seen by another agent."""
    seen: list[str] = []

    def bind() -> None:
        seen.append(NOTE.get())
        NOTE.set("bound")

    tasks = [planned(threads, bind, 0.0) for _ in range(20)]
    until(lambda: len(seen) == 20)

    assert ended(threads, *tasks)
    assert {"none"} == set(seen)


def test_other_processes_are_heard_while_each_thread_runs_a_task(
    threads: EngineThreads, tmp_path: Path
) -> None:
    """A thread that hears of a message and handles it for long leaves the files to another one."""
    (tmp_path / "a.db").touch()
    here, there = Notifier(tmp_path / "a.db"), Notifier(tmp_path / "a.db")
    held, other = Counted(held=True), Counted()
    tasks = planned(threads, held), planned(threads, other)
    stops = [here.listen("in", lambda: threads.notify(tasks[0]))]
    threads.watch(here, "in", lambda: 0, 0.0)
    there.notify("in")
    assert held.began.wait(LIMIT)
    stops.append(here.listen("in", lambda: threads.notify(tasks[1])))
    there.notify("in")

    assert other.began.wait(LIMIT)
    held.go_on.set()
    assert ended(threads, *tasks)
    threads.files.remove(here)
    for stop in (*stops, here.close, there.close):
        stop()


def test_an_error_of_a_listener_ends_no_thread(
    threads: EngineThreads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that waits for the files logs it, and hears of the next message."""
    (tmp_path / "a.db").touch()
    here, there = Notifier(tmp_path / "a.db"), Notifier(tmp_path / "a.db")
    work = Counted()
    task = planned(threads, work)

    def fail() -> None:
        msg = "a listener failed"
        raise RuntimeError(msg)

    stops = [here.listen("in", fail)]
    threads.watch(here, "in", lambda: 0, 0.0)
    there.notify("in")
    until(lambda: "a listener failed" in caplog.text)
    stops.pop()()
    stops.append(here.listen("in", lambda: threads.notify(task)))
    there.notify("in")

    assert work.began.wait(LIMIT)
    assert ended(threads, task)
    threads.files.remove(here)
    for stop in (*stops, here.close, there.close):
        stop()


def test_the_threads_of_many_postboxes_are_few(tmp_path: Path) -> None:
    """Thirty agents with handlers, each with a message, take no more threads than ten do."""
    found = []
    for count in (10, 30):
        (tmp_path / str(count)).mkdir()
        with Child([*PYTHON, "-c", COUNT, tmp_path / str(count), str(count)], "stdout") as child:
            found.append(int(child.hear()))

    assert max(found) <= AT_ONCE + 8, found  # the heartbeat of a busy machine adds some


def test_a_handler_that_hangs_delays_no_other_agent(tmp_path: Path) -> None:
    """More handlers hang than there are threads at first; another agent handles its messages."""
    go_on, entered, done = Event(), threading.Semaphore(0), Event()
    stuck = [Agent(f"stuck{number}") for number in range(AT_ONCE + 2)]

    def hang(_: object) -> None:
        entered.release()
        assert go_on.wait(LIMIT)

    for agent in stuck:
        agent.on("*")(hang)
    quick = Agent("quick")
    quick.on("*")(lambda _: done.set())
    boxes = [Postbox(tmp_path / f"{agent.name}.db", agent=agent) for agent in (*stuck, quick)]
    try:
        for agent in stuck:
            boxes[0].send(agent.name, 1)
        assert [True] * len(stuck) == [entered.acquire(timeout=LIMIT) for _ in stuck]
        boxes[0].send("quick", 1)

        assert done.wait(LIMIT)
    finally:
        go_on.set()
        for box in boxes:
            box.close()


def looks_of_messages(path: Path, patch: pytest.MonkeyPatch, workers: int) -> int:
    """Return how often workers look at ten messages, one after the other, with so many workers."""
    agent, settled, looks = Agent(f"of-{workers}"), threading.Semaphore(0), [0]
    agent.on("*")(lambda _: None)
    look = Worker._look

    def counted(self: Worker) -> float | None:
        looks[0] += 1
        return look(self)

    patch.setattr(Worker, "_look", counted)
    with (
        Postbox(path / f"to-{workers}.db", agent=f"to-{workers}") as sender,
        Postbox(path / f"of-{workers}.db", agent=agent, workers=workers),
    ):
        sender.on(Acked, lambda _: settled.release())
        for number in range(11):
            sender.send(agent.name, number)
            assert settled.acquire(timeout=LIMIT)
            looks[0] = looks[0] if number else 0  # the first one also waits for all to begin
    patch.undo()
    return looks[0]


def test_a_message_costs_as_much_beside_many_idle_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is woken: it looks as often for ten messages as one that is alone."""
    one, many = (looks_of_messages(tmp_path, monkeypatch, workers) for workers in (1, 64))

    assert many <= one + 20, (one, many)
