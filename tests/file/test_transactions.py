"""Transactions: one fate for everything inside, through interrupts, waits and misuse."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import pytest

from onceward import Postbox
from onceward.errors import InvalidMessage, StoreClosed, StoreCorrupt, StoreError, StoreFault
from onceward.events import Enqueued
from onceward.file.transaction import StoreTransaction

Open = Callable[..., Postbox]


@pytest.fixture
def ledger(box: Postbox) -> Postbox:
    """Return a postbox with a table of the user's own."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE t (x INTEGER UNIQUE)")
    return box


def seen(box: Postbox) -> tuple[list[int], int]:
    """Return the user's rows, and how many messages were promised."""
    return [x for (x,) in box._db.read("SELECT x FROM t ORDER BY x")], box.file.stats()["enqueued"]


def test_rows_and_mail_are_one_commit(ledger: Postbox) -> None:
    """After the block both are there, under the id that was known before."""
    with ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        message_id = tx.send("b", 1)

    assert (([1], 1), "pending") == (seen(ledger), ledger.state(message_id))


def test_all_transactions_run_on_one_cursor(ledger: Postbox) -> None:
    """A statement takes no cursor of its own, which would cost half as much as the statement."""

    def cursor(tx: Any) -> Any:
        return tx._execute.__self__

    used = [ledger._db.write(cursor) for _ in range(2)]
    con = ledger._db._con
    assert con is not None

    assert used[0] is used[1]
    assert used[0].connection is con


def test_a_read_that_an_exception_ends_holds_nothing(ledger: Postbox) -> None:
    """After a rollback the cursor keeps no snapshot, so the WAL can be emptied."""

    def unread(tx: StoreTransaction) -> None:
        tx._execute("SELECT * FROM sqlite_schema")
        message = "before its rows are read"
        raise KeyError(message)

    with pytest.raises(KeyError):
        ledger._db.write(unread)
    ledger._db.checkpoint(truncate=True)

    assert 0 == Path(f"{ledger.file.path}-wal").stat().st_size


SEVERAL = "SELECT CAST(x'ff' AS TEXT); SELECT 2"
"""Two statements; the first has a row that cannot be read."""


def test_an_error_in_one_of_several_statements_undoes_the_block(ledger: Postbox) -> None:
    """A statement that an error left unrun does not keep the file locked for other processes."""
    with pytest.raises(StoreCorrupt), ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        tx.execute(SEVERAL)
    con = ledger._db._con
    assert con is not None

    assert (False, []) == (con.in_transaction, seen(ledger)[0])


def test_a_caught_error_in_one_of_several_statements_ends_nothing(ledger: Postbox) -> None:
    """The block goes on after an error that its user has caught, and is committed."""
    with ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(StoreCorrupt):
            tx.execute(SEVERAL)

    assert [1] == seen(ledger)[0]


def test_an_exception_undoes_rows_and_mail(ledger: Postbox) -> None:
    """After an exception nothing is there, and the next block works."""
    with pytest.raises(ZeroDivisionError), ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        tx.send("b", 1)
        _ = 1 // 0

    assert ([], 0) == seen(ledger)
    assert "pending" == ledger.state(ledger.send("b", 1))


def test_a_refused_send_leaves_the_rest(ledger: Postbox) -> None:
    """A message that breaks a rule is not written; the transaction goes on with what is."""
    with ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(InvalidMessage):
            tx.send("b", float("nan"))
        tx.send("b", 1)

    assert ([1], 1) == seen(ledger)


def test_a_failing_statement_leaves_the_rest(ledger: Postbox) -> None:
    """What SQLite says of the user's own statement is the user's own error."""
    with ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(apsw.ConstraintError):
            tx.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(apsw.SQLError):
            tx.execute("nonsense")
        tx.executemany("INSERT INTO t VALUES (?)", [(2,), (3,)])

    assert ([1, 2, 3], 0) == seen(ledger)


def test_inner_rollback_keeps_the_outer(ledger: Postbox) -> None:
    """A nested block that fails takes back its own writes and mail, nothing else."""
    with ledger.begin() as outer:
        outer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(KeyError), ledger.begin() as inner:
            inner.execute("INSERT INTO t VALUES (2)")
            inner.send("b", 2)
            with ledger.begin() as innermost:
                innermost.execute("INSERT INTO t VALUES (3)")
            raise KeyError
        with ledger.begin() as inner:
            inner.send("b", 4)
        ledger.send("b", 5)

    assert ([1], 2) == seen(ledger)


def test_outer_rollback_takes_all(ledger: Postbox) -> None:
    """What nested blocks and plain sends did inside belongs to the outermost block."""
    with pytest.raises(KeyError), ledger.begin():
        with ledger.begin() as inner:
            inner.execute("INSERT INTO t VALUES (2)")
        ledger.send("b", 5)
        ledger.send_many([("b", 6), ("b", 7)])
        raise KeyError

    assert ([], 0) == seen(ledger)


def test_reading_inside_the_block_sees_its_writes(ledger: Postbox) -> None:
    """
    Inside the block the open transaction is what is read.

    Outside the new rows are not visible before the commit.
    """
    with ledger.begin() as tx:
        message_id = tx.send("b", 1)
        inside = ledger.history().total_count
        outside = Reader(ledger).look("SELECT count(*) FROM _onceward_outbox")

    assert (1, 0, "pending") == (inside, outside, ledger.state(message_id))


class Reader:
    """Reads from another thread."""

    def __init__(self, box: Postbox) -> None:
        self._box = box

    def look(self, sql: str) -> Any:
        """Return the one value of *sql*."""
        found: list[Any] = []
        thread = Thread(target=lambda: found.append(self._box._db.read(sql)[0][0]))
        thread.start()
        thread.join()
        return found[0]


ENDINGS = [
    "COMMIT",
    "END",
    "ROLLBACK",
    "COMMIT; BEGIN",
    "ROLLBACK; BEGIN IMMEDIATE",
    "/* x */ commit",
    "INSERT INTO t VALUES (9); COMMIT",
    "END TRANSACTION; BEGIN",
]


@pytest.mark.parametrize("sql", ENDINGS)
def test_ending_the_transaction_inside_its_block_is_an_error(ledger: Postbox, sql: str) -> None:
    """
    COMMIT and ROLLBACK belong to the block.

    A statement that tries them raises, and nothing of the block is kept.
    """
    with pytest.raises(StoreError), ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        tx.send("b", 1)
        tx.execute(sql)

    assert ([], 0) == seen(ledger)
    assert "pending" == ledger.state(ledger.send("b", 2))


@pytest.mark.parametrize("sql", ENDINGS)
def test_a_transaction_that_ended_takes_nothing_more(ledger: Postbox, sql: str) -> None:
    """
    An application that swallows the error cannot write on.

    Nothing is committed behind its back.
    """
    with pytest.raises(StoreError), ledger.begin() as tx:
        for call in (
            lambda: tx.execute(sql),
            lambda: tx.execute("INSERT INTO t VALUES (2)"),
            lambda: tx.send("b", 1),
            lambda: ledger.send("b", 2),
        ):
            with pytest.raises(StoreError):
                call()

    assert ([], 0) == seen(ledger)


@pytest.mark.parametrize("sql", ["SAVEPOINT mine", "RELEASE job1", "ROLLBACK TO job1"])
def test_savepoints_of_the_users_own_do_not_break_the_block(ledger: Postbox, sql: str) -> None:
    """Whatever savepoints a user makes, an exception undoes all and the postbox works on."""
    with pytest.raises((StoreError, apsw.SQLError, KeyError)), ledger.begin() as outer:
        outer.execute("INSERT INTO t VALUES (1)")
        with ledger.begin() as inner:
            inner.execute("INSERT INTO t VALUES (2)")
            inner.execute(sql)
        raise KeyError

    assert ([], 0) == seen(ledger)
    assert "pending" == ledger.state(ledger.send("b", 2))


def test_a_transaction_is_over_after_its_block(ledger: Postbox) -> None:
    """The object that was lent cannot be used after the block."""
    with ledger.begin() as tx:
        pass

    for call in (
        lambda: tx.execute("SELECT 1"),
        lambda: tx.send("b", 1),
        lambda: tx.executemany("SELECT 1", []),
    ):
        with pytest.raises(StoreError, match="transaction has ended"):
            call()


def test_another_threads_write_never_ends_in_our_rollback(ledger: Postbox) -> None:
    """A send from a second thread waits for the first one's block and survives its rollback."""
    sent: list[str] = []
    with pytest.raises(KeyError), ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        thread = Thread(target=lambda: sent.append(ledger.send("b", 2)))
        thread.start()
        waits(ledger, 1)
        raise KeyError
    thread.join()

    assert (([], 1), "pending") == (seen(ledger), ledger.state(sent[0]))


def waits(box: Postbox, count: int) -> None:
    """Return once so many callers stand in the writer's queue."""
    pause = Event()
    while box._db.writer.queue.waiting < count:
        pause.wait(0.001)


def id_of(event: object) -> str:
    """Return the message that an event is about."""
    return str(getattr(event, "message_id"))  # noqa: B009 - events of all kinds come here


def test_after_commit_effects_follow_the_commit(box: Postbox) -> None:
    """Hooks hear of a send after its commit, never of a rolled-back one, nested or not."""
    heard: list[tuple[str, str]] = []
    box.on(Enqueued, lambda event: heard.append((id_of(event), box.state(id_of(event)))))

    with box.begin() as tx:
        first = tx.send("b", 1)
        with pytest.raises(KeyError), box.begin() as inner:
            inner.send("b", 2)
            raise KeyError
        assert [] == heard
    with pytest.raises(KeyError), box.begin() as tx:
        tx.send("b", 3)
        raise KeyError

    assert [(first, "pending")] == heard


def test_a_closed_postbox_takes_nothing(opened: Open) -> None:
    """Every call on a closed postbox says so, and none of them opens the file again."""
    box = opened()
    box.close()

    for call in (
        lambda: box.send("b", 1),
        box.file.stats,
        box.file.check,
        box.file.health,
        box.history,
        box.receive,
        box.peers.list,
        box.run_until_idle,
        box.file.pause,
    ):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed), box.begin():
        pass
    assert (None, None) == (box._db._con, box._db._reader)


def test_the_error_of_a_dead_transaction_names_the_cure(ledger: Postbox) -> None:
    """The error for ending a transaction by hand says what to do instead."""
    with (
        pytest.raises(StoreFault, match="leave COMMIT and ROLLBACK to the block"),
        ledger.begin() as tx,
    ):
        tx.execute("ROLLBACK")


def test_paths_are_the_real_ones(box: Postbox, tmp_path: Path) -> None:
    """A postbox tells the file it has open."""
    assert tmp_path.resolve() / "a.db" == box.file.path
