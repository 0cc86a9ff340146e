"""
Keys hold at the recipient, also after the file of their sender was restored from a backup.

The id of a message with a key is the same each time, so the recipient drops the second one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Agent, Context, Postbox
from onceward.errors import Conflict
from onceward.events import Enqueued
from onceward.message.ids import KEYED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World

DAY = 86_400.0
WEEK = 7 * DAY


def sends(box: Postbox, n: int) -> str:
    """Send with a key."""
    return box.send("ledger", Job(n=n), key="k")


def sends_in_a_session(box: Postbox, n: int) -> str:
    """Send from a session, in a block."""
    with box.session("s").begin() as tx:
        return tx.send("ledger", Job(n=n), key="k")


def requests(box: Postbox, n: int) -> str:
    """Send a request with a key."""
    return box.request("ledger", Job(n=n), key="k").id


def broadcasts(box: Postbox, n: int) -> str:
    """Send to all."""
    box.broadcast(Job(n=n), key="k")
    [(found,)] = box.query("SELECT id FROM onceward_outbox WHERE recipient = 'ledger'")
    return str(found)


def dispatches(box: Postbox, n: int) -> str:
    """Give a task away."""
    with box.begin() as tx:
        return tx.dispatch("ledger", Job(n=n), key="k")


def wired(world: World) -> tuple[Postbox, Postbox]:
    """Open a sender, of which a copy is kept, and a recipient that counts."""
    world.wired("shop", counting("ledger"))
    world.shut()
    world.keep_copy("shop")
    shop, ledger = world.reopen("shop", "ledger")
    return shop, ledger


def restored(world: World) -> Postbox:
    """Restore the sender to before it sent anything."""
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "ledger")
    return shop


@pytest.mark.parametrize("send", [sends, sends_in_a_session, requests, broadcasts, dispatches])
def test_a_key_holds_through_the_restore_of_its_sender(
    world: World, send: Callable[[Postbox, int], str]
) -> None:
    """The message that is sent again has the id of the first, and takes no second effect."""
    shop, _ = wired(world)
    first = send(shop, 1)
    world.settle()
    shop = restored(world)
    world.clock.forward(2 * DAY)

    second = send(shop, 1)
    world.settle()

    assert (first, [1]) == (second, effects(world, "ledger"))
    assert "acked" == shop.state(second)


def test_a_reply_to_a_keyed_request_is_found_again(world: World) -> None:
    """The restored sender gets the answer that its first request had."""
    ledger = Agent("ledger")
    calls: list[int] = []

    @ledger.on(Job)
    def work(job: Job, ctx: Context) -> Job:
        calls.append(job.n)
        return Job(n=len(calls) + 10)

    world.wired("shop", ledger)
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen("shop", "ledger")
    shop.request("ledger", Job(n=1), key="k")
    world.settle()
    shop = restored(world)
    again = shop.request("ledger", Job(n=1), key="k")
    shop.request("ledger", Job(n=2))  # its reply shows the ledger that the shop was restored
    world.settle()
    world.wait(3_600.0)

    assert (Job(n=11), [1, 2]) == (shop.result(again, reply=Job), calls)


def test_keys_of_two_recipients_and_two_senders_are_distinct(world: World) -> None:
    """The id depends on the sender, the recipient and the key, and is a UUID of version 7."""
    shop, ledger = wired(world)
    ids = [
        shop.send("ledger", Job(n=1), key="k"),
        shop.send("ledger", Job(n=1), key="l"),
        shop.send("shop", Job(n=1), key="k"),
        ledger.send("shop", Job(n=1), key="k"),
    ]

    assert 4 == len(set(ids))
    assert [7] * 4 == [uuid.UUID(each).version for each in ids]


def test_a_key_in_a_handler_is_that_of_the_agent(world: World) -> None:
    """A handler that sends under a key gets the message that the application has sent."""
    shop = Agent("shop")
    told: list[str] = []

    @shop.on(Job)
    def work(job: Job, ctx: Context) -> None:
        told.append(ctx.send("ledger", Job(n=1), key="k"))

    box, _ = world.wired(shop, counting("ledger"))
    first = box.send("ledger", Job(n=1), key="k")
    box.send("shop", Job(n=5))
    world.settle()

    assert ([first], [1]) == (told, effects(world, "ledger"))
    box.send("shop", Job(n=6))
    with pytest.raises(Conflict):
        box.send("ledger", Job(n=2), key="k")
    world.settle()
    assert [first] * 2 == told


def test_a_record_of_a_key_is_pruned_and_the_key_is_free_again(world: World) -> None:
    """Records of keys do not stay forever; after the deduplication window the key is new."""
    shop, ledger = wired(world)
    sends(shop, 1)
    world.settle()
    world.clock.forward(WEEK + 120)
    for box in (shop, ledger):
        box.file.run_maintenance()

    assert [] == ledger.query("SELECT 1 FROM onceward_processed_messages")
    sends(shop, 2)
    world.settle()
    assert [1, 2] == effects(world, "ledger")


def test_a_late_copy_of_a_keyed_message_is_refused(world: World) -> None:
    """Once its record is pruned, a message with a key that is sent again by a copy is stale."""
    shop, ledger = wired(world)
    sends(shop, 1)
    world.shut()
    world.keep_copy("shop")
    shop, ledger = world.reopen("shop", "ledger")
    world.settle()
    world.clock.forward(WEEK + 120)
    ledger.file.run_maintenance()
    shop = restored(world)
    world.settle()

    assert [1] == effects(world, "ledger")
    assert ["stale"] == [dead.reason for dead in shop.dead_letters.list()]


def test_a_new_keyed_message_of_a_restored_file_is_accepted(world: World) -> None:
    """The horizon of pruned records says nothing of a message that is sent after it."""
    shop, ledger = wired(world)
    shop.send("ledger", Job(n=1))
    sends(shop, 2)
    world.settle()
    world.clock.forward(WEEK + 120)
    ledger.file.run_maintenance()
    shop = restored(world)

    shop.send("ledger", Job(n=3), key="other")
    world.settle()

    assert [1, 2, 3] == effects(world, "ledger")


def test_the_record_of_a_dead_letter_with_a_key_is_kept(world: World) -> None:
    """A key whose message is a dead letter there is not accepted a second time."""
    world.audited = False  # the first row of the sender was pruned, and is counted
    ledger = Agent("ledger")

    @ledger.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        raise ValueError(job.n)

    shop, box = world.wired("shop", ledger)
    sends(shop, 1)
    world.settle()
    world.clock.forward(WEEK + 120)
    for each in (shop, box):
        each.file.run_maintenance()
    sends(shop, 1)
    world.settle()

    assert [1] == [len(box.dead_letters.list())]
    assert [] == box.query("SELECT 1 FROM onceward_inbox WHERE state = 'pending'")


def test_a_keyed_message_from_a_fast_clock_is_recorded_forever(world: World) -> None:
    """Its moment may be after the horizon when its record would be pruned."""
    shop, ledger = wired(world)
    world.clock.forward(3_600)
    sends(shop, 1)
    world.clock.forward(-3_600)
    world.settle()
    world.clock.forward(WEEK + 120)
    ledger.file.run_maintenance()

    [(kept,)] = ledger.query("SELECT id FROM onceward_processed_messages")
    assert kept.startswith(KEYED)


def test_a_known_key_is_not_reported_again(world: World) -> None:
    """The second send of a key stores nothing, so no event says that a message was enqueued."""
    shop, _ = wired(world)
    told: list[str] = []
    shop.on(Enqueued, lambda event: told.append(event.message_id))
    sent = [sends(shop, 1), sends(shop, 1), shop.send("ledger", Job(n=2), message_id="own")]
    shop.send("ledger", Job(n=2), message_id="own")

    assert [sent[0], "own"] == told
