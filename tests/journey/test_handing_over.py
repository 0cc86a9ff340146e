"""Parcels that the commit of their messages packs, at the moments in which they go astray."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.interrupts import interrupted

from onceward import Agent, Postbox, Tuning
from onceward.core.deliver import carriers, delivery
from onceward.core.run import engine_loop as engine
from onceward.errors import Refused
from onceward.file import group_commit
from onceward.file.transaction import StoreTransaction
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.deliver.carriers import Delivery, InFlight
    from onceward.transports import Frame

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""
SOON = 60.0
"""Seconds after which what has not happened never will."""
LEAST = 30
"""Fewest steps of a send that packs its parcel between which an interrupt may come."""
LEASES = "SELECT name FROM _onceward_peers WHERE owner IS NOT NULL"


@pytest.fixture(autouse=True)
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine look by itself: what has no notification waits for ever."""
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", 3600.0)


class Taken:
    """A transport's function that notes the bodies it is given."""

    def __init__(self) -> None:
        self.bodies: list[object] = []

    def __call__(self, frames: list[Frame]) -> bool:
        """Take them, unless the first is to be refused."""
        if frames[0].data == "refused":
            raise Refused("no such order")
        self.bodies += [frame.data for frame in frames]
        return True


@pytest.fixture
def taken() -> Taken:
    """Return a function that takes everything."""
    return Taken()


@pytest.fixture
def shop(tmp_path: Path, taken: Taken) -> Iterator[Postbox]:
    """Return a postbox that pushes to one peer and hears of nothing but its own commits."""
    with Postbox(
        tmp_path / "shop.db",
        agent=Agent("shop"),
        transports={"function": FunctionTransport(taken)},
        tuning=Tuning(poll_interval=0),
        ack="stored",
        stop_timeout=LIMIT,
    ) as box:
        box.peers.add("peer", "function:x")
        yield box


def until_left(box: Postbox) -> None:
    """Wait until no carrier has a peer, so that the next send packs its parcel."""
    end = time.monotonic() + LIMIT
    while box._dispatcher._deliveries._busy._names and time.monotonic() < end:
        Event().wait(0.001)


@pytest.mark.parametrize("first", ["taken", "refused"])
def test_a_message_that_a_leaving_carrier_does_not_see_is_pushed(
    shop: Postbox, taken: Taken, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """
    A carrier ends, and the dispatcher looks, between the packing of a message and its COMMIT.

    It ends with an answer, for which the commit packs the next parcel, or without one.
    """
    dispatcher, settled, packed, looked = shop._dispatcher, Event(), Event(), Event()
    looks = list[bool]()
    deliver, plan = dispatcher._deliveries.deliver, dispatcher._plan
    commit = StoreTransaction.commit

    def leave_late(name: str, *given: Any) -> int:
        count = deliver(name, *given)
        settled.set()
        assert packed.wait(LIMIT)
        return count

    def look() -> Any:
        has_ended = packed.is_set() and not dispatcher._deliveries._busy._names
        found = plan()
        if has_ended:
            looked.set()
        return found

    def commit_late(tx: StoreTransaction) -> None:
        if settled.is_set() and not packed.is_set():
            packed.set()
            until_left(shop)
            dispatcher._deliveries._wake()
            looks.append(looked.wait(LIMIT))
        commit(tx)

    # The notice of a dead letter would wait for the COMMIT that waits for the dispatcher.
    monkeypatch.setattr(dispatcher, "_background_tasks", ())
    monkeypatch.setattr(dispatcher._deliveries, "deliver", leave_late)
    monkeypatch.setattr(dispatcher, "_plan", look)
    shop.send("peer", first)
    assert settled.wait(LIMIT)
    monkeypatch.setattr(StoreTransaction, "commit", commit_late)
    shop.send("peer", 2)

    assert (0, [2], [True]) == (shop.flush(SOON), taken.bodies[-1:], looks)


def test_a_commit_that_ends_after_the_carriers_leaves_no_lease(
    shop: Postbox, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is stored while its postbox stops: the stop waits, and gives its peer back."""
    packed, stopped = Event(), Event()
    commit, stop = StoreTransaction.commit, shop._dispatcher._deliveries._carriers.stop  # type: ignore[union-attr]

    def commit_late(tx: StoreTransaction) -> None:
        if tx.outgoing:
            packed.set()
            assert stopped.wait(LIMIT)
        commit(tx)

    def stop_carriers() -> list[Delivery]:
        left = stop()
        stopped.set()
        return left

    monkeypatch.setattr(StoreTransaction, "commit", commit_late)
    monkeypatch.setattr(shop._dispatcher._deliveries._carriers, "stop", stop_carriers)
    sender = Thread(target=shop.send, args=("peer", 1))
    sender.start()
    assert packed.wait(LIMIT)
    shop.stop(LIMIT)
    sender.join(SOON)

    assert (False, []) == (sender.is_alive(), shop.query(LEASES))
    assert (1, [1]) == (shop.run_until_idle(), taken.bodies)


def test_a_delivery_that_no_thread_can_take_is_made_later(
    shop: Postbox, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send succeeds where the system gives no thread, and the next one pushes both."""
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name == "onceward-carrier":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", refuse)
    first = shop.send("peer", 1)
    monkeypatch.setattr(Thread, "start", start)
    shop.send("peer", 2)

    assert (0, "acked") == (shop.flush(SOON), shop.state(first))
    assert [1, 2] == taken.bodies


def test_a_failed_commit_leaves_no_peer_reserved(
    shop: Postbox, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMIT happens, and its error hides that: the message is pushed, not left to the lease."""
    commit, failed = StoreTransaction.commit, Event()

    def commit_badly(tx: StoreTransaction) -> None:
        commit(tx)
        if tx.outgoing and not failed.is_set():
            failed.set()
            raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(StoreTransaction, "commit", commit_badly)
    message = shop.send("peer", 1)

    assert (0, "acked", [1]) == (shop.flush(SOON), shop.state(message), taken.bodies)


def test_an_interrupt_anywhere_leaves_no_peer_reserved(shop: Postbox) -> None:
    """Ctrl-C between any two steps of a send that packs its parcel delays no message."""
    rooms = frozenset(str(room.__file__) for room in (group_commit, delivery, carriers))
    shop.send("peer", "first")
    nth, hit, stuck = 0, ["start"], list[tuple[int, list[str]]]()
    while hit or nth < LEAST:  # a send that finds another thread writing takes fewer steps
        nth += 1
        until_left(shop)
        with (
            interrupted(nth, KeyboardInterrupt, when=lambda: True, rooms=rooms) as hit,
            suppress(KeyboardInterrupt),
        ):
            shop.send("peer", nth)
        left = shop.flush(SOON)
        stuck += [(left, hit)] if left else []

    until_left(shop)
    assert ([], set()) == (stuck, shop._dispatcher._deliveries._busy._names)


def test_an_interrupt_of_the_call_that_wakes_the_loop_delays_no_message(
    shop: Postbox, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No carrier takes the parcel, and Ctrl-C comes before the loop is told of it."""
    deliveries = shop._dispatcher._deliveries
    packing, submit = deliveries._packing, deliveries._carriers.submit  # type: ignore[union-attr]
    wake = packing._wake

    def refuse(_: Delivery) -> bool:
        monkeypatch.setattr(deliveries._carriers, "submit", submit)
        return False

    def interrupt() -> None:
        monkeypatch.setattr(packing, "_wake", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(deliveries._carriers, "submit", refuse)
    monkeypatch.setattr(packing, "_wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shop.send("peer", 1)

    assert (0, [1]) == (shop.flush(SOON), taken.bodies)


def test_an_interrupt_before_a_carrier_has_a_parcel_leaves_it_to_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that its last carrier has left is reserved and given to one, although Ctrl-C came."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        box.send("peer", 1)
        sender = box._dispatcher._deliveries._packing
        submitted: list[str] = []

        def submit(delivery: Delivery) -> bool:
            submitted.append(delivery.name)
            if len(submitted) == 1:
                raise KeyboardInterrupt
            return True

        monkeypatch.setattr(sender, "submit", submit)
        sender._passed.add("peer")
        sender._packed["peer"] = box._db.write(partial(sender.first, name="peer"))
        with pytest.raises(KeyboardInterrupt):
            sender.hand_over(durable=True)
        sender.hand_over(durable=True)

        assert (["peer", "peer"], {}, {"peer"}) == (
            submitted,
            sender._busy._following,
            sender._busy._names,
        )


@pytest.mark.parametrize("start", [True, False])
def test_a_released_peer_that_is_reserved_again_gets_no_second_parcel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bool
) -> None:
    """No delivery to oneself or by hand makes a later carrier look like one that is leaving."""
    packed: list[str] = []
    with Postbox(tmp_path / "a.db", agent="a", start=start) as box:
        packing = box._dispatcher._deliveries._packing
        first = packing.first
        box.send("a", 1)
        box.run_until_idle()

        def noted(tx: StoreTransaction, name: str) -> InFlight | None:
            packed.append(name)
            return first(tx, name)

        assert packing._busy.reserve("a")
        monkeypatch.setattr(box._db.writer, "packer", packing)
        monkeypatch.setattr(packing, "first", noted)
        box.send("a", 2)

        assert [] == packed
        packing._busy.cancel("a")
