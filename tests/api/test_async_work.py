"""Coroutine functions that the async face takes: handlers of mailboxes, and the work of runs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, AsyncMessage, AsyncPostbox, AsyncRun, Postbox
from onceward.errors import InvalidArgument
from onceward.features.mailboxes.aio import AsyncHandlerTransaction
from onceward.types import AsyncTransaction

TABLE = "CREATE TABLE IF NOT EXISTS notes (body)"


async def note(message: AsyncMessage[Any], effects: AsyncHandlerTransaction) -> None:
    """Write a message down."""
    await effects.tx.execute(TABLE)
    await effects.tx.execute("INSERT INTO notes VALUES (?)", (message.body,))
    await effects.send("owner", f"noted {message.body}")


def owner(folder: Path) -> AsyncPostbox:
    """Return an agent's postbox without engines."""
    return AsyncPostbox(folder / "owner.db", agent="owner", start=False)


def test_a_coroutine_handles_messages_of_a_mailbox(tmp_path: Path) -> None:
    """What the coroutine wrote and sent commits with the mark, once for each message."""

    async def main() -> list[Any]:
        async with owner(tmp_path) as box:
            jobs = await box.mailboxes.ensure("jobs", public=True)
            await jobs.send("x")
            await box.run_until_idle()
            counts = [await jobs.handle("g", note), await jobs.handle("g", note)]
            await box.run_until_idle()
            reply = await box.receive(str)
            return [*counts, await box.query("SELECT body FROM notes"), reply and reply.body]

    assert [1, 0, [("x",)], "noted x"] == asyncio.run(main())


def test_a_plain_function_is_no_handler_of_the_async_face(tmp_path: Path) -> None:
    """It would block the event loop: it is refused before anything is leased."""

    def handle(message: Any, effects: Any) -> None:
        pytest.fail("it must not be called")

    async def main() -> None:
        async with owner(tmp_path) as box:
            jobs = await box.mailboxes.ensure("jobs", public=True)
            with pytest.raises(InvalidArgument, match="async def"):
                await jobs.handle("g", handle)  # type: ignore[arg-type]
            async with box.begin():
                with pytest.raises(InvalidArgument, match="outside"):
                    await jobs.handle("g", note)

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_handler(tmp_path: Path) -> None:
    """What the handler wrote is undone, and its message is tried again."""

    async def main() -> tuple[list[Any], list[str]]:
        begun, ended = asyncio.Event(), list[str]()

        async def slow(message: AsyncMessage[Any], effects: AsyncHandlerTransaction) -> None:
            await note(message, effects)
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async with owner(tmp_path) as box:
            jobs = await box.mailboxes.ensure("jobs", public=True)
            await jobs.send("x")
            await box.run_until_idle()
            task = asyncio.create_task(jobs.handle("g", slow))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            tables = await box.query("SELECT name FROM sqlite_schema WHERE name = 'notes'")
            return tables, ended

    assert ([], ["cancelled"]) == asyncio.run(main())


def test_the_work_of_an_async_run_is_a_coroutine_function(tmp_path: Path) -> None:
    """``write`` returns its result, ``at_end`` commits with the run; messages are awaitable."""
    agent, seen = Agent("coder"), list[Any]()

    @agent.runs("talk")
    async def turn(run: AsyncRun) -> None:
        async def table(tx: AsyncTransaction) -> int:
            await tx.execute(TABLE)
            return 7

        async def last(tx: AsyncTransaction) -> None:
            await tx.execute("INSERT INTO notes VALUES (?)", (run.message.body,))

        seen.append(await run.write(table))
        run.at_end(last)
        with pytest.raises(InvalidArgument, match="settles"):
            await run.message.ack()

    with (
        Postbox(tmp_path / "coder.db", agent=agent, start=False) as box,
        Postbox(tmp_path / "user.db", agent="user", start=False) as user,
    ):
        user.session("talk").send("coder", "go")
        user.run_until_idle()
        box.run_until_idle()

        assert ([7], [("go",)]) == (seen, box.query("SELECT body FROM notes"))


def test_query_neither_writes_nor_sees_an_open_transaction(tmp_path: Path) -> None:
    """It reads what is committed, also inside a block of the same thread, and refuses to write."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        with box.begin() as tx:
            tx.execute(TABLE)
        with box.begin() as tx:
            tx.execute("INSERT INTO notes VALUES (1)")
            during = box.query("SELECT count(*) FROM notes")
        with pytest.raises(Exception, match=r"readonly|read-only|write"):
            box.query("INSERT INTO notes VALUES (2)")

        assert ([(0,)], [(1,)]) == (
            during,
            box.query("SELECT body FROM notes WHERE body = ?", (1,)),
        )
