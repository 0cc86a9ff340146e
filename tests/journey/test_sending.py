"""From send to acked: the sender's file at every station, and receipts that come oddly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Agent, Context, Msg, Reject
from onceward.events import WeakReceipt
from onceward.message.events import Event
from onceward.message.parcel import Parcel, Receipt

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Result(Msg, type="result"):
    """What came of a task."""

    n: int


def test_a_message_is_pending_then_sent_then_acked(world: World) -> None:
    """The sender's file tells each station: promised, stored by the peer, processed by the peer."""
    shop, billing = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    seen = [shop.state(message)]

    shop.run_until_idle()
    seen.append(shop.state(message))
    billing.run_until_idle()
    seen.append(shop.state(message))

    assert ["pending", "sent", "acked"] == seen
    assert [1] == effects(world)


def test_a_message_in_a_parcel_is_sending(world: World) -> None:
    """A message whose push has not been answered stands as sending, before and after a restart."""
    shop, _ = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    world.wire.script = ["down"]
    shop.run_until_idle()

    assert "sending" == shop.state(message)
    shop, _ = world.reopen("shop", "billing")
    assert "sending" == shop.state(message)


def test_an_option_that_no_send_has_is_named(world: World) -> None:
    """A typing error in an option names it and lists those there are; nothing is written."""
    shop, _ = world.wired("shop", counting())
    with pytest.raises(TypeError, match="a send has no option prio; did you mean priority"):
        shop.send("billing", Job(n=1), prio="high")  # type: ignore[call-arg]

    assert 0 == shop.file.stats()["enqueued"]


def test_a_rolled_back_send_never_leaves(world: World) -> None:
    """A message is undone with the transaction that promised it, though its id was known."""
    shop, _ = world.wired("shop", counting())

    def fail() -> str:
        with shop.begin() as tx:
            message = tx.send("billing", Job(n=1))
            with pytest.raises(ZeroDivisionError), shop.begin() as inner:
                inner.send("billing", Job(n=2))
                raise ZeroDivisionError
            tx.execute("CREATE TABLE mine (id)")
            tx.execute("INSERT INTO mine VALUES (?)", (message,))
            return message

    kept = fail()
    world.settle()

    assert [1] == effects(world)
    assert "acked" == shop.state(kept)


def test_an_early_receipt_counts(world: World) -> None:
    """The peer's word that it processed a message holds while the push's answer is under way."""
    shop, billing = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))

    def early(parcel: Parcel) -> None:
        world.wire.on_push = lambda _: None
        world.wire.push_again(parcel)
        billing.run_until_idle()

    world.wire.on_push = early
    shop.run_until_idle()

    assert "acked" == shop.state(message)
    assert [1] == effects(world)


def test_a_late_answer_does_not_downgrade(world: World) -> None:
    """An acked message stays acked when its push's answer 'stored' comes after the outcome."""
    shop, billing = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    world.wire.script = ["lost"]
    shop.run_until_idle()
    billing.run_until_idle()
    before = shop.state(message)
    world.wait(2)

    assert ("acked", "acked") == (before, shop.state(message))
    assert [1] == effects(world)


def test_a_receipt_told_twice_counts_once(world: World) -> None:
    """The same outcome delivered again changes neither the message nor the totals."""
    shop, _ = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    world.settle()
    before = shop.file.stats()
    again = Parcel(
        sender="billing",
        recipient="shop",
        epoch="",
        number=0,
        previous="",
        receipts=(Receipt(message, "processed"),) * 2,
    )
    world.wire.push_again(again)

    assert before == shop.file.stats()


def test_a_receipt_of_somebody_else_counts_nothing(world: World) -> None:
    """Only the recipient can end a message: another agent's receipt for its id is passed over."""
    shop, _ = world.wired("shop", counting())
    message = shop.send("billing", Job(n=1))
    shop.run_until_idle()
    world.wire.push_again(
        Parcel(
            sender="thief",
            recipient="shop",
            epoch="",
            number=0,
            previous="",
            receipts=(Receipt(message, "processed"),),
        )
    )

    assert "sent" == shop.state(message)


def test_a_receipt_for_a_dead_letter_is_noted(world: World) -> None:
    """
    An outcome that comes after a message was given up is written beside its dead letter.

    It revives nothing.
    """
    shop, billing = world.wired("shop", counting(), delivery_attempts=1)
    message = shop.send("billing", Job(n=1))
    world.wire.on_push = lambda parcel: (world.wire.push_again(parcel), None)[1]
    world.wire.script = ["error"]
    shop.run_until_idle()
    world.wire.on_push = lambda _: None
    before = shop.state(message)
    world.settle()
    letter = shop.dead_letters.get(message)

    assert ("dead", "dead") == (before, shop.state(message))
    assert letter is not None
    assert ("attempts_spent", "processed") == (letter.reason, letter.late_outcome)
    assert [1] == effects(world)
    assert [] == billing.file.check()


def test_a_lost_answer_means_the_same_parcel_and_no_second_effect(world: World) -> None:
    """
    A sender that died between the peer's commit and its own pushes the same parcel.

    The peer finds nothing new.
    """
    shop, billing = world.wired("shop", counting())
    ids = shop.send_many([("billing", Job(n=n)) for n in range(3)])
    world.wire.script = ["died"]
    with pytest.raises(world.crash):
        shop.run_until_idle()
    billing.run_until_idle()
    shop, billing = world.reopen("shop", "billing")
    world.wait(61)

    first, second = [parcel for parcel in world.wire.pushed if parcel.frames]
    assert (first.epoch, first.number, first.last_id) == (
        second.epoch,
        second.number,
        second.last_id,
    )
    assert ids == [carried.id for carried in second.frames]
    assert [0, 1, 2] == effects(world)
    assert ["acked"] * 3 == [shop.state(message) for message in ids]
    assert 3 == billing.file.stats()["duplicates"]


def test_a_stored_parcel_survives_a_restart(world: World) -> None:
    """A parcel packed before a crash is pushed as it was packed, though newer mail came since."""
    shop, _ = world.wired("shop", counting())
    old = shop.send_many([("billing", Job(n=n)) for n in range(2)])
    world.wire.script = ["cut"]
    with pytest.raises(world.crash):
        shop.run_until_idle()
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2), priority="critical")
    world.wait(61)

    assert old == [carried.id for carried in world.wire.pushed[1].frames]
    assert [0, 1, 2] == sorted(effects(world))


def test_a_dead_message_is_failed_at_the_sender(world: World) -> None:
    """A message that the peer buried ends failed here, with the peer's reason."""
    agent = Agent("billing")

    @agent.on(Job)
    def refuse(job: Job) -> None:
        raise Reject(f"no {job.n}")

    shop, billing = world.wired("shop", agent)
    message = shop.send("billing", Job(n=1))
    world.settle()

    assert "failed" == shop.state(message)
    assert [("rejected", "no 1")] == [
        (letter.reason, letter.last_error) for letter in billing.dead_letters.list()
    ]


def test_an_ack_timeout_asks_with_the_same_id(world: World) -> None:
    """
    A message that is stored but not handled is asked about again and again.

    The peer still has it and says so.
    """
    shop, billing = world.open("shop"), world.open("billing")
    shop.peers.add("billing", "wire:billing")
    message = shop.send("billing", Job(n=1))
    for _ in range(8):
        world.wait(700)

    assert {message} == set(world.wire.ids)
    assert 8 == len(world.wire.ids)
    assert "sent" == shop.state(message)
    assert (1, 7) == (billing.file.stats()["inbox_pending"], billing.file.stats()["duplicates"])


def test_what_nobody_handles_is_asked_about_ever_more_rarely(world: World) -> None:
    """
    The pause doubles each time, up to ten minutes; a quarter of it at most is added.

    Hours of silence cost dozens of questions, not hundreds.
    """
    shop, billing = world.open("shop"), world.open("billing")
    shop.peers.add("billing", "wire:billing")
    message = shop.send("billing", Job(n=1))
    asked: list[float] = []
    for elapsed in range(0, 2 * 3600, 10):
        asked += [elapsed] * (len(world.wire.ids) - len(asked))
        world.wait(10)

    pauses = [later - earlier for earlier, later in pairwise(asked)]
    expected = [30 * 2 ** min(number, 4) for number in range(len(pauses))]
    assert all(
        least <= pause <= least * 1.25 + 10 for pause, least in zip(pauses, expected, strict=True)
    )
    assert 15 < len(asked) < 25
    assert {message} == set(world.wire.ids)
    assert 1 == billing.file.stats()["inbox_pending"]


def test_a_peer_is_asked_about_all_its_old_messages_in_one_push(world: World) -> None:
    """
    Peers that handle nothing are asked by few pushes, each about several messages.

    Six messages to each are asked about four times in ten minutes, not eleven times.
    """
    shop, peers = world.open("shop"), [f"peer{number}" for number in range(10)]
    for peer in peers:
        world.open(peer)
        shop.peers.add(peer, f"wire:{peer}")
    for second in range(6):
        for peer in peers:
            shop.send(peer, Job(n=second))
        shop.run_until_idle()
        world.clock.forward(1)
    sent = len(world.wire.pushed)
    for _ in range(600):
        world.clock.forward(1)
        shop.run_until_idle()

    pushes = Counter(parcel.recipient for parcel in world.wire.pushed[sent:])
    assert {5} == set(Counter(world.wire.ids).values())
    assert max(pushes.values()) <= 2 * 4


def test_asking_does_not_spend_the_budget(world: World) -> None:
    """A message whose peer kept answering 'I still have it' survives the next failing push."""
    shop, _ = world.open("shop", delivery_attempts=4), world.open("billing")
    shop.peers.add("billing", "wire:billing")
    message = shop.send("billing", Job(n=1))
    for _ in range(6):
        world.wait(700)
    world.wire.script = ["error"]
    world.wait(700)

    assert [] == shop.dead_letters.list()
    assert shop.state(message) in {"pending", "sending", "sent"}


def test_custody_stays_where_the_peer_is_weaker(world: World) -> None:
    """A word of a peer whose commits may be lost with the power ends nothing, however it comes."""
    shop = world.open("shop")
    world.open(counting(), durability="fast")
    world.settle()
    message = shop.send("billing", Job(n=1))
    world.settle()

    assert [1] == effects(world)
    assert "sent" == shop.state(message)


def test_asking_a_weaker_peer_again_ends_nothing(world: World) -> None:
    """What such a peer answers to a message that is pushed again is not trusted either."""
    shop = world.open("shop", ack_timeout=30)
    told: list[Event] = []
    shop.on(WeakReceipt, told.append)
    world.open(counting(), durability="fast")
    message = shop.send("billing", Job(n=1))
    world.settle()
    told.clear()
    world.wait(38)
    world.settle()

    assert ([1], ["weak_receipt"]) == (effects(world), [event.name for event in told])
    assert "sent" == shop.state(message)


def test_a_weaker_peer_may_be_trusted(world: World) -> None:
    """With accept_weaker the word of such a peer counts."""
    shop = world.open("shop", accept_weaker=True)
    world.open(counting(), durability="fast")
    message = shop.send("billing", Job(n=1))
    world.settle()

    assert "acked" == shop.state(message)


def test_a_message_with_an_id_of_its_own_can_be_withdrawn(world: World) -> None:
    """A message that never left can be cancelled, with an id of the caller or of the library."""
    shop, _ = world.wired("shop", counting())
    minted = shop.send("billing", Job(n=1), delay=60)
    given = shop.send("billing", Job(n=2), delay=60, message_id="order-2")

    assert [True, True] == [bool(shop.cancel(minted)), bool(shop.cancel(given))]


def test_withdrawing_a_request_ends_its_ticket(world: World) -> None:
    """No ticket stays open for a request that was cancelled."""
    shop, _ = world.wired("shop", counting())
    ticket = shop.request("billing", Job(n=1), delay=60)

    assert shop.cancel(ticket.id)
    assert 0 == shop.file.stats()["tickets_open"]


def test_the_same_id_is_the_same_message(world: World) -> None:
    """
    Sending again with an id after an unknown outcome gives one message and one effect.

    That holds even after it was handled.
    """
    shop, _ = world.wired("shop", counting())
    first = shop.send("billing", Job(n=1), message_id="order-1")
    world.settle()
    second = shop.send("billing", Job(n=1), message_id="order-1")
    world.settle()

    assert first == second
    assert [1] == effects(world)


def test_a_reply_comes_back(world: World) -> None:
    """It is tied to the message whose handler sends it."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.reply(Result(n=job.n + 1))

    shop, _ = world.wired("shop", agent)
    message = shop.send("billing", Job(n=1))
    world.settle()
    reply = shop.receive(Result)

    assert reply is not None
    assert (Result(n=2), message, message) == (reply.body, reply.causation_id, reply.correlation_id)
    reply.ack()
