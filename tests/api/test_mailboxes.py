"""Mailboxes: who finds them, how long they live, in which order they are read."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox
from onceward.errors import DuplicateMailbox, InvalidArgument, InvalidMessage, UnknownMailbox
from onceward.events import Event

Fill = Callable[..., list[str]]


def bodies(letters: Any) -> list[Any]:
    """Return what letters say."""
    return [letter.body for letter in letters]


def test_a_public_mailbox_is_listed_and_found_by_its_name(home: Any, fill: Fill) -> None:
    """An agent that knows the name sends and reads; the list tells owner and purpose."""
    owner, other = home.open("owner"), home.open("other")
    made = owner.mailboxes.ensure("task.queue", ttl=60, public=True, description="work")

    found = other.mailboxes.get("task.queue")
    fill(other, found, "hello")

    assert (True, False) == (made.created, found.created)
    assert [("task.queue", "owner", "work")] == [
        (each.name, each.owner, each.description) for each in other.mailboxes.list()
    ]
    assert ["hello"] == bodies(found.scan()) == bodies(made.scan())


def test_a_private_mailbox_is_known_by_its_id_alone(home: Any, fill: Fill) -> None:
    """It is never listed; its id, 122 random bits, is the right to send and to read."""
    owner, other = home.open("owner"), home.open("other")
    made = owner.mailboxes.ensure(ttl=60)
    fill(other, other.mailboxes.get(made.id), "psst")

    assert [] == owner.mailboxes.list() == other.mailboxes.list()
    assert ["psst"] == bodies(made.scan())
    assert made.id != owner.mailboxes.ensure(ttl=60).id
    assert "4" == made.id[14]  # a random UUID


def test_absences_look_alike(home: Any) -> None:
    """A wrong id, an expired one and one that never was get the same answer, word for word."""
    owner = home.open("owner")
    gone = owner.mailboxes.ensure(ttl=1)
    never = owner.mailboxes.ensure(ttl=9).id[:-1] + "x"
    home.clock.advance(1)

    said = set()
    for name in (gone.id, never, "no.such.name", "../x", ""):
        with pytest.raises(UnknownMailbox) as error:
            owner.mailboxes.get(name)
        said.add(str(error.value))

    assert 1 == len(said)


def test_a_private_id_is_written_nowhere(
    home: Any, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither file, nor event, nor log, nor error, nor repr tells the id of a private mailbox."""
    caplog.set_level(logging.DEBUG)
    owner = home.open("owner")
    told: list[Any] = []
    owner.on(Event, told.append)
    made = owner.mailboxes.ensure(ttl=60)
    fill(owner, made, "psst")
    [message] = made.lease("g")
    message.reject("no")
    said = f"{told} {caplog.text} {made!r} {owner.history().messages} {owner.dead_letters.list()}"

    assert made.id not in said
    assert [] == [
        path.name
        for path in home.folder.rglob("*")
        if path.is_file() and made.id.encode() in path.read_bytes()
    ]


def test_the_key_of_a_private_mailbox_opens_nothing(home: Any, fill: Fill) -> None:
    """
    A private mailbox's name in the rows is not a public name.

    It does not open the mailbox, nor can a public mailbox bear it.
    """
    owner = home.open("owner")
    made = owner.mailboxes.ensure(ttl=60)
    fill(owner, made, "psst")
    [key] = {
        past.text.partition('"mailbox":"')[2].partition('"')[0] for past in owner.history().messages
    }

    for name in (key, key.lstrip("~")):
        with pytest.raises(UnknownMailbox):
            owner.mailboxes.get(name)
    with pytest.raises(InvalidArgument):
        owner.mailboxes.ensure(key, public=True)
    assert [] == bodies(owner.mailboxes.ensure(key.lstrip("~"), public=True).scan())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Upper",
        "with-hyphen",
        ".lead",
        "trail.",
        "two..dots",
        "ä",
        "a" * 129,
        "new\n",
        "sp ace",
        "a_b",
    ],
)
def test_a_public_name_keeps_its_rule(home: Any, name: str) -> None:
    """
    A name is lower-case letters and digits in dotted segments, 128 at most.

    Any other name is refused and nothing is made.
    """
    owner = home.open("owner")

    with pytest.raises(InvalidArgument):
        owner.mailboxes.ensure(name, public=True)
    assert [] == owner.mailboxes.list()


@pytest.mark.parametrize("name", ["a", "a1.b2.c3", "0", "a" * 128])
def test_good_public_names(home: Any, name: str) -> None:
    """The rule's bounds are inside."""
    assert name == home.open("owner").mailboxes.ensure(name, public=True).id


def test_the_first_creation_fixes_the_time_to_live(home: Any, fill: Fill) -> None:
    """A second ensure, by whomever, finds what is there: same ttl, same end, same messages."""
    owner, other = home.open("owner"), home.open("other")
    first = owner.mailboxes.ensure("jobs", ttl=60, public=True, description="first")
    fill(owner, first, "kept")
    home.clock.advance(30)

    second = other.mailboxes.ensure("jobs", ttl=5, public=True, description="second")

    assert (False, 60.0, first.expires_at, "owner", "first") == (
        second.created,
        second.ttl,
        second.expires_at,
        second.owner,
        second.description,
    )
    assert ["kept"] == bodies(second.scan())


def test_create_is_exclusive(home: Any) -> None:
    """Where ensure takes what is there, create says that it is there, and changes nothing."""
    owner = home.open("owner")
    owner.mailboxes.create("jobs", ttl=60, public=True)

    with pytest.raises(DuplicateMailbox):
        owner.mailboxes.create("jobs", ttl=5, public=True)
    assert [60_000] == [each.ttl for each in owner.mailboxes.list()]


def test_a_private_mailbox_is_ensured_by_its_id(home: Any) -> None:
    """An id that was given before finds its mailbox; no agent makes one under its own id."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure(ttl=60)

    assert (made.id, False) == ((again := owner.mailboxes.ensure(made.id)).id, again.created)
    with pytest.raises(UnknownMailbox):
        owner.mailboxes.ensure("0189d2f0-0000-4000-8000-000000000000")


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 2e9, True, "sixty"])
def test_a_time_to_live_is_a_span(home: Any, ttl: Any) -> None:
    """Zero, negative and endless spans are refused; None is the word for ever."""
    owner = home.open("owner")

    with pytest.raises(InvalidArgument):
        owner.mailboxes.ensure("jobs", ttl=ttl, public=True)
    assert owner.mailboxes.ensure("jobs", ttl=None, public=True).expires_at is None


def test_expiry_is_exact_and_needs_no_sweeper(home: Any, fill: Fill) -> None:
    """
    One millisecond before its end a mailbox is whole.

    At its end every call says that there is no such mailbox.
    """
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    [message_id] = fill(owner, made, "x")
    home.clock.advance(9.999)
    assert (["x"], 1, ["jobs"]) == (
        bodies(made.scan()),
        made.count(),
        [each.name for each in owner.mailboxes.list()],
    )

    home.clock.advance(0.001)

    calls: list[Callable[[], Any]] = [
        made.query,
        made.count,
        lambda: list(made.scan()),
        lambda: made.read("r"),
        lambda: made.lease("g"),
        lambda: made.receive("g", timeout=60),
        lambda: made.send("late"),
        lambda: made.discard(message_id),
        lambda: owner.mailboxes.get("jobs"),
    ]
    for call in calls:
        with pytest.raises(UnknownMailbox):
            call()
    assert [] == owner.mailboxes.list()


def test_a_mailbox_made_anew_starts_empty(home: Any, fill: Fill) -> None:
    """
    After its end a name is free.

    No message, no position and no lease of the old mailbox shows in the new one.
    """
    owner = home.open("owner")
    old = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    fill(owner, old, "old", "older")
    old.read("r", limit=1)
    [leased] = old.lease("g", start="latest") or old.lease("h")
    home.clock.advance(10)

    new = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    fill(owner, new, "new")

    assert (True, 1) == (new.created, new.count())
    assert (
        ["new"]
        == bodies(new.scan())
        == bodies(new.read("r"))
        == bodies(new.lease("g", start="earliest"))
        == bodies(new.lease("h"))
    )
    with pytest.raises(Exception, match="no longer in flight"):
        leased.ack()
    with pytest.raises(UnknownMailbox):
        old.query()


def test_a_message_does_not_outlive_its_mailbox(home: Any, fill: Fill) -> None:
    """A longer ttl of a message is cut at the mailbox's end, a shorter one holds."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    fill(owner, made, "long", ttl=100)
    fill(owner, made, "short", ttl=2)

    assert [made.expires_at, made.expires_at - 8_000] == [
        letter.expires_at for letter in made.scan()
    ]
    home.clock.advance(2)
    assert ["long"] == bodies(made.scan())


def test_mail_that_is_late_for_its_mailbox_is_told_to_its_sender(home: Any) -> None:
    """A message that has not left when the mailbox ends becomes a dead letter at the sender."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    message_id = made.send("late")
    home.clock.advance(10)
    owner.run_until_idle()

    assert ("dead", "expired") == (
        owner.state(message_id),
        owner.dead_letters.get(message_id).reason,
    )


@pytest.mark.parametrize("gone", [True, False])
def test_a_message_for_a_mailbox_that_is_not_there_is_told_to_its_sender(
    home: Any, gone: bool
) -> None:
    """It becomes a dead letter at the sender, and nothing of it waits in the inbox."""
    owner, other = home.open("owner"), home.open("other")
    owner.mailboxes.ensure("jobs", public=True)
    message_id = other.mailboxes.get("jobs").send("x")
    change = "DELETE FROM mailboxes" if gone else "UPDATE mailboxes SET owner = 'other'"
    with Postbox(home.folder / "agents" / "meanwhile.db", agent="meanwhile", start=False) as box:
        box._home.directory.write(lambda tx: tx.run(change))
    other.run_until_idle()

    assert ("dead", "no_mailbox") == (
        other.state(message_id),
        other.dead_letters.get(message_id).reason,
    )
    assert 0 == owner.file.stats()["inbox_pending"]


def test_the_sweeper_frees_space(home: Any, fill: Fill) -> None:
    """Expired messages are counted, and their rows, positions and addresses are gone in the end."""
    owner = home.open("owner", retention=5, delivery_attempts=3)
    made = owner.mailboxes.ensure("jobs", ttl=10, public=True)
    fill(owner, made, 1, 2, 3)
    made.read("r", limit=1)
    made.lease("g")
    home.clock.advance(10)
    owner.file.run_maintenance()
    assert 3 == owner.file.stats()["expired"]
    home.clock.advance(5.001)
    owner.file.run_maintenance()

    db = home.file(owner)
    left = db.read(
        "SELECT (SELECT count(*) FROM _onceward_inbox), "
        "(SELECT count(*) FROM _onceward_mailbox_readers), "
        "(SELECT count(*) FROM _onceward_mailbox_leases)"
    )
    assert [(0, 0, 0)] == left


def test_priorities_are_storage_order(home: Any, fill: Fill) -> None:
    """
    Order is critical, urgent, normal, low, background, and as sent within each priority.

    ``high`` is urgent.
    """
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", public=True)
    for name in (
        "n1 normal",
        "b1 background",
        "u1 urgent",
        "c1 critical",
        "l1 low",
        "u2 high",
        "n2 normal",
        "c2 critical",
    ):
        body, priority = name.split()
        fill(owner, made, body, priority=priority)
    expected = ["c1", "c2", "u1", "u2", "n1", "n2", "l1", "b1"]

    assert (
        expected
        == bodies(made.scan())
        == bodies(made.read("r"))
        == bodies(made.lease("g", limit=8))
    )
    with pytest.raises(InvalidMessage):
        made.send("x", priority="medium")


def test_order_does_not_ask_the_clock(home: Any, fill: Fill) -> None:
    """With a clock that stands still or steps back, one priority stays in the order of sending."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", public=True, ttl=None)
    fill(owner, made, *range(5))
    home.clock.step(-3600)
    fill(owner, made, *range(5, 10))

    assert list(range(10)) == bodies(made.scan())


def test_discard_says_what_it_did(home: Any, fill: Fill) -> None:
    """
    True takes the message from all readers; False says it was missing.

    Other mailboxes are not touched.
    """
    owner = home.open("owner")
    one, two = (owner.mailboxes.ensure(name, public=True) for name in ("one", "two"))
    [message_id] = fill(owner, one, "x")

    assert (False, 1) == (two.discard(message_id), one.count())
    assert (True, False, 0) == (one.discard(message_id), one.discard(message_id), one.count())
    assert [] == bodies(one.scan())
    assert [] == owner.file.check()


def test_looking_changes_nothing(home: Any, fill: Fill) -> None:
    """Query is newest first, tail the newest in order; both leave positions, leases and rows."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", public=True)
    fill(owner, made, "a", "b", type="letter")
    fill(owner, made, "c", type="card", topic="build.done")
    db = home.file(owner)
    before = db.version()

    assert ["c", "b", "a"] == bodies(made.query())
    assert ["b", "a"] == bodies(made.query("letter"))
    assert ["c"] == bodies(made.query(topics="build.*")) == bodies(made.query(limit=1))
    assert ["b", "c"] == bodies(made.query(limit=2)[::-1])
    assert before == db.version()
    with pytest.raises(InvalidArgument):
        made.query(colour="red")


def test_mail_for_a_mailbox_is_nobody_elses(home: Any, fill: Fill) -> None:
    """
    A message stored as processed reaches no worker and no ordinary reader.

    Its sender is told that it was processed when it is stored.
    """
    owner = home.open("owner")
    [message_id] = fill(owner, owner.mailboxes.ensure("jobs", public=True), "x")

    assert (None, "acked") == (owner.receive(), owner.state(message_id))
    assert 0 == owner.run_until_idle()


def test_a_duplicate_is_not_stored_twice(home: Any) -> None:
    """The same id or key is one message in a mailbox too."""
    owner = home.open("owner")
    made = owner.mailboxes.ensure("jobs", public=True)

    assert 1 == len({made.send("x", key="k") for _ in range(3)})
    owner.run_until_idle()
    assert ["x"] == bodies(made.scan())


def test_asking_for_a_mailbox_makes_no_directory(home: Any) -> None:
    """Sending, receiving and asking for a mailbox that is not there create no directory."""
    (home.folder / "agents").mkdir()
    Postbox(home.folder / "agents" / "owner.db", agent="owner", start=False).close()
    for path in home.folder.glob("directory.db*"):
        path.unlink()
    owner = home.open("owner", named=False)
    owner.send("owner", "x")
    owner.run_until_idle()
    owner.receive()
    with pytest.raises(UnknownMailbox):
        owner.mailboxes.get("jobs")
    assert [] == owner.mailboxes.list()

    assert ["agents"] == [path.name for path in home.folder.iterdir()]


def test_the_home_hears_of_public_mailboxes(home: Any) -> None:
    """
    Subscribers are told once of each public mailbox's beginning and end.

    They are never told of private ones.
    """
    owner, ear = home.open("owner"), home.open("ear")
    ear.agents.subscribe("_system.mailbox.*")
    owner.mailboxes.ensure("jobs", ttl=10, public=True, description="work")
    owner.mailboxes.ensure("jobs", ttl=10, public=True)
    owner.mailboxes.ensure(ttl=10)
    owner.run_until_idle()
    home.clock.advance(10)
    owner.file.run_maintenance()
    owner.run_until_idle()

    heard = []
    while (message := ear.receive()) is not None:
        heard.append((message.topic, message.body["mailbox"], message.body["owner"]))
        message.ack()
    assert [
        ("_system.mailbox.created", "jobs", "owner"),
        ("_system.mailbox.expired", "jobs", "owner"),
    ] == heard
    with pytest.raises(InvalidMessage):
        owner.send("ear", 1, topic="_system.mailbox.created")
