"""The four modes of reading a mailbox, and where a position begins."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox, Reject, Retry
from onceward.core.run import recovery
from onceward.errors import InvalidArgument, LeaseLost
from onceward.types import Start

Fill = Callable[..., list[str]]


def bodies(letters: Any) -> list[Any]:
    """Return what letters or messages say."""
    return [letter.body for letter in letters]


@pytest.fixture
def owner(home: Any) -> Any:
    """Return the agent that keeps the mailbox."""
    return home.open("owner", delivery_retry="1s ±0%", handler_retry="1s ±0%", handler_attempts=3)


@pytest.fixture
def jobs(owner: Any) -> Any:
    """Return an empty public mailbox that lives for ever."""
    return owner.mailboxes.ensure("jobs", public=True, ttl=None)


# -- replay ----------------------------------------------------------------------------------------


def test_replay_begins_anew_each_time(owner: Any, jobs: Any, fill: Fill) -> None:
    """Every replay yields everything from the oldest, in several batches too; it stores nothing."""
    fill(owner, jobs, *range(250))

    assert list(range(250)) == bodies(jobs.scan()) == bodies(jobs.scan())
    assert list(range(250)) == bodies(owner.mailboxes.get("jobs").scan())


def test_replay_of_one_type(owner: Any, jobs: Any, fill: Fill) -> None:
    """A type selects, also where whole batches hold none of it."""
    fill(owner, jobs, *range(150), type="noise")
    fill(owner, jobs, "needle", type="signal")

    assert ["needle"] == bodies(jobs.scan("signal"))


def test_a_body_that_does_not_fit_is_told(owner: Any, jobs: Any, fill: Fill) -> None:
    """A message whose body cannot be read as asked comes with the problem and blocks no reader."""
    fill(owner, jobs, {"n": "no number"}, {"n": 2}, type="int")

    letters = jobs.read("r", int)

    assert [None, None] == bodies(letters)
    assert [True, True] == [letter.body_error is not None for letter in letters]


@pytest.mark.broken("a frame is damaged on purpose")
def test_a_damaged_message_is_told(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A frame changed after acceptance comes without its body, and is never leased."""
    fill(owner, jobs, "good", "bad", "fine")
    db = home.file(owner)

    def damage(tx: Any) -> None:
        tx.run("DROP TRIGGER _onceward_inbox_frame_guard")
        tx.run("UPDATE _onceward_inbox SET frame = replace(frame, '\"bad\"', '\"BAD\"')")

    db.write(damage)

    assert ["good", None, "fine"] == bodies(jobs.scan())
    assert ["good", "fine"] == bodies(jobs.lease("g", limit=3))
    assert ["corrupt"] == [letter.reason for letter in owner.dead_letters.list()]


# -- cursor ----------------------------------------------------------------------------------------


def test_a_cursor_moves_before_it_returns(owner: Any, jobs: Any, fill: Fill) -> None:
    """A returned message is never returned again, by any process: the position commits first."""
    fill(owner, jobs, *range(5))

    assert [0, 1] == bodies(jobs.read("r", limit=2))
    assert [2, 3, 4] == bodies(owner.mailboxes.get("jobs").read("r"))
    assert [] == jobs.read("r")
    assert [0, 1, 2, 3, 4] == bodies(jobs.read("another"))


def test_a_cursor_keeps_its_place_in_each_priority(owner: Any, jobs: Any, fill: Fill) -> None:
    """An urgent message that comes late is read at once, and the older normal ones are not lost."""
    fill(owner, jobs, "n1", "n2", "n3")
    assert ["n1"] == bodies(jobs.read("r", limit=1))
    fill(owner, jobs, "u", priority="urgent")

    assert ["u", "n2", "n3"] == bodies(jobs.read("r"))


def test_a_filter_consumes_what_it_skips(owner: Any, jobs: Any, fill: Fill) -> None:
    """The position passes what the filter excludes; those messages never come to this reader."""
    fill(owner, jobs, "a", "b", topic="ask")
    fill(owner, jobs, "c", topic="answer")
    fill(owner, jobs, "d", topic="ask")

    assert ["c"] == bodies(jobs.read("r", topics="answer"))
    assert [] == jobs.read("r")


def test_a_filter_may_keep_what_it_skips(owner: Any, jobs: Any, fill: Fill) -> None:
    """With ``consume_skipped=False`` a later call misses nothing, in order, and nothing twice."""
    fill(owner, jobs, "a", "b", topic="ask")
    fill(owner, jobs, "c", topic="answer")
    assert ["c"] == bodies(jobs.read("r", topics="answer", consume_skipped=False))
    fill(owner, jobs, "d", topic="answer")

    assert ["a"] == bodies(jobs.read("r", topics=["ask"], limit=1, consume_skipped=False))
    assert ["b", "d"] == bodies(jobs.read("r"))
    assert [] == jobs.read("r")
    assert [] == owner.file.check()


def test_a_filter_looks_beyond_one_batch(owner: Any, jobs: Any, fill: Fill) -> None:
    """However many messages a filter skips, what it wants is found in one call."""
    fill(owner, jobs, *range(1100), type="noise")
    fill(owner, jobs, "needle", type="signal")

    assert ["needle"] == bodies(jobs.read("keeps", "signal", consume_skipped=False))
    assert ["needle"] == bodies(jobs.read("r", "signal"))
    assert (1100, []) == (
        sum(len(jobs.read("keeps", limit=500)) for _ in range(3)),
        jobs.read("r"),
    )


@pytest.mark.parametrize("limit", [0, -1, 501, True, 2.5])
def test_limits_are_hard(owner: Any, jobs: Any, fill: Fill, limit: Any) -> None:
    """Four are four; what is not a number of messages is refused and moves nothing."""
    fill(owner, jobs, *range(6))

    for call in (jobs.read, jobs.lease):
        with pytest.raises(InvalidArgument):
            call("r", limit=limit)
    assert (4, 2) == (len(jobs.read("r", limit=4)), len(jobs.read("r", limit=4)))
    assert (4, 2) == (len(jobs.lease("r", limit=4)), len(jobs.lease("r", limit=4)))


# -- where a position begins -----------------------------------------------------------------------


def test_start_positions(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """
    A position begins at earliest, at latest, from an id or from a time.

    Latest is only what comes after; an id is inclusive. Groups and cursors begin alike.
    """
    ids = fill(owner, jobs, *range(5))
    home.clock.advance(10)
    since = home.clock.now()
    fill(owner, jobs, 5, 6)

    for name, start, expected in (
        ("e", "earliest", [0, 1, 2, 3, 4, 5, 6]),
        ("l", "latest", []),
        ("i", Start("from_id", ids[3]), [3, 4, 5, 6]),
        ("t", Start("from_time", since), [5, 6]),
        ("late", Start("from_time", since + 1), []),
    ):
        assert expected == bodies(jobs.read(name, start=start)), name
        assert expected == bodies(jobs.lease(name, start=start, limit=9)), name
    fill(owner, jobs, 7)
    assert [[7]] * 5 == [bodies(jobs.read(name)) for name in ("e", "l", "i", "t", "late")]


def test_a_start_holds_for_a_new_position_only(owner: Any, jobs: Any, fill: Fill) -> None:
    """Who is there already goes on where it was."""
    fill(owner, jobs, 1, 2, 3)
    jobs.read("r", limit=1)

    assert [2, 3] == bodies(jobs.read("r", start="latest"))


def test_a_start_that_is_no_place(owner: Any, jobs: Any, fill: Fill) -> None:
    """An unknown id and an unknown word are refused, and leave no position behind."""
    fill(owner, jobs, 1)

    for kind, value in (("from_id", "never"), ("newest", None), ("from_id", None), ("latest", 3)):
        with pytest.raises(InvalidArgument):
            jobs.read("r", start=Start(kind, value))
    assert [1] == bodies(jobs.read("r"))


# -- tags ------------------------------------------------------------------------------------------


def test_tags_are_a_filter_of_reading(owner: Any, jobs: Any, fill: Fill) -> None:
    """One tag of those asked for suffices; a message without tags has none of them."""
    fill(owner, jobs, "a", headers={"tags": "billing, eu"})
    fill(owner, jobs, "b", headers={"tags": "eu"})
    fill(owner, jobs, "c", {"tags": "billing"})
    fill(owner, jobs, "d", headers={"tags": "bill"})

    assert ["a"] == bodies(jobs.query(tags="billing"))
    assert ["b", "a"] == bodies(jobs.query(tags=["billing", "eu"]))
    assert [] == jobs.query(tags="unknown")
    assert ["a", "b"] == bodies(jobs.read("r", tags="eu", consume_skipped=False))
    assert ["c", {"tags": "billing"}, "d"] == bodies(jobs.read("r"))


def test_a_message_says_its_tags(owner: Any, jobs: Any, fill: Fill) -> None:
    """Records and leased messages have the tags of their header, each once, in order."""
    fill(owner, jobs, "a", headers={"tags": "eu, billing,,eu "})
    fill(owner, jobs, "b", headers={"tags": 7})

    assert [("eu", "billing"), ()] == [record.tags for record in jobs.scan()]
    assert [("eu", "billing"), ()] == [message.tags for message in jobs.lease("g", limit=2)]


@pytest.mark.parametrize("tags", ["", "a,b", " a", [""], [7], "a\0"])
def test_a_tag_keeps_its_rule(jobs: Any, tags: Any) -> None:
    """A text that can be no tag is refused instead of finding nothing."""
    with pytest.raises(InvalidArgument):
        jobs.query(tags=tags)


# -- reset -----------------------------------------------------------------------------------------


def test_a_reader_is_reset(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A position moves back or forward: to the oldest, the end, a message or a moment."""
    ids = fill(owner, jobs, "a", "b")
    home.clock.advance(10)
    fill(owner, jobs, "c")
    moment = home.clock.now()
    home.clock.advance(10)
    fill(owner, jobs, "d")
    assert ["a", "b", "c", "d"] == bodies(jobs.read("r"))
    found = []
    for start in ("earliest", Start("from_id", ids[1]), Start("from_time", moment), "latest"):
        jobs.reset("r", start)
        found.append(bodies(jobs.read("r")))

    assert [["a", "b", "c", "d"], ["b", "c", "d"], ["c", "d"], []] == found
    fill(owner, jobs, "e")
    assert ["e"] == bodies(jobs.read("r"))


def test_a_reset_concerns_one_reader(owner: Any, jobs: Any, fill: Fill) -> None:
    """A cursor, a group of its name and other readers have positions of their own."""
    fill(owner, jobs, "a")
    jobs.read("r"), jobs.read("other"), jobs.receive("r").ack()
    jobs.reset("r")

    assert (["a"], [], None) == (
        bodies(jobs.read("r")),
        jobs.read("other"),
        jobs.receive("r"),
    )


def test_a_reset_forgets_what_was_kept(owner: Any, jobs: Any, fill: Fill) -> None:
    """Messages that a filter skipped and kept come again only where the new position says so."""
    fill(owner, jobs, "a", topic="ask")
    fill(owner, jobs, "b", topic="answer")
    assert ["b"] == bodies(jobs.read("r", topics="answer", consume_skipped=False))
    jobs.reset("r", "latest")
    assert [] == jobs.read("r")
    jobs.reset("r")

    assert ["a", "b"] == bodies(jobs.read("r"))
    assert [] == owner.file.check()


def test_a_reset_of_a_group_ends_its_leases(owner: Any, jobs: Any, fill: Fill) -> None:
    """A member that has a message can settle it no more, and the group has it again, once."""
    fill(owner, jobs, "a", "b")
    stale = jobs.receive("g")
    jobs.reset("g", mode="lease")
    again = jobs.lease("g", limit=9)
    with pytest.raises(LeaseLost):
        stale.ack()
    for message in again:
        message.ack()

    assert (["a", "b"], None, []) == (bodies(again), jobs.receive("g"), owner.file.check())


def test_a_reset_to_a_message_that_is_not_there(owner: Any, jobs: Any, fill: Fill) -> None:
    """It is refused, and the position stays where it was."""
    fill(owner, jobs, "a", "b")
    jobs.read("r", limit=1)
    with pytest.raises(InvalidArgument):
        jobs.reset("r", Start("from_id", "nothing"))

    assert ["b"] == bodies(jobs.read("r"))


def test_a_reset_makes_a_reader(owner: Any, jobs: Any, fill: Fill) -> None:
    """A name that has no position yet gets one: a later ``start`` holds no more."""
    fill(owner, jobs, "a")
    jobs.reset("r", "latest")
    fill(owner, jobs, "b")

    assert ["b"] == bodies(jobs.read("r", start="earliest"))


@pytest.mark.parametrize("mode", ["replay", "exactly_once", ""])
def test_only_cursors_and_groups_are_reset(jobs: Any, mode: Any) -> None:
    """Other modes have no position: they are refused."""
    with pytest.raises(InvalidArgument):
        jobs.reset("r", mode=mode)


def test_exactly_once_holds_after_a_reset(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A group that is reset handles again only what it has not handled."""
    fill(owner, jobs, "a")
    handled: list[Any] = []
    handler = home.handler(lambda message, _: handled.append(message.body))
    jobs.handle("g", handler)
    fill(owner, jobs, "b")
    jobs.reset("g", mode="lease")
    jobs.handle("g", handler, limit=9)

    assert ["a", "b"] == handled


# -- lease -----------------------------------------------------------------------------------------


def test_one_live_lease_for_each_message_and_group(owner: Any, jobs: Any, fill: Fill) -> None:
    """
    Members share the messages out; other groups get all of them as well.

    An ack takes nothing from any other group.
    """
    fill(owner, jobs, *range(4))

    one, two = jobs.lease("g", limit=2), owner.mailboxes.get("jobs").lease("g", limit=9)
    for message in (*one, *two):
        message.ack()

    assert ([0, 1], [2, 3]) == (bodies(one), bodies(two))
    assert [] == jobs.lease("g", limit=9)
    assert [0, 1, 2, 3] == bodies(jobs.lease("h", limit=9)) == bodies(jobs.scan())


def test_a_lease_that_ran_out_moves_on(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """
    After its lease's end a message is handed out again, counted.

    The late ack is refused and changes nothing.
    """
    fill(owner, jobs, "x")
    [late] = jobs.lease("g", lease=5)
    home.clock.advance(4.999)
    assert [] == jobs.lease("g")
    home.clock.advance(0.001)

    [again] = jobs.lease("g")

    assert (1, 2) == (late.attempt, again.attempt)
    for call in (late.ack, late.retry, late.reject, late.drop, lambda: late.extend(9)):
        with pytest.raises(LeaseLost):
            call()
    again.ack()
    assert [] == jobs.lease("g")
    assert [] == owner.dead_letters.list()


def test_a_late_ack_is_refused_before_anybody_else_came(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """A lease that ran out and was freed is not revived by its old token."""
    fill(owner, jobs, "x", "y")
    [late] = jobs.lease("g", lease=5)
    home.clock.advance(5)
    home.file(owner).write(
        lambda tx: tx.run("UPDATE _onceward_mailbox_leases SET owner = NULL, due_at = NULL")
    )

    with pytest.raises(LeaseLost):
        late.ack()


def test_extend_keeps_a_message(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A reader that needs longer extends its lease."""
    fill(owner, jobs, "x")
    [message] = jobs.lease("g", lease=5)
    message.extend(60)
    home.clock.advance(59)

    assert [] == jobs.lease("g")
    message.ack()


def test_with_settles(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """Leaving the block is an ack; Retry puts back; any other exception puts back and goes on."""
    fill(owner, jobs, 1, 2, 3)
    one, two, three = jobs.lease("g", limit=3)
    with one:
        pass
    with two:
        raise Retry(after=0)
    with pytest.raises(RuntimeError), three:
        raise RuntimeError

    assert [2] == bodies(found := jobs.lease("g", limit=3))
    assert [2] == [message.attempt for message in found]
    home.clock.advance(1)
    assert [3] == bodies(jobs.lease("g", limit=3))


def test_what_was_put_back_keeps_its_place(owner: Any, jobs: Any, fill: Fill) -> None:
    """A message that comes again comes before what is newer."""
    fill(owner, jobs, 1, 2)
    [first] = jobs.lease("g")
    first.retry(after=0)

    assert [1, 2] == bodies(jobs.lease("g", limit=2))


def test_a_message_that_nobody_can_handle_ends(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """
    After its retries a message becomes a dead letter, whole, and no reader sees it.

    Replayed, it is back for all groups.
    """
    [message_id] = fill(owner, jobs, "poison")
    for _ in range(3):
        for message in jobs.lease("g"):
            message.retry(after=0)

    assert [] == jobs.lease("g") == list(jobs.scan())
    assert ("attempts_spent", 3) == (
        (letter := owner.dead_letters.get(message_id)).reason,
        letter.attempts,
    )
    owner.dead_letters.replay(message_id)
    assert ["poison"] == bodies(jobs.lease("g")) == bodies(jobs.scan())
    assert [] == owner.file.check()


def test_members_that_die_with_a_message_end_it(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """A message whose leases all run out is not handed out for ever."""
    fill(owner, jobs, "killer")
    for _ in range(3):
        assert ["killer"] == bodies(jobs.lease("g", lease=1))
        home.clock.advance(1)

    assert [] == jobs.lease("g")
    assert ["attempts_spent"] == [letter.reason for letter in owner.dead_letters.list()]


def test_a_reply_goes_to_the_sender(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A reader that leases a message may answer it, from a file of its own."""
    other = home.open("other")
    fill(other, other.mailboxes.get("jobs"), "question")
    [message] = jobs.lease("g")
    message.reply("answer")
    owner.run_until_idle()

    assert "answer" == other.receive().body


def test_an_ack_joins_the_open_transaction(owner: Any, jobs: Any, fill: Fill) -> None:
    """The ack commits with the block's writes, or not at all."""
    if hasattr(owner, "_runner"):
        pytest.skip(
            "a block of the other facade is asynchronous; its crossing has tests of its own"
        )
    fill(owner, jobs, "x")
    [message] = jobs.lease("g")
    with pytest.raises(RuntimeError), owner.begin() as tx:
        tx.execute("CREATE TABLE done (n)")
        message.ack()
        raise RuntimeError
    with owner.begin() as tx:
        tx.execute("CREATE TABLE done (n)")
        message.ack()

    assert [] == jobs.lease("g")


def test_leases_of_a_group_that_is_gone_wake_nobody(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """What another group left behind long ago makes no reader look again and again."""
    fill(owner, jobs, "x")
    jobs.lease("gone", lease=5)
    until_due = home.reader(jobs).until_due
    assert recovery.LOOK == until_due(None)  # its process may die before the lease ends
    home.clock.advance(6)

    assert (None, 7.0) == (until_due(None), until_due(7.0))


def test_a_look_that_finds_nothing_commits_nothing(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """Two readers that wait do not wake each other for ever by looking at what they keep."""
    fill(owner, jobs, "a", topic="ask")
    jobs.read("r", topics="answer", consume_skipped=False)
    [(before,)] = home.file(owner).read("SELECT token FROM _onceward_mailbox_readers")

    assert [] == jobs.read("r", topics="answer", consume_skipped=False)
    assert [(before,)] == home.file(owner).read("SELECT token FROM _onceward_mailbox_readers")
    assert ["a"] == bodies(jobs.read("r"))


# -- exactly once ----------------------------------------------------------------------------------


def note(message: Any, effects: Any) -> None:
    """Write a message down."""
    effects.tx.execute("CREATE TABLE IF NOT EXISTS notes (body, attempt)")
    effects.tx.execute("INSERT INTO notes VALUES (?, ?)", (message.body, message.attempt))


def test_writes_commit_with_the_mark(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """A handler's writes and sends are there once per message; a second call has no work."""
    fill(owner, jobs, 1, 2)

    def handle(message: Any, effects: Any) -> None:
        note(message, effects)
        effects.send("owner", f"did {message.body}")

    assert (2, 0) == (
        jobs.handle("g", home.handler(handle), limit=5),
        jobs.handle("g", home.handler(handle), limit=5),
    )
    assert [(1, 1), (2, 1)] == home.file(owner).read("SELECT body, attempt FROM notes")
    owner.run_until_idle()
    assert "did 1" == owner.receive().body


def test_a_failing_handler_leaves_nothing(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """What it wrote is undone, and the message comes again; Reject makes it a dead letter."""
    fill(owner, jobs, 1, 2)

    def handle(message: Any, effects: Any) -> None:
        note(message, effects)
        if message.body == 2:
            raise Reject
        if message.attempt == 1:
            raise ValueError

    assert 2 == jobs.handle("g", home.handler(handle), limit=5)
    home.clock.advance(1)
    assert 1 == jobs.handle("g", home.handler(handle), limit=5)
    assert [(1, 2)] == home.file(owner).read("SELECT body, attempt FROM notes")
    assert ["rejected"] == [letter.reason for letter in owner.dead_letters.list()]


def test_a_handler_that_overran_its_lease_has_no_effect(
    home: Any, owner: Any, jobs: Any, fill: Fill
) -> None:
    """The second worker's effects count; the first one's are rolled back with its late ack."""
    fill(owner, jobs, "x")
    handled = []

    def slow(message: Any, effects: Any) -> None:
        if message.attempt == 1:
            home.clock.advance(31)
            handled.append(home.file(owner).writer.held)
            with Postbox(owner.file.path, start=False) as second:
                handled.append(second.mailboxes.get("jobs").handle("g", note))
        note(message, effects)

    assert 0 == jobs.handle("g", home.handler(slow))
    assert [False, 1] == handled
    assert [("x", 2)] == home.file(owner).read("SELECT body, attempt FROM notes")


def test_the_mark_outlives_the_position(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """If a position is lost or a message is replayed, the group still does not handle it twice."""
    fill(owner, jobs, "x")
    jobs.handle("g", home.handler(note))
    home.file(owner).write(lambda tx: tx.run("DELETE FROM _onceward_mailbox_readers"))

    assert 0 == jobs.handle("g", home.handler(note))
    assert [("x", 1)] == home.file(owner).read("SELECT body, attempt FROM notes")


def test_exactly_once_needs_the_owners_file(home: Any, owner: Any, jobs: Any, fill: Fill) -> None:
    """No commit spans two files: elsewhere it is refused, before anything is leased."""
    fill(owner, jobs, "x")
    other = home.open("other")

    with pytest.raises(InvalidArgument, match="lease"):
        other.mailboxes.get("jobs").handle("g", home.handler(note))
    assert ["x"] == bodies(jobs.lease("g"))


# -- the switch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["pause", "environment"])
def test_a_frozen_file_hands_out_nothing(  # noqa: PLR0917 - fixtures
    home: Any, owner: Any, jobs: Any, fill: Fill, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the switch is on, reads return and move nothing; then all goes on, nothing lost."""
    fill(owner, jobs, 1, 2)
    jobs.read("r", limit=1)
    if switch == "pause":
        owner.file.pause()
    else:
        monkeypatch.setenv("ONCEWARD_DISABLED", "1")

    assert [[]] * 4 == [
        jobs.read("r"),
        jobs.lease("g"),
        list(jobs.scan()),
        jobs.query(),
    ]
    assert 0 == jobs.handle("g", home.handler(note))

    if switch == "pause":
        owner.file.resume()
    else:
        monkeypatch.delenv("ONCEWARD_DISABLED")
    assert ([2], [1, 2]) == (bodies(jobs.read("r")), bodies(jobs.lease("g", limit=5)))
    assert [1, 1] == [message.attempt for message in jobs.lease("h", limit=5)]
