"""SQLAlchemy's sessions and the postbox's messages are one transaction."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Agent, AsyncContext, Context, Depends, Postbox
from onceward.errors import Busy, InvalidArgument, OutcomeUnknown, SendError, StoreError, StoreFault
from onceward.events import Enqueued
from onceward.integrations.dbapi import module as dbapi
from onceward.integrations.sqlalchemy import (
    WrongThread,
    engine,
    session_for,
    sessionmaker,
    transaction,
)
from onceward.message.log import Log

InHandler = Annotated[Session, Depends(session_for)]


class Base(DeclarativeBase):
    """The tables of these tests."""


class Invoice(Base):
    """An invoice."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(sa.CheckConstraint("cents > 0"))


class Line(Base):
    """A line of an invoice."""

    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    invoice: Mapped[int] = mapped_column(
        sa.ForeignKey(Invoice.id, deferrable=True, initially="DEFERRED")
    )


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """A shop whose recipients need not exist."""
    with Postbox(
        tmp_path / "shop.db", agent="shop", hold_unknown=True, start=False, busy_timeout=0.2
    ) as opened:
        yield opened


@pytest.fixture
def db(box: Postbox) -> sa.Engine:
    """An engine of the shop, its tables made."""
    made = engine(box)
    Base.metadata.create_all(made)
    return made


def stored(box: Postbox) -> tuple[list[int], list[str]]:
    """Return the cents of the invoices and the bodies of the messages that are committed."""
    return (
        [cents for (cents,) in box.query("SELECT cents FROM invoice ORDER BY id")],
        [body for (body,) in box.query("SELECT body FROM onceward_outbox ORDER BY seq")],
    )


def send(work: Session | sa.Connection, body: object) -> str:
    """Send with the transaction of *work*."""
    return transaction(work).send("billing", body, type="invoice")


# -- one transaction ----------------------------------------------------------------------------


def test_rows_and_messages_are_committed_together(box: Postbox, db: sa.Engine) -> None:
    """Before the commit neither is seen by readers, after it both are."""
    with Session(db) as session:
        session.add(Invoice(cents=5))
        send(session, 5)
        before = stored(box)
        session.commit()

    assert ([], []) == before
    assert ([5], ["5"]) == stored(box)


def test_rows_and_messages_are_rolled_back_together(box: Postbox, db: sa.Engine) -> None:
    """An exception in the block undoes both."""
    with pytest.raises(ZeroDivisionError), Session(db) as session, session.begin():
        session.add(Invoice(cents=5))
        send(session, 5)
        _ = 1 / 0

    assert ([], []) == stored(box)


def test_a_nested_transaction_fails_alone(box: Postbox, db: sa.Engine) -> None:
    """A savepoint undoes its rows and its messages; what is around it is committed."""
    with Session(db) as session, session.begin():
        session.add(Invoice(cents=1))
        send(session, 1)
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            session.add(Invoice(cents=2))
            send(session, 2)
            _ = 1 / 0
        with session.begin_nested():
            session.add(Invoice(cents=3))
            send(session, 3)

    assert ([1, 3], ["1", "3"]) == stored(box)


def test_the_events_of_an_undone_savepoint_are_not_told(box: Postbox, db: sa.Engine) -> None:
    """Hooks hear of the messages that were committed only."""
    heard: list[str] = []
    box.on(Enqueued, lambda event: heard.append(event.message_id))
    with db.begin() as connection:
        kept = send(connection, 1)
        undone = connection.begin_nested()
        send(connection, 2)
        undone.rollback()

    assert [kept] == heard


def test_core_sends_in_its_transaction(box: Postbox, db: sa.Engine) -> None:
    """A connection of Core that has not begun begins by sending, and commits with it."""
    with db.connect() as connection:
        send(connection, 7)
        connection.execute(sa.insert(Invoice).values(cents=7))
        before = stored(box)
        connection.commit()

    assert ([], []) == before
    assert ([7], ["7"]) == stored(box)


def test_sends_of_the_postbox_join_a_session_that_has_begun(box: Postbox, db: sa.Engine) -> None:
    """On the same thread ``box.send`` and ``box.begin`` are part of the open transaction."""
    with Session(db) as session:
        session.add(Invoice(cents=5))
        session.flush()
        box.send("billing", 1, type="invoice")
        with box.begin() as tx:
            tx.send("billing", 2, type="invoice")
        session.rollback()

    assert ([], []) == stored(box)


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_in_a_block_joins_it(box: Postbox, db: sa.Engine, *, fails: bool) -> None:
    """A session that commits inside ``box.begin()`` is committed or undone by the block."""
    try:
        with box.begin() as tx:
            tx.send("billing", 1, type="invoice")
            with Session(db) as session, session.begin():
                session.add(Invoice(cents=5))
            _ = 1 / (not fails)
    except ZeroDivisionError:
        pass

    assert (([], []) if fails else ([5], ["1"])) == stored(box)


def test_a_session_in_a_block_can_fail_alone(box: Postbox, db: sa.Engine) -> None:
    """Its rollback leaves the work of the block alone."""
    with box.begin() as tx:
        tx.send("billing", 1, type="invoice")
        with pytest.raises(IntegrityError), Session(db) as session, session.begin():
            session.add(Invoice(cents=-5))

    assert ([], ["1"]) == stored(box)


@pytest.mark.parametrize("undone", [False, True], ids=["commits", "undone"])
def test_a_session_is_not_committed_over_one_that_began_inside_it(
    box: Postbox, db: sa.Engine, *, undone: bool
) -> None:
    """Its end would be that of the other, too, whose rollback would undo nothing any more."""
    with box.begin():
        first, second = Session(db), Session(db)
        for number, session in enumerate((first, second), 1):
            session.add(Invoice(cents=number))
            session.flush()
        if undone:
            with pytest.raises(ProgrammingError, match="inside this one"):
                first.commit()
            second.rollback()
            first.close()
        else:
            second.commit()
            first.commit()

    assert ([] if undone else [1, 2], []) == stored(box)


@pytest.mark.parametrize("joined", [False, True])
def test_a_session_is_not_committed_inside_a_block_that_began_in_it(
    box: Postbox, db: sa.Engine, *, joined: bool
) -> None:
    """The block's error would say that nothing was kept, although the commit kept a part of it."""

    def work() -> None:
        with Session(db) as session:
            session.add(Invoice(cents=1))
            session.flush()
            with box.begin() as tx:
                tx.send("billing", 1, type="invoice")
                session.commit()

    with pytest.raises(ProgrammingError, match="inside this one"):
        if joined:
            with box.begin():
                work()
        else:
            work()

    assert ([], []) == stored(box)


def test_a_savepoint_that_is_gone_is_not_rolled_back_in_silence(
    box: Postbox, db: sa.Engine
) -> None:
    """As with every other driver, the error says that its rows stay."""
    with db.connect() as work:
        outer = work.begin_nested()
        inner = work.begin_nested()
        work.execute(sa.insert(Invoice).values(cents=1))
        with pytest.warns(sa.exc.SAWarning, match="deassociated"):
            outer.commit()
        with pytest.raises(dbapi.OperationalError, match="no such savepoint"):
            inner.rollback()


def test_a_session_that_outlives_its_block_is_told(box: Postbox, db: sa.Engine) -> None:
    """What it wrote before is committed with the block; the error does not say otherwise."""
    session = Session(db)
    with box.begin():
        session.add(Invoice(cents=1))
        session.flush()
    with pytest.raises(OperationalError, match="ended before this session"):
        session.scalars(sa.select(Invoice)).all()
    session.close()

    assert ([1], []) == stored(box)


def test_a_transaction_ends_with_its_session(box: Postbox, db: sa.Engine) -> None:
    """What ``transaction`` returned cannot send after the commit."""
    with Session(db) as session:
        tx = transaction(session)
        session.commit()
        with pytest.raises(StoreError, match="transaction has ended"):
            tx.send("billing", 1, type="invoice")

    assert ([], []) == stored(box)


def test_the_conversation_is_chosen(box: Postbox, db: sa.Engine) -> None:
    """The second argument of ``transaction`` is the session of its messages."""
    with Session(db) as session, session.begin():
        transaction(session, "run-42").send("billing", 1, type="invoice")

    assert [("run-42",)] == box.query("SELECT session FROM onceward_outbox")


# -- handlers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_handler_s_session_commits_with_the_message(box: Postbox, *, fails: bool) -> None:
    """Rows are there exactly when the message is processed and its reply is sent."""
    agent = Agent("billing")

    @agent.on("invoice", attempts=1)
    def book(cents: int, ctx: Context, session: InHandler) -> None:
        session.add(Invoice(cents=cents))
        session.flush()
        ctx.send("shop", "booked", type="booked")
        if fails:
            raise ValueError

    with Postbox(box.file.path.with_name("billing.db"), agent=agent, start=False) as billing:
        Base.metadata.create_all(engine(billing))
        box.send("billing", 5, type="invoice")
        box.run_until_idle()
        billing.run_until_idle()
        rows, messages = stored(billing)

    assert (([], []) if fails else ([5], ["booked"])) == (rows, messages)


def test_the_end_of_a_handler_flushes(box: Postbox) -> None:
    """A row that the handler only added is written; one that is refused fails the attempt."""
    agent = Agent("billing")

    @agent.on("invoice", attempts=1)
    def book(cents: int, session: InHandler) -> None:
        session.add(Invoice(cents=cents))

    with Postbox(box.file.path.with_name("billing.db"), agent=agent, start=False) as billing:
        Base.metadata.create_all(engine(billing))
        box.send_many([("billing", -5), ("billing", 5)], type="invoice")
        box.run_until_idle()
        billing.run_until_idle()
        told = [dead.reason for dead in billing.dead_letters.list()]

        assert (["attempts_spent"], [5]) == (told, stored(billing)[0])


def test_a_handler_that_goes_on_after_a_failed_flush_fails(box: Postbox) -> None:
    """The flush undid the rows before it, so the message is not processed without them."""
    shop = Agent("shop")

    @shop.on("invoice", attempts=1)
    def book(body: int, session: InHandler) -> None:
        session.add(Invoice(id=body, cents=5))
        session.flush()
        session.add(Invoice(id=body + 1, cents=-1))
        with pytest.raises(IntegrityError):
            session.flush()

    with Postbox(box.file.path.with_name("bank.db"), agent=shop, start=False) as bank:
        Base.metadata.create_all(engine(bank))
        bank.send("shop", 1, type="invoice")
        bank.run_until_idle()
        [dead] = bank.dead_letters.list()

    assert "PendingRollbackError" in str(dead.last_error)


def test_an_async_handler_is_refused() -> None:
    """Its statements would run in another thread than those of its transaction."""
    agent = Agent("billing")

    @agent.on("invoice")
    async def book(cents: int, ctx: AsyncContext, s: InHandler) -> None: ...

    with pytest.raises(InvalidArgument, match="sync handlers"):
        next(session_for(object()))  # type: ignore[arg-type]  # what a wrong annotation hands over


# -- reading ------------------------------------------------------------------------------------


def test_autocommit_reads_what_is_committed_and_never_waits(box: Postbox, db: sa.Engine) -> None:
    """While another thread holds the turn to write, a read returns the committed rows."""
    count = sa.select(sa.func.count()).select_from(Invoice)
    with Session(db) as session:
        session.add(Invoice(cents=5))
        session.flush()
        with db.execution_options(isolation_level="AUTOCOMMIT").connect() as reading:
            before = reading.scalar(count)
            session.commit()
            after = reading.scalar(count)

    assert (0, 1) == (before, after)


def test_autocommit_commits_each_statement(box: Postbox, db: sa.Engine) -> None:
    """A statement that writes is a transaction of its own."""
    with db.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.insert(Invoice).values(cents=5))
        during = stored(box)
        connection.rollback()

    assert ([5], []) == during == stored(box)


def test_autocommit_sends_nothing(db: sa.Engine) -> None:
    """There is no transaction that a message could be part of."""
    with (
        db.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidArgument, match="AUTOCOMMIT"),
    ):
        transaction(connection)


def test_the_second_session_of_a_thread_only_reads(box: Postbox, db: sa.Engine) -> None:
    """It sees what is committed; its writes are refused at once instead of waiting for ever."""
    with Session(db) as first, Session(db) as second:
        first.add(Invoice(cents=1))
        first.flush()
        seen = second.scalars(sa.select(Invoice.cents)).all()
        second.add(Invoice(cents=2))
        with pytest.raises(ProgrammingError, match="only reads"):
            second.flush()
        second.rollback()
        first.commit()
        second.add(Invoice(cents=2))
        second.commit()

    assert ([], ([1, 2], [])) == (seen, stored(box))


# -- threads ------------------------------------------------------------------------------------


def in_thread(work: Callable[[], Any]) -> Any:
    """Return what *work* returns, or the exception that it raises, in a thread of its own."""
    told: list[Any] = []

    def run() -> None:
        try:
            told.append(work())
        except Exception as error:  # noqa: BLE001 - returned
            told.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return told[0]


def test_a_transaction_belongs_to_its_thread(box: Postbox, db: sa.Engine) -> None:
    """Statements and commits of another thread raise, and harm nothing."""
    with db.connect() as connection:
        connection.execute(sa.insert(Invoice).values(cents=5))
        found = [
            in_thread(lambda: connection.execute(sa.text("SELECT 1"))),
            in_thread(lambda: transaction(connection)),
        ]
        connection.commit()

    assert [True, True] == [isinstance(getattr(each, "orig", each), WrongThread) for each in found]
    assert ([5], []) == stored(box)


def test_another_thread_may_close_a_session(box: Postbox, db: sa.Engine) -> None:
    """A session that was left to a thread pool, or to the collector, frees the file."""
    session = Session(db)
    session.add(Invoice(cents=5))
    session.flush()
    in_thread(session.close)
    lost = Session(db)
    lost.add(Invoice(cents=6))
    lost.flush()
    del lost
    gc.collect()
    box.send("billing", 1, type="invoice")

    assert ([], ["1"]) == stored(box)


def test_writers_of_other_threads_wait_for_their_turn(box: Postbox, db: sa.Engine) -> None:
    """One that waits too long gets an OperationalError and has written nothing."""

    def write() -> None:
        with Session(db) as session, session.begin():
            session.add(Invoice(cents=2))

    with Session(db) as session:
        session.add(Invoice(cents=1))
        session.flush()
        late = in_thread(write)
        session.commit()
    in_thread(write)

    assert isinstance(late, OperationalError)
    assert ([1, 2], []) == stored(box)


# -- errors and limits --------------------------------------------------------------------------


def test_a_constraint_that_the_commit_checks_undoes_all(box: Postbox) -> None:
    """With ``foreign_keys`` a deferred key that fails is an IntegrityError of the commit."""
    db = engine(box, foreign_keys=True)
    Base.metadata.create_all(db)
    with Session(db) as session:
        session.add(Invoice(cents=1))
        session.add(Line(invoice=99))
        send(session, 1)
        session.flush()
        with pytest.raises(IntegrityError):
            session.commit()

    assert ([], []) == stored(box)


def test_a_refused_message_leaves_the_transaction_open(box: Postbox, db: sa.Engine) -> None:
    """Its error is the postbox's own; rows are committed all the same."""
    with Session(db) as session, session.begin():
        session.add(Invoice(cents=1))
        with pytest.raises(SendError):
            transaction(session).send("no agent's name", 1, type="invoice")

    assert ([1], []) == stored(box)


def test_foreign_keys_hold_after_the_file_was_opened_again(box: Postbox) -> None:
    """An error that makes the writer connect again does not switch them off."""
    db = engine(box, foreign_keys=True)
    Base.metadata.create_all(db)
    with box._db.writer.exclusive():
        box._db.reopen()

    with pytest.raises(IntegrityError), db.begin() as connection:
        connection.execute(sa.insert(Line).values(invoice=99))

    assert [] == box.query("SELECT * FROM line")


def test_a_commit_of_unknown_outcome_is_told_as_itself(
    box: Postbox, db: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OperationalError would say that nothing was written."""
    with Session(db) as session:
        message_id = send(session, 1)
        unknown = OutcomeUnknown("COMMIT: cut off", (message_id,))

        def commit() -> None:
            box._db.writer.rollback()
            raise unknown

        monkeypatch.setattr(box._db.writer, "commit", commit)
        with pytest.raises(OutcomeUnknown) as told:
            session.commit()

    assert (message_id,) == told.value.message_ids


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT * FROM missing", OperationalError),
        ("INSERT INTO invoice VALUES (1, -1)", IntegrityError),
        ("PRAGMA foreign_keys = ON", ProgrammingError),
        ("PRAGMA foreign_keys(1)", ProgrammingError),
        ("PRAGMA synchronous = OFF", ProgrammingError),
        ("INSERT INTO invoice VALUES (1, 1); DELETE FROM invoice", ProgrammingError),
        ("COMMIT", OperationalError),
        ("ROLLBACK", OperationalError),
    ],
)
def test_statements_that_cannot_be_run_raise_and_undo(
    box: Postbox, db: sa.Engine, statement: str, error: type[Exception]
) -> None:
    """Wrong SQL, transaction control, pragmas of the shared connection, two at a time."""
    with pytest.raises(error), db.begin() as connection:
        connection.execute(sa.insert(Invoice).values(id=7, cents=7))
        connection.exec_driver_sql(statement)

    assert ([], []) == stored(box)


def test_rows_have_names_types_and_counts(db: sa.Engine) -> None:
    """A result without rows still has its columns; counts and ids are those of the statement."""
    with db.begin() as connection:
        made = connection.exec_driver_sql("INSERT INTO invoice (cents) VALUES (?)", (5,))
        many = connection.exec_driver_sql("UPDATE invoice SET cents = ?", [(6,), (7,)])
        none = connection.exec_driver_sql("SELECT id, cents FROM invoice WHERE id = 99")
        values = connection.execute(
            sa.select(sa.literal(1.5), sa.literal(b"x"), sa.literal("x"), sa.null())
        ).one()

    assert (1, 1, 2, ["id", "cents"]) == (
        made.lastrowid, made.rowcount, many.rowcount, list(none.keys()),
    )  # fmt: skip
    assert (1.5, b"x", "x", None) == tuple(values)


def test_a_url_opens_no_file(tmp_path: Path) -> None:
    """The dialect connects through an open postbox only."""
    with pytest.raises(sa.exc.InterfaceError, match=r"engine\(box\)"):
        sa.create_engine(f"sqlite+onceward:///{tmp_path}/shop.db").connect()


def test_a_closed_postbox_is_told(box: Postbox, db: sa.Engine) -> None:
    """Statements after the closing raise what says so."""
    box.close()
    with pytest.raises(OperationalError, match="closed"), db.connect() as connection:
        connection.execute(sa.text("SELECT 1"))


# -- what is ours -------------------------------------------------------------------------------


def test_what_is_reflected_or_dropped_as_a_whole_leaves_ours_alone(
    box: Postbox, db: sa.Engine
) -> None:
    """The inspector lists the user's tables; a view of ours is reflected by its name."""
    every = sa.MetaData()
    every.reflect(db, views=True)
    outbox = sa.Table("onceward_outbox", sa.MetaData(), autoload_with=db)
    every.drop_all(db)

    assert {"invoice", "line"} == set(every.tables)
    assert "body" in outbox.columns
    assert [] == box.file.check()


# -- sessions that send -------------------------------------------------------------------------


def test_a_session_of_the_sessionmaker_sends(box: Postbox, db: sa.Engine) -> None:
    """Its messages are committed, or undone, with its rows."""
    make = sessionmaker(box)
    with make.begin() as session:
        session.add(Invoice(cents=5))
        sent = session.send("billing", 5, type="invoice", key="five")
    with pytest.raises(ZeroDivisionError), make() as session, session.begin():
        session.send("billing", 6, type="invoice")
        _ = 1 / 0

    assert ([5], ["5"]) == stored(box)
    assert "pending" == box.state(sent)


# -- reading without the turn to write ----------------------------------------------------------


@pytest.mark.usefixtures("db")
def test_a_job_is_sent_with_the_rows_of_a_session(box: Postbox) -> None:
    """The session takes the place of the postbox: both are committed, or neither."""
    jobs = Agent("shop")

    @jobs.task
    def remind(invoice: int) -> None:
        del invoice

    make = sessionmaker(box)
    for cents in (7, 0):
        with suppress(ZeroDivisionError), make.begin() as session:
            session.add(Invoice(cents=cents))
            remind.send(session, cents)
            _ = 1 / cents

    assert ([7], ['{"invoice":7}']) == stored(box)


def test_a_session_that_only_reads_waits_for_no_writer(box: Postbox, db: sa.Engine) -> None:
    """READ COMMITTED begins with the first statement that writes; what it reads is committed."""
    make = sessionmaker(box, isolation_level="READ COMMITTED")
    with make() as session, Session(db) as other:
        seen = session.scalars(sa.select(Invoice)).all()
        other.add(Invoice(cents=5))
        other.flush()
        during, still = session.scalars(sa.select(Invoice)).all(), stored(box)
        with pytest.raises(ProgrammingError, match="another session"):
            session.execute(sa.insert(Invoice).values(cents=6))
        session.rollback()
        other.commit()
        session.add(Invoice(cents=7))
        session.send("billing", 7, type="invoice")
        session.commit()

    assert ([], [], ([], [])) == (seen, during, still)
    assert ([5, 7], ["7"]) == stored(box)


def test_a_session_that_only_reads_holds_no_other_thread(box: Postbox, db: sa.Engine) -> None:
    """Between its statements another thread writes; its own first write takes the turn."""
    with Session(db.execution_options(isolation_level="READ COMMITTED")) as session:
        assert [] == session.scalars(sa.select(Invoice)).all()
        in_thread(lambda: box.send("billing", 1, type="invoice"))
        session.add(Invoice(cents=5))
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            session.execute(sa.insert(Invoice).values(cents=6))
            _ = 1 / 0
        session.flush()
        waited = in_thread(lambda: box.send("billing", 2, type="invoice"))
        session.commit()

    assert isinstance(waited, Busy)
    assert ([5], ["1"]) == stored(box)


def test_a_reading_session_in_a_block_sees_the_block(box: Postbox, db: sa.Engine) -> None:
    """It joins the block, as every other session does."""
    make = sessionmaker(box, isolation_level="READ COMMITTED")
    with box.begin() as tx:
        tx.execute("INSERT INTO invoice (cents) VALUES (5)")
        with make() as session:
            assert [5] == session.scalars(sa.select(Invoice.cents)).all()


# -- messages beside a session ------------------------------------------------------------------


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the warnings that the log takes, with their fields."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def write(log: Log, level: str, event: str, fields: Mapping[str, Any]) -> None:
        if level == "warning":
            heard.append((event, {**log._fields, **fields}))

    monkeypatch.setattr(Log, "write", write)
    return heard


def test_a_message_beside_pending_rows_is_warned_of(
    box: Postbox, db: sa.Engine, apart: list[tuple[str, dict[str, Any]]]
) -> None:
    """It is committed alone; the warning names it, and the rows that it is committed without."""
    with Session(db) as session:
        session.add(Invoice(cents=5))
        sent = box.send("billing", 5, type="invoice")

    [(event, fields)] = apart
    assert "committed apart" in event
    assert (sent, "Invoice", "shop") == tuple(
        fields[name] for name in ("message_id", "pending", "agent")
    )


def test_changed_rows_of_a_reading_session_are_pending(
    box: Postbox, db: sa.Engine, apart: list[tuple[str, dict[str, Any]]]
) -> None:
    """They have not begun a transaction that the message could join."""
    make = sessionmaker(box, isolation_level="READ COMMITTED")
    with make.begin() as session:
        session.add(Invoice(id=1, cents=5))
    with make() as session:
        session.get_one(Invoice, 1).cents = 6
        box.send("billing", 6, type="invoice")

    assert ["Invoice"] == [fields["pending"] for _, fields in apart]


def test_a_message_that_is_no_neighbour_is_not_warned_of(
    box: Postbox, db: sa.Engine, tmp_path: Path, apart: list[tuple[str, dict[str, Any]]]
) -> None:
    """Nothing is pending, or it is in another thread, for another file, or holds the message."""
    elsewhere = sa.create_engine("sqlite+onceward://", creator=lambda: None)
    with Session(db) as session, Session(elsewhere) as other, Session() as unbound:
        box.send("billing", 1, type="invoice")
        other.add(Invoice(cents=1))
        unbound.add(Invoice(cents=1))
        box.send("billing", 2, type="invoice")
        session.add(Invoice(cents=5))
        in_thread(lambda: box.send("billing", 3, type="invoice"))
        with Postbox(tmp_path / "b.db", agent="b", start=False, hold_unknown=True) as second:
            engine(second)
            second.send("billing", 4, type="invoice")
        send(session, 5)
        box.send("billing", 6, type="invoice")
        session.commit()
        box.send("billing", 7, type="invoice")
    with box.begin(), Session(db) as session:
        session.add(Invoice(cents=6))
        box.send("billing", 8, type="invoice")

    assert [] == apart


# -- rollbacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_a_rollback_inside_a_block_that_began_in_the_session_is_told(
    box: Postbox, db: sa.Engine, *, joined: bool
) -> None:
    """It undoes the block and all around it, and the block says so when it ends."""

    def work() -> None:
        with Session(db) as session, session.begin():
            session.add(Invoice(cents=1))
            session.flush()
            with box.begin() as tx:
                tx.send("billing", 1, type="invoice")
                session.rollback()

    with pytest.raises(StoreFault, match="leave COMMIT and ROLLBACK to the block"):
        if joined:
            with box.begin():
                work()
        else:
            work()

    assert ([], []) == stored(box)
    box.send("billing", 2, type="invoice")
    assert ([], ["2"]) == stored(box)


def test_a_savepoint_in_a_block_that_began_in_the_session_fails_alone(
    box: Postbox, db: sa.Engine
) -> None:
    """One that began before the block is told, as the rollback of the session is."""
    with Session(db) as session, session.begin():
        session.connection()
        with box.begin() as tx:
            tx.send("billing", 1, type="invoice")
            with pytest.raises(IntegrityError), session.begin_nested():
                session.add(Invoice(cents=-1))
        session.add(Invoice(cents=2))
    with pytest.raises(StoreFault, match="leave COMMIT and ROLLBACK"), Session(db) as session:
        nested = session.begin_nested()
        session.add(Invoice(cents=3))
        session.flush()
        with box.begin() as tx:
            tx.send("billing", 3, type="invoice")
            nested.rollback()

    assert ([2], ["1"]) == stored(box)


def test_an_engine_opens_the_postbox_for_its_first_connection(tmp_path: Path) -> None:
    """A function in place of the postbox is called when it is needed, and again after a close."""
    opened: list[Postbox] = []

    def box() -> Postbox:
        if not opened or opened[-1]._closed:
            opened.append(Postbox(tmp_path / "a.db", agent="a", hold_unknown=True, start=False))
        return opened[-1]

    db = engine(box, foreign_keys=True)
    before = list(opened)
    Base.metadata.create_all(db)
    for number in (1, 2):
        with Session(db) as session, session.begin():
            session.add(Invoice(id=number, cents=1))
            transaction(session).send("b", number, type="invoice")
        [(rows,)] = opened[-1].query("SELECT count(*) FROM onceward_outbox")
        assert number == rows
        opened[-1].close()

    assert ([], 2) == (before, len(opened))
