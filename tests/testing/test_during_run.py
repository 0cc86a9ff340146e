"""Runs that are steered in the middle, without threads: what a handler under test sees."""

from typing import Any

import pytest

from onceward import Agent, AsyncRun, Run
from onceward.testing import Harness


def states(harness: Harness) -> list[str]:
    """Return the states of all runs, oldest first."""
    return [run.state for run in reversed(harness.postbox.runs.list())]


@pytest.mark.parametrize("asks", ["checkpoint", "cancelled", "raise_if_cancelled"])
def test_a_function_is_cancelled_in_the_middle(asks: str) -> None:
    """The block acts at the first point of a run that can notice it, and once."""
    agent, seen = Agent("coder"), list[tuple[int, bool]]()

    @agent.runs(mode="steer")
    def turn(run: Run) -> None:
        if asks == "checkpoint":
            run.checkpoint("half")
        elif asks == "raise_if_cancelled":
            run.raise_if_cancelled()
        seen.append((len(run.messages), run.cancelled))

    with Harness(agent) as harness:
        harness.send("first")
        with harness.during_run(lambda: harness.send("second")):
            harness.deliver()

        expected = [(2, False)] if asks == "raise_if_cancelled" else [(1, True), (2, False)]
        assert expected == seen
        assert ["aborted", "done"] == states(harness)
        assert [] == harness.check()


def test_a_message_is_injected_in_the_middle() -> None:
    """What the block sends is there for the run that asks its inbox."""
    agent, seen = Agent("coder"), list[list[Any]]()

    @agent.runs(mode="steer", inject=True)
    def turn(run: Run) -> None:
        run.inbox()
        seen.append([message.body for message in run.messages])

    with Harness(agent) as harness:
        harness.send("first")
        with harness.during_run(lambda: harness.send("second")):
            harness.deliver()

        assert [["first", "second"]] == seen


def test_a_coroutine_is_cancelled_in_the_middle() -> None:
    """A coroutine is cancelled where it waits after its checkpoint; the next run goes on."""
    agent, told = Agent("coder"), list[Any]()

    @agent.runs(mode="steer")
    async def turn(run: AsyncRun) -> None:
        told.append(run.previous and run.previous.partial)
        await run.checkpoint("half")
        await run.checkpoint("whole")
        told.append("not cancelled")

    with Harness(agent) as harness:
        harness.send("first")
        with harness.during_run(lambda: harness.send("second")):
            harness.deliver()

        assert [None, "half", "not cancelled"] == told
        assert ["aborted", "done"] == states(harness)


def test_a_block_without_a_run_is_an_error() -> None:
    """A test that never came to the middle of a run has tested nothing."""
    agent = Agent("coder")
    agent.runs()(lambda _: None)

    with (
        Harness(agent) as harness,
        pytest.raises(AssertionError, match="middle of a run"),
        harness.during_run(lambda: None),
    ):
        harness.send("first")
        harness.deliver()


def test_a_run_that_is_aborted_by_hand_knows_it() -> None:
    """Without threads a run asks the file whether it was ended from outside."""
    agent, seen = Agent("coder"), list[bool]()

    @agent.runs()
    def turn(run: Run) -> None:
        seen.append(run.cancelled)
        if len(seen) == 1:
            harness.postbox.runs.abort(run.id)
            seen.append(run.cancelled)

    with Harness(agent) as harness:
        harness.send("first")
        harness.deliver()

        assert [False, True, False] == seen
