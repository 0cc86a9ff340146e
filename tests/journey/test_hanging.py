"""Transports that hang: they delay no other peer, neither ``close()`` nor the process's end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Postbox, Tuning
from onceward.events import Acked, DeliveryFailed
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.transports import Frame, Transport, TransportContext

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""


class Hanging:
    """A function that hangs until it is let go, and tells when it is called."""

    def __init__(self) -> None:
        self.go, self.called = Event(), Event()
        self.calls: list[str] = []

    def __call__(self, frames: list[Frame]) -> bool:
        """Hang."""
        self.calls.append(frames[0].recipient)
        self.called.set()
        return self.go.wait(LIMIT)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """Return a function that hangs; let it go at the end."""
    made = Hanging()
    yield made
    made.go.set()


def taker(name: str) -> Agent:
    """Return an agent that handles all messages."""
    agent = Agent(name)
    agent.on("*")(lambda _: None)
    return agent


def test_a_live_peer_beside_a_thousand_dead_ones_does_not_wait(
    tmp_path: Path, hanging: Hanging
) -> None:
    """Pushes to peers that failed last hang in 8 carriers; a live peer's message is handled."""
    acked = Event()
    with (
        Postbox(tmp_path / "live.db", agent=taker("live")),
        Postbox(
            tmp_path / "shop.db",
            agent="shop",
            start=False,
            transports={"function": FunctionTransport(hanging)},
        ) as shop,
    ):
        with shop.begin() as tx:
            tx.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
                " INSERT INTO _onceward_peers (name, url, epoch, failures)"
                " SELECT 'dead' || i, 'function:x', 'e', 1 FROM n"
            )
        shop.send_many([(f"dead{n}", n) for n in range(1, 1001)])
    with (
        Postbox(tmp_path / "live.db", agent=taker("live")),
        Postbox(
            tmp_path / "shop.db",
            agent="shop",
            transports={"function": FunctionTransport(hanging)},
            stop_timeout=0.0,
        ) as shop,
    ):
        shop.on(Acked, lambda _: acked.set())
        assert hanging.called.wait(LIMIT)
        shop.send("live", "hello")
        arrived = acked.wait(LIMIT)
        calls = len(hanging.calls)

    assert arrived
    assert calls <= 8


def test_a_push_that_hangs_is_given_up(tmp_path: Path, hanging: Hanging) -> None:
    """After ``deliver_timeout`` the peer backs off, and its messages are not pushed meanwhile."""
    failed = Event()
    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        transports={"function": FunctionTransport(hanging)},
        deliver_timeout=0.05,
        delivery_retry="0s ±0%",
        handler_retry="0s ±0%",
        ack="stored",
    ) as shop:
        shop.on(DeliveryFailed, lambda _: failed.set())
        shop.peers.add("slow", "function:x")
        message = shop.send("slow", 1)
        told = failed.wait(LIMIT)
        peer = shop.peers.get("slow")
        calls = len(hanging.calls)
        acked = Event()
        shop.on(Acked, lambda _: acked.set())
        hanging.go.set()
        again = acked.wait(LIMIT)

        assert told
        assert peer is not None
        assert "no answer within 0.05 s" in str(peer.last_error)
        assert (1, 1) == (peer.failures, calls)
        assert (True, "acked", 2) == (again, shop.state(message), len(hanging.calls))


def test_closing_gives_a_hanging_peer_back(tmp_path: Path, hanging: Hanging) -> None:
    """The peer of a push that hangs is not left to its lease: the next process pushes at once."""
    box = Postbox(
        tmp_path / "shop.db", agent="shop", transports={"function": FunctionTransport(hanging)}
    )
    box.peers.add("slow", "function:x")
    box.send("slow", 1)
    assert hanging.called.wait(LIMIT)
    box.close(timeout=0.05)
    box.close(timeout=LIMIT)
    taken: list[Frame] = []

    def take(frames: list[Frame]) -> bool:
        taken.extend(frames)
        return True

    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        start=False,
        transports={"function": FunctionTransport(take)},
    ) as again:
        again.run_until_idle()

    assert 1 == len(taken)


PROCESS = """
import sys
from dataclasses import replace
from threading import Event
from onceward import Postbox
from onceward.transports import FunctionTransport

called = Event()

def hang(frames):
    called.set()
    Event().wait()

box = Postbox(sys.argv[1], agent="shop", transports={"function": FunctionTransport(hang)})
box.peers.add("slow", "function:x")
box.send("slow", 1)
assert called.wait(60)
box.close(timeout=0.05)
print("closed")
"""


def test_a_hanging_push_does_not_hold_the_process(tmp_path: Path) -> None:
    """A process whose transport never returns ends after ``close()``."""
    ended = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path / "shop.db")],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert (0, "closed\n") == (ended.returncode, ended.stdout), ended.stderr


def test_closing_pushes_the_outcomes_that_are_owed(tmp_path: Path) -> None:
    """A recipient that closes right after its last handler has told the sender of the outcome."""
    handled, agent = Event(), Agent("billing")
    agent.on("*")(lambda _: handled.set())
    with Postbox(tmp_path / "shop.db", agent="shop") as shop:
        billing = Postbox(tmp_path / "billing.db", agent=agent)
        loop = billing._dispatcher._loop
        look = loop._look
        loop._look = lambda: look() if billing._closed else None  # has not looked before
        billing._db.writer.packer = None
        message = shop.send("billing", 1)
        assert handled.wait(LIMIT)
        billing.close()

        assert "acked" == shop.state(message)


def test_a_second_close_waits_for_nothing(tmp_path: Path, hanging: Hanging) -> None:
    """While one thread closes a postbox whose transport hangs, another call returns at once."""
    box = Postbox(
        tmp_path / "shop.db", agent="shop", transports={"function": FunctionTransport(hanging)}
    )
    box.peers.add("slow", "function:x")
    box.send("slow", 1)
    assert hanging.called.wait(LIMIT)
    first = Thread(target=lambda: box.close(timeout=LIMIT))
    first.start()
    while not box._closed:
        pass
    box.close(timeout=LIMIT)
    waiting = first.is_alive()
    hanging.go.set()
    first.join(LIMIT)

    assert (True, False) == (waiting, first.is_alive())


def test_a_factory_that_hangs_keeps_no_carrier_from_other_peers(
    tmp_path: Path, hanging: Hanging
) -> None:
    """While the transport of many new peers is being made, another new peer gets its message."""
    arrived = Event()

    def make(_: TransportContext) -> Transport:
        hanging.go.wait(LIMIT)
        msg = "it was let go"
        raise OSError(msg)

    def take(_: list[Frame]) -> bool:
        arrived.set()
        return True

    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        transports={"slow": make, "function": FunctionTransport(take)},
        deliver_timeout=0.05,
        tuning=Tuning(carriers=4),
        stop_timeout=0.1,
    ) as shop:
        with shop.begin() as tx:
            for n in range(8):
                tx.execute(
                    "INSERT INTO _onceward_peers (name, url, epoch) VALUES (?, 'slow:x', 'e')",
                    (f"slow{n}",),
                )
        shop.send_many([(f"slow{n}", n) for n in range(8)])
        shop.peers.add("live", "function:x")
        shop.send("live", 1)
        found = arrived.wait(LIMIT / 6)
        hanging.go.set()

    assert found


def test_a_transport_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    """Every transport is closed; the error of one is raised after that."""
    closed: list[str] = []

    class Closing(FunctionTransport):
        def __init__(self, name: str) -> None:
            super().__init__(lambda _: True)
            self.features = replace(self.features, schemes=frozenset({name}))

        def close(self) -> None:
            [name] = self.features.schemes
            closed.append(name)
            raise OSError(name)

    box = Postbox(tmp_path / "a.db", agent="a", transports={n: Closing(n) for n in ("x", "y")})
    with pytest.raises(OSError, match="x"):
        box.close()

    assert (["y", "x"], None) == (closed, box._db._con)
