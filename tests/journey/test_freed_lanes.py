"""Readers that wait for a lane: the reader that frees it notifies them, without polling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Message, Postbox, Tuning

LONG = 3600
"""Seconds of a lease and of a wait that no test waits for."""
READER = f"""
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent="a", start=False, tuning=dict(poll_interval=0)) as box:
    with box.receive(timeout={LONG}) as message:
        print(message.body, flush=True)
"""
ENDS: dict[str, Callable[[Message[Any]], None]] = {
    "acks": lambda message: message.ack(),
    "rejects": lambda message: message.reject(),
    "drops": lambda message: message.drop(),
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox that neither polls nor has engines, with two messages of one peer."""
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, tuning=Tuning(poll_interval=0), lease=LONG
    ) as made:
        with Postbox(tmp_path / "shop.db", agent="shop", start=False) as shop:
            for n in (1, 2):
                shop.send("a", n)
            shop.run_until_idle()
        yield made


def taken(box: Postbox) -> Message[Any]:
    """Return the next message."""
    message = box.receive()
    assert message is not None
    return message


def waiting(box: Postbox) -> list[Message[Any] | None]:
    """Return what a second thread receives, once it listens."""
    found: list[Message[Any] | None] = []
    Thread(target=lambda: found.append(box.receive(timeout=LONG)), daemon=True).start()
    until(lambda: box._db.notifier.is_heard("in"))
    return found


@pytest.mark.parametrize("how", ENDS)
def test_a_freed_lane_wakes_another_reader(box: Postbox, how: str) -> None:
    """A second thread gets the next message of the lane when the first one ends its own."""
    first = taken(box)
    found = waiting(box)
    ENDS[how](first)
    until(lambda: found)

    assert [2] == [each.body for each in found if each is not None]


def test_a_message_that_is_put_back_wakes_another_reader(box: Postbox) -> None:
    """The second thread gets the message that the first one put back."""
    first = taken(box)
    found = waiting(box)
    first.retry(after=0)
    until(lambda: found)

    assert [1] == [each.body for each in found if each is not None]


def test_a_freed_lane_wakes_a_reader_of_another_process(box: Postbox) -> None:
    """The process gets the next message of the lane when this one ends the first."""
    first = taken(box)
    with Child([*PYTHON, "-c", READER, box.file.path], "stdout") as child:
        until(lambda: box._db.notifier.is_heard("in"))
        first.ack()
        assert child.stdout is not None

        assert "2\n" == child.stdout.readline()


def test_a_lane_without_more_messages_wakes_no_reader(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first ack, after which a message waits, notifies; the last one does not."""
    notified: list[str] = []
    box._db.notifier.listen("in", lambda: None)
    monkeypatch.setattr(box._db.notifier, "notify", notified.append)
    taken(box).ack()
    before = len(notified)
    taken(box).ack()

    assert (1, 1) == (before, len(notified))
