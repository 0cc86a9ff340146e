"""Hold what calls share, one thing at a time, until a block ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import apsw
from tests.children import PYTHON, Child
from tests.file.test_waiting import HOLDER
from tests.waiting import until

from onceward import Agent, Context, Postbox, Tuning
from onceward.errors import OncewardError, PushFailed
from onceward.message.frame import Frame
from onceward.transports.function import FunctionTransport

ENDLESS: Final = """
WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n) SELECT count(*) FROM n
"""
Hold = Callable[[Path, Postbox], Any]
"""A block in which something of the folder's agent x, or of y's own session ``held``, is held."""


def _started(call: Callable[[], object]) -> Thread:
    def quietly() -> None:
        with suppress(OncewardError, RuntimeError):
            call()

    thread = Thread(target=quietly, daemon=True)
    thread.start()
    return thread


@contextmanager
def _x(folder: Path, agent: str | Agent = "x", **options: Any) -> Iterator[Postbox]:
    with Postbox(folder / "x.db", agent=agent, hold_unknown=True, **options) as box:
        yield box


@contextmanager
def _elsewhere(path: Path) -> Iterator[None]:
    """Let another process hold a file for writing."""
    with Child([*PYTHON, "-c", HOLDER, path], "stdin", "stdout") as other:
        assert "held" == other.hear()
        yield
        other.ended("\n")


@contextmanager
def opening(folder: Path, _: Postbox) -> Iterator[None]:
    """A thread opens a file that another process holds."""
    with _x(folder, start=False):
        pass
    with _elsewhere(folder / "x.db"):
        waiting = _started(lambda: Postbox(folder / "x.db", agent="x", start=False).close())
        until(waiting.is_alive)
        yield
    waiting.join()


@contextmanager
def recipient(folder: Path, y: Postbox) -> Iterator[None]:
    """Another process holds the file that a message of y is for."""
    with _x(folder, start=False):
        pass
    with _elsewhere(folder / "x.db"):
        sent = y.send("x", 1)
        until(lambda: y.state(sent) == "sending")
        yield


HANGING: Final = """
import sys, threading
from onceward import Agent, Postbox
from onceward.transports import worker_socket

worker_socket.decode_parcel = lambda text: threading.Event().wait()
x = Agent("x")
x.on("json")(lambda _: None)
with Postbox(sys.argv[1], agent=x):
    print("ready", flush=True)
    threading.Event().wait()
"""


@contextmanager
def pushes(_: Path, y: Postbox) -> Iterator[None]:
    """The process of another agent's worker answers no parcel, and y sends to it all the time."""
    with Child([*PYTHON, "-c", HANGING, y.file.path.with_name("x.db")], "stdout") as other:
        assert "ready" == other.hear()
        ended = Event()

        def send() -> None:
            while not ended.wait(0.1):
                y.send("x", 1)

        sending = _started(send)
        yield
        ended.set()
        sending.join()


@contextmanager
def turn(folder: Path, _: Postbox) -> Iterator[None]:
    """A thread has a block open on x, for which other threads wait."""
    begun, end = Event(), Event()
    with _x(folder) as x:

        def block() -> None:
            with x.begin() as tx:
                tx.execute("SELECT 1")
                begun.set()
                end.wait()

        holder, waiting = _started(block), _started(lambda: begun.wait() and x.send("x", 1))
        begun.wait()
        until(lambda: x._db.writer.queue.waiting)
        yield
        end.set()
        holder.join()
        waiting.join()


@contextmanager
def closing(folder: Path, _: Postbox) -> Iterator[None]:
    """A thread closes x, which waits for the block of another thread."""
    begun, end = Event(), Event()
    with _x(folder, start=False) as x:

        def block() -> None:
            with x.begin() as tx:
                tx.execute("SELECT 1")
                begun.set()
                end.wait()

        holder = _started(block)
        begun.wait()
        closer = _started(x.close)
        until(lambda: x._db.closing)
        yield
        end.set()
        holder.join()
        closer.join()


@contextmanager
def reader(folder: Path, _: Postbox) -> Iterator[None]:
    """A statement of a caller reads from x."""
    with _x(folder) as x:
        _started(lambda: x.query(ENDLESS))  # closing x ends it
        until(x._db.readers.connections)
        yield


@contextmanager
def own_reader(_: Path, y: Postbox) -> Iterator[None]:
    """A statement of another caller reads from y itself."""

    def read() -> None:
        with suppress(apsw.InterruptError):
            y.query(ENDLESS)

    reading = _started(read)
    until(lambda: y._db.readers._lent)
    yield
    for each in list(y._db.readers._lent):
        if each.con is not None:
            each.con.interrupt()
    reading.join()


@contextmanager
def loop(folder: Path, _: Postbox) -> Iterator[None]:
    """A coroutine blocks the event loop that x was given."""
    agent, begun, end = Agent("x"), Event(), Event()

    @agent.on("job")
    async def work(body: object) -> None:
        begun.set()
        end.wait()

    own = asyncio.new_event_loop()
    thread = Thread(target=own.run_forever, daemon=True)
    thread.start()
    with _x(folder, agent, loop=own) as x:
        x.send("x", 1, type="job")
        begun.wait()
        yield
        end.set()
    own.call_soon_threadsafe(own.stop)
    thread.join()
    own.close()


@contextmanager
def workers(folder: Path, _: Postbox) -> Iterator[None]:
    """Handlers of x hang, in all of its workers."""
    agent, begun, end = Agent("x"), [Event(), Event()], Event()

    @agent.on("job")
    def work(body: int, ctx: Context) -> None:
        begun[body].set()
        end.wait()

    with _x(folder, agent, workers=2) as x:
        for number in (0, 1):
            x.session(f"s{number}").send("x", number, type="job")
        for each in begun:
            each.wait()
        yield
        end.set()


@contextmanager
def own_session(_: Path, y: Postbox) -> Iterator[None]:
    """A handler of y hangs in a session of its own."""
    y.session("held").send("y", 1, type="hangs")
    until(hanging.is_set)
    yield
    let_go.set()
    until(lambda: not hanging.is_set())


@contextmanager
def carriers(folder: Path, _: Postbox) -> Iterator[None]:
    """Pushes of x hang, in all of its carriers."""
    called, end = Event(), Event()

    def hang(_: object) -> bool:
        called.set()
        return end.wait()

    with _x(folder, transports={"function": FunctionTransport(hang)}) as x:
        for number in range(12):
            x.peers.add(f"far{number}", "function:far")
            x.send(f"far{number}", 1)
        called.wait()
        yield
        end.set()


class FarPeers:
    """Peers of y over a function, whose pushes hang while they are held."""

    def __init__(self) -> None:
        self._held, self._let_go = Event(), Event()

    def push(self, frames: list[Frame]) -> bool:
        """Answer, or fail; while they are held, hang."""
        if self._held.is_set():
            return self._let_go.wait()
        if frames[0].recipient.startswith("failing"):
            raise PushFailed("not now")
        return True

    @contextmanager
    def hanging(self, y: Postbox, kind: str, number: int) -> Iterator[None]:
        """Push to peers that have answered, that never answered, or that have failed."""
        names = [f"{kind}{each}" for each in range(number)]
        for name in names:
            y.peers.add(name, "function:far")
            if kind != "new":
                sent = y.send(name, 0)
                until(partial(self._was_pushed, y, kind, name, sent))
        self._let_go.clear()
        self._held.set()
        y._db.write(lambda tx: tx.run("UPDATE _onceward_peers SET due_at = NULL"))
        for name in names:
            y.send(name, 1)
        until(partial(self._all_hang, y, number))
        yield
        self._held.clear()
        self._let_go.set()
        until(lambda: not y._dispatcher._deliveries._busy.pushes())

    @staticmethod
    def _was_pushed(y: Postbox, kind: str, name: str, sent: str) -> bool:
        if kind == "failing":
            return y._db.read(FAILURES, (name,)) > [(0,)]
        return y.state(sent) not in WAITS

    @staticmethod
    def _all_hang(y: Postbox, number: int) -> bool:
        """Return whether each push hangs, or waits for a carrier that is not given to it."""
        deliveries = y._dispatcher._deliveries
        carriers = deliveries._carriers
        assert carriers is not None
        with carriers._lock:
            idle = carriers._threads - len(carriers._running)
            waiting = sum(map(len, carriers._waiting.values()))
        return idle == 0 and len(deliveries._busy.pushes()) + waiting == number


FAILURES: Final = "SELECT failures FROM _onceward_peers WHERE name = ?"
CARRIERS: Final = 8
"""Carriers of y: as many for peers that answered, half for new ones, a quarter for failing ones."""
WAITS: Final = {"pending", "sending"}
far = FarPeers()


@contextmanager
def known_peers(_: Path, y: Postbox) -> Iterator[None]:
    """Peers of y that have answered hang, in all of its carriers but one."""
    with far.hanging(y, "known", CARRIERS - 1):
        yield


@contextmanager
def new_peers(_: Path, y: Postbox) -> Iterator[None]:
    """Peers of y that never answered hang, more than there are carriers."""
    with far.hanging(y, "new", CARRIERS + 4):
        yield


@contextmanager
def failing_peers(_: Path, y: Postbox) -> Iterator[None]:
    """Peers of y whose last push failed hang, more than there are carriers."""
    with far.hanging(y, "failing", CARRIERS + 4):
        yield


@contextmanager
def directory(folder: Path, _: Postbox) -> Iterator[None]:
    """Another process holds the directory of x's home, and x waits for it."""
    with _x(folder) as x:
        x.channels.ensure("room")
        with _elsewhere(folder / "directory.db"):
            waiting = _started(lambda: x.channels.create("other"))
            time.sleep(0)
            yield
        waiting.join()


hanging, let_go = Event(), Event()
"""Of the handler of y that hangs in its session ``held``."""


def agent_y() -> Agent:
    """Return the agent whose verbs are called."""
    agent = Agent("y")

    @agent.on("seen")
    def seen(body: object) -> None:
        return

    @agent.on("hangs")
    def hang(body: object) -> None:
        let_go.clear()
        hanging.set()
        let_go.wait()
        hanging.clear()

    return agent


HOLDS: Final[dict[str, Hold]] = {
    "a file that is being opened": opening,
    "a file that is being closed": closing,
    "the turn to write": turn,
    "a caller's reader": reader,
    "a caller's reader of the same file": own_reader,
    "the recipient of a message": recipient,
    "pushes to the process of a worker": pushes,
    "all carriers": carriers,
    "own peers that answered": known_peers,
    "own peers that never answered": new_peers,
    "own peers that fail": failing_peers,
    "the directory of another home": directory,
    "an event loop": loop,
    "all workers": workers,
    "a handler of another session": own_session,
}


def opened(stack: ExitStack, folder: Path) -> Postbox:
    """Open y, in a home of its own."""
    (folder / "mine").mkdir()
    Postbox(folder / "mine" / "near.db", agent="near", start=False).close()
    box = Postbox(
        folder / "mine" / "y.db",
        agent=agent_y(),
        hold_unknown=True,
        search=True,
        workers=2,
        tuning=Tuning(carriers=CARRIERS),
        transports={"function": FunctionTransport(far.push)},
    )
    return stack.enter_context(box)
