"""Channels that close: a message that waits for one ends as a dead letter, at both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Agent, Context, Postbox, Retry
from onceward.errors import ChannelRefused
from onceward.features.channels import closed
from onceward.features.channels.api import Channel

from .conftest import World

HOUR = 3600


def room(box: Postbox) -> Channel:
    """Return the channel as this agent sees it."""
    return box.channels.get("room")


def team(world: World, *agents: str | Agent, **config: Any) -> list[Postbox]:
    """Open agents, of whom the first owns a channel called room that the others joined."""
    boxes = [world.open(each, **config) for each in agents]
    boxes[0].channels.create("room")
    for box in boxes[1:]:
        room(box).join()
    return boxes


def close(owner: Postbox, *, removed: bool = False) -> None:
    """Close the channel, and remove it."""
    room(owner).drain()
    room(owner).close()
    if removed:
        owner.channels.delete("room")


def ended(box: Postbox) -> list[tuple[str, str | None, object]]:
    """Return the dead letters of a file: where they ended, why, and what they said."""
    found = box.dead_letters.list(reason="channel_closed")
    return [(dead.origin, dead.last_error, dead.body) for dead in found]


def taken(box: Postbox) -> list[Any]:
    """Return the bodies of all that waits for an agent."""
    found = []
    while (message := box.receive()) is not None:
        found.append(message.body)
        message.ack()
    return found


GONE = ("outbox", "channel room was closed", "late")


@pytest.mark.parametrize("removed", [False, True], ids=["closed", "removed"])
@pytest.mark.parametrize("how", ["delayed", "limited", "retrying"])
def test_what_has_not_left_ends(world: World, how: str, removed: bool) -> None:
    """A message that is not due, above a limit, or whose recipient was away, never arrives."""
    a, b = team(world, "a", "b")
    early = None
    if how == "limited":
        b.limits.set("channel", "room", messages=1, overflow="hold")
        room(b).send("early")
        world.settle()
        early = a.receive()
    if how == "retrying":
        a.close()
        world.path("a").rename(world.path("a").with_suffix(".away"))
    room(b).send("late", delay=HOUR if how == "delayed" else None)
    b.run_until_idle()
    if how == "retrying":
        world.path("a").with_suffix(".away").rename(world.path("a"))
        a = world.open("a")
    close(a, removed=removed)
    world.settle()

    assert [GONE] == ended(b)
    if early is not None:
        early.ack()
    world.wait(2 * HOUR)
    assert ([], [], []) == (taken(a), ended(a), b.file.check())


def test_a_message_on_its_way_ends_at_its_recipient(world: World) -> None:
    """It is refused on arrival, and its sender has it as a dead letter."""
    a, b = team(world, "a", "b")
    sent = room(b).send("late")
    b.channels._channel_sender.tasks.end_closed = lambda *_: 0  # type: ignore[method-assign]
    close(a)
    world.settle()

    assert ["late"] == [dead.body for dead in b.dead_letters.list(reason="channel_closed")]
    assert ([], "dead") == (taken(a), b.state(sent.copies[0][1]))


@pytest.mark.parametrize("removed", [False, True], ids=["closed", "removed"])
@pytest.mark.parametrize("by", ["engines", "maintenance"])
def test_unread_messages_end(world: World, by: str, removed: bool) -> None:
    """Their sender learns it; an acknowledgment that waits is delivered all the same."""
    a, b = team(world, "a", "b")
    room(b).send("early")
    world.settle()
    read = room(a).receive()
    assert read is not None
    read.ack()
    sent = [room(b).send("late").copies[0][1] for _ in range(3)]
    world.settle()
    room(a).acknowledge(read, "completed")
    close(a, removed=removed)
    if by == "maintenance":
        a.file.run_maintenance()
    world.settle()

    assert [("inbox", *GONE[1:])] * 3 == ended(a)
    assert ["failed"] * 3 == [b.state(each) for each in sent]
    assert ["completed"] == [
        row[0] for row in b.query("SELECT status FROM onceward_acknowledgments")
    ]
    assert [[], []] == [a.file.check(), b.file.check()]


def test_other_messages_of_the_lane_go_on(world: World) -> None:
    """A message behind one in backoff, of another channel but in the same lane, is read at once."""
    a, b = team(world, "a", "b")
    a.channels.create("hall")
    b.channels.get("hall").join()
    room(b).send("late", ordering_key="one")
    b.channels.get("hall").send("mine", ordering_key="one")
    world.settle()
    first = a.receive()
    assert first is not None
    first.retry(after=HOUR)
    close(a)
    world.settle()

    assert ([("inbox", *GONE[1:])], ["mine"]) == (ended(a), taken(a))


def test_a_lease_keeps_its_message(world: World) -> None:
    """A reader that has one ends it as it likes; put back, the message ends."""
    a, b = team(world, "a", "b")
    for text in ("late", "done"):
        room(b).send(text, ordering_key=text)
    world.settle()
    leased = {each.body: each for each in (a.receive(), a.receive()) if each is not None}
    close(a)
    world.settle()
    before = ended(a)
    leased["done"].ack()
    leased["late"].retry(after=0)
    world.settle()

    assert ([], [("inbox", *GONE[1:])]) == (before, ended(a))


def asks(ctx: Context) -> None:
    """Wait for a reply."""
    ctx.ask("b", "who?", type="question", reply=str, timeout="1d")


def sleeps(ctx: Context) -> None:
    """Wait for a time."""
    ctx.sleep(HOUR)


@pytest.mark.parametrize("wait", [asks, sleeps])
def test_a_handler_that_waits_goes_on(world: World, wait: Callable[[Context], None]) -> None:
    """Its message is handled to the end; a message that only waits for a retry is not."""
    done, worker = list[object](), Agent("a")

    @worker.on("text")
    def work(body: str, ctx: Context) -> None:
        if body == "late":
            raise Retry(after=HOUR)
        wait(ctx)
        done.append(body)

    a, b = team(world, worker, "b")
    for text in ("begun", "late"):
        room(b).send(text, type="text", ordering_key=text)
    world.settle()
    close(a)
    world.settle()
    before = ended(a)
    if (question := b.receive("question")) is not None:
        question.reply("me")
        question.ack()
    world.wait(2 * HOUR)

    assert ([("inbox", *GONE[1:])], ["begun"]) == (before, done)


def test_a_channel_of_the_same_name_is_another(world: World) -> None:
    """What waited for the first one ends, although the second is open and gets its own."""
    a, b = team(world, "a", "b")
    for text, delay in (("unread", None), ("late", HOUR)):
        room(b).send(text, delay=delay)
        world.settle()
    close(a, removed=True)
    a.channels.create("room")
    room(b).join()
    room(b).send("now")
    room(b).send("soon", delay=HOUR)
    world.settle()

    assert ([GONE], [("inbox", GONE[1], "unread")]) == (ended(b), ended(a))
    assert ["now"] == taken(a)
    world.wait(2 * HOUR)
    assert (["soon"], []) == (taken(a), a.file.check() + b.file.check())


def test_a_sticky_channel_serves_nothing_of_one_before(world: World) -> None:
    """An agent that joins the second channel of a name gets the posts of this one only."""
    a, b, c = (world.open(name) for name in "abc")
    a.channels.create("room", sticky=True)
    room(b).join()
    room(b).send("old")
    world.settle()
    taken(a)
    close(a, removed=True)
    a.channels.create("room", sticky=True)
    room(b).join()
    room(a).send("new")
    room(c).join()
    world.settle()

    assert (["new"], ["new"]) == (taken(b), taken(c))


def test_a_peer_elsewhere_has_its_own_channels(world: World) -> None:
    """A message of a channel that this home never had is not of a removed one."""
    a, b = team(world, "a", "b")
    room(b).send("hello")
    world.settle()
    with a._directory.database.transaction() as tx:
        for sql in (
            "UPDATE channels SET state = 'draining'",
            "UPDATE channels SET state = 'closed'",
            "DELETE FROM channels",
            "DELETE FROM agents",
        ):
            tx.run(sql)
    world.settle()

    assert ([], ["hello"]) == (ended(a), taken(a))


def test_a_replay_is_refused(world: World) -> None:
    """While the channel is closed, and for good once there is another one of its name."""
    a, b = team(world, "a", "b")
    room(b).send("late", delay=HOUR)
    room(b).send("unread")
    world.settle()
    close(a)
    world.settle()
    refusals = list[str]()
    for box in (b, a):
        [dead] = box.dead_letters.list()
        with pytest.raises(ChannelRefused) as refused:
            box.dead_letters.replay(dead.id)
        refusals.append(str(refused.value))
    with pytest.raises(ChannelRefused, match="channel room is closed"):
        b.dead_letters.replay(b.dead_letters.list()[0].id, as_new=True)
    a.channels.delete("room")
    failed = [str(error) for _, error in b.dead_letters.replay_all().failed]
    a.channels.create("room")
    room(b).join()
    with pytest.raises(ChannelRefused, match="another one of the name"):
        b.dead_letters.replay(b.dead_letters.list()[0].id)
    b.dead_letters.replay(b.dead_letters.list()[0].id, as_new=True)
    world.settle()

    cure = "nothing was written; send to another channel, or discard"
    assert [f"channel room is closed: {cure}"] * 2 == refusals
    assert ([f"channel room was removed: {cure}"], ["late"]) == (failed, taken(a))


def test_many_messages_end_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit ends more than a slice, at either side."""
    monkeypatch.setattr(closed, "SLICE", 5)
    a, b = team(world, "a", "b")
    for number in range(12):
        room(b).send(number, delay=HOUR if number % 2 else None)
    world.settle()
    commits = list[int]()
    for box in (a, b):
        write = box._db.write

        def counted(work: Any, write: Any = write, **how: Any) -> Any:
            found = write(work, **how)
            commits.append(found) if isinstance(found, int) else None
            return found

        monkeypatch.setattr(box._db, "write", counted)
    close(a)
    world.settle()

    assert [5, 1, 5, 1] == commits


def test_a_file_without_channels_is_asked_nothing(world: World) -> None:
    """Closing is no work for agents that have no message of a channel."""
    a, b = team(world, "a", "b")
    close(a)
    b.send("a", "mail")
    world.settle()

    assert (["mail"], 0) == (taken(a), b.channels._channel_sender.tasks.end_closed())


def test_an_engine_ends_a_part_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher, which has other peers, is told that more is left, and nothing is released."""
    monkeypatch.setattr(closed, "SLICE", 5)
    monkeypatch.setattr(closed, "TURN", 0.0)
    a, b = team(world, "a", "b")
    for number in range(12):
        room(b).send(number, delay=HOUR)
    close(a)
    monkeypatch.setattr(b._dispatcher._loop, "started", True)
    told, seen = list[int](), list[int]()
    stop = b._db.notifier.listen("out", lambda: told.append(len(ended(b))))
    for _ in range(3):
        b.channels._channel_sender.tasks.run()
        seen.append(len(ended(b)))
    stop()
    monkeypatch.undo()

    assert [[5, 10, 12]] * 2 == [told, seen]
