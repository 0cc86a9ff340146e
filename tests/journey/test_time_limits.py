"""A time limit that raises between any two steps of a call leaves nothing held behind it."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.interrupts import TooLong, interrupted
from tests.proof.seed import size
from tests.waiting import until

import onceward
from onceward import Agent, Postbox, Tuning
from onceward.core.run import engine_loop as engine
from onceward.errors import OncewardError
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.transports import Frame

LEAST = {"send": 120, "send_many": 200, "begin": 120, "ask": 250, "receive": 120}
LEAST |= {"cancel": 200, "flush": 15}
"""Fewest moments of a call."""
ROOMS = frozenset(str(path) for path in Path(onceward.__file__).parent.rglob("*.py"))
LEASED = "SELECT count(*) FROM _onceward_peers WHERE owner IS NOT NULL"


class Taken:
    """A transport's function that notes the bodies that it is given."""

    def __init__(self) -> None:
        self.bodies: list[object] = []

    def __call__(self, frames: list[Frame]) -> bool:
        """Take all."""
        self.bodies += [frame.data for frame in frames]
        return True


def in_a_block(box: Postbox, body: object) -> None:
    """Send in a block with a statement of its own."""
    with box.begin() as tx:
        tx.execute("SELECT 1")
        tx.send("peer", body)


def ask(box: Postbox, body: object) -> None:
    """Ask a handler of the agent itself."""
    box.ask("shop", {"n": body}, type="question", reply=dict, timeout=60)


def receive(box: Postbox, body: object) -> None:
    """Receive a message by hand, and end it."""
    box.send("peer", body)
    message = box.session("by-hand").receive(timeout=0)
    if message is not None:
        message.ack()


def answer(body: dict[str, object]) -> dict[str, object]:
    """Answer a question."""
    return body


CALLS: dict[str, Callable[[Postbox, object], object]] = {
    "send": lambda box, body: box.send("peer", body),
    "send_many": lambda box, body: box.send_many([("peer", body), ("other", body)]),
    "begin": in_a_block,
    "ask": ask,
    "receive": receive,
    "cancel": lambda box, body: box.cancel(box.send("peer", body)),
    "flush": lambda box, _: box.flush(1),
}


@pytest.fixture(autouse=True)
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine look by itself: what has no notification waits for ever."""
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", 3600.0)


@pytest.fixture
def taken() -> Taken:
    """Return a function that takes everything."""
    return Taken()


@pytest.fixture
def shop(tmp_path: Path, taken: Taken) -> Iterator[Postbox]:
    """Return a postbox whose engines run, with two peers and a handler that answers."""
    agent = Agent("shop")
    agent.on("question")(answer)
    with Postbox(
        tmp_path / "shop.db",
        agent=agent,
        transports={"function": FunctionTransport(taken)},
        ack="stored",
        tuning=Tuning(poll_interval=0),
        busy_timeout=10,
    ) as box:
        for name in ("peer", "other"):
            box.peers.add(name, "function:x")
        yield box


def moments(
    box: Postbox, call: Callable[[Postbox, object], object], step: int
) -> Iterator[tuple[int, list[str]]]:
    """Make the call until it is not interrupted, each time *step* moments later."""
    for nth in count(1, step):
        until(lambda: not held(box))  # a carrier that leaves takes another way
        with (
            suppress(TooLong, OncewardError),
            interrupted(nth, TooLong, when=lambda: True, rooms=ROOMS) as hit,
        ):
            call(box, nth)
        yield nth, hit
        if not hit:
            return


def delivered(box: Postbox, taken: Taken, body: str) -> bool:
    """Send a message, and return whether it is delivered soon."""
    box.send("peer", body)
    end, pause = time.monotonic() + 20, Event()
    while body not in taken.bodies and time.monotonic() < end:
        pause.wait(0.001)
    return body in taken.bodies


def held(box: Postbox) -> bool:
    """Return whether a peer is reserved or leased."""
    return bool(box._dispatcher._deliveries._busy._names) or box._db.read(LEASED) != [(0,)]


def judge(shop: Postbox, taken: Taken, name: str, step: int) -> None:
    """Interrupt a call at every *step*-th moment; after each one the next message is delivered."""
    CALLS[name](shop, "first")
    stuck, places = list[list[str]](), 0
    for nth, hit in moments(shop, CALLS[name], step):
        places += len(hit)
        if not delivered(shop, taken, f"after {nth}"):
            stuck.append(hit)

    assert [] == stuck
    assert places * step >= LEAST[name]
    until(lambda: not held(shop))
    assert [] == shop.file.check()


@pytest.mark.parametrize("name", CALLS)
def test_a_time_limit_leaves_nothing_held(shop: Postbox, taken: Taken, name: str) -> None:
    """The limit of a job runner comes at every 11th moment of a call."""
    judge(shop, taken, name, 11)


@pytest.mark.proof
@pytest.mark.parametrize("name", CALLS)
def test_a_time_limit_at_any_moment_leaves_nothing_held(
    shop: Postbox, taken: Taken, name: str
) -> None:
    """The limit comes at each moment of a call at which Python looks for signals."""
    judge(shop, taken, name, size(1, 4))
