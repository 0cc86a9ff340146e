"""
The answer to a question of a restored handler is found, also if it comes before the question.

The greeting makes the peer send its reply again; the message that the handler asks for comes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job

from onceward import Agent, AsyncContext, Context, Msg, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World

MINUTE, HOUR = 60.0, 3_600.0


class Answer(Msg, type="answer"):
    """A reply with a number."""

    n: int


def asking(got: list[int]) -> Agent:
    """Return an agent whose handler asks."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        got.append(ctx.ask("ledger", job, reply=Answer).n)

    return agent


def asking_later(got: list[int]) -> Agent:
    """Return an agent whose coroutine asks."""
    agent = Agent("billing")

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        got.append((await ctx.ask("ledger", job, reply=Answer)).n)

    return agent


def asking_in_a_run(got: list[int]) -> Agent:
    """Return an agent whose session asks."""
    agent = Agent("billing")

    @agent.runs("*")
    def work(run: Run) -> None:
        got.append(run.ask("ledger", Job(n=1), reply=Answer).n)

    return agent


def answering(calls: list[int]) -> Agent:
    """Return an agent that answers with the number of the job plus ten, and counts its calls."""
    agent = Agent("ledger")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        ctx.reply(Answer(n=job.n + 10))

    return agent


def restored_before(world: World, billing: Agent, ledger: Agent) -> None:
    """Handle a job, restore ``billing`` to before it, and let ``ledger`` alone send again."""
    world.wired(billing, ledger)
    world.open("shop").peers.add("billing", "wire:billing")
    world.boxes["billing"].peers.add("shop", "wire:shop")
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.restore("billing")
    world.reopen("billing", "ledger")
    world.settle()


@pytest.mark.parametrize("asker", [asking, asking_later, asking_in_a_run])
def test_an_answer_that_comes_before_its_question_is_found(
    world: World, asker: Callable[[list[int]], Agent]
) -> None:
    """The handler goes on at once, and the peer that answered is not called again."""
    got: list[int] = []
    calls: list[int] = []
    restored_before(world, asker(got), answering(calls))
    world.reopen("shop", "billing", "ledger")
    world.wait(MINUTE)

    assert ([11, 11], [1]) == (got, calls)
    [(waiting,)] = world.boxes["billing"].query(
        "SELECT count(*) FROM onceward_inbox WHERE state IN ('pending', 'processing')"
    )
    assert 0 == waiting


def restored_sender(world: World, shop: Agent) -> None:
    """Restore ``shop`` to before it has sent anything, and let its peer send again."""
    world.shut()
    world.restore("shop")
    world.reopen(shop.name, "ledger")
    world.settle()


def wired(world: World, shop: Agent) -> None:
    """Open a sender, of which a copy is kept, and a recipient that answers."""
    world.wired(shop, answering([]))
    world.shut()
    world.keep_copy("shop")
    world.reopen("shop", "ledger")


def test_an_answer_to_a_keyed_request_may_come_first(world: World) -> None:
    """The application asks again under its key, and finds the answer there."""
    wired(world, Agent("shop"))
    world.boxes["shop"].request("ledger", Job(n=1), key="k")
    world.settle()
    restored_sender(world, Agent("shop"))
    shop = world.boxes["shop"]
    asked = shop.request("ledger", Job(n=1), key="k")

    assert Answer(n=11) == shop.result(asked, reply=Answer)
    assert [] == shop.dead_letters.list()


@pytest.mark.parametrize("key", [None, "k"])
def test_an_answer_to_a_lost_message_that_was_no_request_is_handled(
    world: World, key: str | None
) -> None:
    """Nothing will ask for it, so that its handler gets it."""
    shop = Agent("shop")
    got: list[int] = []
    shop.on(Answer)(lambda answer, _: got.append(answer.n))
    wired(world, shop)
    world.boxes["shop"].send("ledger", Job(n=1), key=key)
    world.settle()
    restored_sender(world, shop)

    assert [11, 11] == got


def test_a_second_answer_is_handled(world: World) -> None:
    """Only the first one is the reply; the file knows the request."""
    got: list[int] = []
    billing, ledger = asking(got), Agent("ledger")
    billing.on(Answer)(lambda answer, _: got.append(answer.n))

    @ledger.on(Job)
    def answer_twice(job: Job, ctx: Context) -> None:
        ctx.reply(Answer(n=1))
        ctx.reply(Answer(n=2))

    box, _ = world.wired(billing, ledger)
    box.send("billing", Job(n=1))
    world.settle()

    assert [1, 2] == sorted(got)
