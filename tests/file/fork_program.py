"""
Fork a process in the middle of its work; report what its child could do, and what is left.

Arguments: a folder, the place in the program, and how the child ends.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from onceward import Agent, AsyncContext, AsyncPostbox, BatchContext, Context, Postbox, Run

warnings.simplefilter("ignore")
FOLDER, PLACE, ENDING = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
PATH, MAIN = FOLDER / "a.db", os.getpid()
BESIDE, JOBS, WITHIN = 40, 5, 30.0
"""Messages that another thread sends meanwhile, messages to handle, and the longest wait."""
Verb = tuple[str, Callable[[], object]]
agent = Agent("a")
boxes: list[Postbox] = []
forked = threading.Event()
handled: list[int] = []


def note(name: str, value: object) -> None:
    """Append a line in one write, from any process."""
    with (FOLDER / "told").open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, value]) + "\n")


def try_all(*verbs: Verb) -> None:
    """Note what each verb of the parent's postbox does in the child."""
    box = boxes[-1]
    for name, call in (
        *verbs,
        ("send", lambda: box.send("b", 1)),
        ("begin", lambda: box.begin().__enter__().execute("INSERT INTO t VALUES (9)")),
        ("cancel", lambda: box.cancel("x")),
        ("query", lambda: box.query("SELECT 1")),
        ("agents", lambda: list(box.agents.list())),
    ):
        try:
            call()
            note(name, "nothing")
        except BaseException as error:  # noqa: BLE001 - told to the test
            note(name, type(error).__name__)


def fork(*verbs: Verb) -> None:
    """Fork, and leave in the child; the parent waits for it."""
    if ENDING == "process":
        child = multiprocessing.get_context("fork").Process(target=try_all, args=verbs)
        child.start()
        child.join(WITHIN)
        note("code", child.exitcode)
        return
    if ENDING == "pool":
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            pool.submit(try_all).result(WITHIN)
        return
    pid = os.fork()
    if pid:
        note("code", code_of(pid))
        return
    if ENDING == "double" and (pid := os.fork()):
        os._exit(code_of(pid))
    try_all(*verbs)
    leave()


def leave() -> None:
    """Leave the child's copy of the program."""
    sys.stderr.write("the child was here\n")
    if ENDING == "exit":
        sys.exit(3)
    if ENDING == "raise":
        raise ZeroDivisionError
    if ENDING == "exec":
        os.execv(FOLDER / "missing", ["missing"])  # noqa: S606 - it fails
    if ENDING == "leave":
        os._exit(4)


def code_of(pid: int) -> int:
    """Return the exit code of a child; kill one that does not end, and return 99."""
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


def is_first() -> bool:
    """Return whether this call is the one that forks."""
    first = not forked.is_set()
    forked.set()
    return first


def verbs_of(ctx: Any) -> list[Verb]:
    """Return what a child may try by the context of a handler."""
    return [
        ("ctx.send", lambda: ctx.send("b", 1)),
        ("ctx.tx", lambda: ctx.tx.execute("INSERT INTO t VALUES (8)")),
    ]


async def fork_in_task(**verbs: Callable[[], Awaitable[object]]) -> None:
    """Fork in a coroutine, whose child awaits the verbs before it leaves as ``fork`` does."""
    if ENDING in {"process", "pool"}:
        fork()
    elif pid := os.fork():
        note("code", code_of(pid))
    else:
        for name, call in verbs.items():
            try:
                await call()
                note(name, "nothing")
            except BaseException as error:  # noqa: BLE001 - told to the test
                note(name, type(error).__name__)
        try_all()
        leave()


if PLACE in {"function", "written", "step", "caller", "around"}:

    @agent.around
    def around(ctx: Context) -> Iterator[None]:
        """Fork after the handler."""
        yield
        if PLACE == "around" and is_first():
            fork(*verbs_of(ctx))

    @agent.on("job")
    def handle(n: int, ctx: Context) -> None:
        """Fork in a function."""
        if PLACE != "around" and is_first():
            if PLACE == "written":
                ctx.tx.execute("INSERT INTO t VALUES (1)")
            if PLACE == "step":
                ctx.step(fork)
            else:
                fork(*verbs_of(ctx))
        handled.append(n)

elif PLACE in {"coroutine", "step of a coroutine"}:

    @agent.on("job")
    async def handle_async(n: int, ctx: AsyncContext) -> None:
        """Fork in a coroutine."""
        if is_first():
            if PLACE != "coroutine":
                await ctx.step(fork)
            else:
                await fork_in_task(ctx_send=lambda: ctx.send("b", 1))
        handled.append(n)

elif PLACE == "batch":

    @agent.on("job", batch=10)
    def handle_batch(bodies: list[int], ctx: BatchContext) -> None:
        """Fork in a batch."""
        if is_first():
            fork(("ctx.tx", lambda: ctx.tx.execute("INSERT INTO t VALUES (8)")))
        handled.extend(bodies)

elif PLACE == "run":

    @agent.runs("s")
    def handle_run(run: Run) -> None:
        """Fork in a run."""
        if is_first():
            fork()
        handled.extend(each.body for each in run.messages)

else:

    @agent.on("job")
    def handle_quickly(n: int, ctx: Context) -> None:
        """Share a commit with others."""
        ctx.tx.execute("INSERT INTO t VALUES (2)")
        handled.append(n)


def fork_in_block() -> None:
    """Fork while a transaction is open."""
    with boxes[-1].begin() as tx:
        tx.execute("INSERT INTO t VALUES (3)")
        fork(
            ("tx.send", lambda: tx.send("b", 1)),
            ("tx.execute", lambda: tx.execute("INSERT INTO t VALUES (7)")),
        )


async def fork_in_async_block() -> None:
    """Fork while a task has a transaction open; its loop goes on in the parent."""
    async with AsyncPostbox(PATH, hold_unknown=True) as box:
        boxes.append(box._plain)
        async with box.begin() as tx:
            await tx.execute("INSERT INTO t VALUES (3)")
            await fork_in_task(
                tx_execute=lambda: tx.execute("INSERT INTO t VALUES (6)"),
                tx_send=lambda: tx.send("b", 1),
                send_async=lambda: box.send("b", 1),
                receive=lambda: box.receive(timeout=5),
                flush=box.flush,
                begin_async=lambda: box.begin().__aenter__(),
            )
        await asyncio.wait_for(box.send("b", 2), WITHIN)


@contextlib.contextmanager
def sending() -> Iterator[list[str]]:
    """Send from another thread during a block; yield the ids of what is acknowledged."""
    ids: list[str] = []

    def send() -> None:
        for n in range(BESIDE):
            ids.append(boxes[0].send("b", n))  # noqa: PERF401 - each is acknowledged by itself

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield ids
    finally:
        if os.getpid() == MAIN:
            thread.join()


def main() -> None:
    """Run the program."""
    box = Postbox(PATH, agent=agent, start=PLACE != "caller", hold_unknown=True)
    boxes.append(box)
    with box.begin() as first:
        first.execute("CREATE TABLE t (n)")
    with sending() as ids:
        to = box.session("s") if PLACE == "run" else box
        for n in range(JOBS):
            to.send("a", n, type="job")
        if PLACE == "block":
            fork_in_block()
        elif PLACE == "async block":
            asyncio.run(fork_in_async_block())
        elif PLACE == "main":
            fork()
        until = time.monotonic() + WITHIN
        while len(handled) < JOBS and time.monotonic() < until:
            if PLACE == "caller":
                box.run_until_idle()
            threading.Event().wait(0.01)
    ids.append(box.send("b", "last"))
    box.close()
    with Postbox(PATH, agent="a", start=False) as again:
        rows = again.query("SELECT n FROM t WHERE n > 5")
        whole = again.query("PRAGMA integrity_check")[0][0]
        states = {again.state(each) for each in ids} <= {"pending", "sending"}
        checked = [str(each) for each in again.file.check()]
    note("left", [sorted(handled), states, len(rows), checked, whole])


if __name__ == "__main__":
    main()
