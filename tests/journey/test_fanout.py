"""One message for many: stored once, sent to each once, all or nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Msg, Postbox, Tuning
from onceward.errors import InvalidMessage, OutboxLimit, Paused, UnknownRecipient

from .conftest import World

LONG = "é" * 1793  # 3,586 bytes of UTF-8


class Note(Msg, type="note"):
    """A small message."""

    text: str


def rows(box: Postbox, sql: str) -> list[tuple[object, ...]]:
    """Return what the file says."""
    return box._db.read(sql)


def bodies_of(world: World, *names: str) -> list[list[object]]:
    """Return what each of them received, in order, taking it."""
    found = []
    for name in names:
        mine = []
        while (message := world.boxes[name].receive()) is not None:
            mine.append(message.body)
            message.ack()
        found.append(mine)
    return found


def test_no_recipient_is_not_every_agent(world: World) -> None:
    """A NULL of a table is refused, and the error names the verb for all agents."""
    alice = world.open("alice")
    world.open("bob").agents.register()
    nobody: Any = None
    for send in (alice.send, alice.session("s").send):
        with pytest.raises(InvalidMessage, match=r"broadcast\(body\)"):
            send(nobody, {"n": 1})
    with pytest.raises(InvalidMessage, match=r"broadcast\(body\)"), alice.begin() as tx:
        tx.send(nobody, {"n": 1})
    with pytest.raises(InvalidMessage, match=r"broadcast\(body\)"):
        alice.send_many([(nobody, {"n": 1})])

    assert [(0,)] == rows(alice, "SELECT count(*) FROM _onceward_outbox")


@pytest.mark.parametrize(
    "send",
    [
        lambda box: box.broadcast({"n": 1}),
        lambda box: box.send("all", {"n": 1}),
        lambda box: box.send("broadcast", {"n": 1}),
    ],
)
def test_a_broadcast_reaches_every_registered_agent_but_the_sender(
    world: World, send: Callable[[Postbox], str]
) -> None:
    """
    Every agent registered in the home has the message once.

    All copies have one correlation id, which is what the verb returns.
    """
    alice, bob, carol = (world.open(name) for name in ("alice", "bob", "carol"))
    for box in (bob, carol):
        box.agents.register()
    root = send(alice)
    world.settle()

    assert [[{"n": 1}], [{"n": 1}], []] == bodies_of(world, "bob", "carol", "alice")
    assert [(root,), (root,)] == rows(alice, "SELECT correlation_id FROM onceward_outbox")


def test_a_home_knows_the_files_of_its_agents(tmp_path: Path) -> None:
    """In a home every agent with a file is registered, even if it never sent anything."""
    (tmp_path / "agents").mkdir()
    boxes = [
        Postbox(tmp_path / "agents" / f"{name}.db", agent=name, start=False)
        for name in ("a", "b", "c")
    ]
    boxes[0].send("all", 1)
    found = rows(boxes[0], "SELECT recipient FROM onceward_outbox ORDER BY 1")
    for box in boxes:
        box.close()

    assert [("b",), ("c",)] == found
    assert (tmp_path / "directory.db").exists()


def test_to_all_in_an_empty_home_is_loud(world: World) -> None:
    """Where no other agent is registered the send fails instead of vanishing."""
    alice = world.open("alice")
    with pytest.raises(UnknownRecipient):
        alice.send("all", 1)


def test_the_body_is_stored_once(world: World) -> None:
    """
    A body lies in the file once, however many agents receive it.

    It goes with the last message that refers to it.
    """
    alice = world.open("alice", retention=1.0, delivery_attempts=1)
    for name in ("b", "c", "d"):
        world.open(name).agents.register()
    alice.broadcast("shared text")
    during = rows(alice, "SELECT count(*), sum(text = '\"shared text\"') FROM _onceward_bodies")
    world.settle()
    bodies_of(world, "b", "c", "d")
    world.settle()
    world.clock.forward(10)
    alice.file.run_maintenance()

    assert ([(1, 1)], [(0,)], [(0,)]) == (
        during,
        rows(alice, "SELECT count(*) FROM _onceward_outbox"),
        rows(alice, "SELECT count(*) FROM _onceward_bodies"),
    )


@pytest.mark.parametrize(("text", "beside"), [("é" * 1792, 0), (LONG, 1), ("@file:secret.txt", 0)])
def test_long_bodies_are_stored_beside(world: World, text: str, beside: int) -> None:
    """
    A body of more than 3,584 bytes lies beside its message.

    The text that arrives is the same, whatever it looks like.
    """
    alice, _bob = world.open("alice"), world.open("bob")
    alice.send("bob", text)
    stored = rows(alice, "SELECT count(*) FROM _onceward_bodies")
    world.settle()

    assert ([(beside,)], [[text]]) == (stored, bodies_of(world, "bob"))


def test_the_same_key_and_long_body_is_known(world: World) -> None:
    """Sending a long body again under its key returns the first id and leaves no second body."""
    alice, _bob = world.open("alice"), world.open("bob")
    ids = {alice.send("bob", LONG, key="k") for _ in range(2)}

    assert (1, [(1,)]) == (len(ids), rows(alice, "SELECT count(*) FROM _onceward_bodies"))


def test_send_many_takes_long_bodies(world: World) -> None:
    """A batch may hold short and long bodies, and keeps its order."""
    alice, _bob = world.open("alice"), world.open("bob")
    alice.send_many([("bob", "short"), ("bob", LONG), ("bob", "end")])
    world.settle()

    assert [["short", LONG, "end"]] == bodies_of(world, "bob")


def test_bytes_are_stored_beside_too(world: World) -> None:
    """Long binary bodies come back identical."""
    alice, bob = world.open("alice"), world.open("bob")
    alice.send("bob", bytes(range(256)) * 20)
    world.settle()
    message = bob.receive(bytes)
    assert message is not None
    message.ack()

    assert bytes(range(256)) * 20 == message.body


def test_the_threshold_is_a_setting(world: World) -> None:
    """A higher threshold keeps long bodies in their messages."""
    alice, _bob = world.open("alice", tuning=Tuning(body_threshold=10_000)), world.open("bob")
    alice.send("bob", LONG)

    assert [(0,)] == rows(alice, "SELECT count(*) FROM _onceward_bodies")


@pytest.mark.broken("the damage is planted")
def test_a_missing_body_blocks_nothing(world: World) -> None:
    """A message whose body is gone is delivered without it and says so; the next ones come, too."""
    world.audited = False
    alice, bob = world.open("alice"), world.open("bob")
    alice.send("bob", LONG)
    alice.send("bob", "next")
    alice._db.write(lambda tx: tx.run("DELETE FROM _onceward_bodies"))
    world.settle()
    first, second = bob.receive(), None
    assert first is not None
    first.ack()
    second = bob.receive()
    assert second is not None
    second.ack()

    lost = "the body is missing: its sender's file had lost it"
    assert ((None, lost), ("next", None)) == (
        (first.body, first.body_error),
        (second.body, second.body_error),
    )


@pytest.mark.broken("the damage is planted")
def test_a_damaged_head_or_body_is_never_delivered(world: World) -> None:
    """Damage in what is shared, or in what is not, is found before anything leaves."""
    world.audited = False
    alice, _bob = world.open("alice"), world.open("bob")
    alice.send("bob", LONG)
    alice._db.write(lambda tx: tx.run("UPDATE _onceward_bodies SET text = replace(text, 'é', 'e')"))
    alice.send("bob", LONG + "x")
    alice._db.write(
        lambda tx: tx.rows(
            "DROP TRIGGER _onceward_outbox_frame_guard;"
            " UPDATE _onceward_outbox SET frame = replace(frame, 'text', 'test')"
        )
    )
    world.settle()

    assert ["corrupt", "corrupt"] == [letter.reason for letter in alice.dead_letters.list()]


def test_a_dead_copy_keeps_its_body(world: World) -> None:
    """
    A copy that becomes a dead letter is kept whole.

    It is replayed whole after the others are gone.
    """
    alice, _bob = world.open("alice"), world.open("bob")
    world.open("carol").agents.register()
    world.boxes["bob"].agents.register()
    alice.send("all", Note(text="kept"), ttl=1.0)
    alice._db.write(lambda tx: tx.run("UPDATE _onceward_peers SET due_at = 9e15"))
    world.clock.forward(5)
    world.settle()
    letters = alice.dead_letters.list()
    for letter in letters:
        alice.dead_letters.replay(letter.id, as_new=True)
    world.settle()

    assert (2, [(0,)]) == (len(letters), rows(alice, "SELECT count(*) FROM _onceward_bodies"))
    assert [[{"text": "kept"}], [{"text": "kept"}]] == bodies_of(world, "bob", "carol")


def test_the_same_key_to_all_is_known(world: World) -> None:
    """
    A broadcast that is repeated under its key returns the same id and reaches newcomers only.

    It is stored once for these.
    """
    alice, bob = world.open("alice"), world.open("bob")
    bob.agents.register()
    first = alice.send("all", 1, key="k")
    world.open("carol").agents.register()
    second = alice.send("all", 1, key="k")
    world.settle()

    assert (first, [[1], [1]]) == (second, bodies_of(world, "bob", "carol"))


def test_a_refused_copy_leaves_none(world: World) -> None:
    """If one copy is one too many, none is written, not even within a transaction that goes on."""
    alice = world.open("alice", max_pending=2)
    for name in ("b", "c", "d"):
        world.open(name).agents.register()
    with pytest.raises(OutboxLimit):
        alice.send("all", 1)
    with alice.begin() as tx:
        with pytest.raises(OutboxLimit):
            tx.send("all", 2)
        tx.send("b", 3)

    assert ([("b",)], [(0,)]) == (
        rows(alice, "SELECT recipient FROM _onceward_outbox"),
        rows(alice, "SELECT count(*) FROM _onceward_bodies"),
    )


def test_to_all_joins_the_transaction(world: World) -> None:
    """A broadcast of a transaction that is undone was never sent."""
    alice = world.open("alice")
    world.open("bob").agents.register()
    with pytest.raises(ZeroDivisionError), alice.begin() as tx:
        tx.broadcast(1)
        raise ZeroDivisionError

    assert [(0,)] == rows(alice, "SELECT count(*) FROM _onceward_outbox")


def test_a_message_id_is_for_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many cannot share a message id, and nothing is sent while the switch is on."""
    alice = world.open("alice")
    world.open("bob").agents.register()
    with pytest.raises(InvalidMessage):
        alice.send("all", 1, message_id="mine")
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    with pytest.raises(Paused):
        alice.send("all", 1)


def test_who_left_the_home_is_passed_by(world: World) -> None:
    """
    Broadcasts and published messages do not wait for an agent that is retired.

    The messages that it wanted in channels are left with them.
    """
    alice, bob = world.open("alice"), world.open("bob")
    alice.channels.create("team").add("bob")
    bob.agents.register()
    bob.agents.subscribe("news.#")
    assert 1 == len(alice.publish("news.x", 1))

    assert (True, False) == (bob.agents.remove(), bob.agents.remove())
    assert ([], []) == (alice.agents.list(), alice.publish("news.x", 2))
    assert ["alice", "bob"] == sorted(
        member.agent for member in alice.channels.get("team").members()
    )


def test_publish_reaches_each_subscriber_once(world: World) -> None:
    """
    Each subscriber has one copy, however many of its patterns match.

    Patterns of other subscribers and of other publishers do not count.
    """
    alice, bob, carol = (world.open(name) for name in ("alice", "bob", "carol"))
    for pattern in ("build.*.done", "build.#", "#"):
        bob.agents.subscribe(pattern)
    alice.peers.subscribe("carol", "build.x.done")
    bob.peers.subscribe("carol", "#")
    ids = alice.publish("build.x.done", 1)
    alice.publish("test", 2)
    world.settle()

    assert (2, [[1, 2], [1]]) == (len(ids), bodies_of(world, "bob", "carol"))
    assert carol.agents.unsubscribe("nothing") is False


def test_an_end_of_a_subscription_is_obeyed_at_once(world: World) -> None:
    """What is published after it was ended, even by another postbox, does not come."""
    alice, bob = world.open("alice"), world.open("bob")
    first = bob.agents.subscribe("a")
    again = bob.agents.subscribe("a")
    alice.publish("a", 1)
    ended = bob.agents.unsubscribe("a")
    alice.publish("a", 2)
    world.settle()

    assert (True, False, True, [[1]]) == (first, again, ended, bodies_of(world, "bob"))


def test_a_publisher_does_not_hear_itself(world: World) -> None:
    """Who subscribed to everything still gets nothing of its own, unless it said so of itself."""
    alice = world.open("alice")
    alice.agents.subscribe("#")
    none = alice.publish("a", 1)
    alice.peers.subscribe("alice", "a")
    one = alice.publish("a", 2)

    assert (0, 1) == (len(none), len(one))


def test_reserved_topics_are_refused_everywhere(world: World, tmp_path: Path) -> None:
    """Only the library publishes under ``_system``, also by plain SQL."""
    alice = world.open("alice", hold_unknown=True)
    for attempt in (
        lambda: alice.publish("_system.x", 1),
        lambda: alice.send("bob", 1, topic="_system.x"),
        lambda: alice._db.write(
            lambda tx: tx.run(
                "INSERT INTO onceward_send (recipient, type, topic)"
                " VALUES ('bob', 't', '_system.x')"
            )
        ),
    ):
        with pytest.raises(InvalidMessage, match="reserved"):
            attempt()

    assert [(0,)] == rows(alice, "SELECT count(*) FROM _onceward_outbox")
    assert tmp_path.exists()
