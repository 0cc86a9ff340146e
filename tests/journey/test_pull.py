"""Receiving by hand: one reader has a message, and all that it does with it is one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Drop, Msg, Postbox, Reject, Retry
from onceward.errors import InvalidArgument, LeaseLost
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Note(Msg, type="note"):
    """Something else."""

    text: str


def delivered(world: World, *numbers: int, **settings: object) -> tuple[Postbox, Postbox]:
    """Return a sender and a reader whose inbox holds jobs."""
    shop, reader = world.open("shop"), world.open("reader", **settings)
    with reader.begin() as tx:
        tx.execute("CREATE TABLE effects (n)")
    for n in numbers:
        shop.session(f"s{n}").send("reader", Job(n=n))
    shop.run_until_idle()
    return shop, reader


def effects(box: Postbox) -> list[int]:
    """Return what was written."""
    return [n for (n,) in box._db.read("SELECT n FROM effects ORDER BY rowid")]


@pytest.mark.parametrize("wanted", [[Job], ("job", "note"), 1])
def test_only_one_type_is_received(world: World, wanted: Any) -> None:
    """A list, several names and a number are refused, and no message is leased."""
    _, reader = delivered(world, 1)

    with pytest.raises(InvalidArgument, match="must be a type as which a body can be read"):
        reader.receive(wanted, timeout=0)
    assert reader.receive(Job, timeout=0) is not None


def test_a_block_that_ends_well_acks(world: World) -> None:
    """Leaving the block marks the message as processed, and its sender learns it."""
    shop, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    with message:
        pass
    world.settle()

    assert "acked" == shop.state(message.id)
    assert reader.receive() is None


def test_ack_and_effects_are_one_commit(world: World) -> None:
    """An ack inside a transaction is committed or rolled back with its effects."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    with pytest.raises(ZeroDivisionError), reader.begin() as tx:
        tx.execute("INSERT INTO effects VALUES (1)")
        message.ack()
        raise ZeroDivisionError
    undone = effects(reader), reader.file.stats()["processed"]
    world.clock.forward(31)
    again = reader.receive(Job)
    assert again is not None
    with reader.begin() as tx:
        tx.execute("INSERT INTO effects VALUES (1)")
        again.ack()

    assert ([], 0) == undone
    assert ([1], 1) == (effects(reader), reader.file.stats()["processed"])


def test_an_ack_that_was_rolled_back_can_be_given_again(world: World) -> None:
    """A message whose ack was undone with its transaction is still in the reader's hands."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    with pytest.raises(ZeroDivisionError), reader.begin():
        message.ack()
        raise ZeroDivisionError
    message.ack()

    assert 1 == reader.file.stats()["processed"]


def test_an_exception_in_the_block_puts_the_message_back(world: World) -> None:
    """The message comes again after its backoff, and the exception goes on."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    with pytest.raises(ZeroDivisionError), message:
        raise ZeroDivisionError
    at_once = reader.receive(Job)
    world.clock.forward(1)
    again = reader.receive(Job)

    assert at_once is None
    assert again is not None
    assert 2 == again.attempt
    again.ack()


@pytest.mark.parametrize(
    ("signal", "stays"), [(Retry(after=5), True), (Reject("no"), False), (Drop(), False)]
)
def test_signals_end_the_block_quietly(world: World, signal: Exception, stays: bool) -> None:
    """Retry, Reject and Drop say how the message ends, and do not leave the block."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    with message:
        raise signal
    world.clock.forward(5)

    again = reader.receive(Job)

    assert stays == (again is not None)
    if again is not None:
        again.ack()
    assert isinstance(signal, Reject) == bool(reader.dead_letters.list())


def test_two_readers_never_have_the_same_message(world: World) -> None:
    """While one reader holds a message another gets the next one, or none."""
    _, reader = delivered(world, 1, 2)
    rival = Postbox(
        world.path("reader"), agent="reader", start=False, testing=Controls(clock=world.clock)
    )
    messages = [reader.receive(Job), rival.receive(Job), reader.receive(Job), rival.receive(Job)]
    held = [message for message in messages if message is not None]

    assert {1, 2} == {message.body.n for message in held}
    assert 2 == len(held)
    for message in held:
        message.ack()
    rival.close()


def test_a_reader_of_one_lane_takes_one_message_at_a_time(world: World) -> None:
    """The second message of a lane is not handed out before the first one has ended."""
    shop, reader = world.open("shop"), world.open("reader")
    shop.send_many([("reader", Job(n=1)), ("reader", Job(n=2))])
    shop.run_until_idle()
    first = reader.receive(Job)
    blocked = reader.receive(Job)
    assert first is not None
    first.ack()
    second = reader.receive(Job)

    assert blocked is None
    assert second is not None
    assert 2 == second.body.n
    second.ack()


def test_a_lease_that_ran_out_is_lost(world: World) -> None:
    """
    A reader that was too slow is told so by every verb.

    The writes of its ack are rolled back.
    """
    _, reader = delivered(world, 1)
    slow = reader.receive(Job)
    world.clock.forward(31)
    rival = reader.receive(Job)
    assert slow is not None
    assert rival is not None
    with pytest.raises(LeaseLost), reader.begin() as tx:
        tx.execute("INSERT INTO effects VALUES (1)")
        slow.ack()
    for verb in (slow.retry, slow.reject, slow.drop, lambda: slow.extend(5)):
        with pytest.raises(LeaseLost):
            verb()
    rival.ack()
    with pytest.raises(LeaseLost):
        slow.ack()

    assert ([], 1, 2) == (effects(reader), reader.file.stats()["processed"], rival.attempt)


def test_extending_keeps_the_message(world: World) -> None:
    """A reader that extends its lease in time keeps the message."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    world.clock.forward(20)
    message.extend(60)
    world.clock.forward(50)
    rival = reader.receive(Job)
    message.ack()

    assert rival is None


def test_a_message_is_settled_once(world: World) -> None:
    """Settling twice is a mistake that is named."""
    _, reader = delivered(world, 1)
    message = reader.receive(Job)
    assert message is not None
    message.ack()
    with pytest.raises(InvalidArgument):
        message.retry()


def test_readers_budget(world: World) -> None:
    """A message that readers never settle or keep putting back is buried after its attempts."""
    _, reader = delivered(world, 1, 2, handler_attempts=3)
    for _ in range(10):
        world.clock.forward(100)
        while (message := reader.receive(Job)) is not None:
            if message.body.n == 1:
                message.retry()

    assert ["attempts_spent"] * 2 == [letter.reason for letter in reader.dead_letters.list()]


def test_reading_by_type_leaves_the_rest(world: World) -> None:
    """
    A reader that wants one type gets that type, also from behind another one.

    It changes nothing about the others.
    """
    shop, reader = world.open("shop"), world.open("reader")
    shop.send("reader", Note(text="first"))
    shop.send("reader", Job(n=1))
    shop.run_until_idle()
    for _ in range(10):
        job = reader.receive(Job)
        assert job is not None
        job.retry(after=0)
    note = reader.receive(Note)

    assert note is not None
    assert ("first", 1) == (note.body.text, note.attempt)
    note.ack()


def test_a_body_that_does_not_fit_is_rejected_on_the_way(world: World) -> None:
    """
    A reader never sees a body that it did not ask for.

    It is a dead letter and the next one comes.
    """
    shop, reader = world.open("shop"), world.open("reader")
    shop.send("reader", {"n": "x"}, type="job")
    shop.send("reader", Job(n=2))
    shop.run_until_idle()
    message = reader.receive(Job)

    assert message is not None
    assert (2, ["rejected"]) == (
        message.body.n,
        [letter.reason for letter in reader.dead_letters.list()],
    )
    message.ack()


def test_replying_by_hand_joins_the_transaction(world: World) -> None:
    """Reply and ack in one block reach the sender together."""
    shop, reader = world.open("shop"), world.open("reader")
    ticket = shop.request("reader", Job(n=1))
    shop.run_until_idle()
    message = reader.receive(Job)
    assert message is not None
    with reader.begin():
        message.reply(Note(text="done"))
        message.ack()
    world.settle()

    assert "done" == shop.result(ticket, reply=Note).text
    assert "acked" == shop.state(ticket.id)


def test_a_reader_that_dies_gives_its_message_back(world: World) -> None:
    """A message in the hands of a process that is gone comes again when its lease is over."""
    _, reader = delivered(world, 1)
    reader.receive(Job)
    (_, reader) = world.reopen("shop", "reader")
    before = reader.receive(Job)
    world.clock.forward(31)
    after = reader.receive(Job)

    assert before is None
    assert after is not None
    assert 2 == after.attempt
    after.ack()


def test_messages_ends_where_nothing_comes(world: World) -> None:
    """Iterating with a timeout of nothing yields what is there."""
    _, reader = delivered(world, 1, 2, 3)
    seen = []
    for message in reader.receive_each(Job, timeout=0):
        with message:
            seen.append(message.body.n)

    assert [1, 2, 3] == seen


def test_a_message_is_received_by_its_id(world: World) -> None:
    """Also behind others of its lane, which keep their order; once, and not what has ended."""
    shop, reader = world.open("shop"), world.open("reader")
    first, second, third = (shop.send("reader", Job(n=n)) for n in (1, 2, 3))
    shop.run_until_idle()
    message = reader.receive_one(second, Job)
    assert message is not None
    twice = reader.receive_one(second, Job)
    message.ack()
    rest = [reader.receive(Job) for _ in range(1)]
    for each in rest:
        assert each is not None
        each.ack()

    assert 2 == message.body.n
    assert twice is None
    assert reader.receive_one(second) is None
    assert [first] == [each.id for each in rest if each is not None]
    assert third == reader.query("SELECT id FROM onceward_inbox WHERE state = 'pending'")[0][0]
