"""Parcels stay within what their way takes: frames, receipts and envelope together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Tuning
from onceward.core.deliver.growth import ParcelGrowth
from onceward.core.rows import senders
from onceward.errors import ParcelTooLarge
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.message.wire import encode_parcel
from onceward.testing import Controls
from onceward.testing.clock import ManualClock
from onceward.transports import Features
from onceward.transports.memory import MemoryTransport

KIB = 1024


@dataclass
class Narrow:
    """Take parcels of at most *passes* bytes, and say at most *says* where one is larger."""

    max_bytes: int
    passes: int
    says: int
    sizes: list[int] = field(default_factory=list)
    """Bytes of each parcel that was pushed."""
    pushed: list[Parcel] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Promise what it may before anything was pushed."""
        self.features = Features(schemes=frozenset({"narrow"}), max_bytes=self.max_bytes)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Measure the parcel as networks carry it."""
        self.sizes.append(len(encode_parcel(parcel)))
        self.pushed.append(parcel)
        if self.sizes[-1] > self.passes:
            msg = f"{self.sizes[-1]} bytes are too many"
            raise ParcelTooLarge(msg, limit=self.says)
        return MemoryTransport().deliver(url.replace("narrow:", "memory:"), parcel)

    def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
def near(tmp_path: Path) -> Path:
    """Return the path of the sender's file."""
    return tmp_path / "near.db"


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Postbox]:
    """Yield the recipient, in a folder of its own."""
    (tmp_path / "there").mkdir()
    agent = Agent("far")
    agent.on("json")(lambda _: None)
    with Postbox(tmp_path / "there" / "far.db", agent=agent, start=False) as box:
        yield box


def opened(near: Path, way: Narrow) -> Postbox:
    """Return the sender's postbox with its way to the recipient."""
    box = Postbox(
        near,
        agent="near",
        start=False,
        transports={"narrow": way},
        testing=Controls(clock=ManualClock()),
    )
    box.peers.add("far", "narrow:far")
    return box


def states(box: Postbox) -> set[str]:
    """Return the states of all messages that *box* has sent."""
    return {state for (state,) in box.query("SELECT state FROM onceward_outbox")}


def bodies(box: Postbox) -> list[object]:
    """Return the bodies that an inbox holds, in order."""
    rows = box.query("SELECT json_extract(frame, '$.data.n') FROM onceward_inbox ORDER BY seq")
    return [n for (n,) in rows]


def test_receipts_count_as_bytes_of_a_parcel(near: Path, far: Postbox) -> None:
    """However many receipts wait, no parcel exceeds the limit of its way; all of them arrive."""
    way = Narrow(max_bytes=20 * KIB, passes=20 * KIB, says=0)
    with opened(near, way) as box:
        far.peers.add("near", "memory:near")
        sent = far.send_many([("near", {"n": n}) for n in range(1000)])
        far.run_until_idle()
        while (message := box.receive()) is not None:
            message.ack()
        box.send_many([("far", {"n": n, "text": "x" * 500}) for n in range(50)])
        box.run_until_idle()

    assert {"acked"} == {far.state(message_id) for message_id in sent}
    assert list(range(50)) == bodies(far)
    assert [] == [size for size in way.sizes if size > 20 * KIB]
    assert any(parcel.receipts and parcel.frames for parcel in way.pushed)


def test_a_row_of_receipts_is_parted_where_a_parcel_is_full(near: Path, far: Postbox) -> None:
    """Receipts of one commit leave in several parcels, each receipt once."""
    way = Narrow(max_bytes=4 * KIB, passes=4 * KIB, says=0)
    told = [Receipt(f"message-{n}", "dead", f"rejected: {n} \x01") for n in range(200)]
    with opened(near, way) as box:
        box._db.write(lambda tx: senders.add_receipts(tx, [("far", each) for each in told]))
        box.run_until_idle()
        left = box.query("SELECT count(*) FROM _onceward_receipts")

    assert [(0,)] == left
    assert told == [receipt for parcel in way.pushed for receipt in parcel.receipts]
    assert [] == [size for size in way.sizes if size > 4 * KIB]
    del far


def test_a_receipt_that_no_parcel_can_hold_delays_no_other(near: Path, far: Postbox) -> None:
    """A receipt above the limit is left out: its sender asks for the outcome by pushing again."""
    way = Narrow(max_bytes=2 * KIB, passes=2 * KIB, says=0)
    told = [Receipt("one", "dead", "\x01" * 999), Receipt("two", "processed")]
    with opened(near, way) as box:
        box._db.write(lambda tx: senders.add_receipts(tx, [("far", each) for each in told]))
        box.send("far", {"n": 1})
        box.run_until_idle()
        left = box.query("SELECT count(*) FROM _onceward_receipts")

    assert [(0,)] == left
    assert ["two"] == [receipt.id for parcel in way.pushed for receipt in parcel.receipts]
    assert [1] == bodies(far)


def test_a_parcel_that_is_too_large_is_packed_smaller(near: Path, far: Postbox) -> None:
    """Its messages leave in a new epoch, in order, and the limit is kept with the peer."""
    way = Narrow(max_bytes=1 << 20, passes=20 * KIB, says=20 * KIB)
    with opened(near, way) as box:
        box.send_many([("far", {"n": n, "text": "x" * 500}) for n in range(200)])
        box.run_until_idle()
        far.run_until_idle()
        box.run_until_idle()
        found = states(box)
        [peer] = box.peers.list()
    with Postbox(near, start=False, transports={"narrow": way}) as box:
        box.send_many([("far", {"n": n, "text": "x" * 500}) for n in range(200, 300)])
        box.run_until_idle()

    assert list(range(300)) == bodies(far)
    assert ({"sent"}, 20 * KIB, 0) == (found, peer.max_bytes, peer.failures)
    assert 1 == sum(size > 20 * KIB for size in way.sizes)
    first, *others = way.pushed
    assert ({first.epoch}, 1) != ({parcel.epoch for parcel in others}, others[0].number)
    assert 1 == others[0].number
    assert all(frame.redelivered for frame in others[0].frames)


def test_a_frame_that_no_parcel_can_hold_is_a_dead_letter(near: Path, far: Postbox) -> None:
    """Its reason names the limit; the messages beside it arrive."""
    way = Narrow(max_bytes=1 << 20, passes=20 * KIB, says=20 * KIB)
    with opened(near, way) as box:
        box.send("far", {"n": 0})
        large = box.send("far", {"n": 1, "text": "x" * (30 * KIB)})
        box.send("far", {"n": 2})
        box.run_until_idle()
        [letter] = box.dead_letters.list()

    assert [0, 2] == bodies(far)
    assert (large, "too_large") == (letter.id, letter.reason)
    assert "the transport to far accepts no frame of more than 1" in str(letter.last_error)


@pytest.mark.parametrize("says", [0, -1, 1 << 40])
def test_a_limit_that_says_nothing_halves_the_parcel(near: Path, far: Postbox, says: int) -> None:
    """A way that names no limit below the parcel's size is offered half of that size."""
    way = Narrow(max_bytes=1 << 20, passes=20 * KIB, says=says)
    with opened(near, way) as box:
        box.send_many([("far", {"n": n, "text": "x" * 500}) for n in range(200)])
        box.run_until_idle()
        [peer] = box.peers.list()

    assert list(range(200)) == bodies(far)
    assert peer.max_bytes is not None
    assert 10 * KIB < peer.max_bytes <= 20 * KIB


def test_a_way_that_takes_nothing_ends(near: Path, far: Postbox) -> None:
    """Where even a single message is too large it becomes a dead letter; receipts are left out."""
    way = Narrow(max_bytes=1 << 20, passes=0, says=0)
    with opened(near, way) as box:
        receipt = Receipt("one", "processed")
        box._db.write(lambda tx: senders.add_receipts(tx, [("far", receipt)]))
        box.send("far", {"n": 1})
        box.run_until_idle()
        left = box.query("SELECT count(*) FROM _onceward_receipts")
        letters = [letter.reason for letter in box.dead_letters.list()]

    assert ([(0,)], ["too_large"], []) == (left, letters, bodies(far))


def test_a_limit_is_forgotten_with_the_url(near: Path, far: Postbox) -> None:
    """Registering the peer again, or resetting it, lets parcels grow again."""
    way = Narrow(max_bytes=1 << 20, passes=20 * KIB, says=20 * KIB)
    found: list[int | None] = []
    with opened(near, way) as box:
        for again in (True, False):
            box.send_many([("far", {"n": n, "text": "x" * 500}) for n in range(100)])
            box.run_until_idle()
            found += [peer.max_bytes for peer in box.peers.list()]
            if again:
                box.peers.add("far", "narrow:far")
            else:
                box.peers.reset("far")
            found += [peer.max_bytes for peer in box.peers.list()]

    assert [20 * KIB, None, 20 * KIB, None] == found
    del far


class Distant:
    """Deliver through memory, an exchange taking a number of seconds by the clock of tests."""

    features = Features(schemes=frozenset({"distant"}), network=True)

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.counts: list[int] = []
        """Messages of each parcel."""

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Let time pass on the way."""
        self.counts.append(len(parcel.frames))
        answer = MemoryTransport().deliver(url.replace("distant:", "memory:"), parcel)
        self.clock.advance(self.seconds)
        return answer

    def close(self) -> None:
        """Hold nothing."""


def counts(folder: Path, seconds: float, messages: int, **tuning: Any) -> list[int]:
    """Return how many messages each parcel holds of a backlog that is sent over a way."""
    folder.mkdir()
    clock = ManualClock()
    way = Distant(clock, seconds)
    with (
        Postbox(
            folder / "near.db",
            agent="near",
            start=False,
            transports={"distant": way},
            testing=Controls(clock=clock),
            tuning=Tuning(**{"parcel_max_messages": 50} | tuning),
        ) as near,
        Postbox(folder / "far.db", agent="distant-far", start=False, testing=Controls(clock=clock)),
    ):
        near.peers.add("distant-far", "distant:distant-far")
        near.send_many([("distant-far", n) for n in range(messages)])
        near.run_until_idle()
    return way.counts


def test_parcels_grow_while_their_way_is_slow(tmp_path: Path) -> None:
    """Each is twice the one before while the exchange takes longer than packing."""
    assert [50, 50, 100, 200, 400, 200] == counts(tmp_path / "slow", 0.1, 1000)


def test_parcels_of_a_quick_way_do_not_grow(tmp_path: Path) -> None:
    """A larger parcel saves nothing where no time is spent on the way."""
    assert [50] * 10 == counts(tmp_path / "quick", 0.0, 500)


def test_parcels_grow_within_their_bytes(tmp_path: Path) -> None:
    """However slow the way is, no parcel exceeds ``parcel_max_bytes``."""
    sizes = counts(tmp_path / "bounded", 0.1, 1000, parcel_max_bytes=50_000)

    assert (50, 50, 100) == tuple(sizes[:3])
    assert max(sizes) < 150
    assert 1000 == sum(sizes)


def test_parcels_shrink_once_their_way_is_quick() -> None:
    """A full parcel whose exchange is as quick as packing is followed by one half as large."""
    clock = ManualClock()
    growth = ParcelGrowth(clock.monotonic, 100)
    answer = Answer(verdict="accepted")
    limits: list[int] = []

    def push(seconds: float) -> Answer:
        clock.advance(seconds)
        return answer

    for seconds in (1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1):
        growth.timed("far", growth.limit("far"), partial(push, seconds))
        limits.append(growth.limit("far"))
        clock.advance(0.2)  # the next parcel is packed

    assert [100, 200, 400, 800, 400, 200, 100, 100] == limits
