"""A carrier that has delivered everything: what it waits for, and what it leaves to the loop."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import until

from onceward import Agent, Postbox, Tuning
from onceward.core.deliver import delivery
from onceward.core.deliver.carriers import BusyPeers
from onceward.core.handle import worker
from onceward.core.maintenance import Maintenance
from onceward.core.rows import outbox
from onceward.core.run import engine_loop as engine
from onceward.errors import Unreachable
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.transports import Frame

LONG = 3600.0


@pytest.fixture(autouse=True)
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine look by itself, nothing but messages commit, and answers wait for that."""
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", LONG)
    monkeypatch.setattr(Maintenance, "start", lambda _: None)
    monkeypatch.setattr(delivery, "SETTLE_WITHIN", LONG)


class Peer:
    """A function that notes what it is given, after what a test does meanwhile."""

    def __init__(self) -> None:
        self.bodies: list[object] = []
        self.meanwhile: list[Callable[[], object]] = []

    def __call__(self, frames: list[Frame]) -> bool:
        """Take the frames."""
        if self.meanwhile:
            self.meanwhile.pop(0)()
        self.bodies += [frame.data for frame in frames]
        return True


def unreachable() -> None:
    """Fail as a peer that is away."""
    raise Unreachable("away for a moment")


@pytest.fixture
def peer() -> Peer:
    """Return the peer."""
    return Peer()


@pytest.fixture
def shop(tmp_path: Path, peer: Peer) -> Iterator[Postbox]:
    """Return a postbox that pushes to one peer and hears of nothing but notifications."""
    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        transports={"function": FunctionTransport(peer)},
        tuning=Tuning(
            parcel_max_messages=2, poll_interval=0, breaker_failures=5, maintenance_interval=3600
        ),
    ) as box:
        box.peers.add("peer", "function:x")
        yield box


def until_quiet(box: Postbox) -> None:
    """Let no answer wait, until no carrier has a peer any more and the dispatcher is idle."""
    dispatcher = box._dispatcher
    carriers = dispatcher._deliveries._carriers
    assert carriers is not None

    def is_quiet() -> bool:
        box._db.writer.queue.hurry()
        return not carriers._threads and dispatcher._loop.state == "idle"

    until(is_quiet)


def begun(box: Postbox, peer: Peer) -> None:
    """Send a first message, so that the commits of those that follow pack their parcels."""
    box.send("peer", 0)
    until(lambda: [0] == peer.bodies)
    until_quiet(box)


def note_looks(box: Postbox, noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note the agent at each look of its dispatcher."""
    plan = box._dispatcher._plan

    def look() -> Any:
        noted.append(box.agent)
        return plan()

    monkeypatch.setattr(box._dispatcher, "_plan", look)


def sent_elsewhere(box: Postbox, body: object) -> None:
    """Send as a process without engines does, which tells this one by a datagram."""
    packer, box._db.writer.packer = box._db.writer.packer, None
    try:
        box.send("peer", body)
    finally:
        box._db.writer.packer = packer
    box._db.notifier._heard("out")


def test_a_look_that_was_refused_is_made_when_the_carrier_leaves() -> None:
    """The loop that came for a peer meanwhile may know of more than its carrier does."""
    busy = BusyPeers(Event())

    assert busy.reserve("peer")
    assert not busy.needs_look("peer")
    assert not busy.reserve("peer")
    assert busy.needs_look("peer")
    assert not busy.needs_look("peer")


def test_a_message_that_is_sent_during_a_push_waits_for_no_commit(
    shop: Postbox, peer: Peer
) -> None:
    """The answer of the push that goes on is settled at once, and the next parcel is pushed."""
    begun(shop, peer)
    peer.meanwhile.append(lambda: shop.send("peer", 2))
    shop.send("peer", 1)

    until(lambda: [0, 1, 2] == peer.bodies)


def test_a_message_of_another_process_waits_for_no_commit(shop: Postbox, peer: Peer) -> None:
    """Its datagram comes during a push, before the answer waits for a commit."""
    begun(shop, peer)
    peer.meanwhile.append(lambda: sent_elsewhere(shop, 2))
    shop.send("peer", 1)

    until(lambda: [0, 1, 2] == peer.bodies)


def test_more_than_a_parcel_waits_for_no_commit(shop: Postbox, peer: Peer) -> None:
    """What one parcel does not hold follows as soon as that is answered."""
    begun(shop, peer)
    with shop.begin() as tx:
        for body in range(1, 6):
            tx.send("peer", body)

    until(lambda: list(range(6)) == peer.bodies)


def test_a_peer_that_is_away_is_pushed_to_again(shop: Postbox, peer: Peer) -> None:
    """The loop plans the end of its backoff, although the parcel was packed by a commit."""
    begun(shop, peer)
    peer.meanwhile.append(unreachable)
    shop.send("peer", 1)

    until(lambda: [0, 1] == peer.bodies)


def test_a_message_that_is_only_stored_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop plans the question although it did not pack the parcel."""
    monkeypatch.setattr(delivery, "SETTLE_WITHIN", 0.001)
    with (
        Postbox(
            tmp_path / "billing.db", agent="billing", tuning=Tuning(poll_interval=0)
        ) as billing,
        Postbox(
            tmp_path / "shop.db", agent="shop", tuning=Tuning(poll_interval=0), ack_timeout=0.2
        ) as shop,
    ):
        shop.send("billing", 0)
        until(lambda: billing.file.stats()["inbox_pending"] == 1)
        until_quiet(shop)
        shop.send("billing", 1)
        until(lambda: billing.file.stats()["duplicates"] >= 2)

        assert 2 == billing.file.stats()["inbox_pending"]


def test_a_handled_message_wakes_no_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sender and recipient push what their commits packed; their loops have nothing to plan."""
    monkeypatch.setattr(worker, "CLAIM_WAITS", LONG)
    agent = Agent("billing")
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "billing.db", agent=agent, tuning=Tuning(poll_interval=0)) as billing,
        Postbox(tmp_path / "shop.db", agent="shop", tuning=Tuning(poll_interval=0)) as shop,
    ):

        def handled() -> None:
            message = shop.send("billing", 1)
            until(lambda: shop.state(message) == "acked")
            until_quiet(shop)

        for _ in range(5):
            handled()
        noted: list[str] = []
        for box in (shop, billing):
            note_looks(box, noted, monkeypatch)
        laps: list[int] = []
        for _ in range(8):  # one that meets the last step of a carrier may cost a look
            before = len(noted)
            handled()
            laps.append(len(noted) - before)
        told = len(noted)
        shop._dispatcher._notify()
        until(lambda: noted[told:])

        assert (0, ["shop"]) == (min(laps), noted[told:])


@pytest.mark.broken("an error is planted in the middle of a dead letter")
def test_half_of_a_dead_letter_is_not_kept_by_a_send(
    shop: Postbox, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send whose packing fails while it buries an older message keeps both messages."""
    begun(shop, peer)
    failed, remove = Event(), outbox.REMOVE_UNENDED
    old = sent_unpacked(shop, "old")
    shop._db.write(
        lambda tx: tx.run("UPDATE _onceward_outbox SET digest = zeroblob(16) WHERE id = ?", (old,))
    )
    monkeypatch.setattr(outbox, "REMOVE_UNENDED", "SELECT no_such_function(?)")

    class Left(set[str]):
        """The peers that are left; the first one mends the statement."""

        def add(self, name: str) -> None:
            monkeypatch.setattr(outbox, "REMOVE_UNENDED", remove)
            failed.set()
            super().add(name)

    monkeypatch.setattr(shop._dispatcher._deliveries._busy, "left", Left())
    new = shop.send("peer", "new")
    until(lambda: [0, "new"] == peer.bodies)

    assert failed.is_set()
    assert [(old, "corrupt")] == [(each.id, each.reason) for each in shop.dead_letters.list()]
    assert [(new,)] == shop.query("SELECT id FROM onceward_outbox WHERE id >= ?", (old,))


def sent_unpacked(box: Postbox, body: object) -> str:
    """Send a message that no loop and no commit of this process packs."""
    packer, box._db.writer.packer = box._db.writer.packer, None
    wake, box._db.writer.wake_dispatchers = box._db.writer.wake_dispatchers, lambda: None
    try:
        return box.send("peer", body)
    finally:
        box._db.writer.packer, box._db.writer.wake_dispatchers = packer, wake
