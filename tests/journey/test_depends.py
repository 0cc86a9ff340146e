"""Dependencies of handlers: what they are given, how often, and when it is cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Depends, Msg
from onceward.errors import InvalidArgument
from onceward.testing import Harness

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

LOG: list[str] = []


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LOG.clear()


def rate() -> float:
    """Return a number, and note the call."""
    LOG.append("rate")
    return 1.5


def doubled(found: float = Depends(rate)) -> float:
    """Return what depends in turn."""
    return 2 * found


def noted(ctx: Context) -> Iterator[str]:
    """Write in the handler's transaction, before it and after it."""
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
    ctx.tx.execute("INSERT INTO notes VALUES ('begun')")
    LOG.append("begun")
    try:
        yield ctx.message.id
    except OSError:
        LOG.append("failed")
        raise
    finally:
        ctx.tx.execute("INSERT INTO notes VALUES ('ended')")
        LOG.append("ended")


def test_a_handler_is_given_what_it_depends_on(world: World) -> None:
    """Each function is called once for a message, after the context and before the handler."""
    agent = Agent("bob")

    @agent.on(Job)
    def work(
        job: Job,
        ctx: Context,
        twice: float = Depends(doubled),
        *,
        once: Annotated[float, Depends(rate)],
        mark: str = Depends(noted),
    ) -> None:
        LOG.append(f"{job.n} {twice} {once} {mark == ctx.message.id}")

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert ["rate", "begun", "1 3.0 1.5 True", "ended"] == LOG
    assert [("begun",), ("ended",)] == box.query("SELECT text FROM notes")


def test_a_context_may_stand_after_a_dependency(world: World) -> None:
    """Each parameter gets its own, in any order."""
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, once: float = Depends(rate), ctx: Context | None = None) -> None:
        LOG.append(f"{once} {ctx is not None}")

    world.open(agent).send("bob", Job(n=1))
    world.settle()

    assert ["rate", "1.5 True"] == LOG


def test_clean_up_sees_the_failure_and_is_rolled_back_with_it(world: World) -> None:
    """What the generator wrote belongs to the attempt."""
    agent = Agent("bob")

    @agent.on(Job, attempts=1)
    def work(job: Job, mark: str = Depends(noted)) -> None:
        raise OSError

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert ["begun", "failed", "ended"] == LOG
    assert 1 == len(box.dead_letters.list())
    assert [] == box.query("SELECT name FROM sqlite_schema WHERE name = 'notes'")


def swallowing() -> Iterator[int]:
    """Catch what the handler raises, and go on."""
    try:
        yield 1
    except OSError:
        LOG.append("caught")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_that_catches_hides_no_failure(tmp_path: Path, is_async: bool) -> None:
    """A message whose handler raised is not taken for handled."""
    agent = Agent("bob")

    def work(job: Job, one: int = Depends(swallowing)) -> None:
        raise OSError

    async def work_async(job: Job, one: int = Depends(swallowing)) -> None:
        raise OSError

    agent.on(Job, attempts=1)(work_async if is_async else work)
    with Harness(agent) as harness:
        harness.send(Job(n=1))
        harness.deliver()
        letters = harness.postbox.dead_letters.list()

    assert (["caught"], 1) == (LOG, len(letters))


def test_a_failing_clean_up_fails_the_message(world: World) -> None:
    """It runs before the commit, so nothing of the handler stays."""
    agent = Agent("bob")

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context, one: int = Depends(broken)) -> None:
        ctx.send("bob", 1, type="other")

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert ["job"] == [each.type for each in box.dead_letters.list()]


def test_tests_put_another_function_in_its_place(world: World) -> None:
    """Also one that takes what the first does not, and in agents that were included."""
    part, agent = Agent("part"), Agent("bob")

    @part.on(Job)
    def work(job: Job, once: float = Depends(rate)) -> None:
        LOG.append(str(once))

    agent.include(part)
    agent.overrides[rate] = lambda ctx: float(ctx.message.attempt)
    world.open(agent).send("bob", Job(n=1))
    world.settle()

    assert ["1.0"] == LOG


def test_coroutines_and_their_generators_serve_async_handlers(tmp_path: Path) -> None:
    """They run on the loop, with the async context."""
    agent = Agent("bob")

    async def connection(ctx: AsyncContext) -> AsyncIterator[str]:
        await asyncio.sleep(0)
        LOG.append("open")
        yield f"to {ctx.message.type}"
        await asyncio.sleep(0)
        LOG.append("shut")

    async def user(where: str = Depends(connection)) -> str:
        return f"user {where}"

    @agent.on(Job)
    async def work(
        job: Job, ctx: AsyncContext, name: str = Depends(user), once: float = Depends(rate)
    ) -> str:
        LOG.append(f"{name} {once}")
        return "done"

    async def journey() -> str:
        async with (
            AsyncPostbox(tmp_path / "bob.db", agent=agent),
            AsyncPostbox(tmp_path / "alice.db", agent="alice") as alice,
        ):
            return await alice.ask("bob", Job(n=1), reply=str, timeout=60)

    assert "done" == asyncio.run(journey())
    assert ["open", "rate", "user to job 1.5", "shut"] == LOG


async def later() -> int:
    """Return a number on the loop."""
    return 1


def circular(other: Any = None) -> int:
    """Stand for a function that depends on itself, once the test has said so."""
    raise NotImplementedError


circular.__defaults__ = (Depends(circular),)


def hungry(what: int) -> int:
    """Take what nothing gives."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (later, "later is async: make the handler async def"),
        (circular, "circular -> circular"),
        (hungry, "parameter what has no default and no Depends"),
        (7, "give it a function"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_registered(call: Any, why: str) -> None:
    """The error names the dependency."""

    def work(job: Job, given: int = Depends(call)) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidArgument, match=why):
        Agent("bob").on(Job)(work)


def test_a_first_parameter_and_a_run_depend_on_nothing() -> None:
    """One is the message, the other has no call for each message."""

    def no_message(*, given: float = Depends(rate)) -> None:
        raise NotImplementedError

    def run_of(run: Any, given: float = Depends(rate)) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidArgument, match="must take the message"):
        Agent("bob").on(Job)(no_message)
    with pytest.raises(InvalidArgument, match="depends on a function"):
        Agent("bob").runs()(run_of)


class Opened:
    """A callable object that yields."""

    def __call__(self) -> Iterator[int]:
        """Yield a number, and note that it is over."""
        yield 5
        LOG.append("over")


class Awaited:
    """A callable object that is awaited."""

    async def __call__(self) -> int:
        """Return a number on the loop."""
        return 1


def test_callable_objects_are_what_their_call_is(world: World) -> None:
    """One that yields gives its value, and is ended; one that is async needs an async handler."""
    agent, found = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, given: int = Depends(Opened())) -> None:
        found.append(given)

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert ([5], ["over"]) == (found, LOG)
    with pytest.raises(InvalidArgument, match="Awaited is async"):

        @agent.on("other")
        def other(job: dict[str, Any], given: int = Depends(Awaited())) -> None:
            raise NotImplementedError


@dataclass
class Unhashable:
    """A callable object that is compared by its fields."""

    def __call__(self) -> int:
        """Return a number."""
        raise NotImplementedError


def unnamed(given: float = Depends(rate), /) -> None:
    """Depend on a function by a parameter without a name."""


def test_dependencies_that_could_not_be_given_are_refused() -> None:
    """The handler would fail at each message, or be given something else."""

    class Local:
        pass

    def local(job: Job, given: Annotated[Local, Depends(rate)]) -> None:
        raise NotImplementedError

    def nameless(job: Job, given: float = Depends(unnamed)) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidArgument, match="is not hashable"):
        Depends(Unhashable())
    with pytest.raises(InvalidArgument, match="parameter given depends on a function, so it must"):
        Agent("bob").on(Job)(nameless)
    with pytest.raises(InvalidArgument, match=r"Depends\(rate\)\]' cannot be"):
        Agent("bob").on(Job)(local)
