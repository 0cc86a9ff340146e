"""Waiting and interrupts: a turn is given up at its deadline or by Ctrl-C, and never lost."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox
from onceward.errors import Busy, StoreClosed
from onceward.file.connection import BusyHandler
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

Open = Callable[..., Postbox]


HOLDER = """
import sqlite3, sys
con = sqlite3.connect(sys.argv[1], isolation_level=None)
con.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
con.execute("ROLLBACK")
"""


TAKEN = """
import sqlite3, sys
con = sqlite3.connect(sys.argv[1], isolation_level=None)
con.execute("CREATE TABLE theirs (x)")
con.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
con.execute("ROLLBACK")
"""


@pytest.fixture
def ledger(box: Postbox) -> Postbox:
    """Return a postbox with a table of the user's own."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE t (x INTEGER UNIQUE)")
    return box


def seen(box: Postbox) -> tuple[list[int], int]:
    """Return the user's rows, and how many messages were promised."""
    return [x for (x,) in box._db.read("SELECT x FROM t ORDER BY x")], box.file.stats()["enqueued"]


def waits(box: Postbox, count: int) -> None:
    """Return once so many callers stand in the writer's queue."""
    pause = Event()
    while box._db.writer.queue.waiting < count:
        pause.wait(0.001)


@pytest.fixture
def holder(box: Postbox) -> Iterator[Callable[[], None]]:
    """Hold the file's write lock in another process until called."""
    with Child([*PYTHON, "-c", HOLDER, box.file.path], "stdin", "stdout") as other:
        assert "held" == other.hear()

        def release() -> None:
            other.ended("\n")

        yield release


def test_busy_after_the_deadline_means_nothing_was_written(
    opened: Open, box: Postbox, holder: Callable[[], None]
) -> None:
    """While another process holds the file, each write gives up at its deadline; retry is safe."""
    box._db.writer.queue.timeout = 0.05

    with pytest.raises(Busy):
        box.send("b", 1)
    with pytest.raises(Busy), box.begin():
        pass
    assert 0 == box.file.stats()["enqueued"]
    holder()
    assert ("pending", 1) == (box.state(box.send("b", 2)), box.file.stats()["enqueued"])


def test_the_deadline_of_who_comes_first_is_not_that_of_those_behind_it(
    box: Postbox, holder: Callable[[], None]
) -> None:
    """
    A writer that has waited for as long as it may gives up alone.

    A later writer still has time, and is served.
    """
    outcomes: list[object] = [None, None]
    queue, pause = box._db.writer.queue, Event()

    def send(index: int) -> None:
        try:
            outcomes[index] = box.send("b", index)
        except Busy as error:
            outcomes[index] = error
            holder()  # only now the other process lets go

    threads = [Thread(target=send, args=(index,)) for index in (0, 1)]
    with box._db.writer.exclusive():
        for count, (thread, patience) in enumerate(zip(threads, (0.3, 60.0), strict=True), 1):
            queue.timeout = patience
            thread.start()
            while queue.waiting + sum(each is not None for each in outcomes) < count:
                pause.wait(0.001)
    for thread in threads:
        thread.join()

    assert [Busy, str] == [type(outcome) for outcome in outcomes]
    assert 1 == box.file.stats()["enqueued"]


def test_waiting_behind_our_own_thread_ends_too(ledger: Postbox) -> None:
    """
    A write that waits for a block of the same process gives up at its deadline.

    The block is not harmed.
    """
    caught: list[BaseException] = []

    def send() -> None:
        try:
            ledger.send("b", 2)
        except Busy as error:
            caught.append(error)

    ledger._db.writer.queue.timeout = 0.05
    with ledger.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        thread = Thread(target=send)
        thread.start()
        thread.join()

    assert ([1], 0) == seen(ledger)
    assert [Busy] == [type(error) for error in caught]


class Interrupting(ManualClock):
    """A clock in whose tick Ctrl-C lands, as it may at any instruction."""

    def __init__(self) -> None:
        super().__init__()
        self.in_ticks = 0

    def now(self) -> int:
        """Return the time, or be interrupted."""
        self.in_ticks -= 1
        if self.in_ticks == 0:
            raise KeyboardInterrupt
        return super().now()


@pytest.mark.parametrize("tick", [1, 2])
def test_an_interrupt_around_begin_leaves_no_open_transaction(opened: Open, tick: int) -> None:
    """Ctrl-C before or after BEGIN writes nothing and leaves the file unlocked for all others."""
    clock = Interrupting()
    box = opened(testing=Controls(clock=clock))
    clock.in_ticks = tick

    with pytest.raises(KeyboardInterrupt):
        box.send("b", 1)

    assert ("pending", 1) == (box.state(box.send("b", 2)), box.file.stats()["enqueued"])


@pytest.mark.parametrize("committed", [True, False])
def test_an_interrupt_while_waiting_does_not_lose_the_turn(
    ledger: Postbox, committed: bool
) -> None:
    """
    Ctrl-C in a queue leaves it.

    Nothing of the interrupted send is written, and the next caller gets the turn.
    """
    entered, go = Event(), Event()

    def hold() -> None:
        try:
            with ledger.begin():
                entered.set()
                go.wait()
                if not committed:
                    raise KeyError
        except KeyError:
            pass

    def interrupt() -> None:
        waits(ledger, 1)
        os.kill(os.getpid(), signal.SIGINT)

    threads = [Thread(target=hold), Thread(target=interrupt)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    with pytest.raises(KeyboardInterrupt):
        ledger.send("b", 1)
    go.set()
    for thread in threads:
        thread.join()

    assert ("pending", ([], 1)) == (ledger.state(ledger.send("b", 2)), seen(ledger))


def test_an_interrupt_in_a_block_undoes_it(ledger: Postbox) -> None:
    """Ctrl-C inside the block is an exception like any other."""
    with pytest.raises(KeyboardInterrupt), ledger.begin() as tx:
        tx.send("b", 1)
        signal.raise_signal(signal.SIGINT)

    assert ([], 0) == seen(ledger)


def test_closing_between_look_and_turn_is_noticed(box: Postbox) -> None:
    """
    A caller that saw the postbox open and comes to its turn after the closing is told so.

    The file stays closed.
    """
    turn = box._db.writer.queue
    mutex = turn._mutex

    class Late:
        def __enter__(self) -> bool:
            turn._mutex = mutex
            box.close()
            return mutex.acquire()

        def __exit__(self, *_: object) -> None:
            mutex.release()

    turn._mutex = Late()  # type: ignore[assignment]
    with pytest.raises(StoreClosed):
        box.send("b", 1)

    assert None is box._db._con


def test_opening_waits_from_its_first_statement(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening waits, until its deadline, for a file that is held or being recovered."""
    path = tmp_path / "taken.db"
    with Child([*PYTHON, "-c", TAKEN, path], "stdin", "stdout") as other:
        assert "held" == other.hear()
        with pytest.raises(Busy):
            opened("late", at=path, busy_timeout=0.0)

        def release(_patience: BusyHandler, _calls: int) -> bool:
            other.ended("\n")
            return True

        monkeypatch.setattr(BusyHandler, "__call__", release)

        assert {"pending": 0} == {"pending": opened("late", at=path).file.stats()["pending"]}
        assert 0 == other.code()
