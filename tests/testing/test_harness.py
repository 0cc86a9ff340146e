"""One agent in a box: real file, manual clock, no threads."""

import threading
from collections.abc import Callable

import pytest
from pydantic import BaseModel

from onceward import Agent, AsyncContext, Context, Msg, Reject, Retry
from onceward.errors import InvalidArgument
from onceward.testing import Harness, ManualClock

ACCOUNT = "CREATE TABLE account(id, cents); INSERT INTO account VALUES (1, 5000)"


class InvoiceCreated(Msg, type="invoice.created"):
    """What billing is told."""

    id: int
    cents: int


class InvoicePaid(Msg, type="invoice.paid"):
    """What billing answers."""

    id: int


billing = Agent("billing")


@billing.on(InvoiceCreated)
def pay(invoice: InvoiceCreated, ctx: Context) -> None:
    """Pay an invoice."""
    ctx.tx.execute("UPDATE account SET cents = cents - ?", (invoice.cents,))
    ctx.send("audit", {"paid": invoice.id})
    ctx.reply(InvoicePaid(id=invoice.id))


@pytest.fixture
def box(harness: Callable[..., Harness]) -> Harness:
    """Return billing with an account of 50.00."""
    return harness(billing, schema=ACCOUNT)


def test_a_message_runs_through_its_handler(box: Harness) -> None:
    """Sending, delivering and looking at what became of it are three lines."""
    mail = box.send(InvoiceCreated(id=7, cents=1999), sender="shop", session="run-1")
    box.deliver()

    assert [(3001,)] == box.sql("SELECT cents FROM account")
    assert [InvoicePaid(id=7)] == box.sent("shop")
    assert [{"paid": 7}] == box.sent("audit")
    assert "acked" == box.peer("shop").state(mail)


def test_the_peer_gets_the_answer(box: Harness) -> None:
    """Peers are postboxes too: what the agent sends is delivered and can be received there."""
    box.send(InvoiceCreated(id=7, cents=1), sender="shop", session="run-1")
    box.deliver()

    message = box.peer("shop").session("run-1").receive(InvoicePaid)

    assert message is not None
    assert ("billing", InvoicePaid(id=7)) == (message.sender, message.body)


def test_a_peer_may_have_handlers(harness: Callable[..., Harness]) -> None:
    """A peer that answers is an agent of its own, run by the same deliver."""
    asker, oracle = Agent("asker"), Agent("oracle")

    @asker.on("question")
    def ask(question: str, ctx: Context) -> None:
        ctx.send("oracle", question, type="riddle")

    @asker.on("answer")
    def learn(answer: str, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO known VALUES (?)", (answer,))

    @oracle.on("riddle")
    def solve(riddle: str, ctx: Context) -> None:
        ctx.reply(riddle.upper(), type="answer")

    box = harness(asker, schema="CREATE TABLE known(answer)")
    box.peer("oracle", oracle)
    box.send("why?", type="question")
    box.deliver()

    assert [("WHY?",)] == box.sql("SELECT answer FROM known")


def test_no_thread_is_started(harness: Callable[..., Harness]) -> None:
    """Everything happens on the test's own thread, in an order that is the same every time."""
    before = set(threading.enumerate())
    box = harness(billing, schema=ACCOUNT)
    box.send(InvoiceCreated(id=7, cents=1))
    box.deliver()

    assert before == set(threading.enumerate())


def test_a_retry_waits_for_the_clock(harness: Callable[..., Harness]) -> None:
    """
    A message that asks for later is not handled before its time.

    The test need not wait for it.
    """
    agent, attempts = Agent("moody"), list[int]()

    @agent.on("mood")
    def handle(_: str, ctx: Context) -> None:
        attempts.append(ctx.message.attempt)
        if ctx.message.attempt == 1:
            raise Retry(after=30)

    box = harness(agent)
    box.send("hello", type="mood")
    box.deliver()
    box.advance(29)
    box.deliver()
    assert [1] == attempts

    box.advance(1)
    box.deliver()
    assert [1, 2] == attempts


def test_dead_letters_are_seen_on_the_postbox(harness: Callable[..., Harness]) -> None:
    """The postbox itself is there for everything that the harness has no word for."""
    agent = Agent("picky")

    @agent.on("offer")
    def handle(_: str) -> None:
        raise Reject("too dear")

    box = harness(agent)
    mail = box.send("gold", type="offer")
    box.deliver()

    letter = box.postbox.dead_letters.get(mail)
    assert letter is not None
    assert ("rejected", "too dear") == (letter.reason, letter.last_error)


def test_async_handlers_run_too(harness: Callable[..., Harness]) -> None:
    """A coroutine handler is run to its end by the same deliver."""
    agent = Agent("calm")

    @agent.on("name")
    async def greet(name: str, ctx: AsyncContext) -> None:
        await ctx.reply(f"hello {name}")

    box = harness(agent)
    box.send("you", type="name", sender="me")
    box.deliver()

    assert ["hello you"] == box.sent("me")


def test_settings_are_those_of_a_postbox(harness: Callable[..., Harness]) -> None:
    """A harness takes what a postbox takes, and refuses what it refuses."""
    with pytest.raises(InvalidArgument, match="colour"):
        harness(billing, colour="red")


def test_an_agent_may_be_a_name(harness: Callable[..., Harness]) -> None:
    """Mail to an agent without handlers waits to be received."""
    box = harness("reader")
    box.send({"n": 1})
    box.deliver()

    message = box.postbox.receive()

    assert message is not None
    assert {"n": 1} == message.body


def test_sent_reads_bodies_as_asked(box: Harness) -> None:
    """A body is read as the class of its type, or as the one that the test names."""

    class Note(BaseModel):
        paid: int

    box.send(InvoiceCreated(id=7, cents=1))
    box.deliver()

    assert [Note(paid=7)] == box.sent("audit", Note)


def test_sent_keeps_the_order(harness: Callable[..., Harness]) -> None:
    """Bodies come in the order of their commits, also where the clock stood still."""
    box = harness("counter")
    box.postbox.send_many([("shop", n) for n in range(20)])

    assert list(range(20)) == box.sent("shop")


def test_a_restart_loses_nothing(box: Harness) -> None:
    """The file is all that an agent is; the next process goes on where the last one ended."""
    box.send(InvoiceCreated(id=7, cents=1999), sender="shop")
    before = box.postbox
    box.restart()
    box.deliver()

    assert before is not box.postbox
    assert [(3001,)] == box.sql("SELECT cents FROM account")


def test_the_agent_itself_is_not_touched(box: Harness) -> None:
    """
    The harness works with a twin.

    The agent under test can be opened elsewhere at the same time.
    """
    assert pay is billing.handlers[0].call
    assert "billing" == box.postbox.agent


def test_two_harnesses_do_not_meet(harness: Callable[..., Harness]) -> None:
    """Agents and peers of the same names in two harnesses have nothing to do with each other."""
    one, two = harness(billing, schema=ACCOUNT), harness(billing, schema=ACCOUNT)
    one.send(InvoiceCreated(id=1, cents=1), sender="shop")
    two.send(InvoiceCreated(id=2, cents=2), sender="shop")
    one.deliver()
    two.deliver()

    assert [InvoicePaid(id=1)] == one.sent("shop")
    assert [InvoicePaid(id=2)] == two.sent("shop")


def test_the_clock_may_be_shared(
    harness: Callable[..., Harness], manual_clock: ManualClock
) -> None:
    """By default the harnesses of one test share its clock."""
    one, two = harness("one"), harness("two")

    one.advance(5)

    assert manual_clock.now() == two.clock.now()


def test_close_deletes_the_files() -> None:
    """Nothing is left behind, and closing again does nothing."""
    with Harness(billing) as box:
        folder = box.postbox.file.path.parent
        assert folder.exists()

    box.close()

    assert not folder.exists()
