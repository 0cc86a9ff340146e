"""Both ends lose their disks, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.journey.counted import Job, counting, effects

from onceward import Tuning
from onceward.errors import Unreachable

DAY = 86_400.0

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.message.parcel import Parcel


def test_a_sender_is_restored_while_it_sends_again(world: World) -> None:
    """What the sender's copy counts as done, and the recipient has lost, is sent again."""
    tuning = Tuning(parcel_max_messages=1)
    shop, _ = world.wired("shop", counting(), tuning=tuning)
    world.shut()
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    for n in (1, 2, 3):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    world.keep_copy("shop")
    world.restore("billing")
    world.reopen("shop", "billing")
    world.wire.of = "shop"
    world.wire.script = ["ok", "ok", *["down"] * 9]
    world.settle()
    between = effects(world)
    world.wire.script = []
    world.shut()
    world.restore("shop")
    world.reopen("shop", "billing")
    world.settle()
    world.wait(3600)
    world.wait(3600)

    assert ([1], [1, 2, 3]) == (between, effects(world))


def test_a_sender_is_restored_after_two_restores_of_its_recipient(world: World) -> None:
    """The last epoch began in one that the sender's copy does not know: all of it is sent again."""
    tuning = Tuning(parcel_max_messages=1)
    shop, _ = world.wired("shop", counting(), tuning=tuning)
    world.shut()
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    for n in (1, 2, 3, 4):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    world.keep_copy("shop")
    world.restore("billing")
    sent_again(world, 1)
    world.shut()
    world.keep_copy("billing")
    sent_again(world, 2)
    world.shut()
    world.restore("billing")
    sent_again(world, 2)
    between = effects(world)
    world.wire.on_push = lambda _: None
    world.shut()
    world.restore("shop")
    world.reopen("shop", "billing")
    world.settle()
    world.wait(3600)
    world.wait(3600)

    assert ([1, 2], [1, 2, 3, 4]) == (between, effects(world))


def test_a_recipient_refuses_what_it_can_no_longer_judge(world: World) -> None:
    """What it has pruned, and its sender has not, is a dead letter: it may have had its effect."""
    shop = world.open("shop", tuning=Tuning(parcel_max_messages=1))
    billing = world.open(counting(), retention=DAY)
    shop.peers.add("billing", "wire:billing")
    billing.peers.add("shop", "wire:shop")
    first = shop.send("billing", Job(n=1))
    world.settle()
    world.wait(3 * DAY)
    billing.file.run_maintenance()
    world.shut()
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    for n in (2, 3, 4):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    world.keep_copy("shop")
    world.restore("billing")
    sent_again(world, 1)
    world.shut()
    world.keep_copy("billing")
    sent_again(world, 2)
    world.shut()
    world.restore("billing")
    sent_again(world, 2)
    world.wire.on_push = lambda _: None
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "billing")
    world.settle()
    world.wait(3600)

    assert [1, 2, 3, 4] == effects(world)
    assert [(first, "stale")] == [(each.id, each.reason[:5]) for each in shop.dead_letters.list()]


def sent_again(world: World, until: int) -> None:
    """Open both files, and let jobs arrive until so many are there; the next ones do not."""
    world.reopen("shop", "billing")

    def end(parcel: Parcel) -> None:
        if (
            parcel.frames
            and world.boxes["billing"]._db.read("SELECT count(*) FROM onceward_inbox")[0][0]
            >= until
        ):
            raise Unreachable("down")

    world.wire.on_push = end
    world.settle()
    world.wait(3600)
