"""The status of any message: for a page that polls, and for one that follows its changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncPostbox, Context, Msg, Postbox
from onceward.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.types import Status


class Approval(Msg, type="approval"):
    """What handlers wait for."""


def said(*statuses: Status) -> list[str]:
    """Return what statuses say, one text each."""
    return [str(each) for each in statuses]


def test_a_message_waits_runs_and_is_done_or_has_failed(world: World) -> None:
    """Its sender and its recipient see the same, for a plain message and for a request."""
    agent = Agent("jobs")
    during: list[Status] = []

    @agent.on("job", attempts=1)
    def work(body: str, ctx: Context) -> str:
        ctx.progress({"of": body})
        during.append(box.status(ctx.message.id))
        if body == "bad":
            raise ValueError(body)
        return body

    shop, box = world.wired("shop", agent)
    plain, bad = (shop.send("jobs", body, type="job") for body in ("good", "bad"))
    asked = shop.request("jobs", "good", type="job")
    before = said(shop.status(plain), shop.status(asked))
    world.settle()

    assert ["waiting", "waiting"] == before
    assert [{"of": "good"}, {"of": "bad"}, {"of": "good"}] == [each.progress for each in during]
    for each in (plain, asked.id):
        found = shop.status(each)
        assert ("done", None, {"of": "good"}) == (found.state, found.reason, found.progress)
        assert found == box.status(each)
    failed = shop.status(bad)
    assert ("failed", "attempts_spent", 1) == (failed.state, failed.reason, failed.attempts)
    assert "ValueError: bad" == failed.last_error
    assert failed == box.status(bad)
    assert {"of": "good"} == shop.progress_of(plain) == box.progress_of(plain)


def test_a_message_says_what_it_waits_for(world: World) -> None:
    """A reply, a message, a time, or the message before it in its lane."""
    agent = Agent("jobs")
    agent.waits(Approval)

    @agent.on("ask")
    def ask(_: Any, ctx: Context) -> str:
        return ctx.ask("oracle", "why", type="question", reply=str)

    @agent.on("sleep")
    def sleep(_: Any, ctx: Context) -> None:
        ctx.sleep("1h")

    @agent.on("wait")
    def wait(_: Any, ctx: Context) -> None:
        ctx.wait(Approval)

    world.open("oracle")
    shop, _ = world.wired("shop", agent)
    sent = [shop.session(kind).send("jobs", 1, type=kind) for kind in ("ask", "sleep", "wait")]
    sent.append(shop.session("sleep").send("jobs", 1, type="ask"))
    world.settle()

    assert said(*map(shop.status, sent)) == [
        "waiting for reply from oracle",
        "waiting for sleep",
        "waiting for message approval",
        "waiting for lane",
    ]


def test_a_parent_shows_the_progress_of_its_children(world: World) -> None:
    """The requests that its handler has made, in their order, down to a depth."""
    oracle, jobs = Agent("oracle"), Agent("jobs")
    oracle.waits(Approval)

    @oracle.on("question")
    def answer(body: int, ctx: Context) -> int:
        ctx.progress(body / 2)
        if body == 2:
            ctx.wait(Approval)
        return body

    @jobs.on("job")
    def work(body: int, ctx: Context) -> int:
        asked = [ctx.request("oracle", n, type="question") for n in (1, 2)]
        return body + sum(ctx.gather(asked, reply=int))

    @jobs.on("whole")
    def whole(_: int, ctx: Context) -> int:
        return ctx.ask("jobs", 5, type="job", reply=int)

    world.open(oracle)
    shop, box = world.wired("shop", jobs)
    sent = shop.send("jobs", 0, type="whole")
    world.settle()
    found, deep = shop.status(sent), box.status(sent, depth=2)

    assert "waiting for reply from jobs" == str(found)
    [child] = found.children
    assert ("waiting for reply from oracle", ()) == (str(child), child.children)
    assert [("done", 0.5), ("waiting for message approval", 1.0)] == [
        (str(each), each.progress) for each in deep.children[0].children
    ]


def test_a_request_is_done_when_its_reply_is_here(world: World) -> None:
    """So a page that has polled ``done`` can read the result without waiting."""
    agent = Agent("jobs")
    agent.on("job")(lambda body: body)
    agent.on("nothing")(lambda _: None)
    shop, _ = world.wired("shop", agent)
    world.wire.of = "jobs"
    world.wire.always = "down"
    asked = shop.request("jobs", "x", type="job")
    world.settle()
    before = str(shop.status(asked))
    world.wire.always = "ok"
    nothing = shop.request("jobs", "x", type="nothing")
    world.wait(60)

    assert ("waiting for reply from jobs", "done") == (before, str(shop.status(asked)))
    assert "x" == shop.result(asked, reply=str)
    failed = shop.status(nothing)
    assert ("failed", "processed without a reply") == (failed.state, failed.reason)


def test_a_message_that_died_at_its_sender_has_the_error(world: World) -> None:
    """The sender's file has it, for the recipient has never had the message."""
    shop, _ = world.wired("shop", Agent("jobs"), delivery_attempts=1)
    world.wire.always = "error"
    sent = shop.send("jobs", 1, type="job")
    world.settle()

    [dead], failed = shop.dead_letters.list(), shop.status(sent)
    assert ("failed", "error") == (failed.state, (failed.last_error or "").rpartition(" ")[2])
    assert (dead.reason, dead.last_error) == (failed.reason, failed.last_error)


def test_an_unknown_message_has_no_status(world: World) -> None:
    """It was never here, or was pruned."""
    with pytest.raises(InvalidArgument, match="no message nothing here"):
        world.open("shop").status("nothing")


def test_a_status_is_followed_to_the_end_of_its_message(tmp_path: Path) -> None:
    """Each change once, from its sender's file and by a coroutine; a follower may come late."""
    agent = Agent("jobs")
    agent.waits(Approval)

    @agent.on("job")
    def work(_: int, ctx: Context) -> str:
        ctx.progress("half")
        ctx.wait(Approval)
        return "end"

    async def later(sent: str, known: Status) -> tuple[Status, ...]:
        async with AsyncPostbox(tmp_path / "shop.db", agent="shop") as shop:
            return (
                await shop.status(sent),
                await shop.status(sent, after=known, timeout=None),
            )

    with (
        Postbox(tmp_path / "jobs.db", agent=agent),
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
    ):
        sent = shop.send("jobs", 1, type="job")
        seen = [shop.status(sent)]
        while not seen[-1].ended:
            if seen[-1].waits_for == "message approval":
                shop.send("jobs", Approval())
            seen.append(shop.status(sent, after=seen[-1], timeout=30))
        last = shop.status(sent, after=seen[-1], timeout=None)
        known = asyncio.run(later(sent, last))

    assert "waiting for message approval" in said(*seen)
    assert ("done", "half") == (str(last), last.progress)
    assert (last, last) == known
    assert [] == [before for before, after in pairwise(seen) if before == after]


def test_a_status_that_does_not_change_is_returned_after_the_timeout(world: World) -> None:
    """So a page that follows it is told that the connection is alive."""
    shop = world.open("shop")
    world.open("jobs")
    known = shop.status(shop.send("jobs", 1, type="job"))

    assert known == shop.status(known.id, after=known, timeout=0.05)
