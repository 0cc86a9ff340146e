"""Groups of messages: one message says that all have ended, whatever happens between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Run
from onceward.errors import InvalidArgument, UnknownRecipient
from onceward.features.groups import stored
from onceward.types import GroupDone

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward import Postbox


class Told:
    """An agent that does jobs, and notes which groups are done."""

    def __init__(self, name: str = "jobs") -> None:
        self.groups: list[GroupDone] = []
        self.results: list[list[int]] = []
        self.agent = Agent(name)
        self.agent.on("job", attempts=1)(self.job)
        self.agent.on("nothing")(lambda _: None)
        self.agent.on(GroupDone)(self.done)

    @staticmethod
    def job(body: int) -> int:
        """Return twice the body; fail for a negative one."""
        if body < 0:
            raise ValueError(body)
        return 2 * body

    def done(self, group: GroupDone, ctx: Context) -> None:
        """Note a group, and the results of those messages that have one."""
        self.groups.append(group)
        if ctx.message.sender == self.agent.name:
            found = ctx.gather(group.messages, reply=int, return_exceptions=True)
            self.results.append([each for each in found if isinstance(each, int)])


def send(box: Postbox, *bodies: int, then: str = "jobs", **options: Any) -> tuple[str, list[str]]:
    """Send a group of jobs; return its id, and theirs."""
    with box.groups.begin(then=then, data={"of": len(bodies)}, **options) as group:
        sent = [group.send("jobs", body, type="job", ordering_key=f"k{body}") for body in bodies]
    return group.id, sent


def test_a_group_is_done_when_its_last_message_has_ended(world: World) -> None:
    """Its message has the data, the counts, the ids and the failures, and comes once."""
    told = Told()
    shop, _ = world.wired("shop", told.agent)
    shop.agents.list()
    group, sent = send(shop, 1, -2, 3)
    before = shop.groups.get(group)
    world.settle()
    world.wait(120)
    after = shop.groups.get(group)

    assert before is not None
    assert after is not None
    assert (3, 3, 0, None) == (before.sent, before.open, before.failed, before.ended_at)
    assert (3, 0, 1) == (after.sent, after.open, after.failed)
    [done] = told.groups
    assert (group, 3, 1, {"of": 3}, sent) == (
        done.id,
        done.sent,
        done.failed,
        done.data,
        done.messages,
    )
    assert {sent[1]: "attempts_spent"} == done.failures
    assert 2 == shop.result(sent[0], reply=int)
    assert ([after], sent) == (shop.groups.list(), shop.groups.messages(group))


def test_an_agent_gets_the_results_of_its_own_group(world: World) -> None:
    """``ctx.gather`` returns them in the handler of its end; None is no failure."""
    told = Told()
    box = world.open(told.agent)
    send(box, 1, 2, -1)
    with box.groups.begin(then="jobs") as group:
        group.send("jobs", {}, type="nothing")
    world.settle()

    assert [[], [2, 4]] == sorted(told.results)
    assert [0, 1] == sorted(each.failed for each in told.groups)


def test_an_empty_group_is_done_at_once(world: World) -> None:
    """A loop over nothing needs no case of its own."""
    told = Told()
    send(world.open(told.agent))
    world.settle()

    assert [0] == [each.sent for each in told.groups]


def test_a_group_is_committed_or_rolled_back_with_its_block(world: World) -> None:
    """Also inside an open transaction, of which only the block is undone if its error is caught."""
    told = Told()
    box = world.open(told.agent)
    with pytest.raises(OSError, match="no"), box.groups.begin(then="jobs") as lost:
        lost.send("jobs", 1, type="job")
        raise OSError("no")
    with box.begin() as tx:
        tx.send("jobs", 7, type="nothing")
        with pytest.raises(OSError, match="no"), box.groups.begin(then="jobs") as inner:
            inner.send("jobs", 1, type="job")
            raise OSError("no")
        send(box, 5)
    world.settle()

    assert (None, None) == (box.groups.get(lost.id), box.groups.get(inner.id))
    assert [[10]] == told.results
    [(left,)] = box.query("SELECT count(*) FROM onceward_group_messages")
    assert 1 == left


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_sends_a_group_with_its_processed_mark(world: World, kind: str) -> None:
    """A failed call sends none; the group is sent once by the call that is committed."""
    told, calls = Told(), []

    @told.agent.on("sync")
    def split(bodies: list[int], ctx: Context) -> None:
        with ctx.group(then="jobs") as group:
            for body in bodies:
                group.send("jobs", body, type="job")
        calls.append(group.id)
        if len(calls) == 1:
            raise OSError

    @told.agent.on("async")
    async def later(bodies: list[int], ctx: AsyncContext) -> None:
        async with ctx.group(then="jobs") as group:
            for body in bodies:
                await group.send("jobs", body, type="job")
        calls.append(group.id)
        if len(calls) == 1:
            raise OSError

    box = world.open(told.agent)
    box.send("jobs", [1, 2], type=kind)
    world.settle()
    world.wait(120)

    assert [calls[1]] == [each.id for each in told.groups] == [g.id for g in box.groups.list()]
    assert [[2, 4]] == told.results


def test_messages_that_end_without_a_handler_count_as_failed(world: World) -> None:
    """Those that expire, that are cancelled, and that no agent can get."""
    told = Told()
    world.open(told.agent)
    shop = world.open("shop", hold_unknown=True)
    with shop.groups.begin(then="jobs") as group:
        sent = [
            group.send("away", 1, type="job", ttl=10),
            group.send("away", 2, type="job"),
            group.send("jobs", 3, type="job"),
        ]
    shop.cancel(sent[1])
    world.settle()
    world.wait(60)
    world.wait(60)

    [done] = told.groups
    assert {sent[0]: "expired", sent[1]: "cancelled"} == done.failures


def test_a_message_that_a_limit_drops_counts_as_failed(world: World) -> None:
    """It has ended before the group is stored, in the same transaction."""
    told = Told()
    box = world.open(told.agent)
    world.open("away")
    box.limits.set("session", "flood", messages=1, overflow="drop_new")
    with box.groups.begin(then="jobs", session="flood") as group:
        sent = [group.send("away", n, type="job") for n in range(2)]
    found = box.groups.get(group.id)

    assert found is not None
    assert (2, 1, 1) == (found.sent, found.open, found.failed)
    assert [] == [each for each in sent if not each]


def test_a_group_survives_a_restart_between_its_ends(world: World) -> None:
    """The message of its end is sent by the process that has the file open then."""
    told = Told()
    shop, _ = world.wired("shop", told.agent)
    group, sent = send(shop, 1, 2)
    with shop.groups.begin(then="jobs") as waits:
        waits.send("jobs", 1, type="job", delay=60)
    world.settle()
    shop, _ = world.reopen("shop", "jobs")
    world.wait(61)
    world.wait(61)

    assert [group, waits.id] == [each.id for each in told.groups]
    assert 4 == shop.result(sent[1], reply=int)


def test_the_message_of_an_end_waits_until_it_can_be_sent(world: World) -> None:
    """A limit that refuses it holds it back for a minute; the ends are stored all the same."""
    told = Told()
    shop, _ = world.wired("shop", told.agent, hold_unknown=True)
    group, _ = send(shop, 1, session="full")
    shop.session("full").send("away", 1, type="job")
    shop.limits.set("session", "full", messages=1)
    world.settle()
    before = shop.groups.get(group)
    shop.limits.remove("session", "full")
    world.wait(61)

    assert before is not None
    assert (0, None) == (before.open, before.ended_at)
    assert "limit" in str(before.last_error)
    assert [group] == [each.id for each in told.groups]


def test_a_replayed_message_does_not_complete_its_group_again(world: World) -> None:
    """It was counted as failed, and its result is there after the replay."""
    told = Told()
    good: list[int] = []

    def fails_once(body: int) -> int:
        if not good:
            raise ValueError(body)
        return body

    told.agent.on("flaky", attempts=1)(fails_once)
    box = world.open(told.agent)
    with box.groups.begin(then="jobs") as group:
        sent = group.send("jobs", 4, type="flaky")
    world.settle()
    good.append(1)
    box.dead_letters.replay(sent)
    world.settle()

    assert [(group.id, 1)] == [(each.id, each.failed) for each in told.groups]
    assert 4 == box.result(sent, reply=int)


def test_a_group_is_pruned_with_its_messages(world: World) -> None:
    """After the retention; an open one stays."""
    told = Told()
    world.open("away")
    box = world.open(told.agent, retention="1h")
    done, _ = send(box, 1, 2)
    with box.groups.begin(then="jobs") as waits:
        waits.send("away", 1, type="job")
    world.settle()
    world.wait(7200)
    for _ in range(3):
        box.file.run_maintenance()

    assert [waits.id] == [each.id for each in box.groups.list()]
    assert ([], 1) == (box.groups.messages(done), len(box.groups.messages(waits.id)))


def test_a_coroutine_sends_a_group(tmp_path: Path) -> None:
    """With the same verbs; a task's own ``send`` takes the group in place of a postbox."""
    told = Told()

    @told.agent.task(type="double")
    def double(n: int) -> int:
        return 2 * n

    async def journey() -> list[int]:
        async with AsyncPostbox(tmp_path / "jobs.db", agent=told.agent) as box:
            async with box.groups.begin(then="jobs", type="finished") as group:
                sent = [await double.send(group, n) for n in (1, 2)]
            found = await box.gather(sent, reply=int, timeout=30)
            assert [group.id] == [each.id for each in await box.groups.list()]
            assert sent == await box.groups.messages(group.id)
            return found

    told.agent.on("finished")(lambda _: None)

    assert [2, 4] == asyncio.run(journey())


def test_a_group_refuses_what_would_break_its_count(world: World) -> None:
    """A key may belong to an earlier message, and a reply elsewhere ends no ticket."""
    told = Told()

    @told.agent.runs("talk-*", debounce=0)
    def serve(run: Run) -> str:
        with pytest.raises(InvalidArgument, match="a run sends no group"), run.group(then="jobs"):
            pass
        return "served"

    box = world.open(told.agent)
    given: Any
    for given in ({"key": "a"}, {"message_id": "b"}, {"reply_to": "jobs"}):
        with (
            pytest.raises(InvalidArgument, match="a message of a group has no"),
            box.groups.begin(then="jobs") as group,
        ):
            group.send("jobs", 1, type="job", **given)
    with pytest.raises(UnknownRecipient), box.groups.begin(then="nobody"):
        pass
    with pytest.raises(InvalidArgument, match="data="), box.groups.begin(then="jobs", data=b"x"):
        pass
    box.session("talk-1").send("jobs", 1)
    world.settle()

    assert ([], ["served"]) == (box.groups.list(), [run.result for run in box.runs.list()])


def test_a_large_group_names_the_first_of_its_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none if they would not fit; the counts are exact."""
    monkeypatch.setattr(stored, "MESSAGES", stored.MESSAGES.replace("1000", "2"))
    told = Told()
    box = world.open(told.agent)
    _, sent = send(box, 1, 2, 3)
    world.settle()

    assert [(3, sent[:2])] == [(each.sent, each.messages) for each in told.groups]
