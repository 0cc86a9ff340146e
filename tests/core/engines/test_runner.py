"""
The runner on real threads, on an event loop and in several processes.

The tests say what steering, stopping and late handlers do there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Flag
from typing import Any

from tests.children import PYTHON, Child
from tests.waiting import PATIENCE, until

from onceward import Agent, AsyncPostbox, AsyncRun, Postbox, Run

CHILD = Path(__file__).with_name("child.py")


@contextmanager
def two(home: Path, agent: Agent, **settings: Any) -> Iterator[tuple[Postbox, Postbox]]:
    """Open an agent with its engines running, and a user who writes to it."""
    with (
        Postbox(home / f"{agent.name}.db", agent=agent, **settings) as box,
        Postbox(home / "user.db", agent="user") as user,
    ):
        yield box, user


def states(box: Postbox) -> list[str]:
    """Return the states of all runs, oldest first."""
    return [run.state for run in reversed(box.runs.list())]


def test_sessions_run_side_by_side_and_each_alone(tmp_path: Path) -> None:
    """Two sessions are served at the same time; one session never by two runs."""
    agent, open_now, both = Agent("coder"), set[str](), Flag()

    @agent.runs()
    def turn(run: Run) -> None:
        assert run.session not in open_now
        open_now.add(run.session)
        if len(open_now) == 2:
            both.set()
        assert both.wait(PATIENCE)
        open_now.remove(run.session)

    with two(tmp_path, agent) as (box, user):
        for session in ("a", "b"):
            user.session(session).send_many([("coder", n) for n in range(3)])
        until(lambda: box.file.stats()["processed"] == 6)

        assert ["done"] * 6 == states(box)


def test_steering_tells_a_function(tmp_path: Path) -> None:
    """A plain function sees ``cancelled`` and leaves; its messages are in the next run."""
    agent, begun, seen = Agent("coder"), Flag(), list[list[str]]()

    @agent.runs(mode="steer")
    def turn(run: Run) -> None:
        seen.append([message.body for message in run.messages])
        if len(seen) == 1:
            begun.set()
            while True:
                run.raise_if_cancelled()
                time.sleep(0.01)

    with two(tmp_path, agent) as (box, user):
        user.send("coder", "first")
        assert begun.wait(PATIENCE)
        user.send("coder", "second")
        until(lambda: box.file.stats()["processed"] == 2)

        assert [["first"], ["first", "second"]] == seen
        assert ["aborted", "done"] == states(box)


def test_steering_cancels_a_coroutine(tmp_path: Path) -> None:
    """A coroutine is cancelled where it waits; what it checkpointed is what the next run finds."""
    agent, left, checkpointed = Agent("coder"), list[Any](), asyncio.Event()

    @agent.runs(mode="interrupt")
    async def turn(run: AsyncRun) -> None:
        if run.previous is None:
            await run.checkpoint({"lines": 3})
            checkpointed.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                left.append(run.cancelled)
        left.append(run.previous and run.previous.partial)
        await run.reply(str([message.body for message in run.messages]))

    async def play() -> tuple[str, list[str]]:
        async with (
            AsyncPostbox(tmp_path / "coder.db", agent=agent) as box,
            AsyncPostbox(tmp_path / "user.db", agent="user") as user,
        ):
            await user.send("coder", "first")
            await asyncio.wait_for(checkpointed.wait(), PATIENCE)
            await user.send("coder", "second")
            answer = await user.receive(timeout=PATIENCE)
            assert answer is not None
            await answer.ack()
            return answer.body, [run.state for run in await box.runs.list()]

    assert ("['first', 'second']", ["done", "aborted"]) == asyncio.run(play())
    assert [True, {"lines": 3}] == left


def test_an_async_run_has_every_verb(tmp_path: Path) -> None:
    """Mail, SQL, tasks and the inbox are awaited; all of it commits with the end."""
    agent = Agent("coder")

    @agent.runs("talk", mode="steer", inject=True)
    async def turn(run: AsyncRun) -> str:
        assert [] == await run.inbox()
        await run.send("user", "sent")
        await run.reply("replied")
        await run.write(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS t (x)"))
        run.at_end(lambda tx: tx.execute("INSERT INTO t VALUES (1)"))
        await run.dispatch("user", "task", session="spawned")
        return "returned"

    with two(tmp_path, agent) as (box, user):
        user.session("talk").send("coder", "go")
        got = set[Any]()
        while len(got) < 3 and (message := user.receive(timeout=PATIENCE)) is not None:
            got.add(message.body)
            if message.body != "task":  # its outcome would begin another run
                message.ack()

        assert {"sent", "replied", "task"} == got
        assert "returned" == box.runs.list()[-1].result
        assert [(1,)] == box._db.read("SELECT x FROM t")


def test_stopping_gives_messages_back(tmp_path: Path) -> None:
    """
    A postbox that closes while a run is open aborts it.

    Its messages wait, in order, without a spent attempt.
    """
    agent, begun = Agent("coder"), Flag()

    @agent.runs(mode="collect", debounce=0)
    def turn(run: Run) -> None:
        begun.set()
        while not run.cancelled:
            time.sleep(0.01)

    with two(tmp_path, agent, stop_timeout=0.2) as (_, user):
        user.send_many([("coder", n) for n in range(3)])
        assert begun.wait(PATIENCE)
    with Postbox(tmp_path / "coder.db", start=False) as box:
        assert (["its process was stopped"], []) == (
            [run.cause for run in box.runs.list()],
            box.file.check(),
        )
        waiting = box.runs.waiting("default")
        assert [0, 0, 0] == [each.attempts for each in waiting]


def test_a_run_may_not_take_for_ever(tmp_path: Path) -> None:
    """A coroutine is cancelled at its ``timeout``, and that counts as a failure."""
    agent = Agent("coder")

    @agent.runs(timeout=0.05, attempts=1)
    async def turn(run: AsyncRun) -> None:
        await asyncio.sleep(PATIENCE)

    with two(tmp_path, agent, lease=3.0) as (box, user):
        user.send("coder", 1)
        until(lambda: box.file.stats()["dead_letters"])

        late = "TimeoutError: the call took longer than its timeout of 0.05 s"
        assert [late] == [run.cause for run in box.runs.list()]


def test_a_lease_is_kept_while_a_run_is_long(tmp_path: Path) -> None:
    """The heartbeat prolongs the lease of an open run, so that no worker takes it over."""
    agent = Agent("coder")

    @agent.runs()
    def turn(run: Run) -> None:
        first = lease_end()
        while lease_end() <= first + 2400:  # one whole lease later than the lease that it took
            run.raise_if_cancelled()
            time.sleep(0.02)

    def lease_end() -> int:
        [(due_at,)] = box.query("SELECT due_at FROM _onceward_lanes WHERE owner IS NOT NULL")
        return int(due_at)

    with two(tmp_path, agent, lease=2.4) as (box, user):
        user.send("coder", 1)
        until(lambda: box.file.stats()["processed"])

        assert ["done"] == states(box)


def child(home: Path, task: str) -> Child:
    """Start a process of its own."""
    return Child([*PYTHON, CHILD, task, home], "stdin", "stdout")


def hear(process: Child) -> Any:
    """Return the next thing that a child says."""
    return json.loads(process.hear())


def test_another_process_ends_a_run(tmp_path: Path) -> None:
    """
    The process that plays the run notices; its last sends count for nothing.

    The messages are there for the next run.
    """
    with (
        child(tmp_path, "stubborn") as stubborn,
        Postbox(tmp_path / "user.db", agent="user") as user,
    ):
        assert "ready" == hear(stubborn)
        user.send("coder", "first")
        assert ["first"] == hear(stubborn)
        with Postbox(tmp_path / "coder.db", start=False) as box:
            box.runs.pause("default")
            assert box.runs.abort(box.runs.list()[0].id)
            assert "aborted" == hear(stubborn)
            stubborn.stop(signal.SIGKILL)
            box.runs.resume("default")
        with child(tmp_path, "brisk") as brisk:
            assert "ready" == hear(brisk)
            answer = user.receive(timeout=PATIENCE)

        assert answer is not None
        assert ["first"] == answer.body


def test_a_killed_process_is_followed_at_once(tmp_path: Path) -> None:
    """No worker waits for the lease of a process that is surely dead."""
    with Postbox(tmp_path / "user.db", agent="user") as user:
        with child(tmp_path, "stubborn") as stubborn:
            assert "ready" == hear(stubborn)
            user.send("coder", "first")
            assert ["first"] == hear(stubborn)
        with child(tmp_path, "brisk") as brisk:
            assert "ready" == hear(brisk)
            answer = user.receive(timeout=PATIENCE)

        assert answer is not None
        assert ["first"] == answer.body
