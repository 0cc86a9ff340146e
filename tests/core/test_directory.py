"""
The directory of a home: made when it is needed and shared by processes.

A change or a missing file is noticed.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.children import PYTHON, run, side_by_side

from onceward import Postbox
from onceward.errors import (
    ForkedProcess,
    InvalidMessage,
    SchemaMismatch,
    SchemaTooNew,
    StoreClosed,
)
from onceward.features.channels import directory as channels
from onceward.features.channels.directory import ChannelConfig
from onceward.file import connection, open_files
from onceward.file import directory as file_directory
from onceward.file.database import Database
from onceward.file.directory import (
    VERSION,
    DirectoryDatabase,
    DirectoryHandle,
    directory_path,
    find_agents,
    register_agent,
)
from onceward.file.transaction import StoreTransaction
from onceward.message.settings import Settings
from onceward.testing.clock import ManualClock

ENROL_MANY = """
import sys
from onceward.message.clock import SystemClock
from onceward.file.directory import register_agent
from onceward.file.directory import DirectoryDatabase
from onceward.message.settings import Settings
from pathlib import Path
directory = DirectoryDatabase.open(Path(sys.argv[1]), settings=Settings(), clock=SystemClock())
print(sum(register_agent(directory, f"agent{n}") for n in range(8)))
directory.close()
"""

SUBSCRIBE = """
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent="b", start=False) as box:
    box.agents.subscribe("news")
"""


def agent_names(directory: DirectoryDatabase) -> list[str]:
    """Return all agents of the home by name."""
    return [each.name for each in find_agents(directory)]


@pytest.fixture
def directory(tmp_path: Path, clock: ManualClock) -> Iterator[DirectoryDatabase]:
    """Return an open directory on a clock that stands still."""
    made = DirectoryDatabase.open(
        tmp_path / "directory.db", settings=Settings(busy_timeout=60.0), clock=clock
    )
    yield made
    made.close()


def test_its_place_is_the_home_or_beside_the_file() -> None:
    """
    A file in a home's folder of agents shares the home's directory.

    Any other file has it beside itself.
    """
    assert Path("/mail/directory.db") == directory_path(Path("/mail/agents/a.db"))
    assert Path("/data/directory.db") == directory_path(Path("/data/a.db"))


def test_mail_alone_needs_none(tmp_path: Path) -> None:
    """Without it sending and receiving work, and do not bring it back."""
    Postbox(tmp_path / "a.db", agent="a", start=False).close()
    (tmp_path / "directory.db").unlink()
    with Postbox(tmp_path / "a.db", start=False) as box:
        box.send("a", "hello")
        box.run_until_idle()
        box.receive().ack()  # type: ignore[union-attr]  # it was sent above

    assert ["a.db"] == sorted(path.name for path in tmp_path.glob("*.db"))


def test_the_first_opening_makes_it(tmp_path: Path) -> None:
    """A home's directory is made by the first opening of an agent, and names that agent."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        home = DirectoryHandle(box._db, box._settings)
        before = home.known
        found = agent_names(home.directory)
        home.close()

    assert (True, ["a"]) == (before, found)


def test_a_process_with_many_files_keeps_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening beside many others opens no connection of its own to read its entry."""
    for name in "abc":
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    monkeypatch.setattr(file_directory, "FEW", 1)
    opened = list[Path]()
    alone = connection.connect

    def counted(path: Path, *, readonly: bool) -> Any:
        opened.append(path)
        return alone(path, readonly=readonly)

    monkeypatch.setattr(file_directory, "connect", counted)
    with ExitStack() as boxes:
        first, second, _ = (
            boxes.enter_context(Postbox(tmp_path / f"{name}.db", agent=name, start=False))
            for name in "abc"
        )
        kept = open_files.finds(first._home.path)
        second.close()
        assert ([first._home.path], True) == (opened, kept)
        assert ["b", "c"] == [each.name for each in first.agents.list()]
    assert not open_files.finds(first._home.path)


def test_agents_are_enrolled_once(directory: DirectoryDatabase) -> None:
    """Enrolling says whether the agent was new."""
    assert ([True, False], ["a"]) == (
        [register_agent(directory, "a"), register_agent(directory, "a")],
        agent_names(directory),
    )


def test_processes_make_it_together(tmp_path: Path) -> None:
    """
    Several processes create the file and enrol the same agents at once.

    Each agent is new to exactly one of them.
    """
    command = [*PYTHON, "-c", ENROL_MANY, tmp_path / "directory.db"]

    assert 8 == sum(map(int, side_by_side([command] * 4)))


def test_its_version_moves_with_every_change(directory: DirectoryDatabase, tmp_path: Path) -> None:
    """A change of ours, and one of another process, are both seen; reading moves nothing."""
    first = directory.version()
    directory.read("SELECT 1")
    same = directory.version()
    register_agent(directory, "a")
    ours = directory.version()
    run([*PYTHON, "-c", ENROL_MANY, tmp_path / "directory.db"])

    assert (True, 4 - 1) == (first == same, len({first, ours, directory.version()}))


def test_a_subscription_of_another_process_is_seen_while_a_thread_writes(tmp_path: Path) -> None:
    """The directory is then read by a new connection, which counts commits from the start."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        home, found = box._directory.database, list[int]()
        for between in (lambda: None, lambda: run([*PYTHON, "-c", SUBSCRIBE, tmp_path / "b.db"])):
            home.rest()
            between()
            home._open_reader()  # as for a read that meets a writer
            found.append(len(box.publish("news", 1)))

    assert [0, 1] == found


def test_routes_are_counted(directory: DirectoryDatabase) -> None:
    """Changes of routes make the copy in memory stale, changes of mailboxes do not."""

    def routes() -> int:
        return int(directory.read("SELECT revision FROM meta")[0][0])

    before = routes()
    directory.write(
        lambda tx: tx.run(
            "INSERT INTO mailboxes (public, name, owner, created_at) VALUES (1, 'm', 'a', ?)",
            (tx.now,),
        )
    )
    same = routes()
    register_agent(directory, "b")

    assert (before, before + 1) == (same, routes())


def test_a_failing_change_leaves_nothing(directory: DirectoryDatabase) -> None:
    """An exception undoes the whole change, and the next one works."""

    def work(tx: StoreTransaction) -> None:
        tx.run("INSERT INTO agents VALUES ('x', 0, '', '[]', '[]', 0, 'x')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        directory.write(work)

    assert ([], True) == (agent_names(directory), register_agent(directory, "x"))


def test_a_nested_change_joins(directory: DirectoryDatabase) -> None:
    """A verb used inside another one's transaction is part of it."""

    def work(tx: StoreTransaction) -> None:
        register_agent(directory, "a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        directory.write(work)

    assert [] == agent_names(directory)


@pytest.mark.parametrize("gone", [("", "-wal", "-shm"), ("",)])
def test_a_directory_that_was_taken_away_is_made_anew(
    directory: DirectoryDatabase, gone: tuple[str, ...]
) -> None:
    """A change goes into the file that others will find, without an old WAL's contents."""
    directory.checkpoint(truncate=True)
    register_agent(directory, "lost")
    for suffix in gone:
        Path(f"{directory.path}{suffix}").unlink()
    register_agent(directory, "kept")

    assert ["kept"] == agent_names(directory)
    assert directory.path.exists()


def test_a_new_file_is_made_while_another_opening_waits(directory: DirectoryDatabase) -> None:
    """A change that finds its file gone needs no lock of a thread that may wait for it."""
    directory.path.unlink()
    change = Thread(target=register_agent, args=(directory, "kept"))
    name = open_files.name_of(directory)
    assert name is not None
    with open_files.turn(name):
        change.start()
        change.join(timeout=60)
        done = not change.is_alive()
    change.join()

    assert (True, ["kept"]) == (done, agent_names(directory))


def test_an_open_directory_is_no_agents_file(directory: DirectoryDatabase) -> None:
    """An agent cannot be opened on the file that this process has open as a directory."""
    with pytest.raises(SchemaMismatch):
        Database.open(directory.path, agent="a")


def test_what_is_read_is_the_file_of_that_name(directory: DirectoryDatabase) -> None:
    """A reader that finds its file gone reads the file in its place, and its version moves."""
    register_agent(directory, "lost")
    before = directory.version()
    for name in ("directory.db", "directory.db-wal", "directory.db-shm"):
        directory.path.with_name(name).unlink()

    assert ([], True) == (agent_names(directory), before != directory.version())


def test_its_clock_never_runs_backwards(directory: DirectoryDatabase, clock: ManualClock) -> None:
    """After a reopening times go on from the latest that was stored."""
    clock.advance(3600)
    late = directory.write(lambda tx: tx.now)
    directory.close()
    clock.step(-3600)
    again = DirectoryDatabase.open(directory.path, settings=Settings(), clock=clock)
    now = again.now()
    again.close()
    directory.users += 1  # the fixture closes it once more

    assert late == now


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    """An agent's file called directory.db is not taken for a directory, and not changed."""
    with Postbox(tmp_path / "directory.db", agent="a", start=False):
        pass

    with pytest.raises(SchemaMismatch):
        DirectoryDatabase.open(tmp_path / "directory.db", settings=Settings(), clock=ManualClock())


def test_a_newer_directory_is_refused(directory: DirectoryDatabase) -> None:
    """A directory that a newer version wrote is left alone."""
    directory.write(lambda tx: tx.run("UPDATE meta SET version = ?", (VERSION + 1,)))
    directory.close()

    with pytest.raises(SchemaTooNew):
        DirectoryDatabase.open(directory.path, settings=Settings(), clock=ManualClock())
    directory.users += 1


def test_one_process_shares_one_connection(directory: DirectoryDatabase) -> None:
    """Two postboxes of a process have the same directory, and the last one closes it."""
    other = DirectoryDatabase.open(directory.path, settings=Settings(), clock=ManualClock())
    other.close()

    assert (True, True) == (other is directory, register_agent(directory, "a"))


def test_threads_take_turns(directory: DirectoryDatabase) -> None:
    """Changes from several threads are all kept."""
    threads = [Thread(target=register_agent, args=(directory, f"t{n}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [f"t{n}" for n in range(8)] == agent_names(directory)


def test_a_forked_child_may_not_use_it(directory: DirectoryDatabase) -> None:
    """What was open when the process forked raises in the child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            agent_names(directory)
        except ForkedProcess:
            os.write(writer, b"y")
        finally:  # whatever it raised: the run of the tests is its parent's
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    said = os.read(reader, 1)
    os.close(reader)

    assert b"y" == said


def test_a_closed_home_opens_nothing(tmp_path: Path) -> None:
    """After its postbox was closed a home's directory is out of reach."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        home = DirectoryHandle(box._db, box._settings)
        home.close()
        with pytest.raises(StoreClosed):
            _ = home.directory


STATES = ("active", "paused", "draining", "closed")
ROUTE = {
    "active": (),
    "paused": ("paused",),
    "draining": ("draining",),
    "closed": ("draining", "closed"),
}
"""By state: the moves that bring a new channel there."""


def move(tx: StoreTransaction, *, state: str) -> None:
    """Set the state of all channels by a plain UPDATE."""
    mode = "hold" if state == "paused" else None
    tx.run("UPDATE channels SET state = ?, mode = ?", (state, mode))


@pytest.fixture
def channel(directory: DirectoryDatabase) -> None:
    """A new channel in the directory."""
    channels.create(directory, "room", "group", "a", config=ChannelConfig(), description="")


@pytest.mark.usefixtures("channel")
@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("before", STATES)
def test_a_channel_moves_as_the_table_says(
    directory: DirectoryDatabase, before: str, after: str
) -> None:
    """A plain UPDATE of a channel's state passes exactly where the table has the move."""
    for state in ROUTE[before]:
        directory.write(partial(move, state=state))
    legal = before == after or before in channels.TRANSITIONS.get(after, ())
    with nullcontext() if legal else pytest.raises(InvalidMessage):
        directory.write(partial(move, state=after))

    assert [(after if legal else before,)] == directory.read("SELECT state FROM channels")


@pytest.mark.usefixtures("channel")
@pytest.mark.parametrize("state", STATES)
def test_only_a_closed_channel_can_be_deleted(directory: DirectoryDatabase, state: str) -> None:
    """A stray DELETE takes no channel that is in use."""
    for each in ROUTE[state]:
        directory.write(partial(move, state=each))
    with nullcontext() if state == "closed" else pytest.raises(InvalidMessage):
        directory.write(lambda tx: tx.run("DELETE FROM channels"))

    assert [(state != "closed",)] == directory.read("SELECT count(*) FROM channels")
