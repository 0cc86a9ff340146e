"""Schedules beside each other: none waits for another, and none outlives its declaration."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, run
from tests.waiting import until

from onceward import Agent, Context, Postbox, Tuning
from onceward.errors import InvalidArgument, Retry
from onceward.testing import Controls
from onceward.types import Tick

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.dates import Schedule

MINUTE = 60_000
HOUR = 60 * MINUTE
LANES = "SELECT DISTINCT frame ->> '$.partitionkey' FROM onceward_outbox ORDER BY 1"

DYING = """
import os, sys
from onceward import Agent, Postbox
agent = Agent("bob")
agent.every("1h", name="tick")(lambda tick: None)
box = Postbox(sys.argv[1], agent=agent)
os._exit(9)
"""
SKIPPED = "SELECT skipped, skipped_at FROM onceward_schedules"


def found(box: Postbox, name: str = "tick") -> Schedule:
    """Return a schedule that is there."""
    schedule = box.schedules.get(name)
    assert schedule is not None
    return schedule


def ticking(ran: list[int], **options: Any) -> Agent:
    """Return an agent that notes the dates of its hourly ticks."""
    agent = Agent("bob")
    options.setdefault("name", "tick")

    @agent.every("1h", **options)
    def note(tick: Tick) -> None:
        ran.append(tick.at)

    return agent


def other() -> Agent:
    """Return an agent of the same name that declares no schedule."""
    agent = Agent("bob")

    @agent.on("job")
    def work(job: dict[str, Any]) -> None:
        raise NotImplementedError

    return agent


def test_a_job_that_always_fails_delays_no_other(world: World) -> None:
    """In six hours a healthy job of each minute runs 360 times, each time at its date."""
    bob, late, failed = Agent("bob"), list[int](), list[int]()

    @bob.every("5m")
    def broken(tick: Tick) -> None:
        failed.append(tick.at)
        raise RuntimeError

    @bob.every("1m")
    def healthy(tick: Tick) -> None:
        late.append(world.clock.now() - tick.at)

    box = world.open(bob)
    for _ in range(6 * 60):
        world.wait(60)

    assert [0] * 360 == late
    assert len(set(failed)) < found(box, "broken").sent == 72
    world.audited = False  # its dead letters are what the job is for


def test_a_slow_job_holds_no_other_worker(tmp_path: Path) -> None:
    """While one job runs, another of the same agent runs as often as it is sent."""
    bob, running, end, ran = Agent("bob"), Event(), Event(), list[str]()

    @bob.every("1h")
    def slow(tick: Tick) -> None:
        running.set()
        assert end.wait(60)

    @bob.every("1h")
    def quick(tick: Tick) -> None:
        ran.append(tick.schedule)

    with Postbox(
        tmp_path / "bob.db", agent=bob, workers=3, tuning=Tuning(poll_interval=0.02)
    ) as box:
        box.schedules.run_now("slow")
        assert running.wait(60)
        for _ in range(3):
            box.schedules.run_now("quick")
        until(lambda: ["quick"] * 3 == ran)
        end.set()


def test_a_schedule_with_a_session_or_a_key_waits_there(world: World) -> None:
    """Its ticks stand in the lane of that session, or of that ordering key."""
    bob, seen = Agent("bob"), list[tuple[str, str]]()

    @bob.every("1h", session="reports")
    def shared(tick: Tick, ctx: Context) -> None:
        seen.append((tick.schedule, ctx.message.session))

    @bob.every("1h")
    def alone(tick: Tick, ctx: Context) -> None:
        seen.append((tick.schedule, ctx.message.session))

    box = world.open(bob)
    box.schedules.add("keyed", every="1h", type="schedule.alone", ordering_key="k")
    world.wait(3600)

    assert [("alone", "default"), ("keyed", "default"), ("shared", "reports")] == sorted(seen)
    assert [(None,), ("k",), ("schedule.alone",)] == box.query(LANES)


def test_a_schedule_of_a_session_with_runs_is_served_by_its_runs(world: World) -> None:
    """A lane of its own does not keep a tick from the session's handler."""
    bob, seen = Agent("bob"), list[str]()

    @bob.runs("default")
    def serve(run: Any) -> None:
        seen.extend(message.headers["schedule"] for message in run.messages)

    box = world.open(bob)
    box.schedules.add("tick", every="1h")
    for _ in range(2):
        world.wait(3600)

    assert ["tick"] * 2 == seen


def test_a_date_is_skipped_while_the_last_message_is_unfinished(world: World) -> None:
    """``overlap="skip"`` counts it and names its date; the first date after the end is sent."""
    bob, fails, ran = Agent("bob"), [True], list[int]()

    @bob.every("1h", name="tick", overlap="skip")
    def work(tick: Tick) -> None:
        if fails:
            fails.clear()
            raise Retry(after="150m")
        ran.append(tick.at)

    box = world.open(bob)
    first = found(box).next_at
    for _ in range(2):
        world.wait(3600)
    waiting = found(box)
    for seconds in (3600, 1800, 1800):
        world.wait(seconds)
    later = found(box)

    assert (1, 1, first + HOUR) == (waiting.sent, waiting.skipped, waiting.skipped_at)
    assert [first, first + 3 * HOUR] == ran
    assert (2, 2, first + 2 * HOUR) == (later.sent, later.skipped, later.skipped_at)
    assert [(2, first + 2 * HOUR)] == box.query(SKIPPED)


def test_a_date_is_skipped_while_another_agent_works_on_the_last_one(world: World) -> None:
    """A message is unfinished until the receipt of its recipient says how it ended."""
    shop, billing = world.wired("shop", "billing")
    shop.schedules.add("tick", every="1h", to="billing", overlap="skip")
    for _ in range(2):
        world.wait(3600)
    unread = found(shop)
    message = billing.receive()
    assert message is not None
    message.ack()
    world.settle()
    world.wait(3600)

    assert (1, 1) == (unread.sent, unread.skipped)
    assert (2, 1) == (found(shop).sent, found(shop).skipped)


def test_dates_queue_by_default(world: World) -> None:
    """Each date has its message, whatever became of the last one."""
    box = world.open("bob")
    box.schedules.add("tick", every="1h")
    for _ in range(3):
        world.wait(3600)

    assert (3, 0, None) == (found(box).sent, found(box).skipped, found(box).skipped_at)


@pytest.mark.parametrize("given", [{"overlap": "both"}, {"overlap": "skip", "missed": "all"}])
def test_policies_that_mean_nothing_are_refused(world: World, given: dict[str, Any]) -> None:
    """Where a schedule is added, and where it is declared."""
    box = world.open("bob")
    with pytest.raises(InvalidArgument, match="overlap"):
        box.schedules.add("tick", every="1h", **given)
    with pytest.raises(InvalidArgument, match="overlap"):
        Agent("bob").every("1h", **given)
    assert [] == box.schedules.list()


def test_a_schedule_that_is_declared_no_longer_is_paused(world: World) -> None:
    """No date of it is a dead letter; declared again, it goes on with its next date."""
    ran: list[int] = []
    first = found(world.open(ticking(ran))).next_at
    world.shut()
    box = world.open(other())
    world.wait(2 * 3600)
    gone = found(box)
    world.shut()
    world.open(ticking(ran))
    world.wait(3600)

    assert ("withdrawn", True, 0) == (gone.origin, gone.paused_at is not None, gone.sent)
    assert [first + 2 * HOUR] == ran


def test_a_schedule_that_an_operator_paused_stays_paused(world: World) -> None:
    """Whether it was paused before the code dropped it, or after."""
    for name in ("before", "after"):
        box = world.open(ticking([], name=name))
        if name == "before":
            box.schedules.pause(name)
        world.shut()
        box = world.open(other())
        world.wait(3600)
        if name == "after":
            assert box.schedules.pause(name)
        world.shut()
        box = world.open(ticking([], name=name))

        assert ("declared", True) == (found(box, name).origin, bool(found(box, name).paused_at))
        world.shut()


def test_an_operator_resumes_a_schedule_that_the_code_dropped(world: World) -> None:
    """It is then one that was added by hand, which the code does not pause again."""
    world.open(ticking([]))
    world.shut()
    box = world.open(other())
    world.wait(3600)
    assert box.schedules.resume("tick")
    world.shut()
    box = world.open(other())
    world.wait(3600)

    assert ("added", None) == (found(box).origin, found(box).paused_at)


@pytest.mark.parametrize("opener", ["bob", Agent("bob"), Agent("bob", unhandled="wait")])
def test_a_program_without_the_handlers_pauses_nothing(world: World, opener: str | Agent) -> None:
    """A program that only sends, or leaves messages to others, says nothing of schedules."""
    if isinstance(opener, Agent) and opener.unhandled == "wait":
        opener.on("job")(lambda _: None)
    world.open(ticking([]))
    world.shut()
    box = world.open(opener)
    box.schedules.add("by-hand", every="1h")
    world.shut()
    world.open(other())
    world.wait(3600)
    world.shut()
    box = world.open(opener)

    assert ["added", "withdrawn"] == [each.origin for each in box.schedules.list()]


def test_a_program_without_the_schedule_leaves_it_to_the_worker_that_declares_it(
    world: World,
) -> None:
    """With or without engines; the worker goes on, and after its end the schedule is withdrawn."""
    ran: list[int] = []
    worker = world.open(ticking(ran))
    beside = Postbox(
        worker.file.path, agent=other(), start=False, testing=Controls(clock=world.clock)
    )
    Postbox(worker.file.path, agent=other(), testing=Controls(clock=world.clock)).close()
    world.clock.forward(3600)
    beside.run_until_idle()
    not_sent = found(beside).sent
    world.wait(0)
    seen = (found(worker).origin, found(worker).sent, len(ran))
    worker.close()
    world.clock.forward(3600)
    beside.run_until_idle()
    gone, beside_dead = found(beside), beside.dead_letters.list()
    beside.close()

    assert 0 == not_sent
    assert ("declared", 1, 1) == seen
    assert ("withdrawn", 1) == (gone.origin, gone.sent)
    assert [] == beside_dead


def test_a_worker_that_was_killed_declares_nothing_any_more(tmp_path: Path) -> None:
    """The next process that handles the agent's messages alone withdraws its schedules."""
    run([*PYTHON, "-c", DYING, tmp_path / "bob.db"], check=False)

    with Postbox(tmp_path / "bob.db", agent=other()) as box:
        assert "withdrawn" == found(box).origin


def test_a_program_that_handles_nothing_withdraws_nothing(world: World) -> None:
    """A short absence of the worker costs no date."""
    ran: list[int] = []
    world.open(ticking(ran))
    world.shut()
    world.open(other())
    world.shut()
    world.clock.forward(2 * 3600)
    world.open(ticking(ran))
    world.wait(0)

    assert 1 == len(ran)


@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_a_schedule_that_comes_back_after_a_month_sends_no_date_of_it(
    world: World, missed: Any
) -> None:
    """It goes on with its next date, as after a pause."""
    ran: list[int] = []
    world.open(ticking(ran, missed=missed))
    world.shut()
    world.open(other())
    world.wait(3600)
    world.shut()
    world.clock.forward(30 * 86_400)
    box = world.open(ticking(ran, missed=missed))
    world.wait(0)
    at_once = list(ran)
    world.wait(3600)

    assert ([], 1) == (at_once, len(ran))
    assert ("declared", None) == (found(box).origin, found(box).paused_at)
