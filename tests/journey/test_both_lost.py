"""Both ends lose their disks, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.journey.counted import Job, counting, effects

from onceward import Tuning

if TYPE_CHECKING:
    from tests.journey.conftest import World


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
