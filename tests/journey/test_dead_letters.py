"""Dead letters: kept whole, replayed once, forgotten only when told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Context, Msg, Postbox, Reject
from onceward.errors import Conflict, Frozen, InvalidMessage

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def choosy(refuse: set[int]) -> Agent:
    """Return an agent that rejects some jobs and writes a row for the others."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n in refuse:
            raise Reject(f"no {job.n}")
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    return agent


def opened(world: World, refuse: set[int]) -> tuple[Postbox, Postbox]:
    """Return a sender and a choosy receiver."""
    shop, billing = world.wired("shop", choosy(refuse))
    with billing.begin() as tx:
        tx.execute("CREATE TABLE effects (n)")
    return shop, billing


def effects(box: Postbox) -> list[int]:
    """Return the numbers of the jobs that had their effect."""
    return [n for (n,) in box.db.read("SELECT n FROM effects ORDER BY rowid")]


def test_a_replayed_incoming_letter_is_handled(world: World) -> None:
    """What the operator puts back is handled with its own id, and the sender learns the new outcome."""
    refuse = {1}
    shop, billing = opened(world, refuse)
    message = shop.send("billing", Job(n=1))
    world.settle()
    before = shop.resolve(message)
    refuse.clear()
    billing.dead_letters.replay(message)
    world.settle()

    assert ("failed", "acked") == (before, shop.resolve(message))
    assert ([1], []) == (effects(billing), billing.dead_letters.list())


def test_a_replay_that_fails_again_is_buried_again(world: World) -> None:
    """A letter can die as often as it is replayed, and stands once."""
    shop, billing = opened(world, {1})
    message = shop.send("billing", Job(n=1))
    world.settle()
    for _ in range(3):
        billing.dead_letters.replay(message)
        world.settle()

    assert [message] == [letter.id for letter in billing.dead_letters.list()]
    assert 3 == billing.db.read("SELECT value FROM counters WHERE name = 'replayed'")[0][0]
    assert "failed" == shop.resolve(message)


def test_a_copy_of_a_buried_frame_is_not_taken_in_again(world: World) -> None:
    """A frame that lies among the dead letters is known: it is neither stored nor handled when it comes again."""
    shop, billing = opened(world, {1})
    shop.send("billing", Job(n=1))
    world.settle()
    old = next(parcel for parcel in world.wire.pushed if parcel.frames)
    answer = world.wire.push_again(old)

    assert ["dead"] == [receipt.state for receipt in answer.receipts]
    assert 1 == len(billing.dead_letters.list())
    assert 0 == billing.stats()["inbox_pending"]


def test_a_replayed_outgoing_letter_that_had_arrived_ends_acked(world: World) -> None:
    """Giving up and replaying a message that the peer had processed has no second effect."""
    shop, billing = opened(world, set())
    message = shop.send("billing", Job(n=1), ttl=10)
    world.wire.of, world.wire.script = "shop", ["lost"]
    shop.pump()
    world.wire.of, world.wire.always = "billing", "down"
    billing.pump()
    world.wait(40)
    if shop.dead_letters.get(message) is not None:
        shop.dead_letters.replay(message)
    world.wire.always = "ok"
    world.wait(100)

    assert [1] == effects(billing)
    assert "acked" == shop.resolve(message)


def test_a_letter_sent_as_new_has_another_id_and_the_same_content(world: World) -> None:
    """replay(as_new=True) sends body, type, topic, headers and lane under a new id, and the letter is gone."""
    shop = world.open("shop", hold_unknown=True)
    old = shop.send("billing", Job(n=1), ttl=5, topic="a.b", priority="high", headers={"trace": "x"}, ordering_key="k")
    world.wait(6)
    new = shop.dead_letters.replay(old, as_new=True)
    rows = shop.db.read("SELECT id, type, topic, rank, lane, frame ->> '$.data.n', frame ->> '$.trace' FROM outbox")

    assert [(new, "job", "a.b", 1, "k", 1, "x")] == rows
    assert new != old
    assert [] == shop.dead_letters.list()


def test_a_replay_while_frozen_changes_nothing(world: World) -> None:
    """A refused replay leaves the letter where it was."""
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1), ttl=5)
    world.wait(6)
    shop.freeze()
    for as_new in (False, True):
        with pytest.raises(Frozen):
            shop.dead_letters.replay(message, as_new=as_new)

    assert [message] == [letter.id for letter in shop.dead_letters.list()]
    shop.thaw()


def test_a_dead_key_is_not_sent_again(world: World) -> None:
    """The id or key of a dead letter is refused: it is replayed or discarded first."""
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1), ttl=5, key="k")
    world.wait(6)
    with pytest.raises(Conflict):
        shop.send("billing", Job(n=1), key="k")
    assert shop.dead_letters.discard(message)

    assert message != shop.send("billing", Job(n=1), key="k")


def test_listing_discarding_and_purging(world: World) -> None:
    """Letters are found by reason and peer, forgotten one by one or by age, and nothing else is."""
    shop = world.open("shop", hold_unknown=True)
    first = shop.send("billing", Job(n=1), ttl=5)
    world.wait(6)
    world.wait(100)
    second = shop.send("store", Job(n=2), ttl=5)
    world.wait(10)

    assert [first, second] == [letter.id for letter in shop.dead_letters.list(reason="expired")]
    assert [second] == [letter.id for letter in shop.dead_letters.list(peer="store")]
    assert 1 == shop.dead_letters.purge(older_than=50)
    assert [second] == [letter.id for letter in shop.dead_letters.list()]
    assert [True, False] == [shop.dead_letters.discard(second), shop.dead_letters.discard(second)]
    with pytest.raises(InvalidMessage):
        shop.dead_letters.replay(second)


@pytest.mark.xfail(strict=True, reason="discard takes every letter of an id")
def test_letters_of_two_senders_with_one_id_are_two(world: World) -> None:
    """Two agents that chose the same id: discarding one's letter leaves the other's."""
    _, billing = opened(world, {1, 2})
    for n, name in enumerate(("one", "two"), start=1):
        box = world.open(name)
        box.peers.register("billing", "wire:billing")
        box.send("billing", Job(n=n), message_id="same")
    world.settle()
    billing.dead_letters.discard("same")

    assert 1 == len(billing.dead_letters.list())


def test_letters_to_oneself_are_told_apart(world: World) -> None:
    """An agent's message to itself that died at the door is one letter, and replaying it does it once."""
    billing = world.open(choosy(set()))
    with billing.begin() as tx:
        tx.execute("CREATE TABLE effects (n)")
    message = billing.send("billing", Job(n=1))
    world.settle()

    assert [1] == effects(billing)
    assert "acked" == billing.resolve(message)
