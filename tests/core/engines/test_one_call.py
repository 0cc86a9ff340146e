"""A session has one call of its handler at a time, and no session takes the slots of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest
from tests.waiting import PATIENCE, until

from onceward import Agent, AsyncRun, Postbox, Run, Tuning
from onceward.events import RunLeft
from onceward.testing import Controls, ManualClock

GRACE = 5.0


def test_the_next_run_waits_for_the_aborted_call(scripted_agent: Any) -> None:
    """
    A run that was steered away keeps its session until its call has returned.

    Then the next run has everything that came meanwhile.
    """
    one = scripted_agent(mode="steer")
    begun: list[int] = []

    def busy(run: Run) -> None:
        for body in ("second", "third"):
            one.say(body)
            one.harness.deliver()
            begun.append(len(one.seen))

    one.script = [busy]
    one.say("first")

    assert [["first"], ["first", "second", "third"]] == one.go()
    assert [1, 1] == begun


def test_a_call_that_has_lost_its_lease_is_awaited(scripted_agent: Any) -> None:
    """A call that outlived its lease in this process is still the call of its session."""
    one = scripted_agent({"lease": 2.0, "tuning": {"abort_grace": GRACE}})
    begun: list[tuple[int, bool]] = []

    def slow(run: Run) -> None:
        one.go(3)
        begun.append((len(one.seen), run.cancelled))

    one.script = [slow]
    one.say("message")

    assert [["message"], ["message"]] == one.go()
    assert [(1, True)] == begun


def test_another_process_waits_as_well(tmp_path: Path) -> None:
    """The file says that a call has not returned, so that no process begins the next run."""
    clock, begun = ManualClock(), list[str]()
    shared: dict[str, Any] = {"start": False, "testing": Controls(clock=clock)}

    def coder(name: str, does: Callable[[], None]) -> Postbox:
        agent = Agent("coder")

        @agent.runs(mode="steer")
        def turn(run: Run) -> None:
            begun.append(name)
            if len(begun) == 1:
                does()

        return Postbox(tmp_path / "coder.db", agent=agent, **shared)

    def meanwhile() -> None:
        user.send("coder", "second")
        user.run_until_idle()
        other.run_until_idle()
        assert ["aborted"] == [run.state for run in other.runs.list()]

    with (
        coder("one", meanwhile) as one,
        coder("other", lambda: None) as other,
        Postbox(tmp_path / "user.db", agent="user", **shared) as user,
    ):
        user.send("coder", "first")
        user.run_until_idle()
        one.run_until_idle()
        assert ["one", "one"] == begun
        user.send("coder", "third")
        user.run_until_idle()
        other.run_until_idle()

        assert ["one", "one", "other"] == begun


def _waiting(box: Postbox, count: int) -> bool:
    return box.file.stats()["inbox_pending"] + box.file.stats()["inbox_processing"] == count


def test_steered_calls_take_one_slot(tmp_path: Path) -> None:
    """Ten messages to a chat whose call does not return leave the second slot to other sessions."""
    agent, entered, release = Agent("coder"), Flag(), Flag()
    inside, most = list[str](), list[int]()

    @agent.runs("chat", mode="steer")
    def chat(run: Run) -> None:
        inside.append(run.id)
        most.append(len(inside))
        entered.set()
        assert release.wait(PATIENCE)
        inside.remove(run.id)

    @agent.runs("other")
    def other(run: Run) -> None:
        run.reply("served")

    with (
        Postbox(
            tmp_path / "coder.db", agent=agent, max_runs=2, tuning=Tuning(abort_grace=600.0)
        ) as box,
        Postbox(tmp_path / "user.db", agent="user") as user,
    ):
        user.session("chat").send("coder", 0)
        assert entered.wait(PATIENCE)
        for n in range(1, 10):
            user.session("chat").send("coder", n)
            until(partial(_waiting, box, n + 1))
        user.session("other").send("coder", "hello")
        answer = user.session("other").receive(timeout=PATIENCE)
        release.set()
        until(lambda: box.file.stats()["processed"] == 11)

        assert answer is not None
        assert ("served", {1}) == (answer.body, set(most))


def test_a_coroutine_is_awaited_to_its_end(tmp_path: Path) -> None:
    """A cancelled coroutine that cleans up is still the call of its session."""
    agent, entered, told = Agent("coder"), Flag(), list[str]()
    cleaning: list[asyncio.Event] = []

    @agent.runs(mode="steer")
    async def turn(run: AsyncRun) -> None:
        told.append(f"run of {len(run.messages)}")
        if len(told) > 1:
            return
        cleaning.append(asyncio.Event())
        entered.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            told.append("cancelled")
            cleaning[0].set()
            await asyncio.sleep(0.2)
            told.append("cleaned up")

    with (
        Postbox(tmp_path / "coder.db", agent=agent, tuning=Tuning(abort_grace=600.0)) as box,
        Postbox(tmp_path / "user.db", agent="user") as user,
    ):
        user.send("coder", 1)
        assert entered.wait(PATIENCE)
        user.send("coder", 2)
        until(lambda: box.file.stats()["processed"] == 2)

        assert ["run of 1", "cancelled", "cleaned up", "run of 2"] == told


def test_a_coroutine_that_swallows_its_cancellation_is_cancelled_again(tmp_path: Path) -> None:
    """After the grace the coroutine is cancelled a second time, and the next run begins."""
    agent, entered, told, clock = Agent("coder"), Flag(), list[str](), ManualClock()

    @agent.runs(mode="steer")
    async def turn(run: AsyncRun) -> None:
        if told:
            told.append("next run")
            return
        told.append("begun")
        entered.set()
        for _ in range(2):
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                told.append("cancelled")

    with (
        Postbox(
            tmp_path / "coder.db",
            agent=agent,
            testing=Controls(clock=clock),
            tuning=Tuning(abort_grace=GRACE),
        ) as box,
        Postbox(tmp_path / "user.db", agent="user", testing=Controls(clock=clock)) as user,
    ):
        user.send("coder", 1)
        assert entered.wait(PATIENCE)
        user.send("coder", 2)
        until(lambda: len(told) == 2)
        clock.advance(GRACE)
        until(lambda: box.file.stats()["processed"] == 2)

        assert ["begun", "cancelled", "cancelled", "next run"] == told


def test_another_process_awaits_a_coroutine_as_long(tmp_path: Path) -> None:
    """No process begins the next run while a coroutine that was cancelled twice cleans up."""
    agent, rest, clock = Agent("coder"), Agent("coder"), ManualClock()
    entered, release, told = Flag(), Flag(), list[str]()

    @agent.runs(mode="steer")
    async def turn(run: AsyncRun) -> None:
        if entered.is_set():
            told.append("next run")
            return
        entered.set()
        for _ in range(2):
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                told.append("cancelled")
        await asyncio.to_thread(release.wait, PATIENCE)
        told.append("returned")

    @rest.runs(mode="steer")
    def other_turn(run: Run) -> None:
        told.append("next run")

    shared: dict[str, Any] = {"testing": Controls(clock=clock), "tuning": {"abort_grace": GRACE}}
    with (
        Postbox(tmp_path / "coder.db", agent=agent, **shared) as one,
        Postbox(tmp_path / "coder.db", agent=rest, start=False, **shared) as other,
        Postbox(tmp_path / "user.db", agent="user", testing=Controls(clock=clock)) as user,
    ):
        user.send("coder", 1)
        assert entered.wait(PATIENCE)
        user.send("coder", 2)
        until(lambda: len(told) == 1)
        clock.advance(GRACE)
        until(lambda: len(told) == 2)
        other.run_until_idle()
        assert ["cancelled"] * 2 == told
        release.set()
        until(lambda: one.file.stats()["processed"] == 2)

        assert ["cancelled", "cancelled", "returned", "next run"] == told


def test_a_left_call_lets_its_lane_go_whatever_the_clock_says(scripted_agent: Any) -> None:
    """A wall clock that was set back does not make the session wait longer than the grace."""
    one = scripted_agent({"tuning": {"abort_grace": GRACE}}, mode="steer")

    begun: list[int] = []

    def deaf(run: Run) -> None:
        one.say("second")
        one.harness.deliver()
        one.harness.clock.step(-3600)
        one.go(GRACE)
        begun.append(len(one.seen))

    one.script = [deaf]
    one.say("first")
    one.go()

    assert [2] == begun


def test_a_call_that_does_not_return_is_left_and_told(scripted_agent: Any, caplog: Any) -> None:
    """
    After the grace the next run begins beside a call that has not returned.

    That is an event, a log line, a figure of ``health`` and two moments of the run.
    """
    one = scripted_agent({"tuning": {"abort_grace": GRACE}}, mode="steer")
    heard: list[Any] = []
    one.box.on(RunLeft, heard.append)
    left, begun = list[int](), list[int]()

    def deaf(run: Run) -> None:
        one.say("second")
        one.harness.deliver()
        left.append(one.box.file.health().calls_left)
        one.harness.advance(GRACE - 1)
        one.harness.deliver()
        begun.append(len(one.seen))
        one.harness.advance(1)
        one.harness.deliver()
        left.append(one.box.file.health().calls_left)

    one.script = [deaf]
    one.say("first")
    one.go()

    first = one.box.runs.list()[-1]
    assert [["first"], ["first", "second"]] == one.seen
    assert [(first.id, "s")] == [(event.run_id, event.session) for event in heard]
    assert ([0, 1], [1], 0) == (left, begun, one.box.file.health().calls_left)
    assert (first.ended_at + 1000 * GRACE, first.left_at) == (first.left_at, first.returned_at)
    assert ["aborted call has not returned"] == [
        line.getMessage().partition(" agent=")[0] for line in caplog.records
    ]


def test_a_session_leaves_three_calls_at_most(scripted_agent: Any) -> None:
    """A session with three calls that have not returned waits until one of them has."""
    one = scripted_agent({"tuning": {"abort_grace": GRACE}}, mode="steer")
    waited: list[int] = []

    def deaf(run: Run) -> None:
        one.say(f"message {len(one.seen)}")
        one.go(GRACE)
        one.go(10 * GRACE)
        waited.append(len(one.seen))

    one.script = [deaf] * 3
    one.say("message 0")
    one.go()

    assert ([3, 4, 4], 4) == (waited, len(one.seen))
    assert 4 == len(one.seen[-1])


def test_sessions_take_turns(scripted_agent: Any) -> None:
    """A backlog does not keep a session in front: after each run it goes to the end of the line."""
    one = scripted_agent({"max_runs": 1}, mode="followup")
    one.say("a1", "a2", "a3", session="a")
    one.say("b1", "b2", session="b")
    one.say("c1", session="c")

    assert [["a1"], ["b1"], ["c1"], ["a2"], ["b2"], ["a3"]] == one.go()


def test_a_thread_takes_the_session_that_has_waited_longest(tmp_path: Path) -> None:
    """With every slot in use, a run is not followed by its own session's next one."""
    agent, entered, release, order = Agent("coder"), Flag(), Flag(), list[str]()

    @agent.runs()
    def turn(run: Run) -> None:
        order.append(run.message.body)
        entered.set()
        assert release.wait(PATIENCE)

    with (
        Postbox(tmp_path / "coder.db", agent=agent, max_runs=1) as box,
        Postbox(tmp_path / "user.db", agent="user") as user,
    ):
        user.session("a").send_many([("coder", f"a{n}") for n in range(3)])
        assert entered.wait(PATIENCE)
        user.session("b").send("coder", "b0")
        until(lambda: (queue := box.runs.queue("b")) is not None and queue.waiting == 1)
        release.set()
        until(lambda: box.file.stats()["processed"] == 4)

        assert ["a0", "b0", "a1", "a2"] == order


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_slow_session_does_not_delay_the_others(tmp_path: Path, face: str) -> None:
    """While slots are free, sessions begin and end although one of them is slow."""
    agent, entered, release = Agent("coder"), Flag(), Flag()

    def slow(run: Run) -> None:
        entered.set()
        assert release.wait(PATIENCE)

    async def slow_too(run: AsyncRun) -> None:
        entered.set()
        await asyncio.to_thread(release.wait, PATIENCE)

    def brisk(run: Run) -> None:
        pass

    async def brisk_too(run: AsyncRun) -> None:
        pass

    agent.runs("slow")(slow if face == "sync" else slow_too)
    agent.runs("quick-*")(brisk if face == "sync" else brisk_too)
    with (
        Postbox(tmp_path / "coder.db", agent=agent, max_runs=2) as box,
        Postbox(tmp_path / "user.db", agent="user") as user,
    ):
        user.session("slow").send_many([("coder", n) for n in range(3)])
        assert entered.wait(PATIENCE)
        for n in range(20):
            user.session(f"quick-{n}").send_many([("coder", n), ("coder", n)])
        until(lambda: box.file.stats()["processed"] == 40)
        done = {run.session for run in box.runs.list(state="done")}
        release.set()

        assert {f"quick-{n}" for n in range(20)} == done
