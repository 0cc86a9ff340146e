"""Group commit: many writers, one commit, and each keeps a fate of its own."""

import signal
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Event, Thread, current_thread, main_thread
from typing import Any

import apsw
import pytest
from tests.file.commits import commits

from onceward import Postbox
from onceward.errors import InvalidMessage, OutboxLimit, OutcomeUnknown, StoreError, StoreFault
from onceward.file.transaction import ROWS_PER_INSERT, SavepointMark, StoreTransaction

WRITERS = 32


def queue_of(box: Postbox, *works: Callable[[], object], lead: bool = False) -> list[object]:
    """
    Let all works wait behind one transaction, so that they share a commit.

    Return each one's result or error.

    With *lead* the turn is only held, so that the first of them leads the others.
    """
    outcomes: list[object] = [None] * len(works)
    pause = Event()

    def run(index: int) -> None:
        try:
            outcomes[index] = works[index]()
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcomes[index] = error

    threads = [Thread(target=run, args=(index,)) for index in range(len(works))]
    try:
        with box._db.writer.exclusive() if lead else box.begin():
            for count, thread in enumerate(threads, 1):
                thread.start()
                while box._db.writer.queue.waiting < count:
                    pause.wait(0.001)
    finally:
        for thread in threads:
            thread.join()
    return outcomes


def test_writers_that_wait_share_one_commit(box: Postbox) -> None:
    """Thirty-two sends that queue behind a block are committed with it."""
    count = commits(box)
    ids = queue_of(box, *[lambda k=k: box.send("b", k) for k in range(WRITERS)])

    assert (1, WRITERS, {"pending"}) == (
        count(),
        len(set(ids)),
        {box.state(str(each)) for each in ids},
    )


@pytest.mark.parametrize("lead", [False, True])
def test_one_failing_writer_harms_no_neighbour(box: Postbox, lead: bool) -> None:
    """
    Each writer of a shared commit gets its own error.

    Only its own writes are undone, whichever thread commits for all.
    """

    def bad(tx: StoreTransaction) -> None:
        tx.run("INSERT INTO _onceward_blocked_lanes VALUES ('x', 'x', 0, 0, 0)")
        message = "mine"
        raise KeyError(message)

    outcomes = queue_of(
        box,
        lambda: box.send("b", 1),
        lambda: box._db.write(bad),
        lambda: box.send("b", 2, key="k"),
        lambda: box.send("b", 3, key="k"),
        lambda: box.send("b", 4),
        lead=lead,
    )

    assert [str, KeyError, str, "Conflict", str] == [
        type(o) if type(o).__name__ != "Conflict" else "Conflict" for o in outcomes
    ]
    assert (3, 0, []) == (
        box.file.stats()["enqueued"],
        box._db.read("SELECT count(*) FROM _onceward_blocked_lanes")[0][0],
        box.file.check(),
    )


def test_a_failing_leader_harms_no_follower(box: Postbox) -> None:
    """A thread that commits for others and fails itself tells its own caller alone."""

    def bad(tx: StoreTransaction) -> None:
        tx.run("INSERT INTO _onceward_blocked_lanes VALUES ('x', 'x', 0, 0, 0)")
        message = "mine"
        raise KeyError(message)

    count = commits(box)
    outcomes = queue_of(
        box,
        lambda: box._db.write(bad),
        lambda: box.send("b", 1),
        lambda: box.send("b", 2),
        lead=True,
    )

    assert ([KeyError, str, str], 1) == ([type(outcome) for outcome in outcomes], count())
    assert (2, 0, []) == (
        box.file.stats()["enqueued"],
        box._db.read("SELECT count(*) FROM _onceward_blocked_lanes")[0][0],
        box.file.check(),
    )


def test_a_leader_whose_transaction_breaks_tells_all_who_wait(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No writer waits for ever for one that could not even undo.

    All are told, nothing is written, and the next are served.
    """

    def bad(tx: StoreTransaction) -> None:
        message = "mine"
        raise KeyError(message)

    def broken(tx: StoreTransaction, mark: SavepointMark) -> None:
        message = "disk I/O error"
        raise StoreFault(message)

    with monkeypatch.context() as patched:
        patched.setattr(StoreTransaction, "rollback_savepoint", broken)
        outcomes = queue_of(
            box,
            lambda: box.send("b", 1),
            lambda: box._db.write(bad),
            lambda: box.send("b", 2),
            lead=True,
        )

    assert [StoreFault] * 3 == [type(outcome) for outcome in outcomes]
    assert (0, "pending") == (box.file.stats()["enqueued"], box.state(box.send("b", 3)))


def test_a_block_whose_transaction_breaks_tells_all_who_wait(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for those whose work a block was to commit."""
    told: list[StoreFault] = []

    def refused(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except StoreFault as error:
                told.append(error)

        return run

    def bad(tx: StoreTransaction) -> None:
        message = "mine"
        raise KeyError(message)

    def broken(tx: StoreTransaction, mark: SavepointMark) -> None:
        message = "disk I/O error"
        raise StoreFault(message)

    with monkeypatch.context() as patched, pytest.raises(StoreFault):
        patched.setattr(StoreTransaction, "rollback_savepoint", broken)
        queue_of(
            box,
            refused(lambda: box.send("b", 1)),
            refused(lambda: box._db.write(bad)),
            refused(lambda: box.send("b", 2)),
        )

    assert (3, 0, "pending") == (
        len(told),
        box.file.stats()["enqueued"],
        box.state(box.send("b", 3)),
    )


def test_writers_without_a_block_share_one_commit_and_its_statements(box: Postbox) -> None:
    """Thirty-two sends cost one transaction, no savepoint, one statement for the first 20 rows."""
    box.send("b", "the first one reads whether the file has limits")
    con, seen = box._db._con, list[str]()
    assert con is not None

    def trace(_: object, sql: str, __: object) -> bool:
        seen.append(sql.split(maxsplit=1)[0])
        return True

    con.exec_trace = trace
    ids = queue_of(box, *[lambda k=k: box.send("b", k) for k in range(WRITERS)], lead=True)

    assert WRITERS == len(set(ids))
    assert {
        "BEGIN": 1,
        "INSERT": 1 + WRITERS - ROWS_PER_INSERT,
        "COMMIT": 1,
    } == {word: seen.count(word) for word in dict.fromkeys(seen)}


def test_rows_that_are_gathered_fail_each_for_itself(tmp_path: Path) -> None:
    """With room for three of five, three are stored and two get an error of their own."""
    with Postbox(
        tmp_path / "few.db", agent="few", start=False, hold_unknown=True, max_pending=3
    ) as few:
        outcomes = queue_of(few, *[lambda k=k: few.send("b", k) for k in range(5)], lead=True)
        full = [outcome for outcome in outcomes if isinstance(outcome, OutboxLimit)]

        assert (2, 2) == (len(full), len({id(error) for error in full}))
        assert {row[0] for row in few._db.read("SELECT id FROM _onceward_outbox")} == {
            o for o in outcomes if isinstance(o, str)
        }
        assert (3, []) == (few.file.stats()["enqueued"], few.file.check())


@pytest.mark.parametrize("overflow", ["drop_old", "reject"])
def test_a_row_that_is_refused_while_a_neighbour_writes_is_not_lost(
    box: Postbox, tmp_path: Path, overflow: Any
) -> None:
    """A limit set meanwhile by another opener refuses a gathered row alone, not its neighbours."""
    box.session("s").send("b", 0)
    with Postbox(tmp_path / "a.db", start=False) as other:
        other.limits.set("session", "s", messages=2, overflow=overflow)
    long = "x" * (box._settings.tuning.body_threshold + 1)
    session = box.session("s")
    outcomes = queue_of(
        box,
        lambda: session.send("b", 1),
        lambda: session.send("b", 2),
        lambda: session.send("b", long),
        lead=True,
    )

    kept = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert (1 if overflow == "reject" else 3, 3) == (
        len(kept),
        len(kept) + sum(isinstance(each, OutboxLimit) for each in outcomes),
    )
    assert [] == [each for each in kept if box.state(each) not in {"pending", "dropped"}]
    assert (2, []) == (box.file.stats()["pending"], box.file.check())


def test_work_between_rows_that_are_gathered_sees_those_before_it(box: Postbox) -> None:
    """
    Gathering changes no order.

    A reader between two sends finds the first and not the second.
    """
    looks: list[int] = []

    def look(tx: StoreTransaction) -> None:
        looks.append(tx.rows("SELECT count(*) FROM _onceward_outbox")[0][0])

    queue_of(
        box,
        lambda: box.send("b", 1),
        lambda: box._db.write(look),
        lambda: box.send("b", 2),
        lambda: box._db.write(look),
        lead=True,
    )

    assert [1, 2] == looks


def test_who_shares_a_commit_that_is_lost_is_told_of_its_own_message_only(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the shared COMMIT is uncertain, each sender's error names its own message."""

    def broken(tx: StoreTransaction) -> None:
        message = "disk I/O error"
        raise StoreFault(message)

    with monkeypatch.context() as patched:
        patched.setattr(StoreTransaction, "commit", broken)
        outcomes = queue_of(box, *[lambda k=k: box.send("b", k) for k in range(3)], lead=True)

    assert [OutcomeUnknown] * 3 == [type(outcome) for outcome in outcomes]
    assert [1, 1, 1] == [
        len(outcome.message_ids) for outcome in outcomes if isinstance(outcome, OutcomeUnknown)
    ]
    assert 3 == len(
        {outcome.message_ids for outcome in outcomes if isinstance(outcome, OutcomeUnknown)}
    )


def test_neighbours_survive_a_block_that_is_rolled_back(box: Postbox) -> None:
    """Writers that wait behind a block that fails are not part of its failure."""
    pause, sent = Event(), []
    threads = [Thread(target=lambda k=k: sent.append(box.send("b", k))) for k in range(8)]
    with pytest.raises(KeyError), box.begin() as tx:
        tx.send("b", "lost")
        for thread in threads:
            thread.start()
        while box._db.writer.queue.waiting < len(threads):
            pause.wait(0.001)
        raise KeyError
    for thread in threads:
        thread.join()

    assert ({"pending"}, 8) == ({box.state(each) for each in sent}, box.file.stats()["enqueued"])


def test_after_commit_effects_run_once_for_committed_work_only(box: Postbox) -> None:
    """
    In a shared commit each caller's effects run in that caller's thread, after the commit.

    A failed caller's never run.
    """
    ran: list[tuple[int, bool, int]] = []

    def work(k: int) -> Callable[[StoreTransaction], None]:
        def put(tx: StoreTransaction) -> None:
            me = current_thread().ident
            tx.after_commit(
                lambda: ran.append(
                    (
                        k,
                        me is not None,
                        box._db.read("SELECT count(*) FROM _onceward_blocked_lanes")[0][0],
                    )
                )
            )
            tx.run("INSERT INTO _onceward_blocked_lanes VALUES ('x', ?, 0, 0, 0)", (str(k),))
            if k % 2:
                raise KeyError

        return put

    queue_of(box, *[lambda k=k: box._db.write(work(k)) for k in range(6)])

    assert [(0, True, 3), (2, True, 3), (4, True, 3)] == sorted(ran)


def test_many_threads_without_any_order(box: Postbox) -> None:
    """Thirty-two threads that send, fail and use blocks at will lose nothing and add nothing."""
    start, kept, refused = Barrier(WRITERS), [], []

    def run(k: int) -> None:
        start.wait()
        for step in range(5):
            try:
                if k % 3 == 0:
                    with box.begin() as tx:
                        first, second = tx.send("b", step), tx.send("c", step)
                        if step == 2:
                            raise KeyError
                    kept.extend([first, second])
                elif k % 3 == 1:
                    kept.append(box.send("b", step))
                else:
                    kept.append(box.send("b", step, priority="none" if step == 2 else "low"))  # type: ignore[arg-type]
            except (KeyError, InvalidMessage) as error:
                refused.append(error)

    threads = [Thread(target=run, args=(k,)) for k in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {row[0] for row in box._db.read("SELECT id FROM _onceward_outbox")} == set(kept)
    assert (21, []) == (len(refused), box.file.check())


@pytest.mark.parametrize("path", ["block", "write"])
def test_an_interrupt_reaches_the_thread_it_was_meant_for(box: Postbox, path: str) -> None:  # noqa: C901 - four parties
    """
    Ctrl-C while the main thread does a neighbour's work is raised in the main thread.

    The neighbour gets its result.
    """
    outcome: list[object] = []
    pause, entered, go = Event(), Event(), Event()

    def neighbours_work(tx: StoreTransaction) -> Any:
        if current_thread() is main_thread() and not outcome:
            outcome.append("interrupted")
            signal.raise_signal(signal.SIGINT)
        return tx.rows("SELECT 7")

    def hold() -> None:
        try:
            with box.begin():
                entered.set()
                go.wait()
                raise KeyError
        except KeyError:
            pass

    def neighbour() -> None:
        while box._db.writer.queue.waiting < 1:
            pause.wait(0.001)
        queued = Thread(target=release)
        queued.start()
        try:
            outcome.append(box._db.write(neighbours_work))
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcome.append(error)
        queued.join()

    def release() -> None:
        while box._db.writer.queue.waiting < 2:
            pause.wait(0.001)
        go.set()

    threads = [Thread(target=hold), Thread(target=neighbour)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    with pytest.raises(KeyboardInterrupt):
        if path == "write":
            box.send("b", 1)
        else:
            with box.begin() as tx:
                tx.send("b", 1)
    for thread in threads:
        thread.join()

    assert ["interrupted", [(7,)]] == outcome
    assert (1, []) == (box.file.stats()["enqueued"], box.file.check())


def test_a_neighbour_that_fills_the_disk_harms_nobody(box: Postbox) -> None:
    """
    One writer of a shared commit that finds no room gets DiskFull.

    The others' messages are there.
    """
    con = box._db._con
    assert con is not None
    box.send("b", 0)
    con.pragma("max_page_count", con.pragma("page_count") + 8)

    outcomes = queue_of(
        box,
        lambda: box.send("b", 1),
        lambda: box.send("b", "x" * 400_000),
        lambda: box.send("b", 2),
    )

    assert [str, "DiskFull", str] == [
        type(o) if isinstance(o, str) else type(o).__name__ for o in outcomes
    ]
    assert (3, []) == (box.file.stats()["enqueued"], box.file.check())


def test_a_disk_that_stays_full_refuses_and_keeps(box: Postbox) -> None:
    """
    With no page left sends are refused, earlier messages stay whole.

    With room everything goes on.
    """
    con = box._db._con
    assert con is not None
    kept = [box.send("b", k) for k in range(3)]
    con.pragma("max_page_count", con.pragma("page_count"))
    with pytest.raises(StoreError) as caught:
        for _ in range(20):
            kept.append(box.send("b", "x" * 3000))  # noqa: PERF401 - those before the failure count

    assert "DiskFull" == type(caught.value).__name__
    assert ({"pending"}, []) == ({box.state(each) for each in kept}, box.file.check())
    con.pragma("max_page_count", 1 << 30)
    assert "pending" == box.state(box.send("b", "x" * 3000))


def test_a_block_on_a_full_disk_is_all_or_nothing(box: Postbox) -> None:
    """An application that swallows the full disk inside its block commits nothing of the block."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE t (x)")
    con = box._db._con
    assert con is not None
    con.pragma("max_page_count", con.pragma("page_count") + 2)
    with pytest.raises(StoreError), box.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        for call in (
            lambda: tx.execute("INSERT INTO t VALUES (?)", ("y" * 50_000,)),
            lambda: tx.execute("INSERT INTO t VALUES (2)"),
            lambda: tx.send("b", 1),
        ):
            with pytest.raises(StoreError):
                call()

    assert (0, 0, []) == (
        box._db.read("SELECT count(*) FROM t")[0][0],
        box.file.stats()["enqueued"],
        box.file.check(),
    )


def test_a_commit_that_may_have_happened_stays_unknown_when_its_repetition_is_refused(
    box: Postbox,
) -> None:
    """The first COMMIT is durable and reports an error, the second finds the file busy."""
    refusals = iter((apsw.IOError("disk I/O error"), apsw.BusyError("database is locked")))

    def refused(tx: StoreTransaction) -> None:
        error = next(refusals)
        if isinstance(error, apsw.IOError):
            tx.commit()
        raise error

    box._db.writer.measured_commit = refused
    with pytest.raises(OutcomeUnknown) as told:
        box.send("b", 1)
    box._db.writer.measured_commit = None

    assert ["pending"] == list(map(box.state, told.value.message_ids))
