"""Schedules, groups and cancellations of a restored file take effect once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.journey.counted import Job, counting, effects

from onceward import Agent, Context, Msg, Postbox
from onceward.types import GroupDone

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Approval(Msg, type="approval"):
    """A message that a handler waits for."""

    n: int


def ticking(world: World) -> Postbox:
    """Open a sender with a schedule, of which a copy is kept, and a recipient that counts."""
    shop, _ = world.wired("shop", counting("ledger"))
    shop.schedules.add("minutely", every=60, to="ledger", body=Job(n=1))
    world.shut()
    world.keep_copy("shop")
    [shop, _] = world.reopen("shop", "ledger")
    return shop


def test_the_dates_of_a_schedule_are_sent_once(world: World) -> None:
    """A restored file sends its dates again under the ids that they had."""
    ticking(world)
    world.wait(60)
    world.wait(60)
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "ledger")
    shop.send("ledger", Job(n=9))
    world.settle()

    assert [1, 1, 9] == effects(world, "ledger")
    world.wait(60)
    assert [1, 1, 9, 1] == effects(world, "ledger")


def test_a_schedule_that_is_made_again_sends_its_date_again(world: World) -> None:
    """Its file was not restored: the message of the new schedule has a new id."""
    shop = ticking(world)
    world.wait(60)
    shop.schedules.remove("minutely")
    world.clock.forward(-60)
    shop.schedules.add("minutely", every=60, to="ledger", body=Job(n=2))
    world.wait(60)

    assert [1, 2] == effects(world, "ledger")


def test_sending_a_schedule_at_once_is_a_new_message_each_time(world: World) -> None:
    """The caller asked for one more, in the same millisecond."""
    shop = ticking(world)
    ids = {shop.schedules.run_now("minutely") for _ in range(2)}
    world.settle()

    assert (2, [1, 1]) == (len(ids), effects(world, "ledger"))


def test_a_group_of_a_handler_is_done_once(world: World) -> None:
    """The restored file opens the group again under its id, and its completion is a repetition."""
    billing, ledger = Agent("billing"), counting("ledger")
    done: list[GroupDone] = []

    @billing.on(Job)
    def work(job: Job, ctx: Context) -> None:
        with ctx.group(then="ledger") as group:
            group.send("ledger", job)
            group.send("ledger", Job(n=job.n + 1))

    ledger.on(GroupDone)(lambda told, _: done.append(told))
    world.wired(billing, ledger)
    shop = world.open("shop")
    shop.peers.add("billing", "wire:billing")
    world.boxes["billing"].peers.add("shop", "wire:shop")
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.restore("billing")
    shop, box, _ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=3))
    world.settle()
    world.wait(3600)

    assert [1, 2, 3, 4] == effects(world, "ledger")
    assert 2 == len(done)
    assert {each.id for each in done} == {each.id for each in box.groups.list()}
    assert [0, 0] == [each.open for each in box.groups.list()]


def test_a_cancellation_is_asked_for_again(world: World) -> None:
    """The sender that was restored gets the decision of the first time."""
    shop, _ = world.wired("shop", Agent("ledger"))
    sent = shop.send("ledger", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen("shop", "ledger")
    shop.cancel(sent)
    world.settle()
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "ledger")
    asked = shop.cancel(sent)
    world.settle()

    assert ("asked", "cancelled") == (asked.outcome, shop.cancel(sent).outcome)


def redone(world: World, billing: Agent, ledger: Agent) -> None:
    """Let a job be handled, restore ``billing`` to before it, and let it be handled again."""
    world.wired(billing, ledger)
    world.open("shop").peers.add("billing", "wire:billing")
    world.boxes["billing"].peers.add("shop", "wire:shop")
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    shop.send("billing", Job(n=1))
    world.settle()
    world.wait(60)
    world.shut()
    world.restore("billing")
    world.reopen("shop", "billing", "ledger")
    world.settle()
    world.wait(3600)


def test_a_wait_of_a_handler_finds_its_message_again(world: World) -> None:
    """The message that it waited for is sent again by its sender, and taken again."""
    billing, ledger = Agent("billing"), Agent("ledger")
    got: list[int] = []

    @ledger.on(Job)
    def approve(job: Job, ctx: Context) -> None:
        ctx.send("billing", Approval(n=job.n + 1))

    @billing.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.step(lambda: ctx.tx.send("ledger", job), name="ask", tx=True)
        got.append(ctx.wait(Approval).n)

    billing.waits(Approval)
    redone(world, billing, ledger)

    assert [2, 2] == got
