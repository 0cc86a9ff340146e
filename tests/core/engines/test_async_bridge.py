"""Calls from an event loop to a thread that has a transaction."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from onceward import AsyncPostbox
from onceward.core.engine.async_face import WorkerThread

InBlock = Callable[[Callable[[], Any]], Awaitable[Any]]


async def ends_first(in_block: InBlock) -> bool:
    """Return whether a call has ended before the cancellation of its task is raised."""
    started, may_end, ended = asyncio.Event(), Event(), Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        may_end.wait()
        ended.set()

    async def call() -> None:
        await in_block(work)

    task = asyncio.create_task(call())
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    return ended.is_set()


def test_a_call_in_a_block_ends_before_its_task_is_cancelled(tmp_path: Path) -> None:
    """Else the block could be given back while it is still used."""

    async def main() -> bool:
        async with AsyncPostbox(tmp_path / "a.db", agent="a", start=False) as box:
            return await ends_first(box._bridge.in_block)

    assert asyncio.run(main())


def test_a_call_in_a_handler_ends_before_the_handler_is_cancelled() -> None:
    """Else its clean-up would look at a transaction that is still used."""

    async def main() -> bool:
        with ThreadPoolExecutor(1) as worker:
            loop = asyncio.get_running_loop()
            thread = WorkerThread(lambda work: loop.run_in_executor(worker, work))
            return await ends_first(thread.in_block)

    assert asyncio.run(main())
