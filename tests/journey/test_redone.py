"""
Handlers that run again because their file was restored: what they send takes effect once.

The messages have the ids of the first time, so the recipients drop them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Agent, AsyncContext, BatchContext, Context, Reject, Run, Transaction
from onceward.message.ids import KEYED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World

HOUR, DAY = 3_600.0, 86_400.0


def sends(job: Job, ctx: Context) -> None:
    """Send two equal jobs and another one."""
    for n in (job.n, job.n, job.n + 1):
        ctx.send("ledger", Job(n=n))


def sends_in_a_step(job: Job, ctx: Context) -> None:
    """Send from a step, and then from the handler."""

    def first() -> None:
        ctx.tx.send("ledger", Job(n=job.n))

    ctx.step(first, tx=True)
    ctx.send("ledger", Job(n=job.n + 1))


def broadcasts(job: Job, ctx: Context) -> None:
    """Send to all, and publish."""
    ctx.broadcast(job)
    ctx.publish("jobs", Job(n=job.n + 1))


def dispatches(job: Job, ctx: Context) -> None:
    """Give a task away."""
    ctx.dispatch("ledger", job)


async def sends_later(job: Job, ctx: AsyncContext) -> None:
    """Send as a coroutine."""
    await ctx.send("ledger", job)


def agent_of(handler: Callable[..., object]) -> Agent:
    """Return the agent that handles jobs, of which the file will be restored."""
    agent = Agent("billing")
    agent.on(Job)(handler)
    return agent


def redone(
    world: World, billing: Agent, jobs: int = 1, *, waits: float = 0.0, known: Job | None = None
) -> list[str]:
    """
    Handle jobs, restore the file to before their arrival, and handle them again.

    The restored file has the job *known*, as far as it was handled without waiting. Return the ids
    of all messages of ``billing`` and its handlers, in order.
    """
    world.open(billing).peers.add("shop", "wire:shop")
    world.open(counting("ledger")).agents.subscribe("jobs")
    shop = world.open("shop")
    for name in ("billing", "ledger"):
        shop.peers.add(name, f"wire:{name}")
        world.boxes["billing"].peers.add("ledger", "wire:ledger")
    world.boxes["ledger"].peers.add("billing", "wire:billing")
    world.boxes["ledger"].peers.add("shop", "wire:shop")
    if known is not None:
        shop.send("billing", known)
        world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    for n in range(jobs):
        shop.send("billing", Job(n=10 * n))
    if waits >= DAY:
        world.clock.forward(waits)
    world.settle()
    world.wait(waits)
    world.shut()
    world.restore("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=100))
    world.settle()
    world.wait(HOUR)
    sent = (each.frames for each in world.wire.pushed if each.sender == "billing")
    return [frame.id for frames in sent for frame in frames if not frame.id.startswith(KEYED)]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (sends, [0, 0, 1, 100, 100, 101]),
        (sends_in_a_step, [0, 1, 100, 101]),
        (broadcasts, [0, 1, 100, 101]),
        (dispatches, [0, 100]),
        (sends_later, [0, 100]),
    ],
)
def test_what_a_restored_agent_sends_again_takes_effect_once(
    world: World, handler: Callable[..., object], expected: list[int]
) -> None:
    """The recipient has the messages of the first time, and drops those of the second."""
    redone(world, agent_of(handler))

    assert expected == effects(world, "ledger")


def test_replies_of_a_batch_are_sent_once(world: World) -> None:
    """Each message's reply, and what the batch sends for all, have the same ids again."""
    billing = Agent("billing")

    @billing.on(Job, batch=2)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        ctx.tx.send("ledger", Job(n=sum(job.n for job in jobs)))

    redone(world, billing, jobs=2, waits=1.0)

    assert [10, 100] == effects(world, "ledger")


def test_what_follows_from_one_message_of_a_batch_is_sent_once(world: World) -> None:
    """After the restore the messages come in another batch: together with a new one."""
    billing = Agent("billing")
    sizes = list[int]()

    @billing.on(Job, batch=3)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        sizes.append(len(jobs))
        for message, job in zip(ctx.messages, jobs, strict=True):
            ctx.send(message, "ledger", job)

    redone(world, billing, jobs=2, waits=1.0)

    assert [2, 3] == sizes
    assert [0, 10, 100] == effects(world, "ledger")


def test_requests_of_a_handler_are_made_once(world: World) -> None:
    """A handler that asks again after a restore gets the answer to the same request."""

    def work(job: Job, ctx: Context) -> None:
        ctx.request("ledger", job)
        ctx.request("ledger", Job(n=job.n + 1))

    redone(world, agent_of(work))

    assert [0, 1, 100, 101] == effects(world, "ledger")


def test_a_run_sends_once(world: World) -> None:
    """What a session's handler sends has the same ids if it is called for the same messages."""
    billing = Agent("billing")

    @billing.runs("*")
    def work(run: Run) -> None:
        run.send("ledger", Job(n=3))
        run.write(lambda yours: yours.send("ledger", Job(n=1)))
        run.at_end(lambda yours: yours.send("ledger", Job(n=2)))

    redone(world, billing)

    assert [1, 3, 2, 1, 3, 2] == effects(world, "ledger")


def test_a_run_after_a_failed_one_sends_once(world: World) -> None:
    """The restored file knows the failed run, and makes the next one again."""
    billing = Agent("billing")

    @billing.runs("*", attempts=3)
    def work(run: Run) -> None:
        if run.previous is None:
            raise ValueError("the first run fails")
        run.send("ledger", Job(n=1))

    redone(world, billing, jobs=0, waits=60.0, known=Job(n=7))

    assert [1, 1] == effects(world, "ledger")  # one of the job 7, one of the job 100


def test_a_run_that_goes_on_after_a_checkpoint_sends_once(world: World) -> None:
    """What it sends is not what the failed run sent before the checkpoint."""
    billing = Agent("billing")

    @billing.runs("*", attempts=3)
    def work(run: Run) -> None:
        if run.previous is None:
            run.send("ledger", Job(n=1))
            run.checkpoint({"sent": 1})
            raise ValueError("the first run fails")
        run.send("ledger", Job(n=2))

    redone(world, billing, jobs=0, waits=60.0, known=Job(n=7))

    assert [1, 2, 1, 2] == effects(world, "ledger")  # of the job 7, then of the job 100


def test_a_message_that_was_handled_late_is_sent_under_new_ids(world: World) -> None:
    """Its recipients may have forgotten the ids of its day, so they would refuse these."""
    sent = redone(world, agent_of(sends), waits=2 * DAY)

    assert 3 + 3 + 3 == len(set(sent))


@pytest.mark.broken("X4: the message of the second call has other contents")
def test_a_second_call_may_send_other_messages(world: World) -> None:
    """The first messages stay: the ids tell nothing of the contents."""
    calls: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        ctx.send("ledger", Job(n=len(calls)))

    redone(world, agent_of(work))

    assert ([0, 0, 100], [1, 3]) == (calls, effects(world, "ledger"))


def test_a_handler_that_is_called_again_on_purpose_sends_anew(world: World) -> None:
    """A step that a replay repeats sends new messages, although its file was not restored."""
    ended = [Reject("not yet"), None]

    def first(job: Job, tx: Transaction) -> None:
        tx.send("ledger", job)
        tx.publish("jobs", Job(n=job.n + 1))
        tx.request("ledger", Job(n=job.n + 2))

    def work(job: Job, ctx: Context) -> None:
        ctx.step(lambda: first(job, ctx.tx), name="first", tx=True)
        if (error := ended.pop(0)) is not None:
            raise error

    billing, ledger = world.wired(agent_of(work), counting("ledger"))
    ledger.agents.subscribe("jobs")
    billing.send("billing", Job(n=1))
    world.settle()
    [dead] = billing.dead_letters.list()
    billing.dead_letters.replay(dead.id, from_step="first")
    world.settle()

    assert [1, 2, 3, 1, 2, 3] == effects(world, "ledger")
