"""A process that stops cancels its coroutines, and takes their transactions from functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.waiting import until

from onceward import Agent, AsyncContext, AsyncRun, BatchContext, Context, Depends, Postbox, Run
from onceward.api import postbox as postboxes
from onceward.errors import OncewardError, RequestFailed, StoreClosed
from onceward.file import database
from onceward.testing import Controls
from onceward.testing.clock import ManualClock


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that runs on a thread of its own."""
    made = asyncio.new_event_loop()
    thread = Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    if not made.is_closed():
        made.call_soon_threadsafe(made.stop)
        thread.join()
        made.close()


def stored(path: Path, sql: str) -> list[Any]:
    """Return rows of a file that no process works on."""
    with Postbox(path, start=False) as box:
        return [tuple(row) for row in box.query(sql)]


def test_a_coroutine_is_cancelled_and_cleans_up(tmp_path: Path) -> None:
    """Its finally and those of its dependencies are awaited; the message waits, uncounted."""
    agent, path, begun, ends = Agent("a"), tmp_path / "a.db", Event(), list[str]()

    async def connection() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            ends.append("dependency")

    @agent.on("job")
    async def work(body: int, ctx: AsyncContext, used: int = Depends(connection)) -> None:
        try:
            await ctx.tx.execute("CREATE TABLE mine (x)")
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ends.append("handler")

    box = Postbox(path, agent=agent, stop_timeout=0.2)
    box.send("a", 1, type="job")
    assert begun.wait(30)
    box.close()

    assert ["handler", "dependency"] == ends
    assert [("pending", 0)] == stored(path, "SELECT state, attempts FROM onceward_inbox")
    assert [] == stored(path, "SELECT name FROM sqlite_schema WHERE name = 'mine'")


def test_a_batch_of_a_stopped_process_stays_a_batch(tmp_path: Path) -> None:
    """Its messages are not at fault: the reason says so, and the next process calls once."""
    agent, path, begun, calls = Agent("a"), tmp_path / "a.db", Event(), list[list[int]]()

    @agent.on("job", batch=2)
    async def work(bodies: list[int]) -> None:
        calls.append(bodies)
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(3600)

    box = Postbox(path, agent=agent, stop_timeout=0.2)
    with box.begin() as tx:
        tx.send("a", 1, type="job")
        tx.send("a", 2, type="job")
    assert begun.wait(30)
    box.close()
    reasons = stored(path, "SELECT state, attempts, reason FROM onceward_inbox")
    alone = stored(path, "SELECT isolate_upto_seq FROM _onceward_lanes")
    with Postbox(path, agent=agent) as box:
        until(lambda: 2 == box.file.stats()["processed"])

    assert [("pending", 0, "its process was stopped while the handler ran")] * 2 == reasons
    assert [(0,)] == alone
    assert [[1, 2], [1, 2]] == calls


def test_a_function_that_does_not_end_loses_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing rolls it back and ends; what the function does later fails and changes nothing."""
    monkeypatch.setattr(database, "LAST_WRITE", 0.2)
    monkeypatch.setattr(postboxes, "CANCEL_WITHIN", 3600.0)  # for coroutines only
    agent, path, begun, end, later = Agent("a"), tmp_path / "a.db", Event(), Event(), list[Any]()

    @agent.on("job")
    def work(body: int, ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE mine (x)")
        begun.set()
        end.wait()
        try:
            ctx.send("a", 2, type="late")
        except Exception as error:
            later.append(error)
            raise

    box = Postbox(path, agent=agent, stop_timeout=0.1)
    box.send("a", 1, type="job")
    assert begun.wait(30)
    box.close()
    found = stored(path, "SELECT type, state FROM onceward_inbox")
    end.set()
    until(lambda: later)
    assert isinstance(later[0], StoreClosed)

    assert [("job", "processing")] == found  # its lease ends by itself
    assert found == stored(path, "SELECT type, state FROM onceward_inbox")


def test_a_closed_loop_fails_the_handler_and_ends_no_keeper(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt fails with what happened; handlers that are functions are still called."""
    agent, begun, handled = Agent("a"), Event(), Event()

    @agent.on("stuck", timeout=0.3, attempts=1)
    async def stuck(body: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    @agent.on("next")
    def quick(body: int) -> None:
        handled.set()

    with Postbox(tmp_path / "a.db", agent=agent, loop=loop, workers=1) as box:
        lost = box.send("a", 1, type="stuck")
        assert begun.wait(30)
        loop.call_soon_threadsafe(loop.stop)
        until(lambda: not loop.is_running())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
        box.send("a", 1, type="next")
        in_time = handled.wait(30)
        [letter] = until(box.dead_letters.list)

    assert (True, lost) == (in_time, letter.id)
    assert "event loop was closed" in (letter.last_error or "")
    assert "keeper waits" in caplog.text


def test_an_async_opening_is_awaited(tmp_path: Path) -> None:
    """Before the first message is handled; an error of it is the opening's."""
    agent, order = Agent("a"), list[str]()

    @agent.at_open
    async def prepare(box: Postbox) -> None:
        await asyncio.sleep(0)
        order.append("opened")

    @agent.on("job")
    def work(body: int) -> None:
        order.append("handled")

    with Postbox(tmp_path / "a.db", agent=agent) as box:
        box.send("a", 1, type="job")
        until(lambda: len(order) > 1)
    assert ["opened", "handled"] == order

    @agent.at_open
    async def fail(box: Postbox) -> None:
        msg = "no such table"
        raise LookupError(msg)

    with pytest.raises(LookupError, match="no such table"):
        Postbox(tmp_path / "a.db", agent=agent)


def take_one(agent: Agent, **options: Any) -> Callable[[Any], Any]:
    """Declare a handler of single messages of type "job", which gets its context."""

    def declare(work: Any) -> None:
        @agent.on("job", **options)
        def take(body: int, ctx: Context) -> None:
            work(ctx)

    return declare


def take_batch(agent: Agent, **options: Any) -> Callable[[Any], Any]:
    """Declare a batch handler for them."""

    def declare(work: Any) -> None:
        @agent.on("job", batch=5, **options)
        def take(bodies: list[int], ctx: BatchContext) -> None:
            work(ctx)

    return declare


def take_run(agent: Agent, **options: Any) -> Callable[[Any], Any]:
    """Declare a session's handler for them."""

    def declare(work: Any) -> None:
        @agent.runs("*", mode="collect", debounce=0, **options)
        def serve(run: Run) -> None:
            work(run)

    return declare


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("take", [take_one, take_batch, take_run])
def test_a_function_beyond_its_timeout_is_not_processed(
    tmp_path: Path, take: Callable[..., Callable[[Any], Any]], attempts: int
) -> None:
    """Its effects are undone at each attempt; the last one makes a dead letter of its message."""
    agent, calls, end = Agent("a"), list[int](), Event()

    @take(agent, timeout=0.05, attempts=attempts)
    def work(ctx: Any) -> None:
        message = ctx.messages[-1] if hasattr(ctx, "messages") else ctx.message
        calls.append(message.attempt)
        if isinstance(ctx, BatchContext):
            ctx.tx.send("b", "effect")
        else:
            ctx.send("b", "effect")
        end.wait(0.2)

    with Postbox(
        tmp_path / "a.db",
        agent=agent,
        hold_unknown=True,
        delivery_retry="0.01s..0.01s ±0%",
        handler_retry="0.01s..0.01s ±0%",
    ) as box:
        sent = box.send("a", 1, type="job")
        [letter] = until(box.dead_letters.list)
        effects = box.query("SELECT id FROM onceward_outbox WHERE recipient = 'b'")

    assert (sent, [*range(1, attempts + 1)], []) == (letter.id, calls, effects)
    assert "TimeoutError: the call took longer than its timeout of 0.05 s" == letter.last_error


@pytest.mark.parametrize("catches", [False, True])
def test_a_coroutine_beyond_its_timeout_fails_its_run(tmp_path: Path, catches: bool) -> None:
    """Like that of a message, also if it goes on after its cancellation and returns."""
    agent = Agent("a")

    @agent.runs("*", mode="collect", debounce=0, timeout=0.05, attempts=1)
    async def serve(run: AsyncRun) -> str:
        await run.send("b", "effect")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not catches:
                raise
        return "too late"

    with Postbox(tmp_path / "a.db", agent=agent, hold_unknown=True) as box:
        box.send("a", 1, type="job")
        [letter] = until(box.dead_letters.list)
        effects = box.query("SELECT id FROM onceward_outbox WHERE recipient = 'b'")

    assert "TimeoutError: the call took longer than its timeout of 0.05 s" == letter.last_error
    assert [] == effects


@pytest.mark.parametrize("catches", [False, True])
def test_a_failed_request_of_a_handler_is_not_tried_again(tmp_path: Path, catches: bool) -> None:
    """Each call would find the same failure: the message is rejected, unless that is caught."""
    asker, other, calls = Agent("a"), Agent("b"), list[int]()

    @asker.on("job")
    def work(body: int, ctx: Context) -> None:
        calls.append(ctx.message.attempt)
        try:
            ctx.ask("b", "what", reply=str, type="question", timeout="1h")
        except RequestFailed:
            if not catches:
                raise

    @other.on("question")
    def refuse(body: str) -> None:
        msg = "no"
        raise ValueError(msg)

    with (
        Postbox(tmp_path / "b.db", agent=other, start=False, handler_attempts=1) as b,
        Postbox(tmp_path / "a.db", agent=asker, start=False) as a,
    ):
        sent = a.send("a", 1, type="job")
        for _ in range(6):
            a.run_until_idle()
            b.run_until_idle()
        letters = a.dead_letters.list()
        requests = a.query("SELECT id FROM onceward_outbox WHERE recipient = 'b'")

    assert 2 == len(calls)
    if catches:
        assert [] == letters
    else:
        [letter] = letters
        assert (sent, "rejected") == (letter.id, letter.reason)
        assert "RequestFailed" in (letter.last_error or "")
        assert requests[0][0] in (letter.last_error or "")


def test_closing_raises_no_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a with block is that of a postbox that nothing holds."""
    monkeypatch.setattr(database, "LAST_WRITE", 0.1)
    begun, end, ended = Event(), Event(), list[BaseException]()
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:

        def block() -> None:
            try:
                with box.begin() as tx:
                    tx.send("b", 1)
                    begun.set()
                    end.wait()
            except OncewardError as error:
                ended.append(error)

        holder = Thread(target=block)
        holder.start()
        begun.wait()
    end.set()
    holder.join()

    assert ["StoreClosed"] == [type(error).__name__ for error in ended]


def _one_handler(agent: Agent, handled: list[int]) -> None:
    @agent.on("job", attempts=1, no_retry=Exception)
    async def work(body: int) -> None:
        handled.append(body)


def _runs(agent: Agent, handled: list[int]) -> None:
    @agent.runs(attempts=1)
    async def work(run: AsyncRun) -> None:
        handled.extend(each.body for each in run.messages)


def _batches(agent: Agent, handled: list[int]) -> None:
    @agent.on("job", batch=2, within=0, attempts=1)
    async def work(bodies: list[int]) -> None:
        handled.extend(bodies)


@pytest.mark.parametrize("declare", [_one_handler, _runs, _batches])
def test_a_loop_that_is_closed_costs_a_message_no_attempt(
    tmp_path: Path, declare: Callable[[Agent, list[int]], None]
) -> None:
    """No coroutine is called: the message waits for a process with a loop, or for another one."""
    closed, clock = asyncio.new_event_loop(), ManualClock()
    closed.close()
    agent, handled = Agent("a"), list[int]()
    declare(agent, handled)
    controls = Controls(clock=clock)

    with Postbox(tmp_path / "a.db", agent=agent, loop=closed, start=False, testing=controls) as box:
        box.send("a", 1, type="job")
        for _ in range(3):
            box.run_until_idle()
            clock.advance(60)
        rows = box.query("SELECT state, attempts, reason FROM onceward_inbox")
        [(state, attempts, reason)] = [tuple(row) for row in rows]
    assert ("pending", 0, []) == (state, attempts, handled)
    assert "close the postbox before its loop" in reason

    with Postbox(tmp_path / "a.db", agent=agent, start=False, testing=controls) as box:
        box.run_until_idle()
        assert ([1], 0) == (handled, len(box.dead_letters.list()))
