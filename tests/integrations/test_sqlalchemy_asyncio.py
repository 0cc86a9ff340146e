"""Sessions of SQLAlchemy's asyncio extension and the postbox's messages are one transaction."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import (
    IntegrityError,
    InterfaceError,
    InvalidRequestError,
    OperationalError,
    ProgrammingError,
    SAWarning,
)
from sqlalchemy.ext.asyncio import (
    AsyncAttrs,
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from onceward import Agent, AsyncContext, AsyncPostbox, Depends, Postbox
from onceward.errors import Busy, InvalidArgument, StoreClosed, StoreError
from onceward.file import database
from onceward.integrations.dbapi import module as dbapi
from onceward.integrations.sqlalchemy import engine, transaction
from onceward.integrations.sqlalchemy.aio import (
    async_engine,
    async_session_for,
    async_transaction,
)

InHandler = Annotated[AsyncSession, Depends(async_session_for)]
COUNT = sa.text("SELECT count(*) FROM invoice")
T = TypeVar("T")


class Base(AsyncAttrs, DeclarativeBase):
    """The tables of these tests."""


class Invoice(Base):
    """An invoice."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(sa.CheckConstraint("cents > 0"))
    lines: Mapped[list[Line]] = relationship()


class Line(Base):
    """A line of an invoice."""

    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    invoice: Mapped[int] = mapped_column(sa.ForeignKey(Invoice.id))


class Shop:
    """An open postbox whose recipients need not exist, and its engine."""

    def __init__(self, box: AsyncPostbox, db: AsyncEngine) -> None:
        self.box, self.db = box, db

    async def stored(self) -> tuple[list[int], list[str]]:
        """Return the cents of the invoices and the bodies of the messages that are committed."""
        return (
            [cents for (cents,) in await self.box.query("SELECT cents FROM invoice ORDER BY id")],
            [b for (b,) in await self.box.query("SELECT body FROM onceward_outbox ORDER BY seq")],
        )

    async def sell(self, cents: int) -> None:
        """Commit an invoice and its message."""
        async with AsyncSession(self.db) as session, session.begin():
            session.add(Invoice(cents=cents))
            await session.flush()
            await send(session, cents)


class InShop(Protocol):
    """Runs a story with a shop."""

    def __call__(self, story: Callable[[Shop], Coroutine[Any, Any, T]]) -> T:
        """Return what *story* returns."""
        ...


class Cancelled:
    """A coroutine whose task is cancelled when it waits for the *at*-th time."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._work, self.left = work, at

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await the coroutine."""
        steps, given = self._work.__await__(), None
        task = asyncio.current_task()
        assert task is not None
        try:
            awaited = next(steps)
            while True:
                self.left -= 1
                if self.left == 0:  # later ones are those of its cleaning up
                    task.cancel()
                try:
                    given = yield awaited
                except BaseException as error:  # noqa: BLE001 - the coroutine's to handle
                    awaited = steps.throw(error)
                else:
                    awaited = steps.send(given)
        except StopIteration as end:
            return end.value


async def until(happened: Callable[[], bool]) -> None:
    """Let other tasks run until threads have come so far."""
    while not happened():  # noqa: ASYNC110 - a thread that waits sets no event
        await asyncio.sleep(0)


@asynccontextmanager
async def open_shop(folder: Path) -> AsyncIterator[Shop]:
    """Open a shop, its tables made."""
    async with AsyncPostbox(
        folder / "shop.db", agent="shop", hold_unknown=True, start=False, busy_timeout=0.3
    ) as box:
        db = async_engine(box)
        async with db.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield Shop(box, db)


@pytest.fixture
def in_shop(tmp_path: Path) -> InShop:
    """Run a story with a shop, on a loop of its own that leaves no thread behind."""

    def run(story: Callable[[Shop], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with open_shop(tmp_path) as shop:
                return await story(shop)

        before = set(threading.enumerate())
        told = asyncio.run(main())
        started = set(threading.enumerate()) - before
        for each in started:
            each.join(10)

        assert [] == [each.name for each in started if each.is_alive()]
        return told

    return run


async def send(work: AsyncSession | AsyncConnection, body: object) -> str:
    """Send with the transaction of *work*."""
    return await async_transaction(work).send("billing", body, type="invoice")


# -- one transaction ----------------------------------------------------------------------------


def test_rows_and_messages_are_committed_together(in_shop: InShop) -> None:
    """Before the commit neither is seen by readers, after it both are."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=5))
            await send(session, 5)
            before = await shop.stored()
            await session.commit()
        return before, await shop.stored()

    assert (([], []), ([5], ["5"])) == in_shop(story)


def test_rows_and_messages_are_rolled_back_together(in_shop: InShop) -> None:
    """An exception in the block undoes both."""

    async def story(shop: Shop) -> Any:
        with pytest.raises(ZeroDivisionError):
            async with AsyncSession(shop.db) as session, session.begin():
                session.add(Invoice(cents=5))
                await send(session, 5)
                _ = 1 / 0
        return await shop.stored()

    assert ([], []) == in_shop(story)


def test_a_nested_transaction_fails_alone(in_shop: InShop) -> None:
    """A savepoint undoes its rows and its messages; what is around it is committed."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session, session.begin():
            session.add(Invoice(cents=1))
            await send(session, 1)
            with pytest.raises(ZeroDivisionError):
                async with session.begin_nested():
                    session.add(Invoice(cents=2))
                    await send(session, 2)
                    _ = 1 / 0
            async with session.begin_nested():
                session.add(Invoice(cents=3))
                await send(session, 3)
        return await shop.stored()

    assert ([1, 3], ["1", "3"]) == in_shop(story)


def test_core_sends_in_its_transaction(in_shop: InShop) -> None:
    """A connection of Core that has not begun begins by sending, and commits with it."""

    async def story(shop: Shop) -> Any:
        async with shop.db.connect() as connection:
            await send(connection, 7)
            await connection.execute(sa.insert(Invoice).values(cents=7))
            before = await shop.stored()
            await connection.commit()
        return before, await shop.stored()

    assert (([], []), ([7], ["7"])) == in_shop(story)


def test_sends_of_the_task_join_its_session(in_shop: InShop) -> None:
    """In the task that began it ``box.send`` and ``box.begin`` are part of the transaction."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=5))
            await session.flush()
            await shop.box.send("billing", 1, type="invoice")
            async with shop.box.begin() as tx:
                await tx.send("billing", 2, type="invoice")
            await session.rollback()
        return await shop.stored()

    assert ([], []) == in_shop(story)


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_in_a_block_joins_it(in_shop: InShop, *, fails: bool) -> None:
    """A session that commits inside ``box.begin()`` is committed or undone by the block."""

    async def story(shop: Shop) -> Any:
        try:
            async with shop.box.begin() as tx:
                await tx.send("billing", 1, type="invoice")
                async with AsyncSession(shop.db) as session, session.begin():
                    session.add(Invoice(cents=5))
                _ = 1 / (not fails)
        except ZeroDivisionError:
            pass
        return await shop.stored()

    assert (([], []) if fails else ([5], ["1"])) == in_shop(story)


def test_a_session_in_a_block_can_fail_alone(in_shop: InShop) -> None:
    """Its rollback leaves the work of the block alone."""

    async def story(shop: Shop) -> Any:
        async with shop.box.begin() as tx:
            await tx.send("billing", 1, type="invoice")
            with pytest.raises(IntegrityError):
                async with AsyncSession(shop.db) as session, session.begin():
                    session.add(Invoice(cents=-5))
        return await shop.stored()

    assert ([], ["1"]) == in_shop(story)


def test_a_session_that_outlives_its_block_harms_no_other(in_shop: InShop) -> None:
    """Its statements and its end do nothing in the transaction of the next task."""

    async def story(shop: Shop) -> Any:
        late = AsyncSession(shop.db)
        async with shop.box.begin():
            await late.execute(COUNT)

        async def other() -> None:
            async with AsyncSession(shop.db) as session, session.begin():
                session.add(Invoice(cents=5))
                await session.flush()
                with pytest.raises(OperationalError):
                    await late.execute(COUNT)
                await late.close()

        await asyncio.create_task(other())
        return await shop.stored()

    assert ([5], []) == in_shop(story)


def test_a_transaction_ends_with_its_session(in_shop: InShop) -> None:
    """What has sent with a transaction cannot send after its commit."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            tx = async_transaction(session, "run-42")
            await asyncio.gather(*(tx.send("billing", n, type="invoice") for n in (1, 2)))
            await session.commit()
            with pytest.raises(StoreError, match="transaction has ended"):
                await tx.send("billing", 3, type="invoice")
        return await shop.box.query("SELECT session, body FROM onceward_outbox ORDER BY seq")

    assert [("run-42", "1"), ("run-42", "2")] == in_shop(story)


def test_a_session_moves_between_tasks(in_shop: InShop) -> None:
    """A task that begins, one that writes and one that commits share one transaction."""

    async def story(shop: Shop) -> Any:
        session = AsyncSession(shop.db)
        await asyncio.create_task(session.execute(COUNT))
        session.add(Invoice(cents=5))
        await session.flush()
        await send(session, 5)
        await asyncio.create_task(session.commit())
        await asyncio.create_task(session.close())
        return await shop.stored()

    assert ([5], ["5"]) == in_shop(story)


# -- what SQLAlchemy offers -----------------------------------------------------------------------


def test_results_are_streamed_out_of_memory(in_shop: InShop) -> None:
    """``stream`` and ``stream_scalars`` yield all rows, also of two statements in turn."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            session.add_all(Invoice(cents=n) for n in (1, 2, 3))
            await session.flush()
            rows = await session.stream(sa.select(Invoice.cents))
            scalars = await session.stream_scalars(sa.select(Invoice.cents))
            first = await anext(aiter(rows))
            every = [each async for each in scalars]
            return tuple(first), every, await rows.scalars().all()

    assert ((1,), [1, 2, 3], [2, 3]) == in_shop(story)


def test_attributes_are_awaited(in_shop: InShop) -> None:
    """A relation is loaded by ``awaitable_attrs``, in the transaction."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session, session.begin():
            session.add(Invoice(id=7, cents=7, lines=[Line(), Line()]))
            await session.flush()
            session.expire_all()
            found = await session.get_one(Invoice, 7)
            return len(await found.awaitable_attrs.lines)

    assert 2 == in_shop(story)


def test_events_see_connections_that_execute(in_shop: InShop) -> None:
    """A listener for new connections may run statements."""

    async def story(shop: Shop) -> Any:
        seen: list[Any] = []

        @sa.event.listens_for(shop.db.sync_engine, "connect")
        def look(connection: Any, record: object) -> None:
            seen.append(connection.cursor().execute("SELECT 1").fetchone())

        await shop.sell(5)
        return seen, await shop.stored()

    assert ([(1,)], ([5], ["5"])) == in_shop(story)


def test_foreign_keys_are_checked_on_request(in_shop: InShop) -> None:
    """The first connection of an engine with ``foreign_keys`` switches them on."""

    async def story(shop: Shop) -> Any:
        checked = async_engine(shop.box, foreign_keys=True)
        with pytest.raises(IntegrityError):
            async with AsyncSession(checked) as session, session.begin():
                session.add(Line(invoice=99))
        return await shop.box.query("SELECT * FROM line")

    assert [] == in_shop(story)


# -- handlers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_handler_s_session_commits_with_the_message(in_shop: InShop, *, fails: bool) -> None:
    """Rows are there exactly when the message is processed and its reply is sent."""
    agent = Agent("billing")

    @agent.on("invoice", attempts=1)
    async def book(cents: int, ctx: AsyncContext, session: InHandler) -> None:
        session.add(Invoice(cents=cents))
        await session.flush()
        await ctx.send("shop", "booked", type="booked")
        if fails:
            raise ValueError

    async def story(shop: Shop) -> Any:
        async with billing(shop, agent) as other:
            await deliver(shop, other, 5)
            return await other.stored()

    assert (([], []) if fails else ([5], ["booked"])) == in_shop(story)


def test_the_end_of_a_handler_flushes(in_shop: InShop) -> None:
    """A row that the handler only added is written; one that is refused fails the attempt."""
    agent = Agent("billing")

    @agent.on("invoice", attempts=1)
    async def book(cents: int, session: InHandler) -> None:
        session.add(Invoice(cents=cents))

    async def story(shop: Shop) -> Any:
        async with billing(shop, agent) as other:
            await deliver(shop, other, -5, 5)
            told = [dead.reason for dead in await other.box.dead_letters.list()]
            return told, (await other.stored())[0]

    assert (["attempts_spent"], [5]) == in_shop(story)


def test_a_handler_that_goes_on_after_a_failed_flush_fails(in_shop: InShop) -> None:
    """The flush undid the rows before it, so the message is not processed without them."""
    agent = Agent("billing")

    @agent.on("invoice", attempts=1)
    async def book(cents: int, session: InHandler) -> None:
        session.add(Invoice(cents=cents))
        await session.flush()
        session.add(Invoice(cents=-cents))
        with pytest.raises(IntegrityError):
            await session.flush()

    async def story(shop: Shop) -> Any:
        async with billing(shop, agent) as other:
            await deliver(shop, other, 5)
            return [str(dead.last_error) for dead in await other.box.dead_letters.list()]

    [error] = in_shop(story)
    assert "PendingRollbackError" in error


def test_a_handler_that_is_cancelled_anywhere_leaves_all_or_nothing(in_shop: InShop) -> None:
    """Whatever it waited for, its rows and its messages agree, and the next one is handled."""
    agent, left = Agent("billing"), list[int]()

    async def write(n: int, ctx: AsyncContext) -> None:
        async with asynccontextmanager(async_session_for)(ctx) as session:
            session.add(Invoice(cents=n))
            await session.flush()
            await ctx.send("shop", n, type="booked")

    @agent.on("invoice", attempts=1)
    async def book(n: int, ctx: AsyncContext) -> None:
        work = Cancelled(write(n, ctx), n)
        try:
            await work
        finally:
            left.append(max(work.left, 0))

    async def story(shop: Shop) -> Any:
        async with billing(shop, agent) as other:
            kept: list[Any] = []
            while not left or left[-1] == 0:
                await deliver(shop, other, len(kept) + 1)
                kept.append(await other.stored())
            return kept, await other.box.file.check()

    kept, broken = in_shop(story)

    assert len(kept) > 5
    assert all([str(cents) for cents in rows] == messages for rows, messages in kept)
    assert [len(kept)] == kept[-1][0]
    assert [] == broken


def test_a_sync_handler_is_refused() -> None:
    """It has no loop that could await its session."""

    async def first() -> None:
        await anext(async_session_for(object()))  # type: ignore[arg-type]  # a wrong annotation

    with pytest.raises(InvalidArgument, match="async handlers"):
        asyncio.run(first())


@asynccontextmanager
async def billing(shop: Shop, agent: Agent) -> AsyncIterator[Shop]:
    """Open the recipient of the shop's messages, its tables made."""
    path = shop.box.file.path.with_name("billing.db")
    async with AsyncPostbox(path, agent=agent, hold_unknown=True, start=False) as box:
        db = async_engine(box)
        async with db.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield Shop(box, db)


async def deliver(shop: Shop, other: Shop, *bodies: int) -> None:
    """Send messages to *other* and let it handle them."""
    for each in bodies:
        await shop.box.send("billing", each, type="invoice")
    await shop.box.run_until_idle()
    await other.box.run_until_idle()


# -- tasks that wait for one another ------------------------------------------------------------


def test_tasks_queue_for_the_turn_to_write(in_shop: InShop) -> None:
    """What each of many sessions read is still so when it writes; no task costs a thread."""

    async def story(shop: Shop) -> Any:
        threads: set[str] = set()

        async def add() -> None:
            async with AsyncSession(shop.db) as session, session.begin():
                count = (await session.execute(COUNT)).scalar_one()
                session.add(Invoice(cents=count + 1))
                threads.update(each.name for each in threading.enumerate())

        await add()
        before = set(threads)
        await asyncio.gather(*(add() for _ in range(40)))
        return (await shop.stored())[0], threads - before

    assert (list(range(1, 42)), set()) == in_shop(story)


def test_readers_never_wait(in_shop: InShop) -> None:
    """With AUTOCOMMIT a task reads while a session and a send wait for another thread's turn."""

    async def story(shop: Shop) -> Any:
        async def read() -> int:
            reading = shop.db.execution_options(isolation_level="AUTOCOMMIT")
            async with reading.connect() as connection:
                found = await connection.scalar(COUNT)
                return int(found or 0)

        writer = shop.box._plain._db.writer
        writer.begin()
        writer.detach()  # it is a thread's that is none of the postbox's
        waiting = [
            asyncio.create_task(shop.sell(5)),
            asyncio.create_task(shop.box.send("billing", 6, type="invoice")),
        ]
        await until(lambda: writer.queue.waiting == len(waiting))
        during = await read(), writer.queue.waiting
        writer.rollback()
        await asyncio.gather(*waiting)
        return during, await read()

    assert ((0, 2), 1) == in_shop(story)


def test_a_failed_begin_leaves_the_turn_to_others(in_shop: InShop) -> None:
    """While a connection of the driver that waited too long is still open, other tasks write."""

    def insert(work: sa.Connection) -> None:
        work.connection.cursor().execute("INSERT INTO invoice (cents) VALUES (1)")

    async def story(shop: Shop) -> Any:
        writer = shop.box._plain._db.writer
        async with shop.db.connect() as connection:
            writer.begin()
            writer.detach()
            with pytest.raises(dbapi.OperationalError, match="whole deadline"):
                await connection.run_sync(insert)
            writer.rollback()
            await asyncio.create_task(shop.sell(5))
            return await shop.stored()

    assert ([5], ["5"]) == in_shop(story)


def test_autocommit_joins_no_transaction_of_another_task(in_shop: InShop) -> None:
    """What it writes waits for its turn, and stays when that transaction is rolled back."""

    async def story(shop: Shop) -> Any:
        async def write() -> None:
            writing = shop.db.execution_options(isolation_level="AUTOCOMMIT")
            async with writing.connect() as connection:
                await connection.execute(sa.insert(Invoice).values(cents=2))

        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=1))
            await session.flush()
            other = asyncio.create_task(write())
            queue = shop.box._plain._db.writer.queue
            await until(lambda: queue.waiting > 0 or other.done())
            await session.rollback()
        await other
        return await shop.stored()

    assert ([2], []) == in_shop(story)


def test_autocommit_commits_each_statement(in_shop: InShop) -> None:
    """A statement that writes is a transaction of its own, and carries no message."""

    async def story(shop: Shop) -> Any:
        async with shop.db.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(sa.insert(Invoice).values(cents=5))
            during = await shop.stored()
            with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
                await send(connection, 1)
            await connection.rollback()
        return during, await shop.stored()

    assert (([5], []), ([5], [])) == in_shop(story)


def test_the_second_session_of_a_task_only_reads(in_shop: InShop) -> None:
    """It sees what is committed; its writes are refused at once instead of waiting for ever."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as first, AsyncSession(shop.db) as second:
            first.add(Invoice(cents=1))
            await first.flush()
            seen = (await second.scalars(sa.select(Invoice.cents))).all()
            second.add(Invoice(cents=2))
            with pytest.raises(ProgrammingError, match="only reads"):
                await second.flush()
            await second.rollback()
            await first.commit()
            second.add(Invoice(cents=2))
            await second.commit()
        return seen, await shop.stored()

    assert ([], ([1, 2], [])) == in_shop(story)


def test_a_task_that_waits_for_itself_is_told(in_shop: InShop) -> None:
    """A task that it awaits while it has the turn gives up, and nothing of that is written."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=1))
            await session.flush()
            told = await asyncio.gather(
                shop.box.send("billing", 2, type="invoice"), shop.sell(3), return_exceptions=True
            )
            await session.commit()
        return told, await shop.stored()

    (sent, sold), kept = in_shop(story)

    assert (Busy, OperationalError) == (type(sent), type(sold))
    assert isinstance(sold.__cause__.__cause__, Busy)
    assert ([1], []) == kept


def test_a_block_waits_for_an_open_session_and_then_says_so(in_shop: InShop) -> None:
    """A session that no task ends does not stop other tasks for ever."""

    async def story(shop: Shop) -> Any:
        async def begin() -> None:
            async with shop.box.begin():
                pytest.fail("the session has the turn")

        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=1))
            await session.flush()
            with pytest.raises(Busy):
                await asyncio.create_task(begin())
            await session.commit()
        return await shop.stored()

    assert ([1], []) == in_shop(story)


def test_two_tasks_in_one_session_are_refused(in_shop: InShop) -> None:
    """SQLAlchemy says so, and the session can be closed."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            told = await asyncio.gather(
                *(session.execute(COUNT) for _ in range(3)), return_exceptions=True
            )
        await shop.sell(5)
        return told, await shop.stored()

    told, kept = in_shop(story)

    assert any(isinstance(each, InvalidRequestError) for each in told)
    assert ([5], ["5"]) == kept


def test_two_tasks_in_one_connection_take_turns(in_shop: InShop) -> None:
    """They begin one transaction, which is whole."""

    async def story(shop: Shop) -> Any:
        async with shop.db.connect() as connection:
            told = await asyncio.gather(
                *(connection.execute(sa.insert(Invoice).values(cents=n)) for n in (1, 2, 3)),
                return_exceptions=True,
            )
            await connection.rollback()
        await shop.sell(5)
        return [each for each in told if isinstance(each, Exception)], await shop.stored()

    assert ([], ([5], ["5"])) == in_shop(story)


# -- cancellation, loss, closing ----------------------------------------------------------------


def test_a_task_that_is_cancelled_anywhere_leaves_all_or_nothing(in_shop: InShop) -> None:
    """Whatever it waited for, rows and messages agree, and the turn to write is free."""

    async def sell(shop: Shop, n: int) -> None:
        async with AsyncSession(shop.db) as session, session.begin():
            session.add(Invoice(cents=n))
            await session.flush()
            async with session.begin_nested():
                await send(session, n)

    async def story(shop: Shop) -> Any:
        told, kept = [], []
        for n in range(1, 200):
            work = Cancelled(sell(shop, n), n)

            async def run(work: Cancelled = work) -> None:
                await work

            [error] = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
            told.append(type(error))
            kept.append(await shop.stored())
            await asyncio.wait_for(shop.box.query("SELECT 1"), 5)
            async with AsyncSession(shop.db) as session, session.begin():
                await session.execute(COUNT)
            if work.left > 0:
                return told, kept, await shop.box.file.check()
        return pytest.fail("it never ran to its end")

    told, kept, broken = in_shop(story)

    assert len(told) > 5
    assert {asyncio.CancelledError} == set(told[:-1])
    assert all([str(cents) for cents in rows] == messages for rows, messages in kept)
    assert [] == broken


def test_a_cancelled_task_that_waits_for_its_turn_leaves_the_queue(in_shop: InShop) -> None:
    """Those behind it get their turn."""

    async def story(shop: Shop) -> Any:
        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=1))
            await session.flush()
            waiting = [asyncio.create_task(shop.sell(n)) for n in (2, 3)]
            await asyncio.sleep(0.01)
            waiting[0].cancel()
            await session.commit()
        await asyncio.gather(*waiting, return_exceptions=True)
        return await shop.stored()

    assert ([1, 3], ["3"]) == in_shop(story)


def lose(last: list[Any]) -> None:
    """Drop the last references to something."""
    last.clear()
    gc.collect()


def test_a_lost_session_frees_the_file(in_shop: InShop) -> None:
    """The collector has it rolled back; a send of its task meanwhile is not part of it."""

    async def story(shop: Shop) -> Any:
        lost = [AsyncSession(shop.db)]
        lost[0].add(Invoice(cents=6))
        await lost[0].flush()
        with pytest.warns(SAWarning, match="garbage collector"):
            lose(lost)
        await shop.box.send("billing", 1, type="invoice")
        await shop.sell(2)
        return await shop.stored()

    assert ([2], ["1", "2"]) == in_shop(story)


def test_a_session_that_a_cancelled_task_lost_frees_the_file(in_shop: InShop) -> None:
    """The postbox keeps no task, whose traceback would keep the session, for ever."""

    async def forget(shop: Shop, written: asyncio.Event) -> None:
        session = AsyncSession(shop.db)
        session.add(Invoice(cents=6))
        await session.flush()
        written.set()
        await asyncio.Event().wait()

    async def story(shop: Shop) -> Any:
        written = asyncio.Event()
        tasks = [asyncio.create_task(forget(shop, written))]
        await written.wait()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        with pytest.warns(SAWarning, match="garbage collector"):
            lose(tasks)
        await shop.sell(5)
        return await shop.stored()

    assert ([5], ["5"]) == in_shop(story)


def test_a_lost_session_in_a_block_takes_no_later_message_with_it(in_shop: InShop) -> None:
    """What it wrote is undone before the next call of the block, and at its end at last."""

    async def lose_one(shop: Shop) -> None:
        lost = [AsyncSession(shop.db)]
        lost[0].add(Invoice(cents=6))
        await lost[0].flush()
        with pytest.warns(SAWarning, match="garbage collector"):
            lose(lost)

    async def story(shop: Shop) -> Any:
        async with shop.box.begin() as tx:
            await lose_one(shop)
            await tx.send("billing", 1, type="invoice")
        async with shop.box.begin():
            await lose_one(shop)
        return await shop.stored()

    assert ([], ["1"]) == in_shop(story)


def test_a_loop_that_is_closed_under_a_session_frees_the_file(tmp_path: Path) -> None:
    """Once the session is collected other threads get their turn to write, and all is undone."""
    loop = asyncio.new_event_loop()
    box = AsyncPostbox(
        tmp_path / "shop.db", agent="shop", hold_unknown=True, start=False, busy_timeout=5
    )

    async def begin() -> list[AsyncSession]:
        await box.open()
        session = AsyncSession(async_engine(box))
        await session.run_sync(lambda each: Base.metadata.create_all(each.connection()))
        await session.commit()
        session.add(Invoice(cents=6))
        await session.flush()
        return [session]

    lost = loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    with pytest.warns(SAWarning, match="garbage collector"):
        lose(lost)
    box._plain.send("billing", 1, type="invoice")
    rows = box._plain.query("SELECT * FROM invoice")
    box._plain.close()
    box._bridge._block_thread.shutdown()
    box._bridge._queue.put(None)
    box._bridge._thread.join()

    assert [] == rows


def test_closing_rolls_back_a_session_that_does_not_end(
    in_shop: InShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for it some seconds; then the session's commit says that nothing is kept."""
    monkeypatch.setattr(database, "LAST_WRITE", 0.2)

    async def story(shop: Shop) -> None:
        async with AsyncSession(shop.db) as session:
            session.add(Invoice(cents=5))
            await session.flush()
            await shop.box.close()
            with pytest.raises(OperationalError, match="closed"):
                await session.commit()

    in_shop(story)
    with Postbox(tmp_path / "shop.db", start=False) as box:
        assert [] == box.query("SELECT cents FROM invoice")


def test_a_closed_postbox_is_told(in_shop: InShop) -> None:
    """Statements after the closing raise what says so; closing a session stays quiet."""

    async def story(shop: Shop) -> Any:
        session = AsyncSession(shop.db)
        await shop.box.close()
        with pytest.raises(OperationalError, match="closed") as told:
            await session.execute(COUNT)
        await session.close()
        return told.value.orig

    assert isinstance(in_shop(story).__cause__, StoreClosed)


# -- what is refused ----------------------------------------------------------------------------


def test_wrong_engines_and_sessions_are_refused(in_shop: InShop) -> None:
    """Sync postboxes, pools, sessions of the other face, urls."""

    async def story(shop: Shop) -> None:
        plain = shop.box._plain
        with pytest.raises(InvalidArgument, match="AsyncPostbox"):
            async_engine(plain)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(TypeError, match="poolclass"):
            async_engine(shop.box, poolclass=sa.AsyncAdaptedQueuePool)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="pool_size"):
            async_engine(shop.box, pool_size=3)  # type: ignore[call-arg]  # the mistake
        with pytest.raises(InvalidArgument, match="async_transaction"):
            transaction(AsyncSession(shop.db))  # type: ignore[arg-type]  # the mistake
        with pytest.raises(InvalidArgument, match="AsyncSession"):
            async_transaction(engine(plain).connect())  # type: ignore[arg-type]  # the mistake
        with pytest.raises(InterfaceError, match=r"engine\(box\)"):
            await create_async_engine("sqlite+onceward://").connect()

    in_shop(story)


def test_another_loop_is_refused(in_shop: InShop) -> None:
    """The engine belongs to the loop of its postbox."""

    async def connect(db: AsyncEngine) -> None:
        async with db.connect() as connection:
            await connection.execute(COUNT)

    async def story(shop: Shop) -> None:
        with pytest.raises(InterfaceError, match="event loop"):
            await asyncio.to_thread(asyncio.run, connect(shop.db))

    in_shop(story)


def test_only_the_asyncio_extension_needs_greenlet() -> None:
    """The sync integration is there without it; the other says what to install."""
    code = (
        "import sys; sys.modules['greenlet'] = None\n"
        "import onceward.integrations.sqlalchemy\n"
        "try: import onceward.integrations.sqlalchemy.aio\n"
        "except ImportError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (
        "onceward.integrations.sqlalchemy.aio needs greenlet, which is not installed:"
        " pip install 'onceward[sqlalchemy]'\n"
    ) == ran.stdout
