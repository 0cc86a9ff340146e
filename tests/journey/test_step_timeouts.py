"""A step that takes too long fails; one that reports may take longer."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, Context, step
from onceward.errors import InvalidArgument, StepFailed
from onceward.message.clock import monotonic

if TYPE_CHECKING:
    from tests.journey.conftest import World

BRIEF = 0.02
LATE = "TimeoutError: step work took longer than its timeout of 0.02 s"


def spin(seconds: float) -> None:
    """Work for a time."""
    until = monotonic() + seconds
    while monotonic() < until:
        pass


def test_a_coroutine_is_cancelled_at_its_timeout(world: World) -> None:
    """And called again as often as its attempts allow; then the handler gets the failure."""
    calls: list[int] = []
    agent, told = Agent("bob"), []

    async def work() -> None:
        calls.append(step.attempt)
        await asyncio.Event().wait()

    @agent.on("job")
    async def handle(_: Any, ctx: AsyncContext) -> str:
        try:
            await ctx.step(work, timeout=BRIEF, attempts=2, keep_failure=True)
        except StepFailed as error:
            told.append(error.error)
        return "went on"

    box = world.open(agent)
    sent = box.send("bob", 1, type="job")
    world.settle()
    world.wait(60)

    assert ([1, 2], [LATE]) == (calls, told)
    assert "went on" == box.result(sent, reply=str)


@pytest.mark.parametrize("tx", [False, True])
def test_a_function_that_returns_too_late_has_failed(world: World, *, tx: bool) -> None:
    """Its result is not kept, and its writes are rolled back; the next call may be in time."""
    agent = Agent("bob")

    def work() -> int:
        if tx:
            step.tx.execute("INSERT INTO effects VALUES (?)", (step.attempt,))
        if step.attempt == 1:
            spin(2 * BRIEF)
        return step.attempt

    @agent.on("job")
    def handle(_: Any, ctx: Context) -> int:
        return ctx.step(work, timeout=BRIEF, attempts=2, tx=tx)

    box = world.open(agent)
    with box.begin() as opened:
        opened.execute("CREATE TABLE effects (n INTEGER)")
    sent = box.send("bob", 1, type="job")
    world.settle()
    world.wait(60)

    assert 2 == box.result(sent, reply=int)
    assert [(2,)] * tx == box.query("SELECT n FROM effects")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_function_that_reports_may_take_longer(world: World, kind: str) -> None:
    """``step.extend`` gives it that time from now."""
    agent = Agent("bob")

    def work() -> str:
        step.extend("1m")
        return "late" if Event().wait(1.1) else "long"

    async def later() -> str:
        step.extend("1m")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1.1)
        return "long"

    @agent.on("sync", attempts=1)
    def handle(_: Any, ctx: Context) -> str:
        return ctx.step(work, timeout=1)

    @agent.on("async", attempts=1)
    async def handle_later(_: Any, ctx: AsyncContext) -> str:
        return await ctx.step(later, timeout=1)

    box = world.open(agent)
    sent = box.send("bob", 1, type=kind)
    world.settle()

    assert "long" == box.result(sent, reply=str)


def test_a_report_after_the_end_of_the_time_fails_at_once(world: World) -> None:
    """So a function that works in parts stops at the part that took too long."""
    agent, parts = Agent("bob"), []

    @step(timeout=BRIEF, keep_failure=True)
    def work() -> None:
        for n in range(3):
            parts.append(n)
            spin(2 * BRIEF)
            step.extend(BRIEF)

    @agent.on("job")
    def handle(_: Any) -> str:
        try:
            work()
        except StepFailed as error:
            return error.error
        return "in time"

    box = world.open(agent)
    sent = box.send("bob", 1, type="job")
    world.settle()

    assert (LATE, [0]) == (box.result(sent, reply=str), parts)


def test_a_timeout_is_the_steps_own(world: World) -> None:
    """The TimeoutError of a call that the function makes passes as it is."""
    agent = Agent("bob")

    async def work() -> None:
        raise TimeoutError("of a service")

    @agent.on("job", attempts=1)
    async def handle(_: Any, ctx: AsyncContext) -> None:
        await ctx.step(work, timeout=5)

    box = world.open(agent)
    box.send("bob", 1, type="job")
    world.settle()

    assert ["TimeoutError: of a service"] == [each.last_error for each in box.dead_letters.list()]


def test_a_timeout_is_positive(world: World) -> None:
    """And outside of a step there is nothing to extend."""
    with pytest.raises(InvalidArgument, match="timeout"):
        step(timeout=0)(spin)
    with pytest.raises(InvalidArgument, match="no step is running"):
        step.extend(1)
    del world
