"""The machine of a pool's member is lost: another one takes over what the member had accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward.ops.cli import main
from onceward.ops.cli.exit_codes import DONE

if TYPE_CHECKING:
    from tests.journey.conftest import World

MEMBERS = ("t1", "t2")
HOUR = 3_600.0


def lose_a_member(world: World) -> None:
    """
    Send six jobs to a pool, of which each member accepts three; then lose one with its machine.

    Its backup has one job handled and one accepted; the third is only in the lost file.
    """
    shop = world.open("shop")
    for name in MEMBERS:
        member = world.open(counting(name))
        member.peers.add("shop", "wire:shop")
        shop.peers.add(name, f"wire:{name}")
        shop.pools.add("thumbs", name, credits=3)
    send(world, 1, 2)
    world.settle()
    send(world, 3, 4)
    world.shut()
    world.keep_copy("t1")
    world.reopen("shop", *MEMBERS)
    send(world, 5, 6)
    world.shut()
    world.path("t1").unlink()


def send(world: World, *numbers: int) -> None:
    """Send jobs, which members accept, and do not handle yet."""
    shop = world.boxes["shop"]
    for n in numbers:
        shop.send("thumbs", Job(n=n))
    shop.run_until_idle()


def take_over(world: World) -> None:
    """Declare the machine dead: go on with the backup of the member."""
    backup = str(world.home / "t1.backup")

    assert DONE == main(["takeover", str(world.path("t1")), "--from", backup])


@pytest.mark.broken("X3: the backup does not know what the lost file had accepted last")
def test_a_member_is_taken_over(world: World) -> None:
    """Each job of the pool takes effect once, with the member that had accepted it."""
    lose_a_member(world)
    take_over(world)
    world.reopen("shop", *MEMBERS)
    from_backup = effects(world, "t1")
    world.wait(HOUR)
    states = {state for (state,) in world.boxes["shop"].query("SELECT state FROM onceward_outbox")}

    assert [1] == from_backup
    assert ([1, 3, 5], [2, 4, 6]) == (sorted(effects(world, "t1")), sorted(effects(world, "t2")))
    assert {"acked"} == states


@pytest.mark.broken("X1: the file of the lost member is gone")
def test_until_then_its_jobs_wait_for_it(world: World) -> None:
    """No other member gets what it had accepted, however long that takes."""
    lose_a_member(world)
    world.reopen("shop", "t2")
    world.wait(HOUR)

    assert [2, 4, 6] == sorted(effects(world, "t2"))
