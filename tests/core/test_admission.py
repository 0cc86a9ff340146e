"""Admission: refusals come before anything is written, and room is counted exactly."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.children import PYTHON, side_by_side

from onceward import Postbox
from onceward.errors import InvalidMessage, OutboxLimit, Paused, UnknownRecipient

Open = Callable[..., Postbox]
HAMMER = """
import sys
from onceward import Postbox
from onceward.errors import OutboxLimit
with Postbox(sys.argv[1], agent="a", start=False, hold_unknown=True) as box:
    sys.stdin.readline()
    sent = 0
    for step in range(40):
        try:
            box.send("b", step)
            sent += 1
        except OutboxLimit:
            pass
print(sent)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"type": ""},
        {"type": "a\nb"},
        {"type": ["x"]},
        {"type": 5},
        {"topic": "a.*"},
        {"topic": ""},
        {"key": ""},
        {"key": 5},
        {"key": "x" * 257},
        {"priority": "none"},
        {"priority": []},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": float("inf")},
        {"delay": -1},
        {"delay": "x"},
        {"reply_to": "a b"},
        {"correlation_id": ""},
        {"causation_id": ""},
        {"ordering_key": ""},
        {"message_id": "a b"},
        {"message_id": ""},
        {"message_id": "x" * 129},
        {"headers": {"data": "x"}},
        {"headers": {"Foo": "x"}},
        {"headers": {"a" * 21: "x"}},
        {"headers": {"x": 1.5}},
        {"headers": {"x": 2**31}},
        {"headers": {"x": None}},
        {"headers": {1: "x"}},
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "\ud800"}},
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_written(
    box: Postbox, options: dict[str, Any]
) -> None:
    """Every option that breaks its rule raises InvalidMessage and writes nothing."""
    with pytest.raises(InvalidMessage):
        box.send("b", 1, **options)

    assert 0 == box.file.stats()["enqueued"]


def test_sending_to_nobody_fails_at_once(opened: Open) -> None:
    """A recipient neither registered nor at home is unknown, unless mail for such is to be held."""
    with pytest.raises(UnknownRecipient, match="nobody"):
        opened("a", hold_unknown=False).send("nobody", 1)


def test_a_frozen_file_refuses_and_thaws(box: Postbox) -> None:
    """Between pause and resume nothing is promised and nothing is lost."""
    kept = box.send("b", 1)
    box.file.pause()
    for call in (
        lambda: box.send("b", 2),
        lambda: box.send_many([("b", 2)]),
        lambda: box.request("b", 2),
    ):
        with pytest.raises(Paused):
            call()
    box.file.resume()

    assert (["pending"] * 2, 2) == (
        [box.state(kept), box.state(box.send("b", 3))],
        box.file.stats()["enqueued"],
    )


def test_the_switch_in_the_environment_refuses_too(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONCEWARD_DISABLED stops sending in this process at once."""
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    for call in (lambda: box.send("b", 2), lambda: box.send_many([("b", 2)])):
        with pytest.raises(Paused):
            call()


def test_the_queue_limit_is_exact(opened: Open) -> None:
    """
    The message that fills the last place passes, the next one does not.

    A place that is freed can be used.
    """
    box = opened(max_pending=3)
    ids = [box.send("b", k) for k in range(3)]
    with pytest.raises(OutboxLimit):
        box.send("b", 3)
    assert ids[0] == box.send("b", 0, message_id=ids[0])
    box.cancel(ids[0])
    box.send("b", 4)

    with pytest.raises(OutboxLimit):
        box.send("b", 5)
    assert (3, []) == (box.file.stats()["pending"], box.file.check())


@pytest.mark.parametrize("recipients", [["b", "c"], {"b"}, {"b": 1}])
@pytest.mark.parametrize("options", [{}, {"ttl": 1.0}])
def test_a_message_has_one_recipient(
    box: Postbox, recipients: Any, options: dict[str, Any]
) -> None:
    """Several recipients of one send are refused as a name that no agent has."""
    with pytest.raises(InvalidMessage, match="must match"):
        box.send(recipients, 1, **options)

    assert [(0,)] == box._db.read("SELECT count(*) FROM _onceward_outbox")


def test_a_batch_that_does_not_fit_is_refused_whole(opened: Open) -> None:
    """Many messages are taken all or none."""
    box = opened(max_pending=3)
    box.send("b", 0)
    with pytest.raises(OutboxLimit):
        box.send_many([("b", k) for k in range(3)])
    with pytest.raises(InvalidMessage):
        box.send_many([("b", 1), ("b", float("nan"))])

    assert (1, []) == (box.file.stats()["enqueued"], box.file.check())


def test_the_queue_limit_is_exact_among_eight_processes(opened: Open) -> None:
    """Eight processes that send as fast as they can fill the queue to the last place only."""
    box = opened(max_pending=100)
    sent = side_by_side([[*PYTHON, "-c", HAMMER, box.file.path]] * 8, "go")

    assert 100 == sum(map(int, sent))
    assert (100, []) == (box.file.stats()["pending"], box.file.check())
