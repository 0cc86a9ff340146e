"""Claims that are committed with their handlers' effects: what others see, and kills."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import pytest
from tests.children import PYTHON, run
from tests.waiting import until

from onceward import Agent, Context, Postbox, Tuning
from onceward.core.handle.worker import Worker
from onceward.core.rows import holders
from onceward.file import file_checks
from onceward.file.transaction import StoreTransaction

LIMIT = 60.0
DEATHS = 7
"""Exit code of a process that a message has killed."""
LEASED = "SELECT count(*) FROM _onceward_lanes WHERE owner IS NOT NULL"
CHILD = """
import os, sys, time
from onceward import Agent, Context, Postbox

agent = Agent("billing")

@agent.on("json", attempts=3)
def work(body: object, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (body,))
    if body == 19:
        os._exit(7)

with Postbox(sys.argv[1], agent=agent) as box:
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS effects (n INTEGER)")
    while (now := box.file.stats())["inbox_pending"] + now["inbox_processing"]:
        time.sleep(0.01)
"""


def sent(home: Path, count: int) -> None:
    """Store messages with the bodies 0, 1, … in the inbox of billing."""
    Postbox(home / "billing.db", agent="billing", start=False).close()
    with Postbox(home / "shop.db", agent="shop", start=False) as shop:
        shop.send_many([("billing", n) for n in range(count)])
        shop.run_until_idle()


def opened(home: Path, agent: Agent) -> Postbox:
    """Open billing without engines; a busy machine splits no commit of its worker."""
    path, tuning = home / "billing.db", Tuning(share_commit_for=60)
    return Postbox(path, agent=agent, start=False, tuning=tuning)


def test_a_message_that_kills_its_process_under_an_open_claim_is_found(tmp_path: Path) -> None:
    """
    The first death leaves no trace but the worker's row; every later one is counted.

    All other messages take effect once.
    """
    sent(tmp_path, 30)
    deaths = 0
    while code := run([*PYTHON, "-c", CHILD, tmp_path / "billing.db"], check=False).returncode:
        assert (DEATHS, True) == (code, deaths < 5)
        deaths += 1

    with Postbox(tmp_path / "billing.db", start=False) as billing:
        assert [n for n in range(30) if n != 19] == [
            n for (n,) in billing.query("SELECT n FROM effects ORDER BY n")
        ]
        assert ["attempts_spent"] == [each.reason for each in billing.dead_letters.list()]
        assert [] == billing._db.read(holders.WORKERS)
    assert 4 >= deaths


def test_the_claim_of_a_handler_that_takes_long_is_committed_alone(tmp_path: Path) -> None:
    """Other connections see the lease, and other threads write, while the handler goes on."""
    entered, go_on = Event(), Event()
    agent = Agent("billing")

    @agent.on("json")
    def work(body: object) -> None:
        if body == 0:
            entered.set()
            assert go_on.wait(LIMIT)

    with (
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
        Postbox(tmp_path / "billing.db", agent=agent, hold_unknown=True) as billing,
    ):
        [worker] = billing._workers
        while not worker._shares_claims:
            shop.send("billing", 1)
            done = shop.file.stats()["enqueued"]
            until(lambda done=done: billing.file.stats()["processed"] == done)  # type: ignore[misc]
        shop.send("billing", 0)
        assert entered.wait(LIMIT)
        until(lambda: billing._db.read(LEASED) == [(1,)])

        assert billing.state(billing.send("carol", 1)) in {"pending", "sending"}
        assert worker._batch._claimed_at is None
        go_on.set()
        until(lambda: billing._db.read(LEASED) == [(0,)])


@pytest.mark.parametrize("died", [True, False])
def test_what_a_worker_may_have_died_of_is_claimed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """The row of a dead worker isolates what waits; a living one's, or none, isolates nothing."""
    sent(tmp_path, 3)
    monkeypatch.setattr(file_checks, "is_dead", lambda owner: died and owner == "other")
    with Postbox(tmp_path / "billing.db", agent="billing", start=False) as billing:
        billing._db.write(lambda tx: holders.register(tx, "other"))
        worker = Worker(billing._deps, Agent("billing"), billing._own_loop)
        worker._loop._reaper.release_leases()  # type: ignore[union-attr]  # workers have one

        [(isolated, last)] = billing._db.read(
            "SELECT isolate_upto_seq, (SELECT max(seq) FROM _onceward_inbox) FROM _onceward_lanes"
        )
        assert ((last, []) if died else (0, [("other",)])) == (
            isolated,
            billing._db.read(holders.WORKERS),
        )


def test_a_handler_that_ends_the_transaction_of_its_claim_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is undone with everything else; the next one is committed before the handler."""
    monkeypatch.setattr(Worker, "_shares_claims", property(lambda self: self._quick))
    monkeypatch.setattr("onceward.core.handle.worker.CLAIM_WAITS", inf)  # no call is slow
    agent, calls = Agent("billing"), list[object]()

    @agent.on("json", attempts=2)
    def work(body: object, ctx: Context) -> None:
        calls.append(body)
        if body == 1:
            ctx.tx.execute(
                "INSERT OR ROLLBACK INTO _onceward_file_info SELECT * FROM _onceward_file_info"
            )

    sent(tmp_path, 2)
    with Postbox(
        tmp_path / "billing.db",
        agent=agent,
        start=False,
        delivery_retry="0s ±0%",
        handler_retry="0s ±0%",
    ) as billing:
        billing._workers[0]._quick = True
        until(lambda: billing.run_until_idle() == 0 and not billing.file.stats()["inbox_pending"])

        assert (3, ["attempts_spent"]) == (
            calls.count(1),
            [each.reason for each in billing.dead_letters.list()],
        )


def test_a_worker_that_is_stopped_between_two_messages_keeps_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends its lane, or goes on with it, however late the stop is noticed."""
    agent = Agent("billing")
    agent.on("json")(lambda _: None)
    sent(tmp_path, 3)
    with opened(tmp_path, agent) as billing:
        [worker] = billing._workers
        worker._size, end = 3, worker._batch.end

        def stop_then_end(*args: Any, **options: Any) -> None:
            worker._loop.stopping.set()
            end(*args, **options)

        monkeypatch.setattr(worker._batch, "end", stop_then_end)
        worker.run_due()

        assert [(0,)] == billing._db.read(LEASED)


def lose_commit(monkeypatch: pytest.MonkeyPatch, beside: Callable[[], object]) -> None:
    """Let the commit fail that a thread makes by *beside* while this one waits for it."""
    commit = StoreTransaction.commit

    def refuse(tx: StoreTransaction) -> None:
        monkeypatch.setattr(StoreTransaction, "commit", commit)
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(StoreTransaction, "commit", refuse)
    heartbeat = Thread(target=beside)
    heartbeat.start()
    heartbeat.join(LIMIT)


def test_a_lost_commit_leaves_no_lease_of_the_lane_that_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a first lane fails while a handler of a second one runs: both come again."""
    agent, calls = Agent("billing"), list[object]()

    @agent.on("json")
    def work(body: object, ctx: Context) -> None:
        calls.append(body)
        if body == 0:
            ctx.tx.execute("INSERT INTO effects VALUES (0)")
        elif calls == [0, 1]:
            lose_commit(monkeypatch, worker._batch.commit)

    Postbox(tmp_path / "billing.db", agent="billing", start=False).close()
    with Postbox(tmp_path / "shop.db", agent="shop", start=False) as shop:
        for n in range(2):
            shop.session(f"s{n}").send("billing", n)
        shop.run_until_idle()
    with opened(tmp_path, agent) as billing:
        with billing.begin() as tx:
            tx.execute("CREATE TABLE effects (n INTEGER)")
        [worker] = billing._workers
        worker._size = 2
        billing.run_until_idle()

        assert ([0, 1, 0, 1], [(0,)]) == (calls, billing._db.read(LEASED))
        assert [(0,)] == billing.query("SELECT n FROM effects")
        assert 0 == billing.file.stats()["inbox_pending"]


def test_a_handler_that_writes_after_its_commit_was_lost_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes is undone; the next handlers write in savepoints of their own again."""
    agent, calls = Agent("billing"), list[object]()

    @agent.on("json")
    def work(body: object, ctx: Context) -> None:
        calls.append(body)
        if calls == [0, 1]:
            lose_commit(monkeypatch, worker._batch.commit)
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (body,))

    sent(tmp_path, 2)
    with opened(tmp_path, agent) as billing:
        with billing.begin() as tx:
            tx.execute("CREATE TABLE effects (n INTEGER)")
        [worker] = billing._workers
        worker._size = 2
        billing.run_until_idle()

        assert ([0, 1, 0, 1], False) == (calls, worker._batch._inside)
        assert [(0,), (1,)] == billing.query("SELECT n FROM effects ORDER BY n")


def test_a_worker_whose_handler_outlives_the_stop_is_forgotten_when_it_ends(tmp_path: Path) -> None:
    """Until then its row says what the process may die of; no row is left in an open file."""
    entered, go_on = Event(), Event()
    agent = Agent("billing")

    @agent.on("json")
    def work(_: object) -> None:
        entered.set()
        assert go_on.wait(LIMIT)

    sent(tmp_path, 1)
    with Postbox(tmp_path / "billing.db", agent=agent) as billing:
        assert entered.wait(LIMIT)
        billing.stop(0.01)
        meanwhile = billing._db.read(holders.WORKERS)
        go_on.set()
        until(lambda: billing.file.stats()["processed"] == 1)
        [worker] = billing._workers
        assert worker._loop.over.wait(LIMIT)

        assert (1, []) == (len(meanwhile), billing._db.read(holders.WORKERS))
