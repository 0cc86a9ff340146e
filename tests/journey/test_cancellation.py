"""
Tasks that are cancelled while they write.

The outcome is known before they hear of it, and neighbours notice nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onceward import AsyncPostbox, Postbox
from onceward.errors import OutcomeUnknown, StoreClosed, StoreFault
from onceward.file.transaction import StoreTransaction

TURNS = 50
"""Turns of the loop in which whatever can happen while the file is held has happened."""


@asynccontextmanager
async def held(path: Path) -> AsyncIterator[tuple[AsyncPostbox, Callable[[], object]]]:
    """Open a postbox whose file another writer of the process holds, and what ends that."""
    with Postbox(path, agent="a", start=False, hold_unknown=True) as other:
        async with AsyncPostbox(path, agent="a", start=False, hold_unknown=True) as box:
            block = other.begin()
            block.__enter__()
            yield box, lambda: block.__exit__(None, None, None)


async def _turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _bodies(path: Path) -> list[int]:
    with Postbox(path, start=False) as box:
        return [
            body
            for (body,) in box._db.read(
                "SELECT frame ->> '$.data' FROM _onceward_outbox ORDER BY seq"
            )
        ]


def test_a_cancelled_send_ends_with_its_commit(tmp_path: Path) -> None:
    """
    The task goes on waiting for the file, then raises.

    The message is there, once, and its id can be asked for.
    """
    path = tmp_path / "a.db"

    async def story() -> list[bool]:
        async with held(path) as (box, end):
            task = asyncio.create_task(box.send("b", 1))
            await _turn()
            task.cancel()
            task.cancel()
            await _turn()
            waited = not task.done()
            end()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [waited, task.cancelled()]

    assert [True, True] == asyncio.run(story())
    assert [1] == _bodies(path)


def test_a_timeout_is_told_once_the_outcome_is_known(tmp_path: Path) -> None:
    """
    ``asyncio.timeout`` around a send may come late.

    It never comes while it is unknown whether the message was written.
    """
    path = tmp_path / "a.db"

    async def story() -> list[str]:
        told: list[str] = []
        async with held(path) as (box, end):

            async def impatient() -> None:
                try:
                    async with asyncio.timeout(0):
                        await box.send("b", 1)
                except TimeoutError:
                    told.append("timeout")

            task = asyncio.create_task(impatient())
            await _turn()
            told.append("released")
            end()
            await task
        return told

    assert ["released", "timeout"] == asyncio.run(story())
    assert [1] == _bodies(path)


def test_cancelling_one_task_harms_no_neighbour(tmp_path: Path) -> None:
    """
    Of ten tasks whose sends cross together, three are cancelled.

    All ten messages are written, and seven tasks have their ids.
    """
    path = tmp_path / "a.db"

    async def story() -> list[str]:
        async with held(path) as (box, end):
            tasks = [asyncio.create_task(box.send("b", body)) for body in range(10)]
            await _turn()
            for task in tasks[2:5]:
                task.cancel()
            await _turn()
            end()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            return [
                "cancelled" if isinstance(each, asyncio.CancelledError) else type(each).__name__
                for each in found
            ]

    assert ["str"] * 2 + ["cancelled"] * 3 + ["str"] * 5 == asyncio.run(story())
    assert list(range(10)) == _bodies(path)


def test_a_cancelled_block_leaves_nothing(tmp_path: Path) -> None:
    """
    A task that is cancelled between two sends of its block takes both back.

    One that is cancelled while it waits never began.
    """
    path = tmp_path / "a.db"

    async def story() -> None:
        async with held(path) as (box, end):
            between, stop = asyncio.Event(), asyncio.Event()

            async def block(body: int, middle: Callable[[], Awaitable[object]]) -> None:
                async with box.begin() as tx:
                    await tx.send("b", body)
                    await middle()
                    await tx.send("b", body + 1)

            async def rest() -> None:
                between.set()
                await stop.wait()

            waiting = asyncio.create_task(block(1, rest))
            await _turn()
            waiting.cancel()
            end()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            under_way = asyncio.create_task(block(3, rest))
            await between.wait()
            under_way.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            await block(5, _turn)

    asyncio.run(story())
    assert [5, 6] == _bodies(path)


def test_tasks_that_share_a_lost_commit_are_each_told_of_their_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    When the outcome of a tick's commit is unknown, each task has an error of its own.

    The error names that task's message.
    """

    def broken(tx: StoreTransaction) -> None:
        message = "disk I/O error"
        raise StoreFault(message)

    async def story() -> list[str | BaseException]:
        async with AsyncPostbox(
            tmp_path / "a.db", agent="a", start=False, hold_unknown=True
        ) as box:
            with monkeypatch.context() as patched:
                patched.setattr(StoreTransaction, "commit", broken)
                return await asyncio.gather(
                    *[box.send("b", k) for k in range(3)], return_exceptions=True
                )

    errors = [error for error in asyncio.run(story()) if isinstance(error, OutcomeUnknown)]

    assert [1, 1, 1] == [len(error.message_ids) for error in errors]
    assert 3 == len({error.message_ids for error in errors}) == len({id(error) for error in errors})


def test_who_comes_after_the_closing_is_told_so(tmp_path: Path) -> None:
    """
    No task waits for ever at a door that was closed.

    That holds for a message, a look and a block, and in the same tick.
    """

    async def enter(box: AsyncPostbox) -> None:
        async with box.begin() as tx:
            await tx.send("b", 1)

    async def story() -> list[str]:
        async with AsyncPostbox(
            tmp_path / "a.db", agent="a", start=False, hold_unknown=True
        ) as box:
            await box.send("b", 1)
            crossed = [asyncio.create_task(box.send("b", 2)), asyncio.create_task(box.close())]
            await asyncio.wait(crossed)
            late = [
                asyncio.create_task(each) for each in (box.send("b", 3), box.state("x"), enter(box))
            ]
            done, _ = await asyncio.wait(late, timeout=60)
            return [type(task.exception()).__name__ for task in done]

    assert [StoreClosed.__name__] * 3 == asyncio.run(story())
