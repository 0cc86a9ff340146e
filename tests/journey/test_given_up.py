"""
Messages of a parcel that was given up, and messages that never left.

A message that its peer may know is not withdrawn; one that never left is never taken for old.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Postbox, Tuning
from onceward.errors import OutboxLimit

if TYPE_CHECKING:
    from tests.journey.conftest import World

DAY = 86_400.0


def given_up(world: World, **options: Any) -> tuple[Postbox, Postbox, str]:
    """
    Give up a parcel that was accepted; return both boxes and the id of its second message.

    The first message expired after the answer was lost, the second is processed at its
    recipient and its receipt has not come back. Other messages fill the parcel in flight.
    """
    shop, billing = world.wired("shop", counting(), tuning=Tuning(parcel_max_messages=2), **options)
    shop.send("billing", Job(n=1), ttl=10)
    second = shop.send("billing", Job(n=2))
    world.wire.script = ["lost"]
    shop.run_until_idle()
    world.wire.of, world.wire.always = "billing", "down"
    billing.run_until_idle()
    for n in (3, 4):
        shop.send("billing", Job(n=n), priority="urgent")
    world.clock.forward(11)
    world.wire.of, world.wire.always = None, "down"
    shop.run_until_idle()
    return shop, billing, second


def test_a_message_of_a_given_up_parcel_cannot_be_cancelled(world: World) -> None:
    """A message that its recipient has processed is too late to cancel, whatever fills the line."""
    shop, billing, second = given_up(world)
    asked = shop.cancel(second)
    world.wire.always = "ok"
    world.wait(120)

    assert ("asked", "acked") == (asked.outcome, shop.state(second))
    assert "too_late" == shop.cancel(second).outcome
    assert [1, 2, 3, 4] == effects(world)
    assert 0 == billing.file.stats()["forks"]


def test_a_message_of_a_given_up_parcel_is_not_dropped(world: World) -> None:
    """A limit with drop_old refuses the new message: nothing that waits may be dropped."""
    shop, _, second = given_up(world)
    shop.limits.set("session", "*", messages=3, overflow="drop_old")

    with pytest.raises(OutboxLimit, match="may not be dropped"):
        shop.send("billing", Job(n=5))
    world.wire.always = "ok"
    world.wait(120)
    assert ("acked", []) == (shop.state(second), shop.limits.drops())


def test_what_waits_behind_a_given_up_parcel_can_be_cancelled(world: World) -> None:
    """Only the messages of the parcel may be known; those that never left it are withdrawn."""
    shop, _, _ = given_up(world)
    last = shop.send("billing", Job(n=5))

    assert shop.cancel(last)


def test_a_dead_letter_that_may_have_arrived_is_replayed_as_one(world: World) -> None:
    """A replay of an expired message that its recipient has processed has no second effect."""
    shop, _, _ = given_up(world)
    [dead] = shop.dead_letters.list()
    shop.dead_letters.replay(dead.id)
    world.wire.always = "ok"
    world.wait(120)

    assert ("acked", []) == (shop.state(dead.id), shop.dead_letters.list())
    assert [1, 2, 3, 4] == effects(world)


def forgetful(world: World, **options: Any) -> tuple[Postbox, Postbox]:
    """Return two agents, the second of which has handled and then forgotten messages of today."""
    shop, billing = world.wired("shop", counting(), **options)
    shop.session("other").send("billing", Job(n=0))
    world.settle()
    return shop, billing


def forget(world: World) -> None:
    """Let the recipient forget what is older than its retention."""
    world.boxes["billing"].file.run_maintenance()


def give_up(world: World) -> None:
    """Give up a parcel with a message that has nothing to do with the others."""
    shop = world.boxes["shop"]
    shop.session("short").send("billing", Job(n=99), ttl=10)
    world.wire.of, world.wire.script = "shop", ["lost"]
    shop.run_until_idle()
    world.clock.forward(11)
    shop.run_until_idle()


def test_a_restored_sender_that_gives_up_a_parcel_repeats_nothing(world: World) -> None:
    """A recipient that has accepted more than the sender knows judges every message by its id."""
    shop, _ = world.wired("shop", counting(), tuning=Tuning(parcel_max_messages=1))
    shop.send("billing", Job(n=1), ttl=10)
    known = shop.send("billing", Job(n=2))
    world.wire.script = ["down"]
    shop.run_until_idle()
    world.shut()
    world.keep_copy("shop")
    world.reopen("shop", "billing")
    world.wait(5)
    world.wait(8 * DAY)
    forget(world)
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "billing")
    world.settle()

    assert [known] == stale(shop)
    assert [1, 2] == effects(world)


def test_a_long_delay_outlives_a_given_up_parcel(world: World) -> None:
    """A message delayed beyond the retention arrives, though unrelated messages expired."""
    shop, _ = forgetful(world)
    later = shop.send("billing", Job(n=1), delay=9 * DAY)
    give_up(world)
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(8 * DAY)
    forget(world)
    give_up(world)
    world.wait(2 * DAY)

    assert ([], "acked") == (stale(shop), shop.state(later))
    assert 1 in effects(world)


def stale(box: Postbox) -> list[str]:
    """Return the ids of messages that a peer could not judge."""
    return [dead.id for dead in box.dead_letters.list(reason="stale")]


def test_the_first_parcel_after_a_long_delay_may_begin_an_epoch(world: World) -> None:
    """The parcel that opens the new epoch carries the delayed message, and it is new."""
    shop, _ = forgetful(world)
    later = shop.send("billing", Job(n=1), delay=9 * DAY)
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(8 * DAY)
    forget(world)
    give_up(world)
    world.wait(2 * DAY)

    assert ([], "acked") == (stale(shop), shop.state(later))


def test_a_message_held_by_a_paused_channel_outlives_the_retention(world: World) -> None:
    """What a pause held for longer than the retention arrives when the channel goes on."""
    shop, billing = forgetful(world)
    channel = shop.channels.create("room", "group")
    billing.channels.get("room").join()
    channel.pause()
    channel.send(Job(n=1))
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(8 * DAY)
    forget(world)
    give_up(world)
    channel.resume()
    world.wait(60)

    assert [] == stale(shop)
    assert 1 in effects(world)


def test_a_message_held_by_a_limit_outlives_the_retention(world: World) -> None:
    """What a limit held for longer than the retention arrives when there is room."""
    shop, _ = forgetful(world)
    shop.limits.set("session", "default", messages=1, overflow="hold")
    shop.send("billing", Job(n=1), delay=8 * DAY)
    held = shop.send("billing", Job(n=2))
    shop.session("free").send("billing", Job(n=3))
    world.settle()
    world.wait(7.5 * DAY)
    forget(world)
    give_up(world)
    world.wait(2 * DAY)

    assert ([], "acked") == (stale(shop), shop.state(held))


def test_an_id_from_a_fast_clock_makes_no_other_stale(world: World) -> None:
    """The horizon never passes the present, so what waits is still judged by its mark."""
    number, fast = count(), [365 * DAY, 0.0]

    def mint() -> str:
        return uuid7_of(world, age=-fast[0], number=next(number))

    shop, billing = forgetful(world, ids=mint)
    ahead = shop.send("billing", Job(n=1))
    world.settle()
    fast.pop(0)
    world.wait(8 * DAY)
    forget(world)
    waiting = shop.send("billing", Job(n=2))
    world.wire.of, world.wire.script = "shop", ["lost"]
    shop.run_until_idle()
    give_up(world)
    world.wait(120)
    [(horizon,)] = billing._db.read("SELECT horizon_id FROM _onceward_sender_streams")

    assert horizon < ahead
    assert ([], "acked") == (stale(shop), shop.state(waiting))


def uuid7_of(world: World, *, age: float, number: int = 1) -> str:
    """Return a UUIDv7 that was minted so many seconds ago."""
    at = f"{world.clock.now() - round(1000 * age):012x}"
    return f"{at[:8]}-{at[8:]}-7000-8000-{number:012x}"


def test_an_old_id_of_the_callers_own_is_new(world: World) -> None:
    """A UUIDv7 that the caller chose and that is older than the retention is accepted."""
    shop, _ = forgetful(world)
    world.wait(10 * DAY)
    forget(world)
    shop.send("billing", Job(n=1))
    mine = shop.send("billing", Job(n=2), message_id=uuid7_of(world, age=10.5 * DAY))
    world.settle()

    assert ([], "acked") == (stale(shop), shop.state(mine))
    assert [0, 1, 2] == effects(world)


@pytest.mark.parametrize("by", ["python", "sql"])
def test_an_id_of_the_callers_own_is_remembered(world: World, by: str) -> None:
    """A UUIDv7 that the caller chose is sent again after both sides forgot it: one effect."""
    shop, _ = forgetful(world)
    mine = uuid7_of(world, age=0)
    if by == "sql":
        with shop.begin() as tx:
            tx.execute(
                "INSERT INTO onceward_send (recipient, type, body, id)"
                " VALUES ('billing', 'job', '{\"n\": 1}', ?)",
                (mine,),
            )
    else:
        shop.send("billing", Job(n=1), message_id=mine)
    world.settle()
    world.wait(8 * DAY)
    forget(world)
    shop._db.write(lambda tx: tx.run("DELETE FROM _onceward_outbox WHERE id = ?", (mine,)))
    shop.send("billing", Job(n=1), message_id=mine)
    world.settle()

    assert [0, 1] == effects(world)
    assert [] == shop.dead_letters.list()
