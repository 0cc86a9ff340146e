"""Mailboxes that keep the newest message of each key."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox
from onceward.errors import StoreFault
from onceward.features.mailboxes import keys

Fill = Callable[..., list[str]]
ENDED = """
SELECT mailbox_key, state, reason FROM onceward_inbox WHERE state <> 'pending' ORDER BY seq
"""


def bodies(found: Any) -> list[Any]:
    """Return the bodies of records or messages."""
    return [each.body for each in found]


@pytest.fixture
def owner(home: Any) -> Any:
    """Return the agent that keeps the mailbox."""
    return home.open("owner", delivery_retry="1s ±0%", handler_retry="1s ±0%", handler_attempts=1)


@pytest.fixture
def board(owner: Any) -> Any:
    """Return an empty mailbox that keeps the newest message of each key, for ever."""
    return owner.mailboxes.ensure("board", public=True, ttl=None, newest_per_key=True)


def test_the_newest_of_each_key_is_kept(owner: Any, board: Any, fill: Fill) -> None:
    """Of five messages of one key the last stays, in one parcel or in several; others all stay."""
    fill(owner, board, *range(5), ordering_key="a")
    for n in range(3):
        fill(owner, board, f"b{n}", ordering_key="b")
        fill(owner, board, f"-{n}")

    assert [4, "-0", "-1", "b2", "-2"] == bodies(board.scan())
    assert (5, 6, []) == (board.count(), owner.file.stats()["dropped"], owner.file.check())


def test_what_is_superseded_ends_with_a_reason(owner: Any, board: Any, fill: Fill) -> None:
    """It can be read in SQL; its sender was told that it was stored, as of any other."""
    ids = fill(owner, board, 1, 2, ordering_key="a")

    assert [("a", "dropped", "superseded")] == owner.query(ENDED)
    assert ["acked", "acked"] == [owner.state(each) for each in ids]


def test_other_senders_and_mailboxes(home: Any, owner: Any, board: Any, fill: Fill) -> None:
    """A key is one for all senders of its mailbox, and says nothing in another mailbox."""
    plain = owner.mailboxes.ensure("plain", public=True)
    private = owner.mailboxes.ensure(newest_per_key=True)
    fill(owner, plain, 1, 2, ordering_key="a")
    fill(owner, private, 1, 2, ordering_key="a")
    other = home.open("other")
    fill(owner, board, "ours", ordering_key="a")
    fill(other, other.mailboxes.get("board"), "theirs", ordering_key="a")

    assert ([1, 2], [2], ["theirs"]) == tuple(
        bodies(each.scan()) for each in (plain, private, board)
    )


def test_the_first_creation_fixes_what_is_kept(home: Any, board: Any) -> None:
    """A later call finds the mailbox as it is and says so."""
    other = home.open("other")
    again = other.mailboxes.ensure("board", public=True, newest_per_key=False)

    assert (True, True, False) == (board.newest_per_key, again.newest_per_key, again.created)
    assert [True] == [each.newest_per_key for each in other.mailboxes.list()]


def test_a_cursor_reads_each_key_as_it_is_now(owner: Any, board: Any, fill: Fill) -> None:
    """A reader misses older messages of a key only, and gets none twice."""
    fill(owner, board, "a1", ordering_key="a")
    fill(owner, board, "b1", ordering_key="b")
    assert ["a1"] == bodies(board.read("r", limit=1))
    fill(owner, board, "a2", "a3", ordering_key="a")
    fill(owner, board, "b2", ordering_key="b", priority="urgent")

    assert ["b2", "a3"] == bodies(board.read("r"))
    assert ([], ["b2", "a3"]) == (board.read("r"), bodies(board.read("new")))


def test_a_kept_message_may_be_superseded(owner: Any, board: Any, fill: Fill) -> None:
    """What a filter had skipped and kept is gone once a newer one of its key came."""
    fill(owner, board, "a1", ordering_key="a", topic="x")
    assert [] == board.read("r", topics="y", consume_skipped=False)
    fill(owner, board, "a2", ordering_key="a", topic="y")

    assert (["a2"], []) == (bodies(board.read("r")), owner.file.check())


@pytest.mark.parametrize("verb", ["ack", "reject", "retry"])
def test_a_leased_message_may_be_superseded(
    home: Any, owner: Any, board: Any, fill: Fill, verb: str
) -> None:
    """Its member settles it as ever, its group gets the newer one, and nothing is counted twice."""
    fill(owner, board, "a1", ordering_key="a")
    message = board.receive("g")
    fill(owner, board, "a2", ordering_key="a")
    getattr(message, verb)()
    home.clock.advance(100)
    again = board.receive("g")
    again.ack()

    assert ("a2", None) == (again.body, board.receive("g"))
    assert ([], [], 1) == (
        owner.dead_letters.list(),
        owner.file.check(),
        owner.file.stats()["inbox_pending"],
    )


@pytest.mark.parametrize(
    ("newer", "left"), [(False, ["a1"]), (True, ["a2"])], ids=["alone", "superseded"]
)
def test_a_replayed_dead_letter_stands_behind_newer_ones(
    owner: Any, board: Any, fill: Fill, *, newer: bool, left: list[str]
) -> None:
    """A message that comes back is kept only where no newer one of its key is there."""
    fill(owner, board, "a1", ordering_key="a")
    board.receive("g").reject("no")
    if newer:
        fill(owner, board, "a2", ordering_key="a")
    [dead] = owner.dead_letters.list()
    owner.dead_letters.replay(dead.id)

    assert (left, []) == (bodies(board.scan()), owner.file.check())
    fill(owner, board, "a3", ordering_key="a")
    assert (["a3"], []) == (bodies(board.scan()), owner.file.check())


def test_an_older_message_ends_only_with_the_newer_one(
    home: Any, owner: Any, board: Any, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the commit that stores the newer one fails, the older one is there, and later replaced."""
    fill(owner, board, "a1", ordering_key="a")

    def fails(_: Any, **counted: int) -> None:
        assert counted
        raise StoreFault("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(keys, "bump", fails)  # its last step
        fill(owner, board, "a2", ordering_key="a")
    before = bodies(board.scan())
    home.clock.advance(100)
    owner.run_until_idle()

    assert (["a1"], ["a2"]) == (before, bodies(board.scan()))
    assert (1, []) == (owner.file.stats()["dropped"], owner.file.check())


def test_the_schema_keeps_one_message_of_a_key(owner: Any, board: Any, fill: Fill) -> None:
    """A second pending message of a key is refused by the file, whichever program writes it."""
    fill(owner, board, "a1", ordering_key="a")
    fill(owner, board, "b1", ordering_key="b")
    with Postbox(owner.file.path, start=False) as box, pytest.raises(Exception, match="UNIQUE"):
        box._db.write(lambda tx: tx.run("UPDATE _onceward_inbox SET mailbox_key = 'a'"))

    assert ["a1", "b1"] == bodies(board.scan())
