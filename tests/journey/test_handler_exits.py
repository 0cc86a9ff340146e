"""Handlers that end by what is not an ``Exception``: the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, BatchContext, Postbox
from onceward.events import DeadLettered

if TYPE_CHECKING:
    from pathlib import Path

LONG = 60


class Odd(BaseException):
    """An exception that ``except Exception`` does not catch."""


def groups() -> BaseException:
    """Return a group that is not an ``ExceptionGroup``."""
    return BaseExceptionGroup("group", [asyncio.CancelledError(), ValueError("broken")])


ENDS: list[Callable[[], BaseException]] = [
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    Odd,
    groups,
]


def plain(agent: Agent, end: Callable[[], BaseException]) -> None:
    """Add a function that ends so."""

    @agent.on("job", attempts=1)
    def work(body: str) -> None:
        raise end()


def coroutine(agent: Agent, end: Callable[[], BaseException]) -> None:
    """Add a coroutine that ends so."""

    @agent.on("job", attempts=1)
    async def work(body: str) -> None:
        raise end()


def batch(agent: Agent, end: Callable[[], BaseException]) -> None:
    """Add a batch handler that ends so."""

    @agent.on("job", attempts=1, batch=2, within=0)
    def work(bodies: list[str], ctx: BatchContext) -> None:
        raise end()


def run(agent: Agent, end: Callable[[], BaseException]) -> None:
    """Add a handler of runs that ends so."""

    @agent.runs("jobs", attempts=1)
    def work(run: Any) -> None:
        raise end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("handler", [plain, coroutine, batch, run])
@pytest.mark.parametrize("end", ENDS)
def test_a_handler_that_exits_fails_its_message_only(
    tmp_path: Path,
    handler: Callable[[Agent, Callable[[], BaseException]], None],
    end: Callable[[], BaseException],
) -> None:
    """The message is a dead letter, and the thread of the worker handles those after it."""
    agent, dead, done = Agent("bob"), Flag(), Flag()
    handler(agent, end)

    @agent.on("after")
    def after(body: str) -> None:
        done.set()

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        box.on(DeadLettered, lambda _: dead.set())
        box.session("jobs").send("bob", "work", type="job")
        found = dead.wait(LONG)
        box.send("bob", "more", type="after")
        went_on = done.wait(LONG)
        letters = [letter.reason for letter in box.dead_letters.list()]

    assert (True, True, ["attempts_spent"]) == (found, went_on, letters)


def test_an_exit_on_the_thread_of_the_caller_is_its_own(tmp_path: Path) -> None:
    """Without engines an exit of a handler ends ``run_until_idle``, and nothing is kept of it."""
    agent = Agent("bob")
    plain(agent, KeyboardInterrupt)
    with Postbox(tmp_path / "bob.db", agent=agent, start=False) as box:
        box.send("bob", "work", type="job")
        with pytest.raises(KeyboardInterrupt):
            box.run_until_idle()

        assert [] == box.dead_letters.list()
