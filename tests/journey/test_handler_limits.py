"""How many calls of a handler run at once, how often they begin, and whose turn it is."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Msg, Postbox, Retry, Tuning
from onceward.core.handle.worker import Gates, Worker
from onceward.errors import InvalidArgument
from onceward.features.handler_limits.limits import HandlerLimits, WorkerGate
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.message.handler_options import HandlerOptions

LONG = 60.0
HOLDS = """
import sys, time
from onceward import Agent, Postbox

agent = Agent("bob")


@agent.on("job", concurrency=1)
def job(_: object) -> None:
    print("begun", flush=True)
    time.sleep(600)


with Postbox(sys.argv[1], agent=agent) as box:
    box.send("bob", {"n": 1}, type="job")
    time.sleep(600)
"""
BUCKETS = "SELECT name, tokens FROM _onceward_rate_limits"


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Other(Msg, type="other"):
    """A task of another kind."""

    n: int


def noting(**options: Any) -> tuple[Agent, list[int]]:
    """Return an agent that notes the numbers of jobs (with options) and of others (without)."""
    agent, called = Agent("bob"), list[int]()
    agent.on(Job, **options)(lambda job: called.append(job.n))
    agent.on(Other)(lambda other: called.append(-other.n))
    return agent, called


# -- turns --------------------------------------------------------------------------------------


def test_sessions_take_turns(world: World) -> None:
    """A session with a backlog does not keep younger messages of other sessions waiting."""
    agent, called = noting()
    box = world.open(agent, tuning=Tuning(claim_messages=1))
    for n in range(1, 6):
        box.session("long").send("bob", Job(n=n))
    for name, n in (("short", 11), ("other", 21), ("other", 22)):
        box.session(name).send("bob", Job(n=n))
    world.settle()

    assert [1, 11, 21, 2, 22, 3, 4, 5] == called


def test_urgent_messages_come_before_turns(world: World) -> None:
    """Priority is asked before the turn: a backlog of urgent messages is handled first."""
    agent, called = noting()
    box = world.open(agent, tuning=Tuning(claim_messages=1))
    box.session("slow").send("bob", Job(n=9))
    for n in (1, 2, 3):
        box.session("fast").send("bob", Job(n=n), priority="urgent")
    world.settle()

    assert [1, 2, 3, 9] == called


# -- rates --------------------------------------------------------------------------------------


def test_a_rate_holds_calls_back_until_their_time(world: World) -> None:
    """Two at once, then one each half minute; other types of other sessions do not wait."""
    agent, called = noting(rate="2/m")
    box = world.open(agent)
    for n in range(1, 5):
        box.session(f"s{n}").send("bob", Job(n=n))
        box.session(f"s{n}").send("bob", Other(n=n))
    world.settle()
    at_once = sorted(called)
    world.wait(29)
    before = sorted(called)
    world.wait(1)

    assert [-2, -1, 1, 2] == at_once == before
    assert [-3, -2, -1, 1, 2, 3] == sorted(called)


def test_a_message_that_waits_costs_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking again at what has to wait changes nothing in the file."""
    agent, called = noting(rate="1/h")
    box = world.open(agent)
    for n in range(1, 4):
        box.session(f"s{n}").send("bob", Job(n=n))
    world.settle()
    version = "SELECT data_version FROM pragma_data_version"
    before = box.query(version)
    [worker] = box._workers
    found = [worker.round() for _ in range(5)]

    assert ([0] * 5, [1]) == (found, called)
    assert before == box.query(version)
    assert 3600 == worker._idle_for(nothing_here=True)


def test_a_rate_counts_failed_calls_and_outlives_the_process(world: World) -> None:
    """Each attempt is a call; what was called is known to the next process."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, rate="2/h", attempts=9)
    def work(job: Job) -> None:
        called.append(job.n)
        raise Retry(after=1)

    box = world.open(agent)
    box.send("bob", Job(n=1))
    for _ in range(5):
        world.wait(1)
    at_first = [*called]
    [box] = world.reopen("bob")
    world.wait(5)
    soon = [*called]
    world.wait(1800)

    assert ([1, 1], [1, 1], [1, 1, 1]) == (at_first, soon, called)


def test_calls_that_are_not_made_are_not_counted(world: World) -> None:
    """A lane whose head fails is given back with the calls of the messages behind it."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, rate="4/h")
    def work(job: Job) -> None:
        called.append(job.n)
        if job.n == 1 and called == [1]:
            raise Retry(after=1)

    box = world.open(agent)
    for n in (1, 2, 3):
        box.send("bob", Job(n=n))
    world.claim_many(box, 10)
    world.settle()
    world.wait(1)

    assert [1, 1, 2, 3] == called


def test_a_clock_that_is_set_back_holds_no_call_for_long(world: World) -> None:
    """Calls come back at the rate from the new time on."""
    agent, called = noting(rate="1/m")
    box = world.open(agent)
    for n in (1, 2):
        box.send("bob", Job(n=n))
    world.settle()
    world.clock.forward(-7200)
    world.settle()
    world.wait(60)
    world.wait(60)

    assert [1, 2] == called


def test_two_processes_share_a_rate(world: World) -> None:
    """The calls of one are counted for the other."""
    agent, called = noting(rate="3/h")
    one = world.open(agent)
    with Postbox(
        world.path("bob"), agent=agent, start=False, testing=Controls(clock=world.clock)
    ) as two:
        for n in range(1, 9):
            one.session(f"s{n}").send("bob", Job(n=n))
        for box in (one, two, one, two):
            box.run_until_idle()

    assert 3 == len(called)


# -- concurrency --------------------------------------------------------------------------------


def run(home: Path, agent: Agent, messages: list[Msg], **settings: Any) -> None:
    """Let started engines handle messages of sessions of their own."""
    with Postbox(home / "bob.db", agent=agent, **settings) as box:
        for n, message in enumerate(messages):
            box.session(f"s{n}").send("bob", message)
        until(lambda: len(messages) == box.file.stats()["processed"])


class Together:
    """Counts the calls that run at the same time."""

    def __init__(self) -> None:
        self._lock, self._now, self.most = Lock(), 0, 0

    def enter(self) -> None:
        """Begin a call."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def leave(self) -> None:
        """End it."""
        with self._lock:
            self._now -= 1


def test_a_handler_runs_as_often_at_once_as_it_says(tmp_path: Path) -> None:
    """Two calls of it run together, and never three, while another handler has more."""
    agent, jobs = Agent("bob"), Together()
    two, four = Barrier(2, timeout=LONG), Barrier(4, timeout=LONG)

    @agent.on(Job, concurrency=2)
    def job(_: Job) -> None:
        jobs.enter()
        two.wait()
        jobs.leave()

    @agent.on(Other)
    def other(_: Other) -> None:
        four.wait()

    messages: list[Msg] = [*(Job(n=n) for n in range(8)), *(Other(n=n) for n in range(8))]
    run(tmp_path, agent, messages, workers=6)

    assert 2 == jobs.most


def test_a_limit_of_concurrency_holds_over_postboxes_of_a_file(tmp_path: Path) -> None:
    """While two calls run in one postbox, as in another process, a second one begins none."""
    begun, go_on = Barrier(3, timeout=LONG), Event()
    agent, (second, called) = Agent("bob"), noting(concurrency=2)

    @agent.on(Job, concurrency=2)
    def job(job: Job) -> None:
        if job.n < 3:
            begun.wait()
            go_on.wait(LONG)

    path = tmp_path / "bob.db"
    with Postbox(path, agent=agent) as bob, Postbox(path, agent=second, start=False) as other:
        held = [bob.session(f"s{n}").send("bob", Job(n=n)) for n in (1, 2)]
        begun.wait()
        last = bob.session("s3").send("bob", Job(n=3))
        other.run_until_idle()
        meanwhile = [*called]
        go_on.set()
        until(lambda: {bob.state(each) for each in (*held, last)} == {"acked"})

    assert [] == meanwhile


def test_a_killed_process_gives_its_places_back(tmp_path: Path) -> None:
    """Its leases end with it: a call of another process begins, under a limit of one."""
    path, script = tmp_path / "bob.db", tmp_path / "holds.py"
    script.write_text(HOLDS)
    agent, called = noting(concurrency=1)
    with Child([*PYTHON, script, path], "stdout") as child:
        child.hear()
        with Postbox(path, agent=agent, workers=2) as bob:
            second = bob.session("other").send("bob", Job(n=2))
            bob.session("more").send("bob", Other(n=3))
            until(lambda: -3 in called)
            before = [*called]
            child.stop(signal.SIGKILL)
            until(lambda: bob.state(second) == "acked")

    assert [-3] == before
    assert 2 in called


def test_concurrency_makes_workers_for_that_handler_only(tmp_path: Path) -> None:
    """Without ``workers`` a handler gets as many as it says, and plain functions take turns."""
    agent, plain, three = Agent("bob"), Together(), Barrier(3, timeout=LONG)

    @agent.on(Job, concurrency=3)
    def job(_: Job) -> None:
        three.wait()

    @agent.on(Other)
    def other(_: Other) -> None:
        plain.enter()
        plain.leave()

    messages: list[Msg] = [*(Job(n=n) for n in range(6)), *(Other(n=n) for n in range(30))]
    run(tmp_path, agent, messages)

    assert 1 == plain.most


def test_a_message_without_place_stays_where_it_is(world: World) -> None:
    """It is neither leased nor counted while a call runs; messages behind it are handled."""
    agent, called = noting(concurrency=1)
    box = world.open(agent)
    box.session("first").send("bob", Job(n=1))
    box.session("second").send("bob", Job(n=2))
    box.session("third").send("bob", Other(n=3))
    box._dispatcher.run_due()
    limits = HandlerLimits(agent, alone=lambda _: frozenset(), free=lambda _: None)
    gates = Gates(lambda: WorkerGate(limits), always=True)
    one, two = (Worker(box._deps, agent, asyncio.new_event_loop, gates=gates) for _ in range(2))
    job = agent.handlers[0]
    limits.take_place(job.pattern, 1)
    found = [two.round(), two.round()]
    limits.leave({job.pattern})
    world.elsewhere(one.round)

    assert ([1, 0], [-3, 1]) == (found, called)


def test_coroutines_run_concurrently_and_lanes_keep_their_order(tmp_path: Path) -> None:
    """Eight at once without any setting; the messages of a session one after the other."""
    agent, seen = Agent("bob"), dict[str, list[int]]()
    inside = Counter[str]()
    all_here = asyncio.Event()

    @agent.on(Job)
    async def work(job: Job, ctx: Any) -> None:
        inside[ctx.session] += 1
        seen.setdefault(ctx.session, []).append(job.n)
        if len(seen) == 8:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), LONG)
        assert 1 == inside[ctx.session]
        inside[ctx.session] -= 1

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        for n in range(24):
            box.session(f"s{n % 8}").send("bob", Job(n=n))
        until(lambda: 24 == box.file.stats()["processed"])

    assert {f"s{k}": [k, k + 8, k + 16] for k in range(8)} == seen


def test_a_coroutine_runs_as_often_at_once_as_it_says(tmp_path: Path) -> None:
    """More than the default number, where it says so."""
    agent, here, all_here = Agent("bob"), list[int](), asyncio.Event()

    @agent.on(Job, concurrency=12)
    async def work(job: Job) -> None:
        here.append(job.n)
        if len(here) == 12:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), LONG)

    run(tmp_path, agent, [Job(n=n) for n in range(12)])

    assert set(range(12)) == set(here)


def test_a_quick_coroutine_has_one_worker(tmp_path: Path) -> None:
    """Further workers are started only where messages wait for a call that takes time."""
    agent = Agent("bob")

    @agent.on(Job)
    async def work(_: Job) -> None: ...

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        box.send("bob", Job(n=1))
        until(lambda: 1 == box.file.stats()["processed"])

        assert 1 == len(box._workers)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": "3"},
        {"concurrency": True},
        {"rate": "often"},
        {"rate": "0/m"},
        {"rate": "0"},
        {"rate": "10/0"},
        {"rate": -10},
        {"rate": True},
    ],
)
def test_a_wrong_limit_is_refused_where_it_is_written(options: HandlerOptions) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Agent("bob").on(Job, **options)
