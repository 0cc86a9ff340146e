"""Opening: which files become a postbox, which are refused and left byte for byte."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.children import PYTHON, side_by_side

from onceward import AsyncPostbox, Postbox
from onceward.errors import InvalidArgument, ReadOnlyStore, StoreClosed, StoreFault
from onceward.file import backup, read_only
from onceward.file.connection import PRAGMAS
from onceward.file.file_checks import read_only_part
from onceward.file.migrations import APPLICATION_ID

Open = Callable[..., Postbox]
NOBODY = 65534
MAKE = """
import sys
from onceward import Postbox
box = Postbox(sys.argv[1], agent='a', start=False)
print(box.agent)
box.close()
"""


def modes(path: Path) -> dict[str, int]:
    """Return the permissions of all files beside *path*, itself included."""
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}


def host(path: Path, *statements: str) -> None:
    """Make a database of another program."""
    con = sqlite3.connect(path)
    for sql in statements:
        con.execute(sql)
    con.commit()
    con.close()


def test_a_new_file_is_private(opened: Open) -> None:
    """The file and its side files belong to their owner alone, whatever the umask says."""
    before = os.umask(0)
    try:
        box = opened()
        box.send("b", 1)
    finally:
        os.umask(before)

    names = [f"{file}{side}" for file in ("a.db", "directory.db") for side in ("", "-wal", "-shm")]
    assert dict.fromkeys([*names, "a.db-run"], 0o600) == modes(box.file.path)


def test_a_new_file_is_marked_as_ours(box: Postbox) -> None:
    """A file that we make carries our application id, and leaves the version to a host."""
    con = box._db._con
    assert con is not None

    assert (APPLICATION_ID, 0) == (con.pragma("application_id"), con.pragma("user_version"))


def test_a_file_whose_creation_was_killed_is_created(opened: Open, tmp_path: Path) -> None:
    """The mark is committed with the tables: a file that got to WAL mode only has neither yet."""
    path = tmp_path / "a.db"
    con = apsw.Connection(str(path))
    con.pragma("auto_vacuum", 2)
    con.pragma("journal_mode", "wal")
    con.close()
    made = opened()._db._con
    assert made is not None

    assert (APPLICATION_ID, 2) == (made.pragma("application_id"), made.pragma("auto_vacuum"))


def test_a_new_file_keeps_few_pages_in_memory(box: Postbox) -> None:
    """Creation writes all pages, and gives them back: most are not read until a feature is used."""
    con = box._db._con
    assert con is not None
    used, _ = con.status(apsw.SQLITE_DBSTATUS_CACHE_USED)

    assert 2 * used < con.pragma("page_count") * con.pragma("page_size")


def test_every_connection_has_our_pragmas(box: Postbox) -> None:
    """All three read back what was set on them, whatever the application set for its own."""
    box.file.stats()  # a caller's is made for the first read
    box._db._open_reader()
    connections = box._db.connections()
    assert 3 == len(connections)
    for con in connections:
        assert con is not None
        wanted = {line.split()[1]: line.split()[3] for line in PRAGMAS}
        found = {name: str(con.pragma(name)) for name in wanted}

        assert {
            name: {"OFF": "0", "ON": "1", "MEMORY": "2"}.get(value, value)
            for name, value in wanted.items()
        } == found
        assert ("wal", 1, 0) == (
            con.pragma("journal_mode"),
            con.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1),
            con.config(apsw.SQLITE_DBCONFIG_DQS_DML, -1),
        )


@pytest.mark.parametrize(("durability", "level"), [("safe", 2), ("fast", 1)])
def test_the_durability_class_is_the_sync_level(opened: Open, durability: str, level: int) -> None:
    """
    Safe files sync at every commit, fast ones at checkpoints.

    The class is written in the file.
    """
    box = opened(durability=durability)
    con = box._db._con
    assert con is not None

    assert level == con.pragma("synchronous")
    assert [(durability,)] == box._db.read("SELECT durability FROM _onceward_file_info")


def test_a_host_database_keeps_what_is_its_own(opened: Open, tmp_path: Path) -> None:
    """
    Opened as a postbox, a host's file keeps its ids, tables and rows.

    Both parties work on in one transaction.
    """
    path = tmp_path / "host.db"
    host(
        path,
        "PRAGMA application_id = 77",
        "PRAGMA user_version = 5",
        "CREATE TABLE invoice (id INTEGER)",
        "INSERT INTO invoice VALUES (1)",
    )

    box = opened(at=path)
    with box.begin() as tx:
        tx.execute("INSERT INTO invoice VALUES (2)")
        tx.send("b", {"invoice": 2})
    box.file.run_maintenance()

    con = box._db._con
    assert con is not None
    assert (77, 5) == (con.pragma("application_id"), con.pragma("user_version"))
    assert ([(1,), (2,)], 1, []) == (
        box._db.read("SELECT id FROM invoice"),
        box.file.stats()["pending"],
        box.file.check(),
    )


@pytest.mark.parametrize("text", ["UTF-16le", "UTF-16be"])
def test_a_host_database_in_another_encoding_works(opened: Open, tmp_path: Path, text: str) -> None:
    """Frames survive a file that stores its text as UTF-16."""
    path = tmp_path / "host.db"
    host(path, f"PRAGMA encoding = '{text}'", "CREATE TABLE t (x)")

    box = opened(at=path)
    box.send("b", "grün 😀")

    assert (["grün 😀"], []) == ([past.body for past in box.history().messages], box.file.check())


def test_an_empty_file_becomes_a_postbox(opened: Open, tmp_path: Path) -> None:
    """A file of no bytes is what a crash right after creation leaves, so it may be used."""
    (tmp_path / "a.db").touch()

    assert [] == opened().file.check()


def test_a_name_is_only_needed_once(opened: Open) -> None:
    """The file remembers whose it is."""
    path = opened().file.path

    with Postbox(path, start=False) as again:
        assert "a" == again.agent


def test_symbolic_links_lead_to_one_database(opened: Open, tmp_path: Path) -> None:
    """A link and its target are one file: one writer, one commit."""
    box = opened()
    (tmp_path / "link.db").symlink_to(box.file.path)

    assert opened(at=tmp_path / "link.db")._db is box._db


@pytest.mark.parametrize("name", ["a%3f#b?x.db", "ü 😀.db", "file:a.db", "a'b\"c.db", "-.db"])
def test_odd_file_names_are_taken_literally(opened: Open, tmp_path: Path, name: str) -> None:
    """No character of a path is read as a part of a URI or an option."""
    box = opened(at=tmp_path / name)
    box.send("b", 1)

    assert {name, f"{name}-wal", f"{name}-shm", f"{name}-run"} == {
        each.name for each in tmp_path.iterdir() if not each.name.startswith("directory.db")
    }


def test_an_opening_and_a_send_make_one_connection(tmp_path: Path) -> None:
    """A second one, which parses the schema once more, is for reads; a program may make none."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        box.send("b", "hello")
        ours = [con for con in apsw.connections() if con.filename == str(tmp_path / "a.db")]

    assert 1 == len(ours)


def test_two_postboxes_on_one_file_share_one_database(opened: Open) -> None:
    """The second opening joins the first; the file closes with the last."""
    one, two = opened(), opened()
    one.send("b", 1)
    one.close()
    one.close()

    assert one._db is two._db
    assert 1 == two.file.stats()["pending"]
    two.close()
    with pytest.raises(StoreClosed):
        two.file.stats()


def test_the_second_opening_is_heard(opened: Open) -> None:
    """Settings of the file follow its last opener, also after a neighbour's push opened it."""
    opened("b").close()
    sender = opened("a")
    sender.send("b", 1)
    sender.run_until_idle()
    receiver = opened("b", max_pending=2)

    assert [(2,)] == receiver._db.read("SELECT max_pending FROM _onceward_file_info")


@pytest.mark.parametrize("neighbour_first", [False, True])
def test_the_owners_patience_holds(opened: Open, *, neighbour_first: bool) -> None:
    """A neighbour that delivers into a file does not change how long its owner's calls wait."""

    def waits(box: Postbox) -> float:
        return box._db.writer.queue.timeout

    if neighbour_first:
        opened("b").close()
    receiver = None if neighbour_first else opened("b", busy_timeout=0.25)
    sender = opened("a", busy_timeout=20.0)
    sender.send("b", 1)
    sender.run_until_idle()
    receiver = receiver or opened("b", busy_timeout=0.25)

    assert (1, 0.25) == (receiver.file.stats()["received"], waits(receiver))
    assert [20.0, 20.0] == [waits(opened("a", busy_timeout=patience)) for patience in (7.0, 20.0)]


def test_the_standard_library_may_read_in_another_process(
    box: Postbox, elsewhere: Callable[..., list[Any]]
) -> None:
    """Other programs open the file at the same time; nothing is lost when they close it."""
    kept = box.send("b", 1)

    assert [[[1]]] == elsewhere(box.file.path, "SELECT count(*) FROM _onceward_outbox")
    assert ["pending", "pending"] == [box.state(kept), box.state(box.send("b", 2))]


def test_processes_may_make_a_file_together(tmp_path: Path) -> None:
    """Of several processes that open a new file at the same moment none is told that it is busy."""
    command = [*PYTHON, "-c", MAKE, tmp_path / "a.db"]

    assert ["a\n"] * 4 == side_by_side([command] * 4)


def test_a_close_that_is_interrupted_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the engines stop is raised once nothing of the file is open any more."""
    box = Postbox(tmp_path / "a.db", agent="a", start=False)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(box._dispatcher, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        box.close()

    assert (None, None) == box._db.connections()


def test_an_opening_looks_at_no_more_files_the_more_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file is open in this process is told by the names of its connections."""
    looked: list[str] = []
    real = os.path.realpath

    def counted(path: str, **options: Any) -> str:
        looked.append(path)
        return real(path, **options)

    def openings(name: str) -> int:
        looked.clear()
        boxes.append(Postbox(tmp_path / f"{name}.db", agent=name, start=False))
        return len(looked)

    boxes = [Postbox(tmp_path / "first.db", agent="first", start=False)]
    monkeypatch.setattr(os.path, "realpath", counted)
    few = openings("second")
    for number in range(8):
        openings(f"a{number}")
    many = openings("last")
    for box in boxes:
        box.close()

    assert few == many


@pytest.mark.parametrize(("theirs", "kept"), [(0, APPLICATION_ID), (77, 77)])
def test_a_host_database_is_known_by_its_tables(
    opened: Open, tmp_path: Path, theirs: int, kept: int
) -> None:
    """A file that had tables gets our mark unless it has another, and both are read as ours."""
    path = tmp_path / "host.db"
    host(path, f"PRAGMA application_id = {theirs}", "CREATE TABLE invoice (id INTEGER)")

    opened(at=path).close()

    with read_only.opened(path) as found:
        assert [(kept,)] == found.rows("PRAGMA application_id")
    assert "a" == backup.read_info(path).agent


@pytest.mark.parametrize("name", [":memory:", "", "file:a.db", "file::memory:?cache=shared"])
def test_a_name_that_is_no_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What SQLite takes for memory or a URI makes no file, and the error names the test's way."""
    monkeypatch.chdir(tmp_path)

    async def open_async() -> None:
        async with AsyncPostbox(name, agent="a", start=False):
            pass

    for opening in (
        lambda: Postbox(name, agent="a", start=False),
        lambda: asyncio.run(open_async()),
        lambda: read_only.opened(name).__enter__(),  # type: ignore[arg-type]  # as a name
    ):
        with pytest.raises(InvalidArgument, match=r"onceward\.testing\.Harness"):
            opening()
    assert [] == list(tmp_path.iterdir())


FROM_NOWHERE = """
import os, sys
from onceward import Postbox
from onceward.errors import StoreUnusable
os.rmdir(os.getcwd())
with Postbox(sys.argv[1], agent='a', start=False) as box:
    print(box.query('SELECT 1'))
try:
    Postbox('a.db', agent='a', start=False)
except StoreUnusable as error:
    print(str(error).rpartition(': ')[2])
"""


def test_a_process_without_its_working_folder_opens_absolute_paths(tmp_path: Path) -> None:
    """A deployment may replace the folder; only relative paths and the project are gone with it."""
    gone = tmp_path / "gone"
    gone.mkdir()

    ran = subprocess.run(
        [*PYTHON, "-c", FROM_NOWHERE, tmp_path / "a.db"],
        cwd=gone, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ["[(1,)]", "give an absolute path"] == ran.stdout.splitlines()


@pytest.fixture
def closed(opened: Open) -> Iterator[Path]:
    """Return an idle file in a folder where this process may read, but create nothing."""
    folder = Path(tempfile.mkdtemp(prefix="onceward-closed-"))
    path = folder / "a.db"
    box = opened(at=path)
    box.send("b", 1)
    box.close()
    path.chmod(0o644)
    folder.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    yield path
    os.seteuid(was)
    shutil.rmtree(folder)


@contextmanager
def as_owner() -> Iterator[None]:
    """Run a block as the user that the tests run as."""
    was = os.geteuid()
    os.seteuid(os.getuid())
    yield
    os.seteuid(was)


def test_an_idle_file_in_a_read_only_folder_is_read(closed: Path) -> None:
    """SQLite would need files beside it; an idle one is read without, and is not changed."""
    before = closed.read_bytes()

    with read_only.opened(closed) as found:
        rows = found.rows("SELECT recipient FROM onceward_outbox")

    assert ([("b",)], "a", before) == (rows, backup.read_info(closed).agent, closed.read_bytes())
    with pytest.raises(ReadOnlyStore, match="fix its permissions"):
        Postbox(closed, agent="a", start=False)


def test_an_idle_file_that_is_written_to_meanwhile_is_not_believed(closed: Path) -> None:
    """Without locks a reader does not notice another mount's writer until it looks again."""
    with pytest.raises(StoreFault, match="read it again"), read_only.opened(closed), as_owner():
        os.utime(closed)


def test_commits_that_cannot_be_read_are_not_left_out(closed: Path) -> None:
    """A WAL with commits beside a file in a read-only folder: refused, not half read."""
    with as_owner():
        closed.parent.chmod(0o755)
        Path(f"{closed}-wal").write_bytes(b"x" * 40)
        closed.parent.chmod(0o555)

    with pytest.raises(ReadOnlyStore), read_only.opened(closed):
        pass


def test_a_path_that_sqlite_cannot_open_is_told_with_its_length(tmp_path: Path) -> None:
    """No permission is at fault; the longest allowed path works."""
    folder = tmp_path / ("a" * 200) / ("b" * 150)
    folder.mkdir(parents=True)
    room = 504 - len(f"{folder}/") - len(".db")
    Postbox(folder / f"{'c' * room}.db", agent="shop", start=False).close()

    with pytest.raises(InvalidArgument, match="the path has 505 bytes, and SQLite opens at"):
        Postbox(folder / f"{'c' * (room + 1)}.db", agent="shop", start=False)


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_side_file_that_appears_while_one_looks_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Another process opens the file between two questions about one of its side files."""
    side, asked = f"{tmp_path}/a.db{end}", os.access

    def access(name: str, mode: int, **options: bool) -> bool:
        found = asked(name, mode, **options)
        if name == side:
            Path(side).touch()
        return found

    monkeypatch.setattr(os, "access", access)

    assert read_only_part(tmp_path / "a.db") is None


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
def test_a_file_that_may_not_be_written_is_named(closed: Path, end: str) -> None:
    """A database or side file with mode 0400 is named, and nothing is created beside it."""
    with as_owner():
        closed.parent.chmod(0o777)
        for each in closed.parent.iterdir():
            each.chmod(0o666)
        if end:
            Path(f"{closed}{end}").touch()
        Path(f"{closed}{end}").chmod(0o444)
    before = sorted(each.name for each in closed.parent.iterdir())

    with pytest.raises(ReadOnlyStore, match=rf"a\.db{end} is read-only: fix its permissions"):
        Postbox(closed, agent="a", start=False)

    assert before == sorted(each.name for each in closed.parent.iterdir())


def test_a_read_only_file_is_read_without_side_files(closed: Path) -> None:
    """Side files would get its mode, and the next opening could not write to them."""
    with as_owner():
        closed.parent.chmod(0o777)

    with read_only.opened(closed) as found:
        rows = found.rows("SELECT recipient FROM onceward_outbox")
    left = sorted(each.name for each in closed.parent.glob("a.db-*"))
    with as_owner():
        closed.chmod(0o666)
    with Postbox(closed, agent="a", start=False) as box:
        again = box.query("SELECT recipient FROM onceward_outbox")

    assert ([("b",)], [], [("b",)]) == (rows, [each for each in left if each != "a.db-run"], again)
