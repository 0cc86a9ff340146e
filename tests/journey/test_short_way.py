"""The short way: one commit of the recipient stores a message, handles it and settles it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Context, Drop, Postbox, Reject, Retry
from onceward.core.accept import short_way
from onceward.core.accept.short_way import PlainArrival
from onceward.core.handle import commit_batch, worker
from onceward.core.handle.worker import Worker
from onceward.core.run import arrival
from onceward.errors import RequestFailed, StoreFault
from onceward.events import Acked, Processed, Received
from onceward.file.transaction import StoreTransaction

LIMIT = 60.0


class Ways:
    """How the messages of a test were stored, in order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Note each message that is stored on the short way: "handled", or "waiting"."""
        handled, waiting = PlainArrival.store_handled, PlainArrival.store

        def store_handled(self_: PlainArrival, tx: StoreTransaction) -> None:
            self.taken.append("handled")
            handled(self_, tx)

        def store(self_: PlainArrival, tx: StoreTransaction) -> None:
            self.taken.append("waiting")
            waiting(self_, tx)

        patch.setattr(PlainArrival, "store_handled", store_handled)
        patch.setattr(PlainArrival, "store", store)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Note the ways; a loaded machine makes no handler slow, and no carrier impatient."""
    for module in (commit_batch, worker):
        monkeypatch.setattr(module, "CLAIM_WAITS", LIMIT)
    monkeypatch.setattr(arrival, "TAKEN_WITHIN", LIMIT)
    found = Ways()
    found.watch(monkeypatch)
    return found


@contextmanager
def pair(
    folder: Path, handle: Callable[..., Any], *, transitions: bool = False, **options: Any
) -> Iterator[tuple[Postbox, Postbox]]:
    """Open a sender and a recipient whose worker has just ended a quick round."""
    agent = Agent("billing")
    agent.on("warm")(lambda _: None)
    agent.on("json", **options)(handle)
    settings: dict[str, Any] = {"handler_retry": "1ms..1ms ±0%", "workers": 1}
    settings["transitions"] = transitions
    with (
        Postbox(folder / "billing.db", agent=agent, **settings) as billing,
        Postbox(folder / "shop.db", agent="shop") as shop,
    ):
        with billing.begin() as tx:
            tx.execute("CREATE TABLE effects (n INTEGER)")
        until(partial(acked, shop, shop.send("billing", 0, type="warm")))
        until(lambda: all(idle(each) for each in billing._workers))
        yield shop, billing


def idle(each: Worker) -> bool:
    """Return whether a worker would take a message."""
    return each.may_take and each._loop.state == "idle"


def acked(box: Postbox, message_id: str) -> bool:
    """Return whether the sender knows that a message was handled."""
    return box.state(message_id) == "acked"


def effects(box: Postbox) -> list[int]:
    """Return the effects of handlers, in order."""
    return [n for (n,) in box.query("SELECT n FROM effects ORDER BY rowid")]


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_one_commit_stores_and_handles(tmp_path: Path, ways: Ways, writes: bool) -> None:
    """Row, dedup record, stream and effect are one commit, and the answer has the receipt."""
    commits: list[str] = []

    def handle(n: int, ctx: Context) -> None:
        if writes:
            ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    with pair(tmp_path, handle) as (shop, billing):
        commit = StoreTransaction.commit

        def counted(tx: StoreTransaction) -> None:
            commits.append(tx.rows("SELECT agent FROM onceward_file")[0][0])
            commit(tx)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StoreTransaction, "commit", counted)
            sent = shop.send("billing", 1)
            until(partial(acked, shop, sent))
        row = "SELECT state, attempts FROM onceward_inbox WHERE id = ?"
        record = "SELECT outcome FROM onceward_processed_messages WHERE id = ?"

        assert ["handled"] == ways.taken
        assert 1 == commits.count("billing")
        assert [("processed", 1)] == billing.query(row, (sent,))
        assert [("processed",)] == billing.query(record, (sent,))
        assert [1] * writes == effects(billing)
        assert [] == billing.file.check() == shop.file.check()
        assert 2 == billing.file.stats()["processed"]


def test_a_handler_that_takes_long_holds_neither_file_nor_sender(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is stored alone and answered; its next message arrives while it runs."""
    inside, go = Event(), Event()

    def handle(n: int, ctx: Context) -> None:
        if n == 1:
            inside.set()
            assert go.wait(LIMIT)
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    with pair(tmp_path, handle) as (shop, billing):
        monkeypatch.setattr(commit_batch, "CLAIM_WAITS", 0.002)
        first = shop.send("billing", 1)
        assert inside.wait(LIMIT)
        until(lambda: shop.state(first) == "sent")
        second = shop.send("billing", 2)
        until(lambda: shop.state(second) == "sent")
        with billing.begin() as tx:
            tx.execute("INSERT INTO effects VALUES (0)")
        assert [0] == effects(billing)
        go.set()
        until(partial(acked, shop, second))

        assert "waiting" == ways.taken[0]
        assert [0, 1, 2] == effects(billing)
        assert [] == billing.file.check() == shop.file.check()


def test_a_slow_handler_goes_the_usual_way_next_time(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own last call decides: a quick one of the same worker goes the short way meanwhile."""
    with pair(tmp_path, lambda _: None) as (shop, billing):
        [only] = billing._workers
        slow = next(each for each in only._agent.handlers if each.pattern == "json")
        only._slow.add(id(slow))
        until(partial(acked, shop, shop.send("billing", 1)))
        until(partial(idle, only))
        until(partial(acked, shop, shop.send("billing", 2, type="warm")))

        assert ["handled"] == ways.taken


def test_a_failing_handler_is_called_as_often_as_it_may(tmp_path: Path, ways: Ways) -> None:
    """Its failed call counts, its effects are undone, and it is called again as usual."""
    attempts: list[int] = []

    def handle(n: int, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))
        attempts.append(ctx.message.attempt)
        raise ValueError(n)

    with pair(tmp_path, handle, attempts=3) as (shop, billing):
        sent = shop.send("billing", 1)
        until(lambda: shop.state(sent) == "failed")

        assert ["handled", "waiting"] == ways.taken
        assert ([1, 2, 3], []) == (attempts, effects(billing))
        assert [3] == [each.attempts for each in billing.dead_letters.list()]
        assert [] == billing.file.check() == shop.file.check()


@pytest.mark.parametrize(
    ("outcome", "known"), [(Reject("no"), "failed"), (Drop(), "acked")], ids=["reject", "drop"]
)
def test_an_outcome_of_a_handler_is_in_the_answer(
    tmp_path: Path, ways: Ways, outcome: Exception, known: str
) -> None:
    """The recipient owes no receipt afterwards."""

    def handle(_: int) -> None:
        raise outcome

    with pair(tmp_path, handle) as (shop, billing):
        sent = shop.send("billing", 1)
        until(lambda: shop.state(sent) == known)

        assert ["waiting"] == ways.taken
        assert [(0,)] == billing.query("SELECT count(*) FROM _onceward_receipts")
        assert [] == billing.file.check() == shop.file.check()


def test_a_delayed_retry_is_due_later(tmp_path: Path, ways: Ways) -> None:
    """The worker plans the time of a message that it has put off on the short way."""
    attempts: list[int] = []

    def handle(_: int, ctx: Context) -> None:
        attempts.append(ctx.message.attempt)
        if len(attempts) == 1:
            raise Retry(after=0.05)

    with pair(tmp_path, handle) as (shop, _):
        until(partial(acked, shop, shop.send("billing", 1)))

    assert ([1, 2], "waiting") == (attempts, ways.taken[0])


@pytest.mark.parametrize("replies", [True, False])
def test_a_request_is_answered(tmp_path: Path, ways: Ways, replies: bool) -> None:
    """It is stored before its reply, and settled with it; one without a reply fails its caller."""
    with pair(tmp_path, lambda n: n + 1 if replies else None) as (shop, billing):
        ticket = shop.request("billing", 1)
        if replies:
            assert 2 == shop.result(ticket, reply=int, timeout=LIMIT)
        else:
            with pytest.raises(RequestFailed):
                shop.result(ticket, reply=int, timeout=LIMIT)
        until(lambda: shop.state(ticket.id) == "acked")

        assert ["waiting"] == ways.taken
        assert [] == billing.file.check() == shop.file.check()


def test_a_handler_that_reads_finds_its_own_message(tmp_path: Path, ways: Ways) -> None:
    """Its history has the message, as on the usual way, because reading stores it."""
    found: list[Any] = []

    def handle(_: int, ctx: Context) -> None:
        found.append([each.id for each in boxes[0].session().history().messages])
        found.append(
            boxes[0].query("SELECT state FROM onceward_inbox WHERE id = ?", (ctx.message.id,))
        )

    boxes: list[Postbox] = []
    with pair(tmp_path, handle) as (shop, billing):
        boxes.append(billing)
        sent = shop.send("billing", 1)
        until(partial(acked, shop, sent))

    assert ["waiting"] == ways.taken
    assert sent in found[0]
    assert [("processing",)] == found[1]


def test_a_reader_of_receipts_of_arrival_hears_them_before_the_call(
    tmp_path: Path, ways: Ways
) -> None:
    """With a hook on Received the message is stored first."""
    told: list[str] = []
    with pair(tmp_path, lambda _: told.append("called")) as (shop, billing):
        billing.on(Received, lambda _: told.append("received"))
        until(partial(acked, shop, shop.send("billing", 1)))

    assert ([], ["received", "called"]) == (ways.taken, told)


def test_the_sender_hears_the_end_soon(tmp_path: Path, ways: Ways) -> None:
    """An answer that ends a message does not wait until the sender sends again."""
    told = Event()
    with pair(tmp_path, lambda _: None) as (shop, billing):
        billing.on(Processed, lambda _: None)
        shop.on(Acked, lambda _: told.set())
        shop.send("billing", 1)

        assert told.wait(LIMIT)
        assert ["handled"] == ways.taken


@pytest.mark.usefixtures("ways")
def test_a_message_of_a_busy_worker_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the only worker calls a handler, other sessions' messages are stored as usual."""
    inside, go = Event(), Event()

    def handle(n: int) -> None:
        if n == 1:
            inside.set()
            assert go.wait(LIMIT)

    with pair(tmp_path, handle) as (shop, billing):
        monkeypatch.setattr(commit_batch, "CLAIM_WAITS", 0.002)
        first = shop.session("a").send("billing", 1)
        assert inside.wait(LIMIT)
        second = shop.session("b").send("billing", 2)
        until(lambda: shop.state(second) == "sent")
        assert [("pending",)] == billing.query(
            "SELECT state FROM onceward_inbox WHERE id = ?", (second,)
        )
        go.set()
        until(partial(acked, shop, first))
        until(partial(acked, shop, second))


def test_a_ready_message_is_handled_first(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message goes the short way only while no other lane is ready."""
    order: list[int] = []
    held: list[bool] = []
    claim = Worker._claim_due
    monkeypatch.setattr(Worker, "_claim_due", lambda each: 0 if held else claim(each))

    def handle(n: int) -> None:
        order.append(n)
        if order == [0, 1]:
            raise Retry(after=3600)

    with pair(tmp_path, handle) as (shop, billing):
        [only] = billing._workers
        until(partial(acked, shop, shop.session("b").send("billing", 0)))
        until(partial(idle, only))
        first = shop.session("a").send("billing", 1)
        until(lambda: shop.state(first) == "sent")
        until(partial(acked, shop, shop.send("billing", 0, type="warm")))  # quick again
        until(partial(idle, only))
        taken = len(ways.taken)
        held.append(True)  # or the worker might handle the ready message before the other arrives
        billing._db.write(lambda tx: tx.run("UPDATE _onceward_lanes SET due_at = NULL"))
        second = shop.session("b").send("billing", 2)
        until(lambda: shop.state(second) in {"sent", "acked"})
        assert [] == ways.taken[taken:]
        held.clear()
        only._loop.notify()
        until(partial(acked, shop, first))
        until(partial(acked, shop, second))

    assert [0, 1, 1, 2] == order


def test_a_commit_that_fails_leaves_the_usual_way(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the message is left; it is stored as usual, and handled once."""
    failed: list[int] = []

    def handle(n: int, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    with pair(tmp_path, handle) as (shop, billing):
        commit = StoreTransaction.commit

        def fails_once(tx: StoreTransaction) -> None:
            if not failed and ways.taken:
                failed.append(1)
                message = "planted"
                raise StoreFault(message)
            commit(tx)

        monkeypatch.setattr(StoreTransaction, "commit", fails_once)
        until(partial(acked, shop, shop.send("billing", 1)))

        assert ([1], [1]) == (failed, effects(billing))
        assert [] == billing.file.check() == shop.file.check()


def test_a_handler_runs_on_a_thread_of_the_engines(tmp_path: Path, ways: Ways) -> None:
    """Never on the thread that sends."""
    threads: list[int] = []
    with pair(tmp_path, lambda _: threads.append(threading.get_ident())) as (shop, _):
        until(partial(acked, shop, shop.send("billing", 1)))

    assert threads
    assert threading.get_ident() not in threads


def test_a_disabled_process_calls_no_handler(
    tmp_path: Path, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch of the environment is asked before each message."""
    called: list[int] = []
    plain = short_way.is_plain

    def disable(*given: Any) -> bool:
        monkeypatch.setenv("ONCEWARD_DISABLED", "1")
        return plain(*given)

    with pair(tmp_path, called.append) as (shop, billing):
        monkeypatch.setattr(short_way, "is_plain", disable)
        sent = shop.send("billing", 1)
        until(lambda: billing.query("SELECT 1 FROM onceward_inbox WHERE id = ?", (sent,)))
        assert ([], []) == (called, ways.taken)
        monkeypatch.delenv("ONCEWARD_DISABLED")
        until(partial(acked, shop, sent))


def test_a_worker_that_notes_no_calls_takes_what_is_stored(tmp_path: Path, ways: Ways) -> None:
    """A call that ends its process must be known, and so must its message."""
    with pair(tmp_path, lambda _: None) as (shop, billing):
        [only] = billing._workers
        with only._rounds:
            only._leave()
            only._entered = True  # as if all records were taken
        until(partial(acked, shop, shop.send("billing", 1)))

    assert [] == ways.taken


def test_a_paused_file_calls_no_handler(tmp_path: Path, ways: Ways) -> None:
    """What arrives meanwhile waits."""
    called: list[int] = []
    with pair(tmp_path, called.append) as (shop, billing):
        billing.file.pause()
        sent = shop.send("billing", 1)
        until(lambda: shop.state(sent) == "sent")
        assert ([], []) == (called, ways.taken)
        billing.file.resume()
        until(partial(acked, shop, sent))


def test_recorded_transitions_are_those_of_the_usual_way(tmp_path: Path, ways: Ways) -> None:
    """A message that was handled as it was stored has been pending, too."""
    found = "SELECT from_state, to_state FROM onceward_transitions WHERE id = ? AND box = 'inbox'"
    with pair(tmp_path, lambda _: None, transitions=True) as (shop, billing):
        sent = shop.send("billing", 1)
        until(partial(acked, shop, sent))

        assert ["handled"] == ways.taken
        assert [(None, "pending"), ("pending", "processed")] == billing.query(found, (sent,))


KILLER = """
import os, sys
from onceward import Agent, Context, Postbox

agent = Agent("billing")
agent.on("warm")(lambda _: None)
calls = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@agent.on("json", attempts=2)
def handle(n: int, ctx: Context) -> None:
    stored = box._workers[0]._batch.arrival is None
    os.write(calls, f"{ctx.message.attempt} {stored}\\n".encode())
    os._exit(9)

with Postbox("billing.db", agent=agent, workers=1) as box:
    with Postbox("shop.db", agent="shop", delivery_retry="10ms..10ms") as shop:
        for n in range(2):  # the second one is sent to an idle worker that has been quick
            warm = shop.send("billing", n, type="warm")
            while shop.state(warm) != "acked":
                pass
        while box._workers[0]._loop.state != "idle":
            pass
        sent = shop.send("billing", 1, key="killer")
        while shop.state(sent) not in {"acked", "failed"}:
            pass
"""


def test_a_call_counts_although_its_message_was_not_stored(tmp_path: Path) -> None:
    """The next process knows of the call; the message has as many calls as it may have."""
    codes: list[int | None] = []
    while 0 not in codes and len(codes) < 5:
        with Child([*PYTHON, "-c", KILLER], cwd=tmp_path) as child:
            child.wait(LIMIT)
            codes.append(child.returncode)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").split("\n")

    assert [9, 9, 0] == codes
    assert ["1 False", "2 True", ""] == calls
