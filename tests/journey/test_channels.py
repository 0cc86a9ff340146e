"""Channels: who takes part, who may say what, and that each member has a message once."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.children import PYTHON, side_by_side

from onceward import Postbox, Tuning
from onceward.core.rows.inbox import NEXT_CAME, NEXT_IN
from onceward.errors import (
    ChannelRefused,
    DuplicateChannel,
    NotParticipant,
    OncewardError,
    TopicError,
    UnknownChannel,
    ValidationFailed,
)
from onceward.features.channels.api import Channel
from onceward.message.names import PriorityName
from onceward.message.vocabulary import AckStatus

from .conftest import World

PLAN = {"channel": "room", "now": 0, "suspects": False, "rank": -1, "seq": 0, "limit": 1}
JOIN = """
import sys
from onceward import Postbox
from onceward.errors import ValidationFailed
box = Postbox(sys.argv[1], agent=sys.argv[2], start=False)
try:
    print(box.channels.get("room").join())
except ValidationFailed as error:
    print(error.field)
box.close()
"""
Team = dict[str, Postbox]


def team(world: World, *names: str, kind: Any = "group", **config: Any) -> Team:
    """Open agents, of whom the first owns a channel called room that the others joined."""
    boxes = {name: world.open(name) for name in names}
    boxes[names[0]].channels.create("room", kind, **config)
    for name in names[1:]:
        boxes[name].channels.get("room").join()
    return boxes


def room(box: Postbox) -> Channel:
    """Return the channel as this agent sees it."""
    return box.channels.get("room")


def read(box: Postbox, **how: Any) -> list[Any]:
    """Take everything that waits for this agent in the channel; return the bodies."""
    found = []
    while (message := room(box).receive(**how)) is not None:
        found.append(message.body)
        if not message.settled:
            message.ack()
    return found


def outbox(box: Postbox) -> int:
    """Return how many messages the file ever promised."""
    [(count,)] = box._db.read("SELECT count(*) FROM _onceward_outbox")
    return int(count)


def test_a_group_reaches_everyone_but_the_sender(world: World) -> None:
    """Members and observers have it once, the sender not; all copies carry one correlation id."""
    boxes = team(world, "a", "b")
    world.open("c").channels.get("room").join("observer")
    posted = room(boxes["b"]).send({"n": 1})
    world.settle()

    assert ([{"n": 1}], [], [{"n": 1}]) == (
        read(boxes["a"]),
        read(boxes["b"]),
        read(world.boxes["c"]),
    )
    assert (("a", "c"), [(posted.id,)]) == (
        posted.recipients,
        boxes["b"]._db.read(
            "SELECT DISTINCT correlation_id FROM _onceward_outbox WHERE channel = 'room'"
        ),
    )


def test_echo_reaches_the_sender_too(world: World) -> None:
    """With echo a sender has its own copy."""
    boxes = team(world, "a", "b", echo=True)
    room(boxes["a"]).send("x")
    world.settle()

    assert (["x"], ["x"]) == (read(boxes["a"]), read(boxes["b"]))


def test_a_direct_channel_is_for_two(world: World) -> None:
    """The other participant has it; a third is refused."""
    boxes = team(world, "a", "b", kind="direct")
    with pytest.raises(ValidationFailed) as caught:
        world.open("c").channels.get("room").join()
    room(boxes["b"]).send("hi")
    world.settle()

    assert ("participants", ["hi"]) == (caught.value.field, read(boxes["a"]))


def test_only_the_owner_broadcasts(world: World) -> None:
    """On a broadcast channel the owner reaches members and observers; only the owner sends."""
    boxes = team(world, "a", "b", kind="broadcast")
    world.open("c").channels.get("room").join("observer")
    with pytest.raises(NotParticipant):
        room(boxes["b"]).send("no")
    room(boxes["a"]).send("yes")
    world.settle()

    assert (0, ["yes"], ["yes"]) == (outbox(boxes["b"]), read(boxes["b"]), read(world.boxes["c"]))


def test_pubsub_reaches_matching_subscriptions(world: World) -> None:
    """
    Each subscriber has one copy, however many of its patterns match.

    A message without topic is refused.
    """
    boxes = team(world, "a", "b", kind="pubsub")
    room(boxes["b"]).subscribe("build.*.success")
    room(boxes["b"]).subscribe("build.#")
    world.open("c").channels.get("room").subscribe("*.failure")
    room(boxes["a"]).send("done", topic="build.frontend.success")
    with pytest.raises(ValidationFailed) as caught:
        room(boxes["a"]).send("done")
    world.settle()

    assert ("topic", ["done"], [], "observer") == (
        caught.value.field,
        read(boxes["b"]),
        read(world.boxes["c"]),
        next(m.role for m in room(boxes["a"]).members() if m.agent == "c"),
    )


def test_observers_and_strangers_do_not_send(world: World) -> None:
    """Who takes no part may neither send nor read; an observer may read."""
    boxes = team(world, "a", "b")
    stranger = world.open("s")
    with pytest.raises(NotParticipant):
        room(stranger).send("x")
    with pytest.raises(NotParticipant):
        room(stranger).receive()
    room(stranger).join("observer")
    with pytest.raises(NotParticipant):
        room(stranger).send("x")
    room(boxes["b"]).leave()
    with pytest.raises(NotParticipant):
        room(boxes["b"]).send("x")

    assert room(stranger).receive() is None


def test_create_and_ensure(world: World) -> None:
    """Creating twice is an error; ensuring takes the one that is there, unchanged, and says so."""
    alice, bob = world.open("alice"), world.open("bob")
    made = alice.channels.create("room", "group", description="ours", ack_timeout=7)
    with pytest.raises(DuplicateChannel):
        bob.channels.create("room")
    channel = bob.channels.ensure("room", "pubsub", ack_timeout=9)
    info = channel.info()

    assert [True, False, False, True] == [
        each.created
        for each in (made, channel, alice.channels.get("room"), bob.channels.ensure("other"))
    ]
    assert ("group", "ours", 7.0, "alice") == (
        info.type,
        info.description,
        info.config.ack_timeout,
        info.created_by,
    )
    assert ["other", "room"] == [each.name for each in bob.channels.list()]


@pytest.mark.parametrize(
    ("name", "config", "field"),
    [
        ("", {}, "name"),
        ("a b", {}, "name"),
        ("x\n", {}, "name"),
        ("r", {"attempts": 0}, "attempts"),
        ("r", {"speed": 1}, "speed"),
        ("r", {"delivery": "twice"}, "delivery"),
        ("r", {"bound_history": True}, "bound_history"),
    ],
)
def test_a_bad_channel_names_its_field(
    world: World, name: str, config: dict[str, Any], field: str
) -> None:
    """What is wrong with a new channel is named, and none is made."""
    alice = world.open("alice")
    with pytest.raises(ValidationFailed) as caught:
        alice.channels.create(name, **config)

    assert (field, []) == (caught.value.field, alice.channels.list())


def test_an_unknown_channel(world: World) -> None:
    """There is nothing to be had from a channel that was never made."""
    with pytest.raises(UnknownChannel):
        world.open("a").channels.get("room")


LEGAL = {
    ("active", "pause"),
    ("paused", "pause"),
    ("paused", "resume"),
    ("active", "drain"),
    ("draining", "close"),
}
ALLOWED = {
    "active": "becomes paused or draining",
    "paused": "becomes active",
    "draining": "becomes closed",
    "closed": "can only be removed",
}
TO: dict[str, list[Callable[[Channel], object]]] = {
    "active": [],
    "paused": [Channel.pause],
    "draining": [Channel.drain],
    "closed": [Channel.drain, Channel.close],
}
VERBS: dict[str, Callable[[Channel], object]] = {
    "pause": Channel.pause,
    "resume": Channel.resume,
    "drain": Channel.drain,
    "close": Channel.close,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", TO)
def test_every_state_with_every_verb(world: World, state: str, verb: str) -> None:
    """The legal moves are made; all others are refused with those, and change nothing."""
    channel = world.open("a").channels.create("room")
    for step in TO[state]:
        step(channel)
    try:
        VERBS[verb](channel)
        refused = ""
    except ChannelRefused as error:
        refused = str(error)

    assert ((state, verb) in LEGAL) == (not refused)
    assert not refused or (ALLOWED[state] in refused and channel.info().state == state)


def test_only_the_owner_moves_a_channel(world: World) -> None:
    """A member may not pause, drain, close or remove it."""
    boxes = team(world, "a", "b")
    for verb in VERBS.values():
        with pytest.raises(NotParticipant):
            verb(room(boxes["b"]))
    with pytest.raises(NotParticipant):
        boxes["b"].channels.delete("room")

    assert "active" == room(boxes["a"]).info().state


def test_what_is_sent_into_a_pause_waits(world: World) -> None:
    """
    A pause holds the messages that are sent, and resuming lets them go in order.

    It spends no attempts and makes no dead letters.
    """
    boxes = team(world, "a", "b")
    room(boxes["a"]).pause()
    for number in range(3):
        room(boxes["b"]).send(number + 1)
    world.settle()
    world.wait(3600)
    before = read(boxes["a"])
    room(boxes["a"]).resume()
    world.settle()

    assert ([], [1, 2, 3], []) == (before, read(boxes["a"]), boxes["b"].dead_letters.list())


@pytest.mark.parametrize("config", [{}, {"max_pending": 10}], ids=["any", "max_pending"])
def test_a_message_after_a_pause_overtakes_none_of_it(world: World, config: Any) -> None:
    """A sender in a transaction, which cannot run its tasks, first releases what it held."""
    boxes = team(world, "a", "b", **config)
    room(boxes["a"]).pause()
    for number in range(2):
        room(boxes["b"]).send(number + 1)
    room(boxes["a"]).resume()
    with boxes["b"].begin():
        room(boxes["b"]).send(3)
    held = boxes["b"].query("SELECT seq FROM onceward_outbox WHERE held_by IS NOT NULL")
    world.settle()

    assert [] == held
    assert [1, 2, 3] == read(boxes["a"])


def test_a_pause_keeps_a_delay(world: World) -> None:
    """A delayed message that a pause held leaves no earlier than it was to leave."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).pause()
    room(boxes["b"]).send("later", delay=7200)
    held = "SELECT held_by, due_at FROM onceward_outbox WHERE channel IS NOT NULL"
    before = boxes["b"].query(held)
    room(boxes["a"]).resume()
    world.settle()
    early = read(boxes["a"])
    world.wait(7201)

    assert [("channel:room", world.clock.now() - 1000)] == before
    assert ([], ["later"]) == (early, read(boxes["a"]))


def test_other_mail_passes_a_paused_channel(world: World) -> None:
    """What waits for a channel holds back nothing else of the same session."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).pause()
    room(boxes["b"]).send("held")
    boxes["b"].send("a", "plain")
    world.settle()
    message = boxes["a"].receive()
    assert message is not None
    message.ack()

    assert "plain" == message.body


def test_a_pause_may_refuse(world: World) -> None:
    """With mode reject nothing is accepted; neither is it while draining or closed."""
    boxes = team(world, "a", "b")
    stops: list[list[Callable[[], None]]] = [
        [lambda: room(boxes["a"]).pause("reject")],
        [room(boxes["a"]).resume, room(boxes["a"]).drain],
        [room(boxes["a"]).close],
    ]
    for steps in stops:
        for step in steps:
            step()
        with pytest.raises(ChannelRefused):
            room(boxes["b"]).send("x")

    assert 0 == outbox(boxes["b"])


def test_draining_still_delivers(world: World) -> None:
    """A draining channel delivers and reads earlier messages; a closed one reads nothing."""
    boxes = team(world, "a", "b")
    room(boxes["b"]).send("early")
    room(boxes["a"]).drain()
    world.settle()
    found = read(boxes["a"])
    room(boxes["a"]).close()
    with pytest.raises(ChannelRefused):
        room(boxes["a"]).receive()

    assert ["early"] == found


def test_what_waits_for_a_closed_channel_is_kept(world: World) -> None:
    """Messages that waited in a pause when the channel closed become dead letters that say so."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).pause()
    room(boxes["b"]).send("late")
    for move in ("resume", "drain", "close"):
        getattr(room(boxes["a"]), move)()
    world.settle()

    assert ["channel_closed"] == [letter.reason for letter in boxes["b"].dead_letters.list()]


def test_a_member_acknowledges_its_own_copies_only(world: World) -> None:
    """The copy of another member is neither settled nor told of."""
    boxes = team(world, "a", "b", "c")
    sent = room(boxes["a"]).send("x")
    world.settle()
    copy = room(boxes["b"]).receive()
    assert copy is not None
    with pytest.raises(NotParticipant, match="the copy of b"):
        room(boxes["c"]).acknowledge(copy)
    world.settle()
    before = room(boxes["a"]).acknowledgments(sent.id)
    room(boxes["b"]).acknowledge(copy)
    world.settle()

    assert [] == before
    assert ["b"] == [each.participant for each in room(boxes["a"]).acknowledgments(sent.id)]


def test_a_removed_channel_may_be_made_again(world: World) -> None:
    """Only a closed channel is removed; the next one of the name starts without participants."""
    boxes = team(world, "a", "b")
    with pytest.raises(ChannelRefused):
        boxes["a"].channels.delete("room")
    room(boxes["a"]).drain()
    room(boxes["a"]).close()
    boxes["a"].channels.delete("room")
    fresh = boxes["b"].channels.create("room")

    assert ["b"] == [member.agent for member in fresh.members()]


@pytest.mark.parametrize("body", ["", None, b""])
def test_content_is_not_empty(world: World, body: Any) -> None:
    """An empty message is refused before anything is written."""
    boxes = team(world, "a", "b")
    with pytest.raises(ValidationFailed) as caught:
        room(boxes["a"]).send(body)

    assert ("content", 0) == (caught.value.field, outbox(boxes["a"]))


def test_the_size_limit_is_exact(world: World) -> None:
    """Content of 1,048,576 bytes passes, one more does not; the error names field and length."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).send("x" * 1_048_576)
    with pytest.raises(ValidationFailed) as caught:
        room(boxes["a"]).send("é" * 524_288 + "x")
    world.settle()

    assert ("content", 1_048_577) == (caught.value.field, caught.value.value_length)
    assert [1_048_576] == [len(body) for body in read(boxes["b"])]


def test_the_size_limit_holds_on_receipt(world: World) -> None:
    """
    A message that is larger than its channel takes is never handed out.

    It becomes a dead letter of its recipient.
    """
    boxes = team(world, "a", "b", max_message_size=10)
    options: Any = {"channel": "room", "kind": "text"}
    draft = boxes["a"]._outbox.compose("default", "b", "x" * 11, options)
    boxes["a"]._db.write(lambda tx: boxes["a"]._outbox.add(tx, draft))
    world.settle()

    assert ([], ["invalid"]) == (
        read(boxes["b"]),
        [letter.reason for letter in boxes["b"].dead_letters.list()],
    )


def test_a_closed_set_of_topics(world: World) -> None:
    """Where topics are a closed set, sending, subscribing and reading refuse an unknown one."""
    boxes = team(world, "a", "b", kind="pubsub", topics=["ask", "answer"])
    for attempt in (
        lambda: room(boxes["a"]).send("x", topic="asks"),
        lambda: room(boxes["b"]).subscribe("status"),
        lambda: room(boxes["b"]).receive(topics="status"),
    ):
        with pytest.raises(TopicError):
            attempt()
    room(boxes["b"]).subscribe("#")
    room(boxes["a"]).send("x", topic="ask")
    world.settle()

    assert ["x"] == read(boxes["b"], topics=["ask"])


@pytest.mark.parametrize("by_rank", [True, False])
def test_a_message_is_found_behind_thousands_that_do_not_match(world: World, by_rank: bool) -> None:
    """The next message that fits is found behind any number of others, by urgency or by arrival."""
    boxes = team(world, "a", "b", priority_ordering=by_rank, sticky=False)
    talk = room(boxes["a"])
    with boxes["a"].begin():
        for n in range(5000):
            talk.send(n, topic="noise.loud", priority=("low", "normal")[n % 2])
        talk.send("late", topic="news.a", priority="low")
    world.settle()
    talk.send("first", topic="news.a", priority="urgent")
    world.settle()

    assert (["first", "late"] if by_rank else ["late", "first"]) == read(
        boxes["b"], topics="news.*"
    )
    assert 5000 == boxes["b"].file.stats()["inbox_pending"]
    assert None is room(boxes["b"]).receive(topics="nothing.#")
    plans = [
        detail
        for *_, detail in boxes["b"]._db.read(
            f"EXPLAIN QUERY PLAN {NEXT_IN if by_rank else NEXT_CAME}", PLAN
        )
    ]
    assert {"_onceward_inbox_channel_pending"} == {
        word for plan in plans for word in plan.split() if word.startswith("_onceward_inbox_")
    }
    assert not by_rank or [] == [plan for plan in plans if "TEMP B-TREE" in plan]


def test_reading_by_topic_passes_over_others(world: World) -> None:
    """A reader that asks for a topic has that; what it passed over is still there."""
    boxes = team(world, "a", "b")
    for number, topic in enumerate(["x.1", "y", "x.2"]):
        room(boxes["a"]).send(number, topic=topic)
    world.settle()

    assert ([0, 2], [1]) == (read(boxes["b"], topics="x.*"), read(boxes["b"]))


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [(True, ["now", "first", "second"]), (False, ["first", "now", "second"])],
)
def test_urgent_messages_are_read_first(world: World, ordering: bool, expected: list[str]) -> None:
    """Reading goes by priority and then as they came, or only as they came."""
    boxes = team(world, "a", "b", priority_ordering=ordering)
    said: dict[str, PriorityName] = {"first": "normal", "now": "critical", "second": "normal"}
    for body, priority in said.items():
        room(boxes["a"]).send(body, priority=priority)
        world.settle()

    assert expected == read(boxes["b"])


def test_two_readers_of_one_channel_each_have_everything(world: World) -> None:
    """What one participant has read another still has to read."""
    boxes = team(world, "a", "b", "c")
    room(boxes["a"]).send(1)
    world.settle()

    assert ([1], [1], []) == (read(boxes["b"]), read(boxes["c"]), read(boxes["b"]))


def test_history_consumes_nothing(world: World) -> None:
    """Looking back gives the newest first, of this channel only, as often as one likes."""
    boxes = team(world, "a", "b")
    boxes["a"].send("b", "elsewhere")
    for number in (1, 2):
        room(boxes["a"]).send(number)
    world.settle()
    page = room(boxes["b"]).history()

    assert ([2, 1], 2, [1, 2]) == (
        [past.body for past in page.messages],
        page.total_count,
        read(boxes["b"]),
    )


def test_a_query_and_its_responses_are_one_conversation(world: World) -> None:
    """Responses go to the asker, in the query's conversation; one without a query is refused."""
    boxes = team(world, "a", "b", "c")
    asked = room(boxes["a"]).send("who?", kind="query")
    world.settle()
    for name in ("b", "c"):
        with room(boxes[name]).receive() or pytest.fail("no query") as message:
            room(boxes[name]).respond(message, f"{name}!")
    world.settle()
    with pytest.raises(ValidationFailed) as caught:
        room(boxes["b"]).send("x", kind="response", correlation_id="unheard of")
    thread = {past.id: past.kind for past in boxes["a"].thread(asked.id)}

    assert ("correlation_id", ["b!", "c!"]) == (caught.value.field, sorted(read(boxes["a"])))
    assert ["query", "response", "response"] == sorted(str(kind) for kind in thread.values())


def test_a_thread_lists_each_send_once(world: World) -> None:
    """What was sent twice is listed twice, however many copies; echoes and dead ones: as told."""
    boxes = team(world, "a", "b", "c", echo=True)
    first = room(boxes["a"]).send("anyone?", kind="query")
    room(boxes["a"]).send("anyone?", correlation_id=first.id, kind="query")
    world.settle()

    assert [["anyone?"] * 2] * 3 == [
        [past.body for past in boxes[name].thread(first.id)] for name in "abc"
    ]


def test_a_copy_that_died_is_listed_beside_the_others(world: World) -> None:
    """A thread shows the dead letter of one recipient, and the message once for all others."""
    boxes = team(world, "a", "b", "c", "d")
    posted = room(boxes["a"]).send("x", ttl=5.0)
    boxes["a"].peers.add("b", "memory:nobody")
    world.settle()
    world.clock.forward(6)
    world.settle()
    found = [(past.recipient, past.state) for past in boxes["a"].thread(posted.id)]

    assert [("b", "dead"), ("c", "sent")] == sorted(found)


def test_a_late_response_is_marked_late(world: World) -> None:
    """A response that arrives after its query's time to live says so, an earlier one does not."""
    boxes = team(world, "a", "b", "c")
    asked = room(boxes["a"]).send("who?", kind="query", ttl=10.0)
    world.settle()
    queries = {name: room(boxes[name]).receive() or pytest.fail("no query") for name in "bc"}
    for name, seconds in (("b", 9), ("c", 1)):
        world.clock.forward(seconds)
        with queries[name] as query:
            room(boxes[name]).respond(query, name)
        world.settle()
    past = {each.sender: each.late for each in boxes["a"].thread(asked.id)}
    received = {}
    while message := room(boxes["a"]).receive():
        received[message.body] = message.late
        message.ack()

    assert {"b": False, "c": True} == received
    assert {"a": False, "b": False, "c": True} == past


def test_a_response_to_a_query_without_an_end_is_never_late(world: World) -> None:
    """Only a query's time to live says when an answer is late."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).send("who?", kind="query")
    world.settle()
    message = room(boxes["b"]).receive()
    assert message is not None
    world.clock.forward(100_000)
    room(boxes["b"]).respond(message, "me")
    world.settle()
    answer = room(boxes["a"]).receive()

    assert answer is not None
    assert (False, {}) == (answer.late, answer.headers)


def test_only_a_participant_acknowledges(world: World) -> None:
    """An agent that has left may not acknowledge, and its message is as it was before."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).send("go", kind="command")
    world.settle()
    message = room(boxes["b"]).receive()
    assert message is not None
    room(boxes["b"]).leave()
    with pytest.raises(NotParticipant):
        room(boxes["b"]).acknowledge(message)

    assert (False, 0) == (message.settled, outbox(boxes["b"]))


def test_an_unknown_kind_is_refused(world: World) -> None:
    """A kind is one of eight, and acknowledgments are said by their own verb."""
    boxes = team(world, "a", "b")
    for kind in ("Text", "shout", "", "acknowledgment"):
        with pytest.raises(ValidationFailed) as caught:
            room(boxes["a"]).send("x", kind=kind)  # type: ignore[arg-type]
        assert "kind" == caught.value.field


def test_acknowledgments_come_in_stages(world: World) -> None:
    """
    A command is acknowledged several times, and nothing is taken back.

    The sender sees how far each recipient is.
    """
    boxes = team(world, "a", "b", "c")
    posted = room(boxes["a"]).send("go", kind="command")
    world.settle()
    for name, stages in {
        "b": ["received", "in_progress", "completed", "in_progress"],
        "c": ["received"],
    }.items():
        message = room(boxes[name]).receive()
        assert message is not None
        for stage in stages:
            room(boxes[name]).acknowledge(message, cast("AckStatus", stage), f"{name} {stage}")
    world.settle()
    found = {
        each.participant: (each.status, each.detail)
        for each in room(boxes["a"]).acknowledgments(posted.id)
    }

    assert {"b": ("completed", "b completed"), "c": ("received", "c received")} == found
    assert [] == read(boxes["a"])


def test_progress_extends_the_time(world: World) -> None:
    """
    A reader that reports progress keeps the message beyond its ack timeout.

    One that says nothing loses it.
    """
    boxes = team(world, "a", "b", ack_timeout=10, retry_backoff=0)
    room(boxes["a"]).send("long", kind="command")
    world.settle()
    message = room(boxes["b"]).receive()
    assert message is not None
    world.clock.forward(9)
    room(boxes["b"]).acknowledge(message, "in_progress")
    world.clock.forward(9)
    kept = room(boxes["b"]).receive()
    world.clock.forward(2)
    again = room(boxes["b"]).receive()
    assert again is not None
    again.ack()

    assert (None, 2) == (kept, again.attempt)


def test_failed_is_tried_again_and_then_buried(world: World) -> None:
    """
    A failed command comes again after 1, 2 and 4 s.

    The fourth failure makes it a dead letter with its details.
    """
    boxes = team(world, "a", "b")
    posted = room(boxes["a"]).send("try", kind="command")
    world.settle()
    seen = []
    for wait in (0, 1, 2, 4):
        world.clock.forward(wait - 0.001 if wait else 0)
        early = room(boxes["b"]).receive() if wait else None
        world.clock.forward(0.001 if wait else 0)
        message = room(boxes["b"]).receive()
        assert message is not None
        seen.append((early, message.attempt))
        room(boxes["b"]).acknowledge(message, "failed", f"no {message.attempt}")
    world.settle()
    [letter] = boxes["b"].dead_letters.list()
    [said] = room(boxes["a"]).acknowledgments(posted.id)

    assert [(None, 1), (None, 2), (None, 3), (None, 4)] == seen
    assert ("attempts_spent", "no 4", "failed") == (
        letter.reason,
        letter.last_error,
        said.status,
    )


def test_silence_is_tried_again_and_then_buried(world: World) -> None:
    """
    A reader that never settles has the message again after the timeout and the pause.

    After three times the message is dead.
    """
    boxes = team(world, "a", "b", ack_timeout=5)
    room(boxes["a"]).send("hello?")
    world.settle()
    attempts = []
    for wait in (0, 6, 7, 9):
        world.clock.forward(wait)
        message = room(boxes["b"]).receive()
        attempts.append(None if message is None else message.attempt)
    world.clock.forward(5)
    last = room(boxes["b"]).receive()

    assert ([1, 2, 3, 4], None, ["attempts_spent"]) == (
        attempts,
        last,
        [x.reason for x in boxes["b"].dead_letters.list()],
    )


def test_at_most_once_is_marked_before_it_is_returned(world: World) -> None:
    """On such a channel a reader that dies after receiving never has the message again."""
    boxes = team(world, "a", "b", delivery="at_most_once", ack_timeout=1)
    room(boxes["a"]).send("once")
    world.settle()
    message = room(boxes["b"]).receive()
    world.clock.forward(100)

    assert message is not None
    assert (True, None) == (message.settled, room(boxes["b"]).receive())


def test_effects_commit_with_the_mark(world: World) -> None:
    """On an exactly-once channel the effects and the mark are one transaction."""
    boxes = team(world, "a", "b", delivery="exactly_once", ack_timeout=1, retry_backoff=0)
    box = boxes["b"]
    box._db.write(lambda tx: tx.rows("CREATE TABLE done (n)"))
    room(boxes["a"]).send(7)
    world.settle()
    message = room(box).receive()
    assert message is not None
    with pytest.raises(ZeroDivisionError), box.begin() as tx:
        tx.execute("INSERT INTO done VALUES (7)")
        message.ack()
        raise ZeroDivisionError
    world.clock.forward(2)
    again = room(box).receive()
    assert again is not None
    with box.begin() as tx:
        tx.execute("INSERT INTO done VALUES (7)")
        again.ack()

    assert ([(1,)], None) == (box._db.read("SELECT count(*) FROM done"), room(box).receive())


def kept(box: Postbox) -> list[Any]:
    """Return the bodies of the channel's past messages, oldest first."""
    return [past.body for past in room(box).history().messages][::-1]


def test_history_is_bounded_when_asked(world: World) -> None:
    """The newest messages stay at each participant, and all that have not ended; no more."""
    boxes = team(world, "a", "b", retain_count=2, bound_history=True)
    for number in range(6):
        room(boxes["a"]).send(number)
    world.settle()
    for _ in range(5):
        with room(boxes["b"]).receive() or pytest.fail("no message"):
            pass
    world.settle()
    waits = [past.body for past in boxes["b"].history(state="pending").messages]
    for box in boxes.values():
        box.file.run_maintenance()

    assert ([5], [4, 5], [4, 5]) == (waits, kept(boxes["a"]), kept(boxes["b"]))
    assert [] == boxes["a"].file.check(boxes["b"].file)


def test_what_has_not_ended_is_never_pruned(world: World) -> None:
    """However small the bound is, a message that waits stays in both files."""
    boxes = team(world, "a", "b", retain_count=1, bound_history=True)
    for number in range(3):
        room(boxes["a"]).send(number)
    world.settle()
    for box in boxes.values():
        box.file.run_maintenance()

    assert [0, 1, 2] == kept(boxes["a"]) == kept(boxes["b"]) == read(boxes["b"])


def test_history_is_not_bounded_unless_asked(world: World) -> None:
    """What a sticky channel retains for later members says nothing about history."""
    boxes = team(world, "a", "b", sticky=True, retain_count=1)
    for number in range(3):
        room(boxes["a"]).send(number)
    world.settle()
    read(boxes["b"])
    world.settle()
    for box in boxes.values():
        box.file.run_maintenance()

    assert [0, 1, 2] == kept(boxes["a"]) == kept(boxes["b"])


def test_a_bounded_history_forgets_no_duplicate_and_no_key(world: World) -> None:
    """A parcel that comes again has no second effect, and a key stays that of its message."""
    boxes = team(world, "a", "b", retain_count=1, bound_history=True)
    boxes["a"].peers.add("b", "wire:b")
    first = room(boxes["a"]).send("x", key="k")
    world.settle()
    pushed = world.wire.pushed[-1]
    room(boxes["a"]).send("y")
    world.settle()
    assert ["x", "y"] == read(boxes["b"])
    world.settle()
    for box in boxes.values():
        box.file.run_maintenance()
    world.wire.push_again(pushed)

    assert ([], ["y"]) == (read(boxes["b"]), kept(boxes["b"]))
    assert first.copies == room(boxes["a"]).send("x", key="k").copies


def test_a_message_that_history_forgot_is_still_acknowledged(world: World) -> None:
    """A second word about a message goes to its acknowledgments, not into the inbox."""
    boxes = team(world, "a", "b", retain_count=1, bound_history=True)
    posted = room(boxes["a"]).send("go", kind="command")
    world.settle()
    message = room(boxes["b"]).receive()
    assert message is not None
    room(boxes["b"]).acknowledge(message, "failed", "not yet")
    world.settle()
    world.clock.forward(40)
    again = room(boxes["b"]).receive()
    assert again is not None
    again.ack()
    room(boxes["a"]).send("next")
    world.settle()
    boxes["a"].file.run_maintenance()
    room(boxes["b"]).acknowledge(again, "completed")
    world.settle()

    past = room(boxes["a"]).history(kind=["command", "text"])
    assert ["next"] == [each.body for each in past.messages]
    assert ["completed"] == [
        each.status for each in room(boxes["a"]).acknowledgments(posted.copies[0][1])
    ]
    assert [] == read(boxes["a"])


def test_acknowledgments_are_forgotten_with_their_message(world: World) -> None:
    """Once retention has pruned a message, what was said of it goes too."""
    boxes = team(world, "a", "b")
    posted = room(boxes["a"]).send("go", kind="command")
    world.settle()
    message = room(boxes["b"]).receive()
    assert message is not None
    room(boxes["b"]).acknowledge(message)
    world.settle()
    found = []
    for days in (6, 2):
        world.clock.forward(days * 86_400)
        boxes["a"].file.run_maintenance()
        found.append(len(room(boxes["a"]).acknowledgments(posted.copies[0][1])))

    assert [1, 0] == found


def test_a_late_one_is_given_what_a_sticky_channel_retains(world: World) -> None:
    """
    A member that joins a sticky channel later has all retained messages, in order, once.

    Newer messages come after them; on other channels only newer messages come.
    """
    boxes = team(world, "a", "b", sticky=True)
    for number in (1, 2, 3):
        room(boxes["a"]).send(number)
    world.settle()
    late = world.open("late")
    room(late).join()
    room(boxes["a"]).send(4)
    world.settle()
    world.settle()

    assert ([1, 2, 3, 4], [1, 2, 3, 4]) == (read(late), read(boxes["b"]))


def test_a_late_one_is_given_retained_messages_within_limits(world: World) -> None:
    """A file with limits serves a late member, too: retained messages are judged like new ones."""
    boxes = team(world, "a", "b", sticky=True)
    room(boxes["a"]).send("old")
    world.settle()
    boxes["a"].limits.set("outbox", messages=10)
    late = world.open("late")
    room(late).join()
    world.settle()
    world.settle()

    assert ["old"] == read(late)


def test_a_late_one_is_served_without_another_send(world: World) -> None:
    """The sender's engines notice a new member after a restart, and without another send."""
    boxes = team(world, "a", "b", sticky=True)
    room(boxes["a"]).send("old")
    world.settle()
    world.open("late").channels.get("room").join()
    alice, _bob, late = world.reopen("a", "b", "late")
    world.settle()

    assert (["old"], [(1,)]) == (
        read(late),
        alice._db.read("SELECT count(*) FROM _onceward_bodies"),
    )


def test_a_late_one_has_nothing_of_an_ordinary_channel(world: World) -> None:
    """Without sticky a newcomer starts with what is sent after it joined."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).send("before")
    late = world.open("late")
    room(late).join()
    room(boxes["a"]).send("after")
    world.settle()

    assert ["after"] == read(late)


def test_a_late_subscriber_is_given_what_matches(world: World) -> None:
    """
    On a sticky pubsub channel a new pattern brings the messages that it matches.

    It brings none that an older pattern had brought.
    """
    boxes = team(world, "a", "b", kind="pubsub", sticky=True)
    room(boxes["b"]).subscribe("x.*")
    for number, topic in enumerate(["x.1", "y", "x.2"]):
        room(boxes["a"]).send(number, topic=topic)
    world.settle()
    first = read(boxes["b"])
    room(boxes["b"]).subscribe("#")
    world.settle()

    assert ([0, 2], [1]) == (first, read(boxes["b"]))


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        ({"retain_count": 2}, [3, 4]),
        ({"retain_for": 25.0}, [3, 4]),
        ({"retain_bytes": 3}, [2, 3, 4]),
        ({}, [1, 2, 3, 4]),
    ],
)
def test_a_sticky_channel_retains_as_much_as_it_says(
    world: World, retention: dict[str, Any], expected: list[int]
) -> None:
    """By count, by age, by size or for ever."""
    boxes = team(world, "a", "b", sticky=True, **retention)
    for number in (1, 2, 3, 4):
        room(boxes["a"]).send(number)
        world.clock.forward(10)
    late = world.open("late")
    room(late).join()
    world.settle()

    assert expected == read(late)


def test_a_full_channel_accepts_and_waits(world: World) -> None:
    """A sender's messages beyond max_pending are accepted and wait for room, in order."""
    boxes = team(world, "a", "b", max_pending=2)
    for number in (1, 2, 3, 4, 5):
        room(boxes["a"]).send(number)
    world.settle()
    first = read(boxes["b"])
    for _ in range(4):
        world.settle()
    rest = read(boxes["b"])
    world.settle()

    assert ([1, 2], [3, 4], [5]) == (first, rest, read(boxes["b"]))


def test_the_limit_of_participants_holds_for_all_processes(world: World) -> None:
    """Of several processes that join at once exactly as many come in as there is room for."""
    alice = world.open("a")
    alice.channels.create("room", max_participants=3)
    joining = ([*PYTHON, "-c", JOIN, world.path(name), name] for name in "bcdef")
    said = sorted(each.strip() for each in side_by_side(joining))

    assert ["True", "True", "participants", "participants", "participants"] == said
    assert 3 == len(room(alice).members())


def test_what_happens_is_told_under_reserved_topics(world: World) -> None:
    """
    A subscriber hears of channels, of members that come and go and of dead letters.

    Each comes once, as an ordinary message.
    """
    ear = world.open("ear")
    ear.agents.subscribe("_system.#")
    boxes = team(world, "a", "b")
    boxes["a"].send("b", "gone", ttl=1)
    world.clock.forward(5)
    world.settle()
    room(boxes["b"]).leave()
    room(boxes["a"]).drain()
    room(boxes["a"]).close()
    boxes["a"].channels.delete("room")
    world.settle()
    world.settle()
    heard = []
    while (message := ear.receive()) is not None:
        heard.append((message.topic, message.kind))
        message.ack()

    assert [
        "_system.channel.created", "_system.channel.deleted", "_system.message.deadletter",
        "_system.participant.joined", "_system.participant.left",
    ] == sorted(str(topic) for topic, _ in heard)  # fmt: skip
    assert {"notification"} == {kind for _, kind in heard}


def test_a_notice_is_told_after_a_crash(world: World) -> None:
    """If a process dies between change and notice, the next one to open the file tells it, once."""
    ear, alice = world.open("ear"), world.open("a")
    ear.agents.subscribe("_system.channel.*")
    alice.channels._channel_sender.tasks.run = lambda: None  # type: ignore[method-assign]
    alice.channels.create("room")
    world.reopen("ear", "a")
    world.settle()
    world.settle()
    found = []
    while (message := world.boxes["ear"].receive()) is not None:
        found.append(message.body["channel"])
        message.ack()

    assert ["room"] == found


def test_a_send_joins_the_callers_transaction(world: World) -> None:
    """A message sent inside a transaction that is undone was never sent, and is not retained."""
    boxes = team(world, "a", "b", sticky=True)
    with pytest.raises(ZeroDivisionError), boxes["a"].begin():
        room(boxes["a"]).send("x")
        raise ZeroDivisionError

    assert (0, [(0,)]) == (
        outbox(boxes["a"]),
        boxes["a"]._db.read("SELECT count(*) FROM _onceward_retained_posts"),
    )


def test_a_key_holds_for_a_channel(world: World) -> None:
    """Sending again under the same key reaches no participant twice and returns the same id."""
    boxes = team(world, "a", "b", sticky=True)
    first, second = (room(boxes["a"]).send("x", key="k") for _ in range(2))
    world.settle()

    assert (first, ["x"]) == (second, read(boxes["b"]))


def test_the_frame_says_channel_and_kind(world: World) -> None:
    """Handlers and SQL see which channel a message came through and what it is."""
    boxes = team(world, "a", "b")
    room(boxes["a"]).send("x", kind="notification")
    world.settle()
    [(frame,)] = boxes["b"]._db.read(
        "SELECT frame FROM onceward_inbox WHERE channel = 'room' AND kind = 'notification'"
    )

    assert ("room", "notification", "room") == tuple(
        json.loads(frame)[name] for name in ("channel", "kind", "partitionkey")
    )


def test_mail_does_not_wait_for_a_broken_directory(world: World) -> None:
    """If the directory cannot be read, what is between two agents is delivered all the same."""
    boxes = team(world, "a", "b")
    world.shut()
    for name in ("directory.db", "directory.db-wal", "directory.db-shm"):
        (world.home / name).unlink(missing_ok=True)
    (world.home / "directory.db").write_bytes(b"no database " * 1000)
    alice, bob = world.open("a"), world.open("b")
    alice.send("b", "plain")
    world.settle()
    message = bob.receive()
    assert message is not None
    message.ack()

    assert ("plain", 2) == (message.body, len(boxes))


def test_a_broken_directory_stops_no_checkpoint(world: World) -> None:
    """Maintenance of the agent's own file comes before what it reads in the directory."""
    team(world, "a")
    world.shut()
    (world.home / "directory.db").write_bytes(b"no database " * 1000)
    box = world.open("a", tuning=Tuning(wal_limit=1 << 20))
    for _ in range(3):
        box.send("a", "x" * 500_000)
    with pytest.raises(OncewardError):
        box.file.run_maintenance()

    assert 0 == box._db.wal_bytes()
