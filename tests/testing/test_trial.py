"""A handler called as the plain function that it is."""

from collections.abc import Callable

import pytest

from onceward import Context
from onceward.testing import Harness


def note(text: str, ctx: Context) -> str:
    """Write down *text* and its sender."""
    ctx.tx.execute("INSERT INTO notes VALUES (?, ?)", (ctx.message.sender, text))
    ctx.send("archive", text)
    ctx.extend(5)
    return text.upper()


@pytest.fixture
def box(harness: Callable[..., Harness]) -> Harness:
    """Return an agent with a table and no handlers."""
    return harness("clerk", schema="CREATE TABLE notes(sender, text)")


def test_a_handler_can_be_called_alone(box: Harness) -> None:
    """
    Its statements run on the real schema; the test sees its mail in the real outbox.

    It sees the mail at once.
    """
    answer = note("milk", box.context(sender="me"))

    assert "MILK" == answer
    assert [("me", "milk")] == box.sql("SELECT sender, text FROM notes")
    assert ["milk"] == box.sent("archive")


def test_a_block_commits(box: Harness) -> None:
    """Leaving the block keeps what the handler did, as its processed mark would."""
    with box.context() as ctx:
        note("milk", ctx)
    box.restart()

    assert (["milk"], [("tester", "milk")]) == (
        box.sent("archive"),
        box.sql("SELECT sender, text FROM notes"),
    )


def test_an_exception_undoes(box: Harness) -> None:
    """A handler that raises leaves nothing behind: neither rows nor mail."""

    def fail() -> None:
        with box.context() as ctx:
            note("milk", ctx)
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert ([], []) == (box.sent("archive"), box.sql("SELECT sender, text FROM notes"))


def test_without_a_block_nothing_stays(box: Harness) -> None:
    """An uncommitted write is gone when the harness moves on, and delays nothing."""
    note("milk", box.context())

    box.deliver()

    assert ([], []) == (box.sent("archive"), box.sql("SELECT sender, text FROM notes"))


def test_the_message_is_as_the_test_says(box: Harness) -> None:
    """Sender, session, attempt and body of the message are arguments."""
    message = box.context({"n": 1}, sender="me", session="run-1", attempt=3).message

    assert ("me", "run-1", 3, {"n": 1}, box.clock.now()) == (
        message.sender,
        message.session,
        message.attempt,
        message.body,
        message.created_at,
    )


def test_a_reply_goes_to_the_sender(box: Harness) -> None:
    """A reply names its cause and goes where the message came from."""
    ctx = box.context("question", sender="me")

    ctx.reply("answer")

    assert ["answer"] == box.sent("me")


def test_extensions_are_noted(box: Harness) -> None:
    """There is no lease to keep, so the trial remembers what was asked for."""
    ctx = box.context()

    note("milk", ctx)

    assert [5] == ctx.extended
