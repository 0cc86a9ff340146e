"""Commits: how many a message costs from its send until its sender knows the outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import apsw
import pytest
from tests.core.test_option_costs import reads
from tests.core.test_statements import Counted
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.core.deliver import delivery
from onceward.core.deliver.carriers import InFlight
from onceward.core.deliver.delivery import Deliveries
from onceward.core.deliver.parcels import ParcelPacker
from onceward.core.handle import commit_batch, worker
from onceward.events import Received
from onceward.file.transaction import StoreTransaction
from onceward.message.parcel import ParcelFrame

LIMIT = 60.0
WAL_PAGE = 24 + 4096
FULL = 2
"""The level of a commit that is synced."""


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the synchronous level of each commit so far; answers and claims wait for ever."""
    made: list[int] = []
    commit = StoreTransaction.commit

    def counted(self: StoreTransaction) -> None:
        level = self.rows("PRAGMA synchronous")[0][0]
        commit(self)
        made.append(level)

    monkeypatch.setattr(StoreTransaction, "commit", counted)
    monkeypatch.setattr(delivery, "SETTLE_WITHIN", LIMIT)
    for module in (commit_batch, worker):  # a loaded machine makes no handler slow
        monkeypatch.setattr(module, "CLAIM_WAITS", LIMIT)
    return made


@pytest.fixture
def count(levels: list[int]) -> Callable[[], int]:
    """Return what tells the commits of all files so far."""
    return lambda: len(levels)


@pytest.fixture
def syncs(levels: list[int]) -> Callable[[], int]:
    """Return what tells how many of them were synced."""
    return lambda: levels.count(FULL)


def acked(box: Postbox, message_id: str) -> Callable[[], bool]:
    """Return what tells whether the sender knows that a message was handled."""
    state = "SELECT state FROM onceward_outbox WHERE id = ?"
    return lambda: box.query(state, (message_id,)) == [("acked",)]


def quiet(name: str) -> Agent:
    """Return an agent whose handler does nothing."""
    agent = Agent(name)
    agent.on("json")(lambda _: None)
    return agent


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Postbox]:
    """The sender."""
    with Postbox(tmp_path / "shop.db", agent="shop") as box:
        yield box


def journeys(box: Postbox, to: str, took: Callable[[], None], count: Callable[[], int]) -> int:
    """
    Send messages one by one, each once the one before is acked; return the median of commits.

    Now and then a message meets the last step of the push before it and costs one more.
    """
    costs: list[int] = []
    for n in range(12):
        before = count()
        sent = box.send(to, n)
        took()
        until(acked(box, sent))
        costs.append(count() - before)
    return sorted(costs[1:])[len(costs) // 2]


def test_a_handled_message_costs_three_commits(
    tmp_path: Path, shop: Postbox, count: Callable[[], int]
) -> None:
    """Send with its parcel; accept and handle; and the answer, if no other send carries it."""
    with Postbox(tmp_path / "billing.db", agent=quiet("billing")):
        assert 3 >= journeys(shop, "billing", lambda: None, count)


def test_a_message_that_is_stored_before_its_call_costs_four_commits(
    tmp_path: Path, shop: Postbox, count: Callable[[], int]
) -> None:
    """Send with its parcel, accept, handle with claim and receipt, and the receipt's arrival."""
    with Postbox(tmp_path / "billing.db", agent=quiet("billing")) as box:
        box.on(Received, lambda _: None)  # it is told before the call
        assert 4 >= journeys(shop, "billing", lambda: None, count)


def test_an_answer_that_joins_a_send_costs_no_commit(
    tmp_path: Path, shop: Postbox, count: Callable[[], int]
) -> None:
    """The commit of a send settles the push before it and packs its own parcel: two a message."""
    Postbox(tmp_path / "billing.db", agent="billing", start=False).close()
    shop.send("billing", 0)
    until(lambda: bool(shop._db.writer.queue._patient))
    before = count()
    for n in range(20):
        shop.send("billing", n)
        until(lambda: bool(shop._db.writer.queue._patient))

    assert 2 * 20 == count() - before


def test_a_received_message_costs_five_commits(
    tmp_path: Path, shop: Postbox, count: Callable[[], int]
) -> None:
    """
    Send with its parcel, accept, claim, ack with its receipt, and the receipt's arrival.

    A reader that is quicker than the count of an arrival would commit an empty claim for it later.
    """
    with Postbox(tmp_path / "billing.db", agent="billing") as billing:
        notifier, arrivals = billing._db.notifier, itertools.count(1)

        def receive() -> None:
            arrived = next(arrivals)
            until(lambda: notifier.arrivals == arrived)
            _take(billing)

        assert 5 >= journeys(shop, "billing", receive, count)


def test_a_received_message_costs_three_syncs(
    tmp_path: Path, shop: Postbox, syncs: Callable[[], int]
) -> None:
    """
    The claim waits for none, and no neighbour that could wait is committed with it.

    Nor does the parcel that brings the receipt: a power cut makes its sender ask again.
    """
    with Postbox(tmp_path / "billing.db", agent="billing") as billing:
        assert 3 >= journeys(shop, "billing", lambda: _take(billing), syncs)


def test_a_message_to_oneself_that_is_received_costs_two_syncs(
    shop: Postbox, syncs: Callable[[], int]
) -> None:
    """Those of its send and of its ack."""
    assert 2 >= journeys(shop, "shop", lambda: _take(shop), syncs)


def test_a_handled_message_costs_few_statements(tmp_path: Path, shop: Postbox) -> None:
    """
    From its send until its sender knows the outcome it is at most 20 on the writers of both files.

    What a lap leaves to be settled is counted in the next one.
    """
    with Postbox(tmp_path / "billing.db", agent=quiet("billing")) as billing:
        until(acked(shop, shop.send("billing", 0)))
        counted = [Counted(box, every=True) for box in (shop, billing)]
        laps: list[int] = []
        for n in range(20):
            until(acked(shop, shop.send("billing", n)))
            laps.append(sum(len(each.take()) for each in counted))

    assert sorted(laps)[len(laps) // 2] <= 20, laps


def test_a_message_to_oneself_costs_two_commits(tmp_path: Path, count: Callable[[], int]) -> None:
    """Send with all that makes it arrive, and handle with all that makes it settled."""
    with Postbox(tmp_path / "shop.db", agent=quiet("shop")) as shop:
        assert 2 >= journeys(shop, "shop", lambda: None, count)


def test_a_message_to_oneself_that_is_received_costs_three_commits(
    shop: Postbox, count: Callable[[], int]
) -> None:
    """Send, claim and ack."""
    assert 3 >= journeys(shop, "shop", lambda: _take(shop), count)


def test_a_message_to_oneself_costs_few_statements(shop: Postbox) -> None:
    """Sending, receiving and acknowledging are 21, with the look for the message and commits."""
    _cycle(shop)
    laps: list[int] = []
    written, read = Counted(shop, every=True), reads(shop)
    for _ in range(9):
        written.take()
        del read[:]
        _cycle(shop)
        laps.append(len(written.take()) + len(read))

    assert min(laps) <= 21, laps


def test_a_claim_writes_two_pages(shop: Postbox) -> None:
    """A lease changes the row of its lane, and the place of the lane among those with work."""
    wal = Path(f"{shop.file.path}-wal")
    _cycle(shop)
    shop.send("shop", 1)
    before = wal.stat().st_size
    assert shop.receive(timeout=LIMIT) is not None

    assert 2 * WAL_PAGE == wal.stat().st_size - before


def test_a_reader_looks_within_its_claim(shop: Postbox) -> None:
    """After an arrival from this process it does not look first; without one it takes no turn."""
    _cycle(shop)
    shop.send("shop", 1)
    written, read = Counted(shop, every=True), reads(shop)
    _take(shop)
    after_arrival = read[:]
    written.take()
    assert shop.receive() is None

    assert ([], [], 1) == (after_arrival, written.take(), len(read))


@pytest.mark.parametrize("session", [None, "default"], ids=["any session", "one session"])
def test_a_paused_file_hands_out_no_arrival(shop: Postbox, session: str | None) -> None:
    """A reader that knows of an arrival looks all the same whether the file is paused."""
    reader = shop if session is None else shop.session(session)
    _cycle(shop)
    shop.send("shop", 1)
    shop.file.pause()
    paused = reader.receive()
    shop.file.resume()
    resumed = reader.receive()

    assert (None, 1) == (paused, resumed and resumed.body)


def _cycle(box: Postbox) -> None:
    box.send("shop", 1)
    _take(box)


def test_a_message_to_oneself_whose_acceptance_fails_is_delivered_later(
    shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send is committed all the same, without one half of its delivery."""
    halves: list[object] = []
    store, deliver = shop._receiver.take_own, ParcelPacker.deliver_own

    def fails_after_the_work(
        tx: StoreTransaction, frames: Sequence[ParcelFrame]
    ) -> list[str] | None:
        stored = store(tx, frames)
        if not halves:
            message = "after storing"
            raise KeyError(message)
        return stored

    def looks_afterwards(self: ParcelPacker, tx: StoreTransaction) -> bool:
        delivered = deliver(self, tx)
        halves.append(tx.rows("SELECT count(*) FROM _onceward_inbox"))
        return delivered

    monkeypatch.setattr(shop._receiver, "take_own", fails_after_the_work)
    monkeypatch.setattr(ParcelPacker, "deliver_own", looks_afterwards)
    sent = shop.send("shop", 1)
    message = shop.receive(timeout=LIMIT)

    assert ([(0,)], sent, None) == (
        halves[0],
        message and message.id,
        shop.receive(timeout=0),
    )


def test_a_burst_in_one_transaction_costs_no_more(
    tmp_path: Path, shop: Postbox, count: Callable[[], int]
) -> None:
    """One parcel carries a hundred messages of one commit, and one takes their receipts back."""
    with Postbox(tmp_path / "billing.db", agent="billing") as billing:
        journeys(shop, "billing", lambda: _take(billing), count)
        before = count()
        with shop.begin() as tx:
            ids = [tx.send("billing", n) for n in range(100)]
        until(lambda: billing.file.stats()["inbox_pending"] == len(ids))

        assert 3 >= count() - before


def _take(box: Postbox) -> None:
    message = box.receive(timeout=LIMIT)
    assert message is not None
    message.ack()


def test_a_parcel_whose_commit_failed_is_not_pushed(
    tmp_path: Path, shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parcel that a send packs is rolled back with it; the same message arrives once later."""
    pushed: list[str] = []
    deliver = Deliveries._deliver_all

    def watched(self: Deliveries, name: str, *given: Any) -> int:
        pushed.append(name)
        return deliver(self, name, *given)

    def full(_: StoreTransaction) -> None:
        message = "database or disk is full"
        raise apsw.FullError(message)

    monkeypatch.setattr(Deliveries, "_deliver_all", watched)
    with Postbox(tmp_path / "billing.db", agent="billing") as billing:
        with monkeypatch.context() as broken:
            broken.setattr(StoreTransaction, "commit", full)
            with pytest.raises(Exception, match="full"), shop.begin() as tx:
                sent = tx.send("billing", 1, message_id="m-1")
        assert ([], set()) == (pushed, shop._dispatcher._deliveries._busy._names)
        assert sent == shop.send("billing", 1, message_id="m-1")
        message = billing.receive(timeout=LIMIT)

        assert message is not None
        assert ("m-1", 1, None) == (message.id, message.body, billing.receive(timeout=0))


def test_a_failing_packing_undoes_no_send(
    tmp_path: Path, shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send whose parcel cannot be packed is committed; the dispatcher packs it later."""
    first, failed = ParcelPacker.first, Event()

    def fails_once(self: ParcelPacker, tx: StoreTransaction, name: str) -> InFlight | None:
        found = first(self, tx, name)
        if not failed.is_set():
            failed.set()
            message = "while packing"
            raise KeyError(message)
        return found

    monkeypatch.setattr(ParcelPacker, "first", fails_once)
    with Postbox(tmp_path / "billing.db", agent="billing") as billing:
        sent = shop.send("billing", 1)
        message = billing.receive(timeout=LIMIT)

        assert (True, sent) == (failed.is_set(), message and message.id)
