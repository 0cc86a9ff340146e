"""Coroutines as handlers: the same promises, and they can be stopped."""

from __future__ import annotations

import asyncio
from threading import Event as Flag
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, Msg, Postbox, Retry
from onceward.events import Acked, DeadLettered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

LONG = 60.0
QUIET = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Done(Msg, type="done"):
    """Its answer."""

    n: int


def table(box: Postbox) -> None:
    """Make a table for effects."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE effects (n)")


def effects(box: Postbox) -> list[int]:
    """Return the numbers of all effects."""
    return [n for (n,) in box._db.read("SELECT n FROM effects ORDER BY rowid")]


def test_a_coroutine_writes_sends_and_replies_in_one_commit(world: World) -> None:
    """Awaited work of the context is committed with the mark; a failed run leaves nothing."""
    agent = Agent("billing")

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> Done:
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        await ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(10,), (11,)])
        await ctx.send("shop", Done(n=100))
        await asyncio.sleep(0)
        if ctx.message.attempt == 1:
            raise Retry(after=0)
        return Done(n=job.n)

    shop, billing = world.open("shop"), world.open(agent)
    table(billing)
    ticket = shop.request("billing", Job(n=1))
    world.settle()

    assert ([1, 10, 11], 2) == (effects(billing), billing.file.stats()["enqueued"])
    assert "acked" == shop.state(ticket.id)


def test_a_coroutine_that_fails_is_tried_again(world: World) -> None:
    """An exception of a coroutine is a verdict like any other."""
    agent, ran = Agent("billing"), list[int]()

    @agent.on(Job, attempts=2)
    async def work(job: Job, ctx: AsyncContext) -> None:
        ran.append(ctx.message.attempt)
        raise ValueError(job.n)

    shop, billing = world.open("shop"), world.open(agent)
    shop.send("billing", Job(n=1))
    for _ in range(3):
        world.wait(2)

    assert [1, 2] == ran
    assert ["ValueError: 1"] == [letter.last_error for letter in billing.dead_letters.list()]


def test_a_cancelled_coroutine_is_tried_again(world: World) -> None:
    """A coroutine that is cancelled from inside ends neither its message nor the worker."""
    agent, ran = Agent("billing"), list[int]()

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        ran.append(job.n)
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        if len(ran) == 1:
            raise asyncio.CancelledError

    shop, billing = world.open("shop"), world.open(agent)
    table(billing)
    shop.send("billing", Job(n=1))
    world.settle()
    world.wait(2)

    assert ([1, 1], [1]) == (ran, effects(billing))


@QUIET
@pytest.mark.parametrize("touches", [False, True])
def test_a_coroutine_beyond_its_runtime_is_stopped(world: World, touches: bool) -> None:
    """
    A coroutine that waits for ever is cancelled when its time is up.

    That holds inside its transaction, too, and other coroutines go on.
    """
    agent, cancelled = Agent("billing"), Flag()

    @agent.on(Job, attempts=1, timeout=0.05)
    async def work(job: Job, ctx: AsyncContext) -> None:
        if touches:
            await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    dead = Flag()
    with (
        Postbox(world.path("billing"), agent=agent, lease=3.0, busy_timeout=LONG) as billing,
        Postbox(world.path("shop"), agent="shop") as shop,
    ):
        table(billing)
        billing.on(DeadLettered, lambda _: dead.set())
        shop.send("billing", Job(n=1))
        assert cancelled.wait(LONG)
        assert dead.wait(LONG)
        assert [] == effects(billing)
        [letter] = billing.dead_letters.list()
        assert "TimeoutError: the call took longer than its timeout of 0.05 s" == letter.last_error


@QUIET
@pytest.mark.parametrize("touches", [False, True])
def test_a_coroutine_that_exits_does_not_hang_the_worker(world: World, touches: bool) -> None:
    """
    SystemExit inside a coroutine ends its message like any failure.

    The file and the worker stay usable.
    """
    agent, ran = Agent("billing"), list[int]()

    @agent.on(Job, attempts=1)
    async def work(job: Job, ctx: AsyncContext) -> None:
        ran.append(job.n)
        if touches:
            await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        if job.n == 1:
            raise SystemExit

    done = Flag()
    named: dict[str, Any] = {"lease": LONG, "busy_timeout": LONG}
    with (
        Postbox(world.path("billing"), agent=agent, **named) as billing,
        Postbox(world.path("shop"), agent="shop") as shop,
    ):
        table(billing)
        shop.on(Acked, lambda _: done.set())
        shop.session("a").send("billing", Job(n=1))
        shop.session("b").send("billing", Job(n=2))
        assert done.wait(LONG)


def test_work_left_behind_by_a_coroutine_commits_nothing(world: World) -> None:
    """A task that a coroutine started and did not await cannot write with another commit."""
    agent, tasks = Agent("billing"), list[Any]()

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            await ctx.tx.execute("INSERT INTO effects VALUES (?)", (100 + job.n,))

        if job.n == 1:
            tasks.append(asyncio.create_task(later()))
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    shop, billing = world.open("shop"), world.open(agent)
    table(billing)
    for n in (1, 2):
        shop.send("billing", Job(n=n))
        world.settle()

    assert {1, 2} <= set(effects(billing))
    assert 2 == billing.file.stats()["processed"]


def test_a_coroutine_may_use_its_postbox_directly(world: World) -> None:
    """A coroutine that sends through the postbox, not its context, does not wait for itself."""
    agent = Agent("billing")

    @agent.on(Job, attempts=1)
    async def work(job: Job, ctx: AsyncContext) -> None:
        billing.send("shop", Done(n=job.n))

    shop, billing = world.open("shop"), world.open(agent, busy_timeout=LONG)
    shop.send("billing", Job(n=1))
    world.settle()

    assert [] == billing.dead_letters.list()
    assert 1 == billing.file.stats()["enqueued"]


def test_a_coroutine_that_holds_the_transaction_writes_through_it(world: World) -> None:
    """
    A send past the transaction that its coroutine has used is refused in time.

    It would wait for itself; all that the coroutine did is undone.
    """
    agent = Agent("billing")

    @agent.on(Job, attempts=1)
    async def work(job: Job, ctx: AsyncContext) -> None:
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        billing.send("shop", Done(n=job.n))

    shop, billing = world.open("shop"), world.open(agent, busy_timeout=0.2)
    table(billing)
    shop.send("billing", Job(n=1))
    world.settle()

    [letter] = billing.dead_letters.list()
    assert (letter.last_error or "").startswith("Busy: other work of this process held the file")
    assert ([], 0) == (effects(billing), billing.file.stats()["enqueued"])


def test_agents_share_a_loop_that_ends_with_the_last_of_them(tmp_path: Path) -> None:
    """Closing one postbox ends no coroutine of another; a later one gets a loop that runs."""
    loops: list[asyncio.AbstractEventLoop] = []
    handled, entered, go_on = Semaphore(0), Flag(), asyncio.Event()

    def agent(name: str, *, waits: bool = False) -> Agent:
        made = Agent(name)

        @made.on(Job)
        async def work(job: Job) -> None:
            loops.append(asyncio.get_running_loop())
            if waits:
                entered.set()
                await go_on.wait()
            handled.release()

        return made

    def done(box: Postbox) -> bool:
        box.send(box.agent, Job(n=1))
        return handled.acquire(timeout=LONG)

    with Postbox(tmp_path / "a.db", agent=agent("a", waits=True)) as waiting:
        waiting.send("a", Job(n=1))
        assert entered.wait(LONG)
        with Postbox(tmp_path / "b.db", agent=agent("b")) as other:
            assert done(other)
        loops[0].call_soon_threadsafe(go_on.set)
        assert handled.acquire(timeout=LONG)
        assert loops[0] is loops[1]
    with Postbox(tmp_path / "c.db", agent=agent("c")) as later:
        assert done(later)
    assert loops[0] is not loops[2]
