"""Dead letters: kept whole, replayed once, forgotten only when told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Context, Msg, Postbox, Reject
from onceward.errors import Conflict, InvalidArgument, InvalidMessage, Paused
from onceward.transports import Frame

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
    return [n for (n,) in box._db.read("SELECT n FROM effects ORDER BY rowid")]


def test_a_replayed_incoming_letter_is_handled(world: World) -> None:
    """A message that the operator puts back keeps its id, and the sender learns the new outcome."""
    refuse = {1}
    shop, billing = opened(world, refuse)
    message = shop.send("billing", Job(n=1))
    world.settle()
    before = shop.state(message)
    refuse.clear()
    billing.dead_letters.replay(message)
    world.settle()

    assert ("failed", "acked") == (before, shop.state(message))
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
    assert (
        3 == billing._db.read("SELECT value FROM _onceward_counters WHERE name = 'replayed'")[0][0]
    )
    assert "failed" == shop.state(message)


def test_a_copy_of_a_buried_frame_is_not_taken_in_again(world: World) -> None:
    """A frame among the dead letters is known: it is not stored or handled when it comes again."""
    shop, billing = opened(world, {1})
    shop.send("billing", Job(n=1))
    world.settle()
    old = next(parcel for parcel in world.wire.pushed if parcel.frames)
    answer = world.wire.push_again(old)

    assert ["dead"] == [receipt.state for receipt in answer.receipts]
    assert 1 == len(billing.dead_letters.list())
    assert 0 == billing.file.stats()["inbox_pending"]


def test_a_replayed_outgoing_letter_that_had_arrived_ends_acked(world: World) -> None:
    """Giving up and replaying a message that the peer had processed has no second effect."""
    shop, billing = opened(world, set())
    message = shop.send("billing", Job(n=1), ttl=10)
    world.wire.of, world.wire.script = "shop", ["lost"]
    shop.run_until_idle()
    world.wire.of, world.wire.always = "billing", "down"
    billing.run_until_idle()
    world.wait(40)
    if shop.dead_letters.get(message) is not None:
        shop.dead_letters.replay(message)
    world.wire.always = "ok"
    world.wait(100)

    assert [1] == effects(billing)
    assert "acked" == shop.state(message)


def test_a_letter_sent_as_new_has_another_id_and_the_same_content(world: World) -> None:
    """
    replay(as_new=True) sends the whole letter under a new id, and the letter is gone.

    The new message has its body, type, topic, headers and lane.
    """
    shop = world.open("shop", hold_unknown=True)
    old = shop.send(
        "billing",
        Job(n=1),
        ttl=5,
        topic="a.b",
        priority="high",
        headers={"trace": "x"},
        ordering_key="k",
    )
    world.wait(6)
    new = shop.dead_letters.replay(old, as_new=True)
    rows = shop._db.read(
        "SELECT id, type, topic, rank, lane, frame ->> '$.data.n', frame ->> '$.trace'"
        " FROM _onceward_outbox"
    )

    assert [(new, "job", "a.b", 1, "k", 1, "x")] == rows
    assert new != old
    assert [] == shop.dead_letters.list()


def test_a_replay_while_frozen_changes_nothing(world: World) -> None:
    """A refused replay leaves the letter where it was."""
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1), ttl=5)
    world.wait(6)
    shop.file.pause()
    for as_new in (False, True):
        with pytest.raises(Paused):
            shop.dead_letters.replay(message, as_new=as_new)

    assert [message] == [letter.id for letter in shop.dead_letters.list()]
    shop.file.resume()


def test_a_dead_key_is_not_sent_again(world: World) -> None:
    """The id or key of a dead letter is refused: it is replayed or discarded first."""
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1), ttl=5, key="k")
    world.wait(6)
    with pytest.raises(Conflict):
        shop.send("billing", Job(n=1), key="k")
    assert shop.dead_letters.discard(message)

    shop.send("billing", Job(n=1), key="k")
    assert "pending" == shop.state(message)


def test_listing_discarding_and_purging(world: World) -> None:
    """Letters are found by reason and peer, forgotten one by one or by age, and nothing else is."""
    shop = world.open("shop", hold_unknown=True)
    first = shop.send("billing", Job(n=1), ttl=5)
    world.wait(6)
    world.wait(100)
    second = shop.send("store", Job(n=2), ttl=5)
    world.wait(10)

    assert [second, first] == [letter.id for letter in shop.dead_letters.list(reason="expired")]
    assert [second] == [letter.id for letter in shop.dead_letters.list(peer="store")]
    assert [first] == shop.dead_letters.discard_all(older_than=50)
    assert [second] == [letter.id for letter in shop.dead_letters.list()]
    assert [True, False] == [shop.dead_letters.discard(second), shop.dead_letters.discard(second)]
    with pytest.raises(InvalidArgument):
        shop.dead_letters.replay(second)


def test_letters_of_two_senders_with_one_id_are_two(world: World) -> None:
    """Two agents that chose the same id: discarding one's letter leaves the other's."""
    _, billing = opened(world, {1, 2})
    for n, name in enumerate(("one", "two"), start=1):
        box = world.open(name)
        box.peers.add("billing", "wire:billing")
        box.send("billing", Job(n=n), message_id="same")
    world.settle()
    billing.dead_letters.discard("same")

    assert 1 == len(billing.dead_letters.list())


def test_letters_to_oneself_are_told_apart(world: World) -> None:
    """An agent's message to itself that died at the door is one letter; its replay does it once."""
    billing = world.open(choosy(set()))
    with billing.begin() as tx:
        tx.execute("CREATE TABLE effects (n)")
    message = billing.send("billing", Job(n=1))
    world.settle()

    assert [1] == effects(billing)
    assert "acked" == billing.state(message)


def test_an_expired_letter_that_never_left_is_sent_as_new_only(world: World) -> None:
    """
    The frame of an expired letter says when it expired, so a replay is refused.

    It could only end in the same place; the error says what can help.
    """
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1), ttl=5)
    world.wait(6)

    with pytest.raises(InvalidArgument, match="as_new=True"):
        shop.dead_letters.replay(message)
    assert [message] == [letter.id for letter in shop.dead_letters.list()]
    assert "pending" == shop.state(shop.dead_letters.replay(message, as_new=True))


def test_an_expired_letter_that_the_peer_refused_is_sent_as_new_only(world: World) -> None:
    """A peer that refused it as expired does not know it, so asking again is no use either."""
    shop, _ = opened(world, set())
    message = shop.send("billing", Job(n=1), ttl=5)
    world.wire.on_push = lambda _: world.clock.forward(6)
    shop.run_until_idle()

    assert ["expired"] == [letter.reason for letter in shop.dead_letters.list()]
    with pytest.raises(InvalidArgument, match="as_new=True"):
        shop.dead_letters.replay(message)


def test_a_letter_that_dies_again_is_one_letter(world: World) -> None:
    """
    Each failed replay is counted on the one letter, which stays whole.

    Replayed as new, it names what it was.
    """
    shop, billing = opened(world, {1})
    message = shop.send("billing", Job(n=1), priority="urgent", topic="a.b", correlation_id="talk")
    world.settle()
    for _ in range(3):
        billing.dead_letters.replay(message)
        world.settle()
    [letter] = billing.dead_letters.list()

    assert (message, "urgent", "a.b", 3) == (
        letter.id,
        letter.priority,
        letter.topic,
        letter.replays,
    )
    assert [("talk",)] == billing._db.read("SELECT correlation_id FROM onceward_dead_letters")


def test_a_replayed_message_remembers_it(world: World) -> None:
    """How often a message was replayed is told by its next dead letter."""
    shop, billing = opened(world, {1})
    message = shop.send("billing", Job(n=1))
    world.settle()
    billing.dead_letters.replay(message)
    world.settle()
    billing.file.run_maintenance()

    assert [1] == [letter.replays for letter in billing.dead_letters.list()]


def test_letters_are_found_by_everything_that_is_known_of_them(world: World) -> None:
    """Reason, peer, topic (or pattern), session, origin and age narrow the list; all must hold."""
    shop = world.open("shop", hold_unknown=True)
    ids = {
        name: shop.session(session).send(to, Job(n=1), ttl=ttl, topic=topic)
        for name, session, to, ttl, topic in (
            ("old", "s", "billing", 5, "build.api.failed"),
            ("young", "s", "billing", 100, "build.web.failed"),
            ("other", "t", "store", 5, None),
        )
    }
    world.wait(6)
    world.wait(100)

    def found(**which: Any) -> list[str]:
        letters = [letter.id for letter in shop.dead_letters.list(**which)]
        return sorted(name for name, message_id in ids.items() if message_id in letters)

    assert ["old", "other", "young"] == found() == found(origin="outbox", reason="expired")
    assert (
        ["old", "young"]
        == found(topic="build.*.failed")
        == found(topic="build.#")
        == found(session="s")
    )
    assert ["old"] == found(topic="build.api.failed") == found(session="s", older_than=50)
    assert [["other"], [], []] == [found(peer="store"), found(topic="*"), found(origin="inbox")]
    assert (found(), []) == (found(type="job"), found(type="jobs"))
    assert 1 == len(shop.dead_letters.list(topic="build.#", limit=1))
    with pytest.raises(InvalidMessage):
        found(topic="a.#.b")


def test_letters_are_replayed_in_bulk(world: World) -> None:
    """All that match go back in one call; those that cannot are named with the reason, and stay."""
    shop = world.open(
        "shop", hold_unknown=True, delivery_attempts=1, count_unreachable_attempts=True
    )
    shop.peers.add("billing", "wire:billing")
    world.wire.always = "down"
    lost = [shop.send("billing", Job(n=n)) for n in range(5)]
    world.settle()
    expired = shop.send("store", Job(n=9), ttl=1)
    world.wait(2)
    dry = shop.dead_letters.replay_all(dry_run=True)
    before = len(shop.dead_letters.list())
    replays = shop.dead_letters.replay_all()

    assert ([*lost, expired], 6) == (dry.done, before)
    assert (lost, [expired]) == (replays.done, [message for message, _ in replays.failed])
    assert [expired] == [letter.id for letter in shop.dead_letters.list()]
    assert [] == shop.dead_letters.replay_all(peer="store", reason="rejected").done
    assert 1 == len(shop.dead_letters.replay_all(as_new=True).done)


@pytest.mark.parametrize("rate", [2, "2/s"])
def test_a_rate_is_a_date_in_each_row(world: World, rate: Any) -> None:
    """
    With a rate the outgoing letters leave one after the other.

    They do so also if the process that asked for it is gone.
    """
    shop = world.open(
        "shop", hold_unknown=True, delivery_attempts=1, count_unreachable_attempts=True
    )
    shop.peers.add("billing", "wire:billing")
    world.wire.always = "down"
    for n in range(6):
        shop.send("billing", Job(n=n))
    world.settle()
    shop.dead_letters.replay_all(rate=rate)
    now = world.clock.now()

    assert [0, 0, 1000, 1500, 2000, 2500] == [
        (at or now) - now
        for (at,) in shop._db.read("SELECT due_at FROM _onceward_outbox ORDER BY seq")
    ]
    with pytest.raises(InvalidArgument):
        shop.dead_letters.replay_all(rate=0)


def test_a_letter_sent_as_new_keeps_who_it_was(world: World) -> None:
    """The new message names the old one, and stays in its channel, conversation and kind."""
    shop = world.open("shop", hold_unknown=True)
    old = shop.send("billing", b"\x00\xff", ttl=5, correlation_id="talk", reply_to="store")
    world.wait(6)
    new = shop.dead_letters.replay(old, as_new=True)
    [(frame,)] = shop._db.read("SELECT frame FROM _onceward_outbox WHERE id = ?", (new,))
    sent = Frame.parse(frame)

    assert (old, "talk", "store", "AP8=", None) == (
        sent.headers["replayof"],
        sent.correlationid,
        sent.replyto,
        sent.data_base64,
        sent.expires_at,
    )
