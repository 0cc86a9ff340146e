"""Gathered replies, of which some are errors: each in its place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Postbox
from onceward.errors import AnswerTimeout, InvalidMessage, OncewardError, RequestFailed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

BODIES: list[object] = [1, "bad", 2, "none", "text"]
EXPECTED: list[object] = [1, RequestFailed, 2, RequestFailed, InvalidMessage]


def oracle() -> Agent:
    """Return an agent that replies with what it is asked, fails, or gives no reply."""
    agent = Agent("oracle")

    @agent.on("question", attempts=1)
    def answer(body: Any) -> Any:
        if body == "bad":
            raise ValueError(body)
        return None if body == "none" else body

    return agent


def classes(found: list[int | OncewardError]) -> list[object]:
    """Return replies, and the classes of errors."""
    return [type(each) if isinstance(each, OncewardError) else each for each in found]


def test_a_program_gathers_replies_and_errors(world: World) -> None:
    """Also of plain messages; a reply that is not there in time is ``AnswerTimeout``."""
    world.open(oracle())
    shop = world.open("shop")
    asked = [shop.request("oracle", body, type="question") for body in BODIES]
    plain = shop.send("oracle", 5, type="question")
    waits = shop.request("oracle", 6, type="question", delay=60)
    world.settle()
    found = shop.gather([*asked, plain, waits], reply=int, return_exceptions=True)

    assert [*EXPECTED, 5, AnswerTimeout] == classes(found)
    assert waits.id == getattr(found[-1], "message_id", None)
    with pytest.raises(RequestFailed):
        shop.gather(asked, reply=int)


def test_what_came_after_a_late_reply_is_returned(world: World) -> None:
    """The first of the tickets is late, and the others are not."""
    world.open(oracle())
    shop = world.open("shop")
    waits = shop.request("oracle", 6, type="question", delay=60)
    asked = shop.request("oracle", 1, type="question")
    world.settle()

    assert [AnswerTimeout, 1] == classes(
        shop.gather([waits, asked], reply=int, return_exceptions=True)
    )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_gathers_replies_and_errors(tmp_path: Path, kind: str) -> None:
    """Its call ends once, until all have ended, and its second call gets all."""
    agent, calls = Agent("jobs"), []

    @agent.on("sync")
    def work(_: Any, ctx: Context) -> list[str]:
        calls.append(1)
        asked = [ctx.request("oracle", body, type="question") for body in BODIES]
        return [str(each) for each in classes(ctx.gather(asked, reply=int, return_exceptions=True))]

    @agent.on("async")
    async def later(_: Any, ctx: AsyncContext) -> list[str]:
        calls.append(1)
        asked = [await ctx.request("oracle", body, type="question") for body in BODIES]
        found = await ctx.gather(asked, reply=int, return_exceptions=True)
        return [str(each) for each in classes(found)]

    with (
        Postbox(tmp_path / "oracle.db", agent=oracle()),
        Postbox(tmp_path / "jobs.db", agent=agent) as box,
    ):
        found = box.ask("jobs", 1, type=kind, reply=list[str], timeout=30)

    assert list(map(str, EXPECTED)) == found
    assert 2 == len(calls)


def test_a_coroutine_gathers_replies_and_errors(tmp_path: Path) -> None:
    """As a program does."""

    async def asked() -> list[object]:
        async with (
            AsyncPostbox(tmp_path / "oracle.db", agent=oracle()),
            AsyncPostbox(tmp_path / "shop.db", agent="shop") as shop,
        ):
            sent = [await shop.request("oracle", body, type="question") for body in BODIES]
            await shop.gather(sent[:1], reply=int, timeout=30)
            found = await shop.gather(sent, reply=int, timeout=30, return_exceptions=True)
            return classes(found)

    assert EXPECTED == asyncio.run(asked())
