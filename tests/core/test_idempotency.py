"""One promise for one id or key: sending again is safe, and never the same for another body."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from onceward import Msg, Postbox
from onceward.core.end import sent
from onceward.errors import Conflict


def test_the_same_key_and_body_is_the_same_message(box: Postbox) -> None:
    """
    Sending again under a key returns the first id.

    That holds through restarts of the caller, in transactions, and with other
    spans, which are those of the first.
    """
    first = box.send("b", {"n": 1}, key="k")
    with box.begin() as tx:
        again = tx.send("b", {"n": 1}, key="k", ttl=60, delay=5, causation_id="other")

    assert ([first] * 3, 1) == (
        [first, again, box.session("default").send("b", {"n": 1}, key="k")],
        box.file.stats()["enqueued"],
    )


@pytest.mark.parametrize(
    "other",
    [{"n": 2}, {"n": True}, {"n": 1.5}, {"n": "1"}, [1], None, b"1", {"n": 1, "m": 1}],
    ids=repr,
)
def test_another_body_under_a_known_key_is_a_conflict(box: Postbox, other: object) -> None:
    """A key stands for one body, compared as JSON and not as Python does; nothing is written."""
    box.send("b", {"n": 1}, key="k")

    with pytest.raises(Conflict):
        box.send("b", other, key="k")
    assert (1, []) == (box.file.stats()["enqueued"], box.file.check())


class Order(Msg):
    """A body with fields."""

    id: int
    at: datetime
    lines: dict[str, int]


@dataclass
class Line:
    """A body that is a dataclass."""

    lines: dict[str, int]


ORDERS: list[tuple[object, object]] = [
    ({"n": 1, "m": [0.0, 1e300]}, {"n": 1.0, "m": [0, int(1e300)]}),
    ({"id": 7, "cents": 5}, {"cents": 5, "id": 7}),
    ({"a": [{"x": 1, "y": {"p": 1, "q": 2}}]}, {"a": [{"y": {"q": 2, "p": 1}, "x": 1}]}),
    ({"n": 1e2}, {"n": 100.0}),
    (Line({"a": 1, "b": 2}), Line({"b": 2, "a": 1})),
    (
        Order(id=1, at=datetime(2026, 1, 2, tzinfo=UTC), lines={"a": 1, "b": 2}),
        Order(lines={"b": 2, "a": 1}, at=datetime(2026, 1, 2, tzinfo=UTC), id=1),
    ),
]


@pytest.mark.parametrize("name", ["key", "message_id"])
@pytest.mark.parametrize(("first", "again"), ORDERS, ids=lambda body: type(body).__name__)
def test_the_order_of_keys_is_no_part_of_a_body(
    box: Postbox, name: str, first: object, again: object
) -> None:
    """Under one key or id, bodies that are equal values are one message."""
    options: Any = {name: "one"}

    assert box.send("b", first, **options) == box.send("b", again, **options)


OTHERS: list[dict[str, Any]] = [
    {"type": "other"},
    {"topic": "a.b"},
    {"priority": "low"},
    {"ordering_key": "lane"},
    {"reply_to": "c"},
    {"in_reply_to": "request"},
    {"headers": {"tenant": "x"}},
    {"ephemeral": True},
]


@pytest.mark.parametrize("name", ["key", "message_id"])
@pytest.mark.parametrize("options", OTHERS, ids=lambda options: next(iter(options)))
def test_another_message_under_a_known_name_is_a_conflict(
    box: Postbox, name: str, options: dict[str, Any]
) -> None:
    """What a receiver would treat differently is not the same message; the error names it."""
    known = box.send("b", 1, **{name: "k"})  # type: ignore[arg-type]

    with pytest.raises(Conflict) as caught:
        box.send("b", 1, **options | {name: "k"})
    differs = ("headers",) if "ephemeral" in options else tuple(options)
    assert (known, differs) == (caught.value.message_id, caught.value.differs)


def test_another_session_under_a_known_key_is_a_conflict(box: Postbox) -> None:
    """A message does not go into the session of an older one without a word."""
    known = box.send("b", 1, key="k", priority="low")

    with pytest.raises(Conflict, match=f"key 'k' to b .* {known} .* session, priority") as caught:
        box.session("other").send("b", 1, key="k")
    assert ("k", ("session", "priority")) == (caught.value.key, caught.value.differs)


def test_a_conflict_names_only_what_collided(box: Postbox) -> None:
    """The id where the id is known, the key where the key is; a minted id is not mentioned."""
    first, second = box.send("b", 1, key="k"), box.send("b", 1, message_id="mine")
    texts, keys = [], []
    for name, body in (("k", 2), ("mine", 2)):
        with pytest.raises(Conflict) as caught:
            box.send("b", body, **{"key" if name == "k" else "message_id": name})  # type: ignore[arg-type]
        texts.append(str(caught.value))
        keys.append(caught.value.key)

    assert ["k", None] == keys
    assert [
        f"key 'k' to b already belongs to message {first} with another body",
        f"id {second} already belongs to message {second} with another body",
    ] == [text.partition(": choose another ")[0] for text in texts]


def test_a_known_key_does_not_rename_a_chosen_id(box: Postbox) -> None:
    """An id that the caller chose is not answered by that of another message."""
    known = box.send("b", 1, key="k")

    with pytest.raises(Conflict) as caught:
        box.send("b", 1, key="k", message_id="mine")
    assert (known, ("message_id",)) == (caught.value.message_id, caught.value.differs)


def test_a_dispatched_task_under_a_known_key_is_the_same(box: Postbox) -> None:
    """The session of a task under a key is named after the key, so that it is dispatched once."""
    with box.begin() as tx:
        first = tx.dispatch("b", 1, key="k")
    with box.begin() as tx:
        again = tx.dispatch("b", 1, key="k")

    assert (first, 1) == (again, box.file.stats()["enqueued"])


def test_a_key_belongs_to_one_recipient(box: Postbox) -> None:
    """The same key to two recipients is two messages."""
    assert box.send("b", 1, key="k") != box.send("c", 1, key="k")
    assert 2 == box.file.stats()["enqueued"]


def test_the_same_message_id_is_the_same_message(box: Postbox) -> None:
    """An id of the caller's own is as good as a key, and stands for one recipient and body."""
    assert ["mine", "mine"] == [box.send("b", 1, message_id="mine") for _ in range(2)]
    for to, body in (("b", 2), ("c", 1)):
        with pytest.raises(Conflict):
            box.send(to, body, message_id="mine")
    assert 1 == box.file.stats()["enqueued"]


def test_a_repeated_request_is_one_request(box: Postbox) -> None:
    """Asking again under the same id or key returns the ticket of the first."""
    assert box.request("b", 1, message_id="mine") == box.request("b", 1, message_id="mine")
    assert box.request("b", 1, key="k") == box.request("b", 1, key="k")
    assert (2, 2) == (box.file.stats()["enqueued"], box.file.stats()["tickets_open"])


def test_a_key_and_an_id_of_two_messages_are_a_conflict(box: Postbox) -> None:
    """An id and a key that stand for different messages cannot be one."""
    box.send("b", 1, message_id="mine")
    box.send("b", 1, key="k")

    with pytest.raises(Conflict):
        box.send("b", 1, key="k", message_id="mine")


@pytest.mark.parametrize("name", ["key", "message_id"])
def test_a_dead_letter_is_replayed_not_sent_again(box: Postbox, name: str) -> None:
    """The id and key of a dead letter stay taken until it is replayed or discarded."""
    message_id = box.send("b", 1, **{name: "mine"})  # type: ignore[arg-type]
    box._db.write(lambda tx: sent.bury(tx, [1], reason="rejected"))

    with pytest.raises(Conflict, match="dead letter"):
        box.send("b", 1, **{name: "mine"})  # type: ignore[arg-type]
    box.dead_letters.replay(message_id)
    assert message_id == box.send("b", 1, **{name: "mine"})  # type: ignore[arg-type]
    assert (1, []) == (box.file.stats()["pending"], box.file.check())
