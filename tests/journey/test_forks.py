"""
Files that were restored, cloned or deleted.

Nothing is lost silently and nothing takes effect twice.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Msg, Postbox, Retry
from onceward.events import DeliveryFailed, PeerRolledBack, StreamForked
from onceward.message.ids import KEYED
from onceward.message.parcel import Parcel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

DAY = 86_400.0


class Later(Msg, type="later"):
    """A task that is put off."""


def test_a_restored_sender_goes_on_in_a_new_epoch(world: World) -> None:
    """
    A sender that lost its newest part is told so by the first push.

    The messages that it still holds take effect once.
    """
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2))
    world.settle()
    world.shut()
    world.restore("shop")
    shop, billing = world.reopen("shop", "billing")
    heard: list[str] = []
    shop.on(StreamForked, lambda event: heard.append(event.name))
    shop.send("billing", Job(n=3))
    world.settle()

    assert ["stream_forked"] == heard
    assert [1, 2, 3] == effects(world)
    assert 1 == billing.file.stats()["forks"]


def test_a_sender_restored_to_a_waiting_message_does_not_repeat_it(world: World) -> None:
    """Mail that took effect, and is pending in the older copy, is answered as processed."""
    shop, _ = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen("shop", "billing")
    world.settle()
    shop.send("billing", Job(n=2))
    world.settle()
    world.shut()
    world.restore("shop")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=3))
    world.settle()

    assert [1, 2, 3] == effects(world)
    assert "acked" == shop.state(message)


@pytest.mark.broken("X1: one clone lacks what the other was told")
def test_both_clones_of_a_sender_go_on(world: World) -> None:
    """Two copies of one file both send: each message takes effect once, in any order of pushes."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=0))
    world.settle()
    world.shut()
    elsewhere = world.home / "elsewhere"
    elsewhere.mkdir()
    shutil.copyfile(world.path("shop"), elsewhere / "shop.db")
    here, there = world.path("shop"), elsewhere / "shop.db"
    spare = elsewhere / "spare.db"
    for n in range(1, 7):
        shop, _ = world.reopen("shop", "billing")
        shop.send("billing", Job(n=n))
        world.settle()
        world.shut()
        here.rename(spare)
        there.rename(here)
        spare.rename(there)
    world.reopen("billing")

    assert [0, 1, 2, 3, 4, 5, 6] == effects(world)


def test_a_restored_receiver_gets_back_what_the_sender_still_has(world: World) -> None:
    """A receiver that lost its newest part makes the sender push it again; both say so."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    lost = [shop.send("billing", Job(n=n)) for n in (2, 3)]
    world.settle()
    world.shut()
    world.restore("billing")
    shop, _ = world.reopen("shop", "billing")
    heard: list[object] = []
    shop.on(PeerRolledBack, heard.append)
    shop.send("billing", Job(n=4))
    world.settle()

    assert [1, 2, 3, 4] == effects(world)
    assert ["acked", "acked"] == [shop.state(message) for message in lost]
    assert 1 == len(heard)


def test_a_restored_receiver_gets_back_what_was_acked_early(world: World) -> None:
    """A message whose outcome overtook its push's answer is pushed again after a rollback."""
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, billing = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2))

    def early(parcel: Parcel) -> None:
        world.wire.on_push = lambda _: None
        world.wire.push_again(parcel)
        billing.run_until_idle()

    world.wire.on_push = early
    world.settle()
    world.shut()
    world.restore("billing")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=3))
    world.settle()

    assert [1, 2, 3] == effects(world)


def test_a_restored_receiver_is_noticed_by_a_new_epoch(world: World) -> None:
    """
    A sender that starts over for a reason of its own just then is not misled.

    It does not mistake the older file for the one it knew.
    """
    shop, _ = world.wired("shop", counting(), delivery_attempts=1)
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, billing = world.reopen("shop", "billing")
    lost = shop.send("billing", Job(n=2))
    world.settle()
    given_up = shop.send("billing", Job(n=3))
    world.wire.script = ["error"]
    shop.run_until_idle()
    world.shut()
    world.restore("billing")
    shop, billing = world.reopen("shop", "billing")
    heard: list[object] = []
    shop.on(PeerRolledBack, heard.append)
    shop.send("billing", Job(n=4))
    world.wait(120)

    assert ("dead", "acked") == (shop.state(given_up), shop.state(lost))
    assert [1, 2, 4] == effects(world)
    assert (1, 1) == (len(heard), billing.file.stats()["forks"])


def test_an_outcome_told_beside_the_stream_is_relied_on(world: World) -> None:
    """
    Mail that was acked by a receipt is pushed again after a rollback, by a new epoch, too.

    The answer to its push was lost.
    """
    agent = counting()

    @agent.on(Later)
    def later(_: Later) -> None:
        raise Retry(after=DAY)

    shop, _ = world.wired("shop", agent)
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, billing = world.reopen("shop", "billing")
    told = shop.send("billing", Job(n=2))
    expiring = shop.send("billing", Later(), ttl=10)
    world.wire.of, world.wire.script = "shop", ["lost"]
    shop.run_until_idle()
    billing.run_until_idle()
    before = (shop.state(told), shop.state(expiring))
    world.clock.forward(11)
    world.shut()
    world.restore("billing")
    shop, billing = world.reopen("shop", "billing")
    shop.send("billing", Job(n=4))
    world.wait(120)

    assert ("acked", "sending") == before
    assert ("acked", "dead") == (shop.state(told), shop.state(expiring))
    assert [1, 2, 4] == effects(world)


def test_a_recreated_receiver_gets_everything_retained(world: World) -> None:
    """
    A receiver that was deleted and born again is sent all that the sender still has.

    It comes in order, once.
    """
    shop, _ = world.wired("shop", counting())
    for n in (1, 2):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    for path in world.home.glob("billing.db*"):
        path.unlink()
    shop, billing = world.reopen("shop", "billing")
    billing.peers.add("shop", "wire:shop")
    shop.send("billing", Job(n=3))
    world.settle()

    assert [1, 2, 3] == effects(world)


def test_a_receiver_replaced_under_a_running_sender(world: World) -> None:
    """A sender that reaches its peer by file notices another file and starts over with it."""
    shop, _ = world.open("shop"), world.open(counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.boxes.pop("billing").close()
    for path in world.home.glob("billing.db*"):
        path.unlink()
    world.open(counting())
    shop.send("billing", Job(n=2))
    for _ in range(3):
        world.wait(61)

    assert [1, 2] == effects(world)


def test_a_delayed_first_parcel_of_an_old_epoch_changes_nothing(world: World) -> None:
    """
    Parcel number 1 of an epoch that was left long ago comes again.

    It is refused as a copy, and the stream goes on where it was.
    """
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    old = world.wire.pushed[0]
    world.shut()
    world.keep_copy("shop")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2))
    world.settle()
    world.shut()
    world.restore("shop")
    shop, billing = world.reopen("shop", "billing")
    shop.send("billing", Job(n=3))
    world.settle()
    answer = world.wire.push_again(old)
    shop.send("billing", Job(n=4))
    world.settle()

    assert ("fork", ()) == (answer.verdict, answer.receipts)
    assert [1, 2, 3, 4] == effects(world)
    assert (1, 1) == (old.number, billing.file.stats()["forks"] - 1)
    assert [] == billing.dead_letters.list()


def test_a_delayed_parcel_beyond_the_horizon_is_refused(world: World) -> None:
    """
    An old first parcel whose marks are pruned cannot be judged.

    It is refused as stale, not done again.
    """
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    old = world.wire.pushed[0]
    world.wait(8 * DAY)
    billing.file.run_maintenance()
    before = billing._db.read("SELECT count(*) FROM _onceward_processed_messages")
    # the stream moved on to another epoch in between
    billing._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_sender_streams SET epoch = 'later', number = 7, last_id = 'x'"
        )
    )
    answer = world.wire.push_again(old)

    assert [(0,)] == before
    assert [("rejected", True)] == [
        (r.state, (r.reason or "").startswith("stale")) for r in answer.receipts
    ]
    assert [1] == effects(world)


def test_a_mark_outlives_its_row(world: World) -> None:
    """A message whose mark is left without its row is a duplicate, whatever stream it comes by."""
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    old = world.wire.pushed[0]
    billing._db.write(lambda tx: tx.run("DELETE FROM _onceward_inbox WHERE state = 'processed'"))
    billing._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_sender_streams SET epoch = 'later', number = 7, last_id = 'x'"
        )
    )
    answer = world.wire.push_again(old)
    world.settle()

    assert ["processed"] == [receipt.state for receipt in answer.receipts]
    assert [1] == effects(world)


def test_a_stale_question_becomes_a_dead_letter_that_can_be_sent_as_new(world: World) -> None:
    """
    A message asked about after the peer forgot it is dead as stale.

    Its own id stays stale, a new one goes through.
    """
    shop, billing = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    shop.run_until_idle()
    world.wire.of, world.wire.script = "billing", ["down"]
    billing.run_until_idle()
    world.clock.forward(8 * DAY)
    billing.file.run_maintenance()
    shop.run_until_idle()
    stale = [letter.reason for letter in shop.dead_letters.list()]
    shop.dead_letters.replay(message)
    world.settle()
    stale += [letter.reason for letter in shop.dead_letters.list()]
    new = shop.dead_letters.replay(message, as_new=True)
    world.settle()

    assert ["stale", "stale"] == stale
    assert new != message
    assert "acked" == shop.state(new)
    assert [1, 1] == effects(world)


def test_the_horizon_of_one_sender_is_not_anothers(world: World) -> None:
    """An agent's first mail after a long outage is new, whatever other agents sent meanwhile."""
    shop, billing = world.wired("shop", counting())
    late = world.open("late")
    late.peers.add("billing", "wire:billing")
    waiting = late.send("billing", Job(n=1))
    shop.send("billing", Job(n=2))
    shop.run_until_idle()
    billing.run_until_idle()
    world.clock.forward(8 * DAY)
    billing.file.run_maintenance()
    world.settle()

    assert [] == late.dead_letters.list()
    assert "acked" == late.state(waiting)
    assert [2, 1] == effects(world)


def test_an_id_of_the_users_does_not_move_the_horizon(world: World) -> None:
    """
    Ids that users choose do not sort by time.

    So forgetting one must not make all younger messages stale.
    """
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1), message_id="order-1")
    world.settle()
    world.clock.forward(8 * DAY)
    billing.file.run_maintenance()
    other = world.open("other")
    other.peers.add("billing", "wire:billing")
    message = other.send("billing", Job(n=2))
    world.settle()

    assert [] == other.dead_letters.list()
    assert "acked" == other.state(message)
    assert [1, 2] == effects(world)


def test_a_new_message_with_an_id_of_the_users_is_new(world: World) -> None:
    """A chosen id that sorts before one that was forgotten is still the id of a new message."""
    shop, billing = world.wired("shop", counting())
    shop.send("billing", Job(n=1), message_id="order-9")
    world.settle()
    world.clock.forward(8 * DAY)
    billing.file.run_maintenance()
    message = shop.send("billing", Job(n=2), message_id="order-8")
    world.settle()

    assert [] == shop.dead_letters.list()
    assert "acked" == shop.state(message)


def test_an_acked_message_does_not_die_by_a_fork(world: World) -> None:
    """Mail that ended well stays so when a fork makes the sender ask about all it retains."""
    shop, _ = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1), ttl=60)
    world.settle()
    world.clock.forward(120)
    billing = world.boxes["billing"]
    billing._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_sender_streams SET epoch = 'of a clone', number = 3, last_id = 'x'"
        )
    )
    shop.send("billing", Job(n=2))
    world.settle()

    assert [] == shop.dead_letters.list()
    assert "acked" == shop.state(message)


@pytest.mark.broken("a stream is made up")
def test_a_peer_that_always_forks_is_left_alone(world: World) -> None:
    """A peer that answers every push with 'fork' is rested like any failing peer."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    limit = 50

    def confuse(parcel: Parcel) -> None:
        if len(world.wire.pushed) > limit:
            raise world.crash
        billing = world.boxes["billing"]
        number = parcel.number
        billing._db.write(
            lambda tx: tx.run(
                (
                    "INSERT OR REPLACE INTO _onceward_sender_streams"
                    " (sender, epoch, number, last_id, updated_at)"
                    " VALUES ('shop', ?, ?, 'another', 0)"
                ),
                (parcel.epoch, number + 7),
            )
        )

    world.wire.on_push = confuse
    shop.run_until_idle()

    assert limit > len(world.wire.pushed)


def test_a_given_up_parcel_does_not_fork_its_stream(world: World) -> None:
    """
    A parcel was given up after it had arrived: the next one is accepted at once.

    Nothing is reported as a fork.
    """
    shop, billing = world.wired("shop", counting(), delivery_attempts=1)
    given_up = shop.send("billing", Job(n=1))
    world.wire.on_push = lambda parcel: (world.wire.push_again(parcel), None)[1]
    world.wire.script = ["error"]
    shop.run_until_idle()
    world.wire.on_push = lambda _: None
    shop.send("billing", Job(n=2))
    world.wait(2)

    assert "dead" == shop.state(given_up)
    assert [1, 2] == effects(world)
    assert 0 == billing.file.stats()["forks"]


def test_an_expired_parcel_does_not_block_its_stream(world: World) -> None:
    """A message that expires in the parcel in flight is buried; its neighbours go on in order."""
    shop, billing = world.wired("shop", counting())
    expiring = shop.send("billing", Job(n=1), ttl=10)
    shop.send("billing", Job(n=2))
    world.wire.script = ["down"]
    shop.run_until_idle()
    world.wait(11)
    shop.send("billing", Job(n=3))
    world.settle()

    assert "dead" == shop.state(expiring)
    assert [2, 3] == effects(world)
    assert 0 == billing.file.stats()["forks"]


def swap_in(world: World, spare: Path) -> tuple[Postbox, ...]:
    """Let the other copy of the sender's file act, as if both were live; return the boxes."""
    world.shut()
    here, aside = world.path("shop"), spare.with_suffix(".aside")
    here.rename(aside)
    spare.rename(here)
    aside.rename(spare)
    return world.reopen("shop", "billing")


def test_two_live_copies_do_not_send_everything_again(world: World) -> None:
    """
    Each copy names its own file as the cause, and pushes only what is new at each turn.

    After a few turns it leaves the peer alone between two of them, for longer each time.
    """
    shop, _ = world.wired("shop", counting())
    for n in range(20):
        shop.send("billing", Job(n=n))
    world.settle()
    world.shut()
    spare = world.home / "spare.copy"
    shutil.copyfile(world.path("shop"), spare)
    heard: list[StreamForked] = []
    rolled_back: list[object] = []
    rests: list[float] = []
    for n in range(20, 40):
        shop, _ = swap_in(world, spare)
        shop.on(StreamForked, heard.append)
        shop.on(PeerRolledBack, rolled_back.append)
        shop.on(DeliveryFailed, lambda event: rests.append(event.due_at - event.at))
        shop.send("billing", Job(n=n))
        world.wait(70)
    for _ in range(2):
        world.wait(DAY)
        swap_in(world, spare)
    pushed = [each for each in world.wire.ids if each not in world.wire.ids[:20]]
    told = [each for each in pushed if each.startswith(KEYED)]  # to each copy what it had sent

    assert ({"own_file"}, []) == ({event.cause for event in heard}, rolled_back)
    assert len(pushed) - len(told) <= 3 * 20 >= len(set(told))
    assert len(set(rests)) > 2
    assert rests[:2] == sorted(rests[:2])
    assert list(range(40)) == sorted(effects(world))


def test_a_peer_that_was_put_back_is_the_cause(world: World) -> None:
    """The event names the peer's file where that lost what it had."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2))
    world.settle()
    world.shut()
    world.restore("billing")
    shop, _ = world.reopen("shop", "billing")
    heard: list[StreamForked] = []
    shop.on(StreamForked, heard.append)
    shop.send("billing", Job(n=3))
    world.settle()

    assert ["peer_file"] == [event.cause for event in heard]
    assert [1, 2, 3] == effects(world)
