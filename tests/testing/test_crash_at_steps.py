"""The harness kills an agent at every step, and the next process goes on there."""

from __future__ import annotations

from collections import Counter

import pytest

from onceward import Agent, BatchContext, Context, Run
from onceward.testing import Harness
from onceward.testing.crash import STEP_POINTS, StepPoint

NAMES = ("paid", "paid#2", "booked")


class Bank:
    """Counts the calls of the functions of steps."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def paid(self, cents: int) -> int:
        """Pay."""
        self.calls[f"paid {cents}"] += 1
        return cents

    def booked(self) -> int:
        """Book."""
        self.calls["booked"] += 1
        return 1

    @property
    def expected(self) -> dict[str, int]:
        """Return the calls of a process that did not die."""
        return {"paid 1": 1, "paid 2": 1, "booked": 1}


def handled(bank: Bank) -> Agent:
    """Return an agent whose handler has three steps."""
    agent = Agent("shop")

    @agent.on("json")
    def work(body: dict[str, int], ctx: Context) -> None:
        ctx.step(bank.paid, 1)
        ctx.step(bank.paid, 2)
        ctx.step(bank.booked, tx=True)

    return agent


def batched(bank: Bank) -> Agent:
    """Return an agent whose batch handler has three steps of each message."""
    agent = Agent("shop")

    @agent.on("json", batch=2, within=0)
    def work(bodies: list[dict[str, int]], ctx: BatchContext) -> None:
        for message in ctx.messages:
            ctx.step(message, bank.paid, 1)
            ctx.step(message, bank.paid, 2)
            ctx.step(message, bank.booked, tx=True)

    return agent


def run(bank: Bank) -> Agent:
    """Return an agent whose runs have three steps."""
    agent = Agent("shop")

    @agent.runs(debounce=0)
    def serve(run: Run) -> None:
        run.step(bank.paid, 1)
        run.step(bank.paid, 2)
        run.step(bank.booked, tx=True)

    return agent


@pytest.mark.parametrize("step", NAMES)
@pytest.mark.parametrize("point", STEP_POINTS)
@pytest.mark.parametrize("kind", [handled, batched, run])
def test_a_killed_agent_goes_on_at_its_step(kind: object, point: StepPoint, step: str) -> None:
    """Only the function whose result was not stored is called once more."""
    bank = Bank()
    with Harness(kind(bank), lease=5) as harness:  # type: ignore[operator]
        harness.send({"a": 1})
        with harness.crash_at(point, step=step):
            harness.deliver()
        harness.advance(6)
        harness.deliver()
        again = {"paid": "paid 1", "paid#2": "paid 2", "booked": "booked"}[step]

        expected = Counter(bank.expected) + Counter({again: point == "after-step"})
        assert expected == bank.calls
        assert [("processed",)] == harness.sql("SELECT state FROM onceward_inbox")
        assert [] == harness.check()


def test_a_step_that_is_never_reached_fails_the_block() -> None:
    """The error says so."""
    with (
        Harness(handled(Bank())) as harness,
        pytest.raises(AssertionError, match="never reached"),
        harness.crash_at("before-step", step="other"),
    ):
        harness.send({"a": 1})
        harness.deliver()
