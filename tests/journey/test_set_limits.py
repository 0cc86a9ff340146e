"""Limits of handlers that are set while they run, and types that are paused."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import ONCEWARD, PYTHON, Child
from tests.waiting import until

from onceward import Agent, BatchContext, Msg, Postbox, Retry
from onceward.errors import InvalidArgument
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World

LONG = 60.0
WORKS = """
import sys, time
from onceward import Agent, Postbox

agent = Agent("bob")


@agent.on("job", concurrency=1)
def job(n: int) -> None:
    print("job", n, flush=True)
    if n == 13:
        time.sleep(600)


@agent.on("other")
def other(n: int) -> None:
    print("other", n, flush=True)


with Postbox(sys.argv[1], agent=agent):
    print("works", flush=True)
    time.sleep(600)
"""
WAITS = "SELECT type, waits_for FROM onceward_inbox WHERE state = 'pending' ORDER BY seq"


class Job(Msg, type="job"):
    """A task."""

    n: int


class Other(Msg, type="other"):
    """A task of another type."""

    n: int


class Task(Msg, type="task.small"):
    """A task of a tenant."""

    tenant: str
    n: int


class Large(Msg, type="task.large"):
    """A large task of a tenant."""

    tenant: str
    n: int


def noting(**options: Any) -> tuple[Agent, list[int]]:
    """Return an agent that notes the numbers of jobs (with options) and of others (without)."""
    agent, called = Agent("bob"), list[int]()
    agent.on(Job, **options)(lambda job: called.append(job.n))
    agent.on(Other)(lambda other: called.append(-other.n))
    return agent, called


def by_tenant(**options: Any) -> tuple[Agent, list[str]]:
    """Return an agent that notes the tasks of tenants, of any type."""
    agent, called = Agent("bob"), list[str]()

    @agent.on("task.*", key="body.tenant", **options)
    def task(task: dict[str, Any]) -> None:
        called.append(f"{task['tenant']}{task['n']}")

    return agent, called


def send(box: Postbox, *messages: Msg) -> None:
    """Send messages, each in a lane of its own."""
    for n, message in enumerate(messages):
        box.session(f"{message}{n}").send("bob", message)


# -- rate ---------------------------------------------------------------------------------------


def test_a_rate_is_set_and_removed_while_the_agent_is_open(world: World) -> None:
    """Between ``set`` and ``remove`` two jobs an hour are called, before and after it all."""
    agent, called = noting()
    box = world.open(agent)
    send(box, Job(n=1))
    world.settle()
    box.limits.set("handler", "job", rate="2/h")
    send(box, *(Job(n=n) for n in range(2, 7)))
    world.settle()
    limited = [*called]
    world.wait(1800)
    later = [*called]
    box.limits.remove("handler", "job")
    world.settle()

    assert ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]) == (limited, later, called)


def test_a_set_rate_takes_the_place_of_the_declared_one(world: World) -> None:
    """A handler with one call an hour goes on at once when more are allowed, and back again."""
    agent, called = noting(rate="1/h")
    box = world.open(agent)
    send(box, *(Job(n=n) for n in range(1, 6)))
    world.settle()
    box.limits.set("handler", "job", rate="3/h", burst=3)
    world.wait(3600)
    box.limits.remove("handler", "job")
    send(box, Job(n=6), Job(n=7))
    world.settle()

    assert [1, 2, 3, 4, 5] == called


def test_groups_that_rest_look_again_when_a_limit_changes(world: World) -> None:
    """A group that rests for an hour goes on after ``set``, also if no worker ran meanwhile."""
    agent, called = by_tenant(rate="1/h")
    box = world.open(agent)
    send(box, *(Task(tenant=tenant, n=n) for tenant in "ab" for n in range(3)))
    world.settle()
    before = Counter(each[0] for each in called)
    box.limits.set("handler", "task.*", rate="3/s")
    world.reopen("bob")
    world.wait(1)

    assert ({"a": 1, "b": 1}, {"a": 3, "b": 3}) == (before, Counter(each[0] for each in called))


def test_a_set_rate_survives_the_process(world: World) -> None:
    """It is in the file, and so is what was called under it."""
    agent, called = noting()
    box = world.open(agent)
    box.limits.set("handler", "job", rate="1/h")
    send(box, Job(n=1), Job(n=2), Other(n=3))
    world.settle()
    world.reopen("bob")
    world.settle()
    before = [*called]
    world.wait(3600)

    assert ([1, -3], [1, -3, 2]) == (before, called)


# -- concurrency --------------------------------------------------------------------------------


def test_concurrency_is_raised_while_workers_run(tmp_path: Path) -> None:
    """A handler that ran one call at a time runs three, on workers that are started for it."""
    agent, three, begun = Agent("bob"), Barrier(3, timeout=LONG), Event()
    go = Event()

    @agent.on(Job)
    def job(job: Job) -> None:
        if job.n == 0:
            begun.set()
            go.wait(LONG)
        else:
            three.wait()

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        send(box, Job(n=0))
        begun.wait(LONG)
        box.limits.set("handler", "job", concurrency=3)
        go.set()
        send(box, *(Job(n=n) for n in range(1, 7)))
        until(lambda: 7 == box.file.stats()["processed"])


def test_concurrency_is_lowered_while_workers_run(tmp_path: Path) -> None:
    """After ``set`` no two calls of a handler run at once, although four workers are there."""
    agent, lock, now, most = Agent("bob"), Lock(), [0], [0]

    @agent.on(Job, concurrency=4)
    def job(_: Job) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        Event().wait(0.001)
        with lock:
            now[0] -= 1

    with Postbox(tmp_path / "bob.db", agent=agent, workers=4) as box:
        send(box, *(Job(n=n) for n in range(20)))
        until(lambda: 20 == box.file.stats()["processed"])
        box.limits.set("handler", "job", concurrency=1)
        most[0] = 0
        send(box, *(Job(n=n) for n in range(40)))
        until(lambda: 60 == box.file.stats()["processed"])

    assert 1 == most[0]


# -- pause of a type ----------------------------------------------------------------------------


def test_a_paused_type_waits_and_others_do_not(world: World) -> None:
    """Its messages are handled after ``resume``, in their order."""
    agent, called = noting()
    box = world.open(agent)
    box.file.pause(type="job")
    send(box, Job(n=1), Other(n=2), Job(n=3), Other(n=4))
    world.settle()
    before, waiting = [*called], box.query(WAITS)
    resumed = box.file.resume(type="job"), box.file.resume(type="job")
    world.settle()

    assert ([-2, -4], [("job", "resume")] * 2) == (before, waiting)
    assert ([-2, -4, 1, 3], (True, False)) == (called, resumed)


def test_a_lane_keeps_its_order_behind_a_paused_message(world: World) -> None:
    """Messages behind it in its lane wait, those before it are handled."""
    agent, called = noting()
    box = world.open(agent)
    box.file.pause(type="job")
    for message in (Other(n=1), Job(n=2), Other(n=3)):
        box.send("bob", message)
    world.settle()
    before, waiting = [*called], box.query(WAITS)
    box.file.resume(type="job")
    world.settle()

    assert ([-1], [("job", "resume"), ("other", "lane")]) == (before, waiting)
    assert [-1, 2, -3] == called


def test_a_retry_waits_for_the_end_of_a_pause(world: World) -> None:
    """A message that failed before the pause is not called when its backoff is over."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job)
    def job(job: Job) -> None:
        called.append(job.n)
        if len(called) == 1:
            raise Retry(after=60)

    box = world.open(agent)
    send(box, Job(n=1))
    world.settle()
    box.file.pause(type="job")
    world.wait(60)
    before = [*called]
    box.file.resume(type="job")
    world.settle()

    assert ([1], [1, 1]) == (before, called)


def test_a_pause_of_a_type_does_not_hold_the_groups_of_its_handler(world: World) -> None:
    """The parked lane of a paused message leaves its group; other lanes of the group go on."""
    agent, called = by_tenant(rate="1/h")
    box = world.open(agent)
    send(box, Task(tenant="a", n=1), Large(tenant="a", n=2), Task(tenant="a", n=3))
    world.settle()
    box.file.pause(type="task.large")
    world.wait(3600)
    before, waiting = [*called], box.query(WAITS)
    box.file.resume(type="task.large")
    world.wait(3600)

    assert (["a1", "a3"], [("task.large", "resume")]) == (before, waiting)
    assert ["a1", "a3", "a2"] == called


def test_a_pause_of_a_keyed_handler_holds_all_its_groups(world: World) -> None:
    """By its pattern, or by one that matches more; without a key other handlers go on."""
    agent, called = by_tenant()
    agent.on(Other)(lambda other: called.append(f"-{other.n}"))
    box = world.open(agent)
    box.file.pause(type="task.#")
    send(box, *(Task(tenant=tenant, n=1) for tenant in "abc"), Other(n=2))
    world.settle()
    before = [*called]
    box.file.resume(type="task.#")
    world.settle()

    assert (["-2"], ["-2", "a1", "b1", "c1"]) == (before, called)


def test_a_batch_handler_is_paused(world: World) -> None:
    """No batch of a paused type is called; afterwards it has all that came meanwhile."""
    agent, called = Agent("bob"), list[list[int]]()

    @agent.on(Job, batch=10, within=1)
    def jobs(jobs: list[Job], _: BatchContext) -> None:
        called.append([job.n for job in jobs])

    box = world.open(agent)
    box.file.pause(type="job")
    send(box, Job(n=1), Job(n=2))
    world.wait(2)
    before = [*called]
    box.file.resume(type="job")
    world.wait(2)

    assert ([], [[1, 2]]) == (before, called)


def test_a_paused_type_survives_the_process(world: World) -> None:
    """A process that opens the file later does not call its handler either."""
    agent, called = noting()
    box = world.open(agent)
    box.file.pause(type="job")
    send(box, Job(n=1), Other(n=2))
    world.reopen("bob")
    world.settle()

    assert [-2] == called


def test_a_message_of_a_neighbour_is_not_handled_on_the_short_way_while_paused(
    tmp_path: Path,
) -> None:
    """A quick handler whose type is paused is not called in the commit that accepts."""
    agent, called = noting()
    with (
        Postbox(tmp_path / "bob.db", agent=agent) as bob,
        Postbox(tmp_path / "ann.db", agent="ann") as ann,
    ):
        first = [ann.send("bob", Job(n=n)) for n in range(1, 6)]
        until(lambda: "acked" == ann.state(first[-1]))
        bob.file.pause(type="job")
        second = ann.send("bob", Job(n=6))
        third = ann.session("s").send("bob", Other(n=7))
        until(lambda: "acked" == ann.state(third))
        before = [*called]
        bob.file.resume(type="job")
        until(lambda: "acked" == ann.state(second))

    assert ([1, 2, 3, 4, 5, -7], [1, 2, 3, 4, 5, -7, 6]) == (before, called)


# -- two processes ------------------------------------------------------------------------------


def test_the_workers_of_another_process_follow_the_shell(tmp_path: Path) -> None:
    """Paused by the command while another process works, a type waits there until resumed."""
    path = tmp_path / "bob.db"
    Postbox(path, agent="bob").close()
    with (
        Child((*PYTHON, "-c", WORKS, path), "stdout") as child,
        Postbox(path, agent="bob", start=False) as box,
    ):
        assert "works" == child.hear()
        send_as(box, "job", 1)
        assert "job 1" == child.hear()
        run(path, "pause", "--type", "job")
        send_as(box, "job", 2)
        send_as(box, "other", 3)
        assert "other 3" == child.hear()
        run(path, "resume", "--type", "job")
        assert "job 2" == child.hear()


def test_a_limit_outlives_a_kill_of_the_process_that_applies_it(tmp_path: Path) -> None:
    """A rate that the shell has set holds for the process that comes after a SIGKILL."""
    path = tmp_path / "bob.db"
    Postbox(path, agent="bob").close()
    with Postbox(path, agent="bob", start=False) as box:
        with Child((*PYTHON, "-c", WORKS, path), "stdout") as child:
            assert "works" == child.hear()
            run(path, "limits", "set", "handler", "job", "--rate", "1/h")
            send_as(box, "job", 13)
            send_as(box, "job", 14)
            assert "job 13" == child.hear()
            child.stop(signal.SIGKILL)
        [limit] = box.limits.list()
        with Child((*PYTHON, "-c", WORKS, path), "stdout") as child:
            assert "works" == child.hear()
            send_as(box, "other", 15)
            heard = child.hear()
        waiting = sorted(row[0] for row in box.query(WAITS))

    assert (1, 1 / 3600, 1) == (limit.burst, limit.rate, limit.declared_concurrency)
    assert heard in ("other 15", "job 13")
    assert "job" in waiting


def send_as(box: Postbox, type: str, n: int) -> None:
    """Send a number as a message of a type, in a lane of its own."""
    box.session(f"s{n}").send("bob", n, type=type)
    box.run_until_idle()


def run(path: Path, *words: str) -> None:
    """Run the command on a file."""
    with Child((*ONCEWARD, *words, "--db", path)) as child:
        assert 0 == child.wait(LONG)


# -- what is told -------------------------------------------------------------------------------


def test_a_set_limit_is_listed_with_the_declared_one(world: World) -> None:
    """Once a worker has claimed under it; a pause stays when the limit is removed."""
    agent, _ = noting(rate="10/m", concurrency=2)
    box = world.open(agent)
    box.limits.set("handler", "job", rate="5/s")
    [before] = box.limits.list()
    box.limits.set("handler", "job", concurrency=3)
    box.file.pause(type="job")
    send(box, Job(n=1))
    world.settle()
    [applied] = box.limits.list()
    box.limits.remove("handler", "job")
    [paused] = box.limits.list()
    box.file.resume(type="job")

    assert ("handler", "job", 5.0, 5, None) == (
        before.scope, before.name, before.rate, before.burst, before.applied_at,
    )  # fmt: skip
    assert (5.0, 3, 10 / 60, 10, 2) == (
        applied.rate, applied.concurrency,
        applied.declared_rate, applied.declared_burst, applied.declared_concurrency,
    )  # fmt: skip
    assert (None, None, world.clock.now()) == (paused.rate, paused.concurrency, paused.paused_at)
    assert [] == box.limits.list()


@pytest.mark.parametrize(
    "given",
    [
        {"name": "job"},
        {"name": "", "rate": 1},
        {"name": "a..b", "rate": 1},
        {"name": "job", "rate": "often"},
        {"name": "job", "rate": 1, "burst": 1.5},
        {"name": "job", "burst": 2},
        {"name": "job", "concurrency": 0},
        {"name": "job", "messages": 5},
        {"name": "job", "rate": 1, "overflow": "hold"},
    ],
)
def test_wrong_limits_of_a_handler_are_refused(world: World, given: dict[str, Any]) -> None:
    """Without a number, with a wrong one, or with a name that no handler can have."""
    box = world.open("bob")

    with pytest.raises(InvalidArgument):
        box.limits.set("handler", **given)
    assert [] == box.limits.list()


def test_an_agent_without_set_limits_has_no_gate(world: World) -> None:
    """Its workers claim without one before a limit is set, and after it is removed."""
    agent, called = noting()
    box = world.open(agent)
    [worker] = [each for each in box._engines if hasattr(each, "_gate")]
    seen = []
    for change in (None, "set", "removed"):
        if change == "set":
            box.limits.set("handler", "job", rate="100/s")
        elif change == "removed":
            box.limits.remove("handler", "job")
        send(box, Job(n=1))
        world.settle()
        seen.append(worker._gate is not None)

    assert ([False, True, False], [1, 1, 1]) == (seen, called)


def test_two_postboxes_of_a_file_follow_one_change(world: World) -> None:
    """Neither calls more than the set rate allows, in turns."""
    agent, called = noting()
    one = world.open(agent)
    with Postbox(
        world.path("bob"), agent=agent, start=False, testing=Controls(clock=world.clock)
    ) as two:
        two.limits.set("handler", "job", rate="3/h")
        send(one, *(Job(n=n) for n in range(8)))
        for box in (one, two, one, two):
            box.run_until_idle()

    assert 3 == len(called)
