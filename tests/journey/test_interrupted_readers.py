"""A reader that a signal's exception ends before it has its message leaves it to the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interrupts import TooLong, interrupted

import onceward
from onceward import Message, Postbox
from onceward.errors import OncewardError
from onceward.features.channels.api import Channel
from onceward.features.mailboxes.api import Mailbox

ROOMS = frozenset(str(path) for path in Path(onceward.__file__).parent.rglob("*.py"))
LEAST = 100
"""Fewest moments of a call."""
EACH = 3
"""One moment of so many is tried; the next test tries the next ones."""
HOUR = 3600.0
NEWEST = "SELECT id FROM onceward_inbox ORDER BY seq DESC LIMIT 1"


def newest(box: Postbox) -> str:
    """Return the id of the last message that arrived."""
    return str(box.query(NEWEST)[0][0])


class Places(NamedTuple):
    """An agent with a channel and a mailbox."""

    box: Postbox
    room: Channel
    bin: Mailbox


Read = Callable[[Places], Message[Any] | None]
READS: dict[str, Read] = {
    "receive": lambda at: at.box.receive(),
    "receive by id": lambda at: at.box.receive_one(newest(at.box)),
    "messages": lambda at: next(at.box.receive_each(timeout=0), None),
    "a channel": lambda at: at.room.receive(),
    "each of a channel": lambda at: next(at.room.receive_each(timeout=0), None),
    "a mailbox": lambda at: at.bin.receive("group"),
    "many of a mailbox": lambda at: next(iter(at.bin.lease("group")), None),
}


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    """An agent whose messages are leased for an hour."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, lease=HOUR, durability="fast") as box:
        room = box.channels.create("room", echo=True, ack_timeout=HOUR)
        yield Places(box, room, box.mailboxes.ensure("bin", public=True))


def send(at: Places, name: str) -> None:
    """Send a message to the agent itself, so that a reader finds it."""
    if "channel" in name:
        at.room.send("x")
    elif "mailbox" in name:
        at.bin.send("x")
    else:
        at.box.send("a", "x")
    at.box.run_until_idle()


@pytest.mark.parametrize("first", range(1, EACH + 1))
@pytest.mark.parametrize("name", READS)
def test_what_it_leased_is_put_back(at: Places, name: str, first: int) -> None:
    """Whenever the exception comes, the next reader has the message, in its first attempt."""
    read, nth = READS[name], 0
    for nth in count(first, EACH):
        send(at, name)
        message = None
        with (
            interrupted(nth, TooLong, when=lambda: True, rooms=ROOMS) as hit,
            suppress(TooLong, OncewardError),
        ):
            message = read(at)
        if not hit:
            break
        again = read(at) if message is None else message
        assert again is not None, f"leased to no reader after {hit[0]}"
        assert (hit[0], 1) == (hit[0], again.attempt)
        again.ack()

    assert nth > LEAST
