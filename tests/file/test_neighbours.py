"""A file that is busy stops no other: each wait is for one file, and ends with what held it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import pytest
from tests.children import PYTHON, Child
from tests.file.test_waiting import HOLDER
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.errors import OncewardError, OutcomeUnknown, SchemaMismatch, StoreClosed
from onceward.file import database, migrations
from onceward.testing import Controls

Open = Callable[..., Postbox]
ENDLESS = """
WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n) SELECT count(*) FROM n
"""


class Task(Thread):
    """A call in a thread of its own, and what became of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.found: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Make the call."""
        try:
            self.found = self.call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def done(self, within: float = 20.0) -> bool:
        """Return whether the call has ended; what waits for the held file never does."""
        self.join(timeout=within)
        return not self.is_alive()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close what a test opens."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def held(tmp_path: Path, stack: ExitStack) -> Callable[[str], Callable[[], object]]:
    """Return a call that lets another process hold a file for writing; it returns the release."""

    def hold(name: str) -> Callable[[], object]:
        path = tmp_path / f"{name}.db"
        Postbox(path, agent=name, start=False).close()
        other = stack.enter_context(Child([*PYTHON, "-c", HOLDER, path], "stdin", "stdout"))
        assert "held" == other.hear()
        return lambda: other.ended("\n")

    return hold


def test_a_file_opens_while_another_waits_to_be_opened(
    tmp_path: Path, held: Callable[[str], Callable[[], object]]
) -> None:
    """Another process holds b: who opens b waits for it, and who opens c does not."""
    release = held("b")
    busy = Task(lambda: Postbox(tmp_path / "b.db", agent="b", start=False))
    other = Task(lambda: Postbox(tmp_path / "c.db", agent="c", start=False))
    opened, waits = other.done(), busy.is_alive()
    release()
    ended = busy.done()
    for task in (busy, other):
        task.found.close()

    assert (True, True, True) == (opened, waits, ended)


def test_a_message_leaves_while_another_recipient_is_held(
    tmp_path: Path, held: Callable[[str], Callable[[], object]]
) -> None:
    """The first message to a healthy file does not wait for the one to a held file."""
    release = held("b")
    Postbox(tmp_path / "c.db", agent="c", start=False).close()
    with Postbox(tmp_path / "a.db", agent="a") as box:
        to_b, to_c = box.send("b", 1), None
        until(lambda: box.state(to_b) == "sending")
        to_c = box.send("c", 1)
        sent = until(lambda: box.state(to_c) == "sent" or box.state(to_b) == "sent")
        states = box.state(to_b), box.state(to_c)
        release()
        until(lambda: box.state(to_b) == "sent")

    assert (True, ("sending", "sent")) == (sent, states)


def test_a_block_opens_a_file_while_its_own_is_reconfigured(opened: Open, tmp_path: Path) -> None:
    """A thread waits for the block to change a bound of its file; the block waits for nothing."""
    box = opened()
    with box.begin() as tx:
        tx.execute("SELECT 1")
        again = Task(lambda: opened(max_pending=1000))
        until(lambda: box._db.writer.queue.waiting)
        other = Task(lambda: Postbox(tmp_path / "y.db", agent="y", start=False))
        free, waits = other.done(), again.is_alive()
    other.found.close()

    assert (True, True, True, None) == (free, waits, again.done(), again.error)


def test_a_file_opens_while_another_is_closed(opened: Open, tmp_path: Path) -> None:
    """Closing waits for a block of another thread; opening another file does not."""
    box, begun, end = opened(), Event(), Event()

    def block() -> None:
        with box.begin() as tx:
            tx.execute("SELECT 1")
            begun.set()
            end.wait()

    holder = Task(block)
    begun.wait()
    closing = Task(box.close)
    until(lambda: box._db.closing)
    other = Task(lambda: Postbox(tmp_path / "y.db", agent="y", start=False))
    opened_in_time, waits = other.done(4), closing.is_alive()
    end.set()
    other.found.close()

    assert (True, True) == (opened_in_time, waits)
    assert (True, True, None) == (closing.done(), holder.done(), holder.error)


def test_a_file_that_is_being_closed_is_opened_anew(opened: Open, tmp_path: Path) -> None:
    """Who opens it meanwhile waits until it is closed, and gets it open."""
    box, begun, end = opened(), Event(), Event()

    def block() -> None:
        with box.begin() as tx:
            tx.send("b", 1)
            begun.set()
            end.wait()

    holder = Task(block)
    begun.wait()
    closing = Task(box.close)
    until(lambda: box._db.closing)
    again = Task(lambda: Postbox(tmp_path / "a.db", agent="a", start=False))
    end.set()
    assert all(task.done() for task in (holder, closing, again))

    with again.found as fresh:
        assert (1, True) == (fresh.file.stats()["pending"], fresh._db is not box._db)


def test_close_takes_the_file_from_a_block_that_does_not_end(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are rolled back, others that wait are told, and the next opening can write."""
    monkeypatch.setattr(database, "LAST_WRITE", 0.2)
    box, begun, end = opened(), Event(), Event()

    def block() -> None:
        with box.begin() as tx:
            tx.send("b", 1)
            begun.set()
            end.wait()
            tx.send("b", 2)

    holder = Task(block)
    begun.wait()
    waiting = Task(lambda: box.send("b", 3))
    until(lambda: box._db.writer.queue.waiting)
    box.close()
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as again:
        kept = again.send("b", 4)
        end.set()
        assert holder.done()
        assert waiting.done()

        assert [(kept,)] == again.query("SELECT id FROM onceward_outbox")
    assert isinstance(waiting.error, StoreClosed)
    assert isinstance(holder.error, OncewardError)


def test_engines_and_callers_do_not_wait_for_a_query(tmp_path: Path) -> None:
    """Messages are handled and other callers read while a statement runs; closing ends it."""
    agent, handled = Agent("a"), Event()

    @agent.on("job")
    def work(body: object) -> None:
        handled.set()

    with Postbox(tmp_path / "a.db", agent=agent) as box:
        endless = Task(lambda: box.query(ENDLESS))
        until(box._db.readers.connections)
        box.send("a", 1, type="job")
        in_time = handled.wait(20)
        until(lambda: box.file.stats()["acked"])
        found = len(box.history().messages), box.file.check(), endless.is_alive()

    assert (True, (2, [], True)) == (in_time, found)
    assert endless.done()
    assert isinstance(endless.error, StoreClosed)


def test_idle_connections_of_callers_are_closed(opened: Open) -> None:
    """Maintenance closes those that were not used for a while; the next read opens one."""
    box = opened()
    box.file.stats()
    used = len(box._db.readers.connections())
    box._db.readers._clock = lambda: float("inf")
    box.file.run_maintenance()

    assert (1, []) == (used, box._db.readers.connections())
    assert 0 == box.file.stats()["pending"]


class FullDisk(apsw.VFS):
    """The usual file system, on which nothing can be written while it is full."""

    def __init__(self, name: str) -> None:
        self.full = False
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> "FullFile":  # noqa: N802 - SQLite's name
        """Open a file whose writes are ours."""
        return FullFile(self, name, flags)


class FullFile(apsw.VFSFile):
    """A file of that file system."""

    def __init__(self, vfs: FullDisk, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        """Write, or fail as a full disk does."""
        if self._vfs.full:
            msg = "no space left on device"
            raise apsw.FullError(msg)
        super().xWrite(data, offset)


def test_a_full_disk_is_read(opened: Open) -> None:
    """Callers read what is there, and are told that no barrier stands behind it."""
    disk = FullDisk("onceward-full")
    box = opened(testing=Controls(vfs="onceward-full"))
    kept = box.send("b", 1)
    disk.full = True
    with pytest.raises(OutcomeUnknown, match="disk or quota is full"):
        box.send("b", 2)
    found = (
        box.file.stats()["pending"],
        box.query("SELECT id FROM onceward_outbox"),
        box.file.health(),
    )
    disk.full = False
    again = box.send("b", 3)

    assert (1, [(kept,)], False) == (found[0], found[1], found[2].behind_barrier)
    assert (True, "pending") == (box.file.health().behind_barrier, box.state(again))
    box.close()
    disk.unregister()


@pytest.mark.parametrize("table", ["outbox", "messages"])
def test_a_file_with_our_mark_and_unknown_tables_is_refused(
    opened: Open, tmp_path: Path, table: str
) -> None:
    """A file of a preview: nothing is built beside its tables, and nothing of it changes."""
    path = tmp_path / "a.db"
    con = apsw.Connection(str(path))
    con.pragma("application_id", migrations.APPLICATION_ID)
    con.execute(f"CREATE TABLE {table} (id TEXT)")
    con.close()
    before = path.read_bytes()

    with pytest.raises(SchemaMismatch, match=table):
        opened()
    assert before == path.read_bytes()
