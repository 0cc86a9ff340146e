"""Asking and being answered: now, late, after a restart, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Context, Drop, Msg, Postbox, Reject, Ticket, Tuning
from onceward.core.send.add import add_request
from onceward.errors import AnswerTimeout, Conflict, InvalidArgument, InvalidMessage, RequestFailed
from onceward.message.frame import digest

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Ask(Msg, type="ask"):
    """A question."""

    n: int


class Answer(Msg, type="answer"):
    """Its answer."""

    n: int


class Progress(Msg, type="progress"):
    """Something said in between."""

    percent: int


def answering(name: str = "oracle") -> Agent:
    """Return an agent that answers with the next number."""
    agent = Agent(name)

    @agent.on(Ask)
    def answer(ask: Ask) -> Answer:
        return Answer(n=ask.n + 1)

    return agent


def test_a_reply_survives_a_restart_of_who_asked(world: World) -> None:
    """The ticket's id is enough to get the reply in another process, as often as one likes."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1))
    shop, _ = world.reopen("shop", "oracle")
    world.settle()
    shop, _ = world.reopen("shop", "oracle")

    assert [Answer(n=2)] * 2 == [shop.result(ticket.id, reply=Answer) for _ in range(2)]
    assert shop.receive() is None
    assert 0 == shop.file.stats()["tickets_open"]


def test_a_request_is_committed_with_its_transaction(world: World) -> None:
    """Its ticket is there at once; a rollback takes the request along."""
    shop, _ = world.open("shop"), world.open(answering())
    with pytest.raises(ZeroDivisionError), shop.begin() as tx:
        lost = tx.request("oracle", Ask(n=1))
        raise ZeroDivisionError
    with shop.begin() as tx:
        ticket = tx.request("oracle", Ask(n=2))
    world.settle()

    assert ("absent", Answer(n=3)) == (shop.state(lost.id), shop.result(ticket, reply=Answer))


def test_no_reply_yet_is_a_timeout(world: World) -> None:
    """Waiting ends with AnswerTimeout, and the same ticket gets the reply later."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1))
    with pytest.raises(AnswerTimeout, match="which is pending, within"):
        shop.result(ticket, reply=Answer)
    world.settle()

    assert Answer(n=2) == shop.result(ticket, reply=Answer)


def test_a_late_reply_is_kept(world: World) -> None:
    """A reply after the deadline is still there for who asks again."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1), timeout=5)
    world.clock.forward(6)
    world.settle()

    assert Answer(n=2) == shop.result(ticket, reply=Answer)
    assert [("late",)] == shop._db.read("SELECT state FROM _onceward_pending_replies")


def test_a_request_that_the_peer_gave_up_fails(world: World) -> None:
    """A rejected request ends its waiting with the peer's reason."""
    agent = Agent("oracle")

    @agent.on(Ask)
    def answer(ask: Ask) -> Answer:
        raise Reject(f"{ask.n} is not a question")

    shop, _ = world.open("shop"), world.open(agent)
    ticket = shop.request("oracle", Ask(n=1))
    world.settle()

    with pytest.raises(RequestFailed, match="rejected"):
        shop.result(ticket, reply=Answer)


def test_a_request_that_expired_here_fails(world: World) -> None:
    """A request that never left ends its waiting too."""
    shop, _ = world.open("shop", hold_unknown=True), None
    ticket = shop.request("oracle", Ask(n=1), ttl=5)
    world.wait(6)

    with pytest.raises(RequestFailed, match="expired"):
        shop.result(ticket, reply=Answer)


def test_the_reply_is_what_is_replied(world: World) -> None:
    """What a handler sends to the asker besides its reply is ordinary mail, not the reply."""
    agent = Agent("oracle")

    @agent.on(Ask)
    def answer(ask: Ask, ctx: Context) -> Answer:
        ctx.send("shop", Progress(percent=50))
        return Answer(n=ask.n + 1)

    shop, _ = world.open("shop"), world.open(agent)
    ticket = shop.request("oracle", Ask(n=1))
    world.settle()
    progress = shop.receive(Progress)

    assert Answer(n=2) == shop.result(ticket, reply=Answer)
    assert progress is not None
    progress.ack()


def test_nobody_else_can_answer(world: World) -> None:
    """A message of a third agent that names the request as its cause is not a reply to it."""
    shop, thief = world.open("shop"), world.open("thief")
    world.open(answering())
    ticket = shop.request("oracle", Ask(n=1))
    thief.send("shop", Answer(n=666), causation_id=ticket.id, correlation_id=ticket.id)
    thief.run_until_idle()
    early = shop.file.stats()["tickets_open"]
    world.settle()

    assert 1 == early
    assert Answer(n=2) == shop.result(ticket, reply=Answer)
    for message in shop.receive_each(timeout=0):
        message.ack()


def test_a_reply_of_another_shape_is_named(world: World) -> None:
    """A reply that does not fit the request raises InvalidMessage, and can be read as it is."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1))
    world.settle()
    with pytest.raises(InvalidMessage):
        shop.result(ticket, reply=Progress)

    assert {"n": 2} == shop.result(ticket, reply=dict)


def test_a_replayed_request_can_still_be_answered(world: World) -> None:
    """A request that was given up and replayed gets its reply through the old ticket."""
    shop = world.open("shop", hold_unknown=True)
    ticket = shop.request("oracle", Ask(n=1))
    world.open(Agent("oracle"))
    shop._db.write(lambda tx: tx.run("UPDATE _onceward_outbox SET expires_at = created_at"))
    world.settle()
    world.boxes.pop("oracle").close()
    world.open(answering())
    shop.dead_letters.replay(ticket.id)
    world.settle()

    assert Answer(n=2) == shop.result(ticket, reply=Answer)


def test_asking_inside_a_transaction_is_refused(world: World) -> None:
    """Waiting for a reply to a message that is not committed would wait for ever."""
    shop, _ = world.open("shop"), world.open(answering())
    with shop.begin(), pytest.raises(InvalidArgument):
        shop.ask("oracle", Ask(n=1), reply=Answer, timeout=1)


def test_an_unknown_ticket_is_named(world: World) -> None:
    """A ticket this file never gave out is an error, not a wait."""
    shop = world.open("shop")
    with pytest.raises(InvalidArgument):
        shop.result(Ticket("nothing", "oracle"), reply=Answer, timeout=5)


def test_asking_with_engines(world: World) -> None:
    """With engines running, ask returns the reply."""
    with (
        Postbox(world.path("oracle"), agent=answering()),
        Postbox(world.path("shop"), agent="shop") as shop,
    ):
        assert [Answer(n=n + 1) for n in range(5)] == [
            shop.ask("oracle", Ask(n=n), reply=Answer, timeout=60) for n in range(5)
        ]


def test_agents_that_ask_each_other_do_not_lock_up(world: World) -> None:
    """A handler may ask another agent while it runs, and even its asker."""
    one, two = Agent("one"), Agent("two")
    boxes: dict[str, Postbox] = {}

    @one.on(Ask)
    def first(ask: Ask) -> Answer:
        return boxes["one"].ask("two", Progress(percent=ask.n), reply=Answer, timeout=60)

    @two.on(Progress)
    def second(progress: Progress) -> Answer:
        return Answer(n=progress.percent * 2)

    with (
        Postbox(world.path("one"), agent=one) as boxes["one"],
        Postbox(world.path("two"), agent=two),
        Postbox(world.path("shop"), agent="shop") as shop,
    ):
        assert Answer(n=14) == shop.ask("one", Ask(n=7), reply=Answer, timeout=60)


def listening(*, drops: bool = False) -> Agent:
    """Return an agent whose handler reads a question and answers nothing."""
    agent = Agent("oracle")

    @agent.on(Ask)
    def listen(ask: Ask) -> None:
        if drops:
            raise Drop

    return agent


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("ack", ["processed", "stored"])
def test_a_request_that_ends_without_a_reply_fails_at_once(
    world: World, ack: str, drops: bool
) -> None:
    """A handler that returns None, or drops the request, ends the waiting for its reply."""
    shop, _ = world.open("shop", ack=ack), world.open(listening(drops=drops))
    ticket = shop.request("oracle", Ask(n=1))
    world.settle()

    with pytest.raises(RequestFailed, match="processed without a reply") as caught:
        shop.result(ticket, reply=Answer)
    assert (ticket.id, "processed without a reply") == (
        caught.value.message_id,
        caught.value.reason,
    )
    assert 0 == shop.file.stats()["tickets_open"]
    assert "acked" == shop.state(ticket.id)


def test_the_end_of_a_request_is_told_again(world: World) -> None:
    """An asker whose receipt got lost is told again that its request has no reply."""
    shop, oracle = world.open("shop"), world.open(listening())
    ticket = shop.request("oracle", Ask(n=1))
    shop.run_until_idle()
    oracle._workers[0].run_due()
    oracle._db.write(lambda tx: tx.run("DELETE FROM _onceward_receipts"))
    before = shop.file.stats()["tickets_open"]
    world.wait(38)

    with pytest.raises(RequestFailed, match="processed without a reply"):
        shop.result(ticket, reply=Answer)
    assert 1 == before


def test_a_request_that_is_read_by_hand_fails_at_its_ack(world: World) -> None:
    """A reader that acknowledges a request without replying ends the waiting, too."""
    shop, oracle = world.open("shop"), world.open("oracle")
    tickets = [shop.request("oracle", Ask(n=n)) for n in range(2)]
    world.settle()
    for message in oracle.receive_each(Ask, timeout=0):
        with message:
            if message.body.n:
                message.reply(Answer(n=2))
    world.settle()

    with pytest.raises(RequestFailed, match="processed without a reply"):
        shop.result(tickets[0], reply=Answer)
    assert Answer(n=2) == shop.result(tickets[1], reply=Answer)


def test_a_request_with_spaces_in_its_frame_fails_at_its_ack(world: World) -> None:
    """Programs in other languages may write a frame with a space before each colon."""
    shop, hand = world.wired("shop", "hand")
    made = shop._outbox.compose("default", "hand", "who?", {"reply_to": "shop"})
    frame = made.frame.replace('"replyto":', '"replyto" : ')
    spaced = made._replace(frame=frame, digest=digest(frame))
    ticket = shop._db.write(lambda tx: add_request(tx, shop._outbox, spaced, 60.0))
    world.settle()
    message = hand.receive()
    assert message is not None
    message.ack()
    world.settle()

    with pytest.raises(RequestFailed, match="processed without a reply"):
        shop.result(ticket, reply=str)


def test_a_reply_may_travel_behind_its_receipt(world: World) -> None:
    """A request whose reply waits behind other messages stays open until the reply arrives."""
    shop = world.open("shop")
    oracle = world.open(answering(), tuning=Tuning(parcel_max_messages=1))
    oracle.peers.add("shop", "wire:shop")
    oracle.send_many([("shop", n) for n in range(2)])
    ticket = shop.request("oracle", Ask(n=1))
    shop.run_until_idle()
    oracle._workers[0].run_due()
    still_open: list[int] = []
    world.wire.on_push = lambda _: still_open.append(shop.file.stats()["tickets_open"])
    oracle.run_until_idle()

    assert [1, 1, 1] == still_open
    assert Answer(n=2) == shop.result(ticket, reply=Answer)


def test_a_reply_after_the_end_is_still_the_reply(world: World) -> None:
    """A request that its handler left for later fails at once, and a later reply is kept."""
    shop, oracle = world.open("shop"), world.open(listening())
    ticket = shop.request("oracle", Ask(n=1))
    world.settle()
    failed = shop.file.stats()["tickets_open"]
    oracle.send("shop", Answer(n=2), in_reply_to=ticket.id)
    world.settle()

    assert 0 == failed
    assert Answer(n=2) == shop.result(ticket, reply=Answer)


def test_a_conflict_names_the_request_that_has_the_key(world: World) -> None:
    """The same key with another question names the first request."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1), key="one")
    with pytest.raises(Conflict) as caught:
        shop.request("oracle", Ask(n=2), key="one")

    assert (ticket.id, "sent before") == (caught.value.message_id, caught.value.reason)


def test_a_timeout_names_its_request(world: World) -> None:
    """The error of a reply that is not there yet carries the id that gets it later."""
    shop, _ = world.open("shop"), world.open(answering())
    ticket = shop.request("oracle", Ask(n=1))
    with pytest.raises(AnswerTimeout) as caught:
        shop.result(ticket, reply=Answer)
    world.settle()
    kept = caught.value.message_id

    assert (ticket.id, "pending") == (kept, caught.value.reason)
    assert Answer(n=2) == shop.result(str(kept), reply=Answer)


def test_a_ticket_waits_as_long_as_its_request(world: World) -> None:
    """A request to an agent that is away for longer than the retention still gets its reply."""
    shop = world.open("shop", hold_unknown=True, retention=600.0)
    ticket = shop.request("oracle", Ask(n=1))
    world.wait(3600)
    shop.file.run_maintenance()
    world.open(answering())
    world.wait(120)

    assert Answer(n=2) == shop.result(ticket, reply=Answer)
    assert 0 == shop.file.stats()["dead_letters"]


def test_a_request_that_a_limit_drops_has_failed_at_once(world: World) -> None:
    """Its ticket names the limit and does not wait for the time-out; so does ``ask``."""
    shop, _ = world.open("shop"), world.open(answering())
    shop.limits.set("outbox", messages=1, overflow="drop_new")
    shop.send("oracle", "first")
    ticket = shop.request("oracle", Ask(n=1), timeout="1h")
    with pytest.raises(RequestFailed, match="limit of outbox") as waited:
        shop.result(ticket, reply=Answer, timeout=0)
    with pytest.raises(RequestFailed, match="limit of outbox") as asked:
        shop.ask("oracle", Ask(n=2), reply=Answer, timeout="1h")

    told = "dropped: drop_new: the limit of outbox is reached"
    assert (told, told) == (waited.value.reason, asked.value.reason)
    assert 0 == shop.file.stats()["tickets_open"]
