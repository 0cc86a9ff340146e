"""Calls from an event loop to a thread that has a transaction."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Literal, NoReturn

import pytest

from onceward import Agent, AsyncContext, AsyncMessage, AsyncPostbox, Postbox
from onceward.core.run.async_face import WorkerThread

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


Source = Literal["inbox", "id", "channel", "mailbox"]
Receive = Callable[[], Awaitable[AsyncMessage[Any] | None]]


async def readable(box: AsyncPostbox, source: Source) -> Receive:
    """Store a message that the returned function receives."""
    if source == "channel":
        channel = await box.channels.create("talk", echo=True)
        await channel.send("hello")
        await box.run_until_idle()
        return channel.receive
    if source == "mailbox":
        mailbox = await box.mailboxes.ensure("jobs", public=True)
        await mailbox.send("hello")
        await box.run_until_idle()
        return lambda: mailbox.receive("group")
    message_id = await box.send("a", "hello")
    await box.run_until_idle()
    return lambda: box.receive_one(message_id) if source == "id" else box.receive()


@pytest.mark.parametrize("source", ["inbox", "id", "channel", "mailbox"])
def test_a_cancelled_task_puts_back_what_was_leased_for_it(tmp_path: Path, source: Source) -> None:
    """The next reader gets the message at once, as its first attempt."""

    async def main() -> tuple[str, int]:
        async with AsyncPostbox(
            tmp_path / "a.db", agent="a", handler_attempts=1, start=False
        ) as box:
            receive = await readable(box, source)
            for _ in range(3):
                task = asyncio.ensure_future(receive())
                await asyncio.sleep(0)
                assert box._bridge._tick  # it awaits the call that leases
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            found = await receive()
            assert found is not None
            return found.body, found.attempt

    assert ("hello", 1) == asyncio.run(main())


def test_a_cancelled_task_does_not_put_back_a_detached_message(tmp_path: Path) -> None:
    """Its handle stays valid: the lease belongs to no reader."""

    async def main() -> str:
        async with AsyncPostbox(tmp_path / "a.db", agent="a", start=False) as box:
            await box.send("a", "hello")
            await box.run_until_idle()
            message = await box.receive(str)
            assert message is not None
            handle = await message.detach()
            task = asyncio.create_task(box.attach(handle, str))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = await box.attach(handle, str)
            assert found is not None
            return found.body

    assert "hello" == asyncio.run(main())


def _stop() -> NoReturn:
    raise StopIteration


@pytest.mark.parametrize("way", ["call", "write", "in_block", "beside", "opening"])
def test_a_stop_iteration_on_a_thread_ends_the_await(tmp_path: Path, way: str) -> None:
    """A future cannot hold it, so the task, which waits to the end, would wait forever."""
    agent = Agent("a")

    async def main() -> None:
        async with AsyncPostbox(tmp_path / "a.db", agent=agent, start=False) as box:
            await getattr(box._bridge, way)(_stop)

    if way == "opening":
        agent.at_open(lambda _: _stop())
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(main())


@pytest.mark.parametrize(
    "await_it", [lambda ctx: ctx._off_loop.call(_stop), lambda ctx: ctx.step(_stop)]
)
def test_a_stop_iteration_in_a_call_of_a_handler_fails_the_handler(
    tmp_path: Path, await_it: Callable[[AsyncContext], Awaitable[object]]
) -> None:
    """The handler gets an error at its await, and its message is settled."""
    agent, found = Agent("a"), list[str]()

    @agent.on("job", attempts=1)
    async def work(body: int, ctx: AsyncContext) -> None:
        try:
            await await_it(ctx)
        except RuntimeError as error:
            found.append(str(error))

    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        box.send("a", 1, type="job")
        box.run_until_idle()
    assert ["the call raised StopIteration"] == found
