"""A loop that does not answer: the log names what blocks it, and no handler waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from onceward import Agent, AsyncPostbox, Postbox, Tuning
from onceward.core.handle import loop_watch
from onceward.core.handle.invoke import run_coroutine
from onceward.core.handle.loop_watch import LoopCall, LoopWatch

LIMIT = 60.0
BLOCKED = "a coroutine blocks the event loop: all async handlers of its loop wait"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop that runs on a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT)
    loop.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the clock of the watch."""
    clock = [1000.0]
    monkeypatch.setattr(loop_watch, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the lines that the watch writes."""
    logs: list[dict[str, Any]] = []

    def warning(event: str, **fields: Any) -> None:
        logs.append({"event": event, **fields})

    monkeypatch.setattr(loop_watch, "log", SimpleNamespace(warning=warning))
    return logs


def of(name: str, blocked_after: float = 1.0) -> LoopCall:
    """Return the call of a handler."""

    def handler() -> None:
        """Do nothing."""

    handler.__qualname__ = name
    return LoopCall("a", handler, f"id of {name}", blocked_after, limit=LIMIT)


def test_the_log_names_the_coroutine_that_blocks_once(
    loop: asyncio.AbstractEventLoop, clock: list[float], logs: list[dict[str, Any]]
) -> None:
    """It names agent, handler, message and line; and again when the loop blocks again."""
    watch, others = LoopWatch(), of("others")
    begun, go_on = Event(), Event()

    async def blocks() -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    def begin() -> None:
        watch.begin(loop.create_task(blocks()), of("blocks"))

    def looked() -> None:
        for _ in range(4):
            watch.look(loop, others)
            clock[0] += 0.6

    for _ in range(2):
        begun.clear()
        go_on.clear()
        loop.call_soon_threadsafe(begin)
        assert begun.wait(LIMIT)
        looked()
        go_on.set()
        until(lambda: watch._answered)
    found = [(each["event"], each["agent"], each["handler"], each["message_id"]) for each in logs]

    assert [(BLOCKED, "a", "blocks", "id of blocks")] * 2 == found


def test_a_loop_that_answers_is_not_logged(
    loop: asyncio.AbstractEventLoop, clock: list[float], logs: list[dict[str, Any]]
) -> None:
    """However long its coroutines wait."""
    watch = LoopWatch()
    for _ in range(4):
        watch.look(loop, of("waits"))
        until(lambda: watch._answered)
        clock[0] += 10.0

    assert [] == logs


def test_a_handler_that_blocks_the_loop_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One agent's coroutine blocks; the log says which, and where."""
    agent, go_on, done = Agent("culprit"), Event(), asyncio.Event()
    logs: list[dict[str, Any]] = []

    def heard(event: str, **fields: Any) -> None:
        if event == BLOCKED:
            logs.append(fields)
            go_on.set()

    monkeypatch.setattr(loop_watch, "log", SimpleNamespace(warning=heard))
    monkeypatch.setattr("onceward.core.handle.invoke.LOOK", 0.01)

    @agent.on("job")
    async def blocks(_: int) -> None:
        assert go_on.wait(LIMIT)
        done.set()

    async def main() -> str:
        async with AsyncPostbox(
            tmp_path / "a.db", agent=agent, tuning=Tuning(blocked_after=0.02)
        ) as box:
            sent = await box.send("culprit", 1, type="job")
            await done.wait()
            return sent

    sent = asyncio.run(main())
    [found] = logs
    named = [found[each] for each in ("agent", "handler", "message_id")]

    assert ["culprit", blocks.__qualname__, sent] == named
    assert "threading.py" in found["line"]


def test_the_watch_can_be_switched_off(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0 no loop is pinged."""
    looks: list[object] = []
    monkeypatch.setattr(LoopWatch, "look", lambda *_: looks.append(1))
    for after in (0.0, 1.0):
        loop_watch.look(loop, of("waits", after))

    assert [1] == looks


def test_a_stopped_process_is_not_a_blocked_loop(
    loop: asyncio.AbstractEventLoop, clock: list[float], logs: list[dict[str, Any]]
) -> None:
    """After a pause in which nothing looked, the loop gets its time to answer."""
    watch, go_on = LoopWatch(), Event()
    loop.call_soon_threadsafe(go_on.wait, LIMIT)
    for _ in range(3):
        watch.look(loop, of("waits", 5.0))
        clock[0] += 100.0
    go_on.set()

    assert [] == logs


def test_loops_need_not_allow_weak_references() -> None:
    """Such as loops of other libraries; a closed one is forgotten."""

    class Slotted:
        __slots__ = ("closed",)
        closed: bool

        def is_closed(self) -> bool:
            return self.closed

    loops: list[Any] = [Slotted(), Slotted()]
    loops[0].closed = loops[1].closed = False
    first = loop_watch.watch_of(loops[0])
    again = loop_watch.watch_of(loops[0])
    loops[0].closed = True
    loop_watch.watch_of(loops[1])
    kept = [each in loop_watch._watches for each in loops]
    loop_watch._watches.pop(loops[1])

    assert (first, [False, True]) == (again, kept)


def test_a_look_that_fails_ends_no_handler(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only tells is lost and counted, as a line of the log is."""

    def fails(*_: object) -> None:
        raise ImportError("the interpreter ends")

    lost: list[str] = []
    monkeypatch.setattr(LoopWatch, "look", fails)
    monkeypatch.setattr(loop_watch, "LOST", SimpleNamespace(add=lost.append))
    loop_watch.look(loop, of("waits"))

    assert ["the interpreter ends"] == [str(each) for each in lost]


@pytest.mark.parametrize("begun", [True, False])
def test_the_timeout_holds_on_a_stopped_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The attempt fails, and its coroutine is cancelled, or never begun, when the loop goes on."""
    monkeypatch.setattr("onceward.core.handle.invoke.LOOK", 0.01)
    agent, started, ran = Agent("a"), asyncio.Event(), list[str]()
    loop = asyncio.new_event_loop()

    @agent.on("job", timeout=0.3, attempts=1)
    async def job(_: int) -> None:
        started.set()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            ran.append("cancelled")

    async def opened() -> AsyncPostbox:
        box = AsyncPostbox(tmp_path / "a.db", agent=agent)
        await box.__aenter__()
        if begun:
            await box.send("a", 1, type="job")
            await started.wait()
        return box

    box = loop.run_until_complete(opened())
    with Postbox(tmp_path / "a.db", start=False) as desk:
        if not begun:
            desk.send("a", 1, type="job")
        until(lambda: list(desk.dead_letters.list()))
        [dead] = desk.dead_letters.list()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(box.__aexit__(None, None, None))
    loop.close()

    expected = ["cancelled"] if begun else []

    assert ("attempts_spent", expected) == (dead.reason, ran)
    assert "timeout of" in (dead.last_error or "")


def test_a_call_that_ended_with_its_time_is_cancelled_when_its_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else cancels it: its worker has left the call."""
    monkeypatch.setattr("onceward.core.handle.invoke.LOOK", 0.01)
    loop, ran = asyncio.new_event_loop(), list[str]()

    async def job(_: object) -> None:
        loop.stop()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            ran.append("ended")

    def call() -> None:
        with pytest.raises(TimeoutError):
            run_coroutine(job, loop, lambda _: None, of("job")._replace(until=0.0))

    worker = Thread(target=call)
    loop.call_soon(worker.start)
    loop.run_forever()
    worker.join(LIMIT)
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    assert ["ended"] == ran
