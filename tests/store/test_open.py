"""Opening: what becomes a postbox, what is refused, and that a refusal leaves every byte as it was."""

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from onceward import Postbox
from onceward.connect import PRAGMAS, check_version
from onceward.db import APPLICATION_ID
from onceward.errors import (
    ForeignHandle,
    InvalidMessage,
    SchemaMismatch,
    SqliteTooOld,
    StoreClosed,
    StoreCorrupt,
    StoreUnusable,
    WrongAgent,
)

Open = Callable[..., Postbox]
HEADER = b"SQLite format 3\0" + b"\x10\0\1\1\0@  "
BROKEN = {
    "text": b"hello world\n" * 500,
    "short text": b"hello",
    "header cut off": HEADER[:18],
    "header alone": HEADER + b"\0" * 76,
    "zeros": b"\0" * 4096,
    "few zeros": b"\0" * 10,
    "header and garbage": HEADER + b"\xff" * 8192,
}


def modes(path: Path) -> dict[str, int]:
    """Return the permissions of all files beside *path*, itself included."""
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}


def host(path: Path, *statements: str) -> None:
    """Make somebody else's database."""
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

    assert {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600} == modes(box.path)


def test_a_new_file_is_marked_as_ours(box: Postbox) -> None:
    """A file that we make carries our application id, and no version that a host might want to use."""
    con = box._db._con
    assert con is not None

    assert (APPLICATION_ID, 0) == (con.pragma("application_id"), con.pragma("user_version"))


def test_every_connection_has_our_pragmas(box: Postbox) -> None:
    """Both connections read back what was set on them, whatever the application set for its own."""
    for con in (box._db._con, box._db._reader):
        assert con is not None
        wanted = {line.split()[1]: line.split()[3] for line in PRAGMAS}
        found = {name: str(con.pragma(name)) for name in wanted}

        assert {name: {"OFF": "0", "ON": "1", "MEMORY": "2"}.get(value, value) for name, value in wanted.items()} == found
        assert ("wal", 1, 0) == (
            con.pragma("journal_mode"),
            con.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1),
            con.config(apsw.SQLITE_DBCONFIG_DQS_DML, -1),
        )


@pytest.mark.parametrize(("durability", "level"), [("safe", 2), ("fast", 1)])
def test_the_durability_class_is_the_sync_level(opened: Open, durability: str, level: int) -> None:
    """Safe files sync at every commit, fast ones at checkpoints; the class is written in the file."""
    box = opened(durability=durability)
    con = box._db._con
    assert con is not None

    assert level == con.pragma("synchronous")
    assert [(durability,)] == box._db.read("SELECT durability FROM identity")


def test_a_host_database_keeps_what_is_its_own(opened: Open, tmp_path: Path) -> None:
    """Opened as a postbox, a host's file keeps its ids, tables and rows, and both parties work on in one transaction."""
    path = tmp_path / "host.db"
    host(path, "PRAGMA application_id = 77", "PRAGMA user_version = 5", "CREATE TABLE invoice (id INTEGER)", "INSERT INTO invoice VALUES (1)")

    box = opened(at=path)
    with box.begin() as tx:
        tx.execute("INSERT INTO invoice VALUES (2)")
        tx.send("b", {"invoice": 2})

    con = box._db._con
    assert con is not None
    assert (77, 5) == (con.pragma("application_id"), con.pragma("user_version"))
    assert ([(1,), (2,)], 1, []) == (box._db.read("SELECT id FROM invoice"), box.stats()["pending"], box.check())


@pytest.mark.parametrize("text", ["UTF-16le", "UTF-16be"])
def test_a_host_database_in_another_encoding_works(opened: Open, tmp_path: Path, text: str) -> None:
    """Frames survive a file that stores its text as UTF-16."""
    path = tmp_path / "host.db"
    host(path, f"PRAGMA encoding = '{text}'", "CREATE TABLE t (x)")

    box = opened(at=path)
    box.send("b", "grün 😀")

    assert (["grün 😀"], []) == ([past.body for past in box.history().messages], box.check())


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE TABLE outbox (x)", "CREATE TABLE OutBox (x)", "CREATE VIEW send AS SELECT 1 AS x", "CREATE TABLE schema_migrations (v)",
        "CREATE TABLE SCHEMA_MIGRATIONS (v)", "CREATE TABLE q (x); CREATE INDEX outbox_key ON q (x)", "CREATE TABLE inbox_view (x)",
        "CREATE TABLE q (x); CREATE TRIGGER outbox_guard AFTER INSERT ON q BEGIN SELECT 1; END",
    ],
)  # fmt: skip
def test_a_host_that_uses_our_names_is_refused_untouched(tmp_path: Path, taken: str) -> None:
    """A table, view, index or trigger of our name in any case is a mismatch, and the file stays byte for byte as it was."""
    path = tmp_path / "host.db"
    con = sqlite3.connect(path)
    con.executescript(taken)
    con.close()
    before = path.read_bytes()

    with pytest.raises(SchemaMismatch):
        Postbox(path, agent="a", run=False)

    assert (before, ["host.db"]) == (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir()))


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_database_is_refused_untouched(tmp_path: Path, data: bytes) -> None:
    """Garbage, cut-off headers and zeros are corrupt, and stay as they were for whoever wants to recover them."""
    path = tmp_path / "a.db"
    path.write_bytes(data)

    with pytest.raises(StoreCorrupt):
        Postbox(path, agent="a", run=False)

    assert (data, ["a.db"]) == (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir()))


def test_a_file_cut_in_the_middle_is_refused_untouched(opened: Open, tmp_path: Path) -> None:
    """A database that lost its second half is corrupt; it is not repaired behind the operator's back."""
    with Postbox(tmp_path / "a.db", agent="a", run=False, hold_unknown=True) as box:
        box.send_many([("b", "x" * 1000)] * 50)
    whole = box.path.read_bytes()
    box.path.write_bytes(whole[: len(whole) // 2 - 1000])

    with pytest.raises(StoreCorrupt):
        opened(at=box.path)

    assert whole[: len(whole) // 2 - 1000] == box.path.read_bytes()


def test_an_empty_file_becomes_a_postbox(opened: Open, tmp_path: Path) -> None:
    """A file of no bytes is what a crash right after creation leaves, so it may be used."""
    (tmp_path / "a.db").touch()

    assert [] == opened().check()


@pytest.mark.parametrize("data", [b"", None], ids=["empty", "host"])
def test_a_file_that_is_nobodys_is_not_adopted_without_a_name(tmp_path: Path, data: bytes | None) -> None:
    """Without an agent's name nothing is made of a file that has none, and nothing in it changes."""
    path = tmp_path / "x.db"
    if data is None:
        host(path, "CREATE TABLE t (x)")
    else:
        path.write_bytes(data)
    before = path.read_bytes()

    with pytest.raises(StoreUnusable, match="agent"):
        Postbox(path, run=False)

    assert (before, ["x.db"]) == (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir()))


def test_a_name_is_only_needed_once(opened: Open) -> None:
    """The file remembers whose it is."""
    path = opened().path

    with Postbox(path, run=False) as again:
        assert "a" == again.agent


def test_a_file_that_does_not_exist_needs_a_name(tmp_path: Path) -> None:
    """Opening somebody's file by a mistyped path creates nothing."""
    with pytest.raises(StoreUnusable):
        Postbox(tmp_path / "a.db", run=False)

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("still_open", [True, False])
def test_the_wrong_agent_is_refused(opened: Open, still_open: bool) -> None:
    """A file opens under its own name only, whether this process has it open already or not."""
    box = opened()
    if not still_open:
        box.close()

    with pytest.raises(WrongAgent, match="'a', not 'b'"):
        Postbox(box.path, agent="b", run=False)

    assert [] == opened().check()


@pytest.mark.parametrize("name", ["", "all", "a b", "../a", "a\n"])
def test_an_agent_must_bear_a_legal_name_at_birth(tmp_path: Path, name: str) -> None:
    """No file is made for an agent that nobody could write to."""
    with pytest.raises(InvalidMessage):
        Postbox(tmp_path / "a.db", agent=name, run=False)

    assert [] == list(tmp_path.iterdir())


def _missing_folder(tmp_path: Path) -> Path:
    return tmp_path / "no" / "a.db"


def _folder(tmp_path: Path) -> Path:
    return tmp_path


def _below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "f").touch()
    return tmp_path / "f" / "a.db"


def _symlink_loop(tmp_path: Path) -> Path:
    (tmp_path / "l").symlink_to(tmp_path / "l")
    return tmp_path / "l"


def _endless_name(tmp_path: Path) -> Path:
    return tmp_path / ("x" * 300)


def _nul(tmp_path: Path) -> Path:
    return Path(f"{tmp_path}/a\0b")


def _pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "p")
    return tmp_path / "p"


def _hard_link(tmp_path: Path) -> Path:
    Postbox(tmp_path / "a.db", agent="a", run=False).close()
    (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")
    return tmp_path / "b.db"


@pytest.mark.parametrize("make", [_missing_folder, _folder, _below_a_file, _symlink_loop, _endless_name, _nul, _pipe, _hard_link])
def test_places_that_cannot_hold_a_file_are_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Every path that cannot be a database of its own raises the same kind of error, never a bare OSError."""
    with pytest.raises(StoreUnusable):
        Postbox(make(tmp_path), agent="a", run=False)


def test_symbolic_links_lead_to_one_database(opened: Open, tmp_path: Path) -> None:
    """A link and its target are one file: one writer, one commit."""
    box = opened()
    (tmp_path / "link.db").symlink_to(box.path)

    assert opened(at=tmp_path / "link.db")._db is box._db


@pytest.mark.parametrize("name", ["a%3f#b?x.db", "ü 😀.db", "file:a.db", "a'b\"c.db", "-.db"])
def test_odd_file_names_are_taken_literally(opened: Open, tmp_path: Path, name: str) -> None:
    """No character of a path is read as a part of a URI or an option."""
    box = opened(at=tmp_path / name)
    box.send("b", 1)

    assert {name, f"{name}-wal", f"{name}-shm"} == {each.name for each in tmp_path.iterdir()}


def test_two_postboxes_on_one_file_share_one_database(opened: Open) -> None:
    """The second opening joins the first; the file closes with the last."""
    one, two = opened(), opened()
    one.send("b", 1)
    one.close()
    one.close()

    assert one._db is two._db
    assert 1 == two.stats()["pending"]
    two.close()
    with pytest.raises(StoreClosed):
        two.stats()


def test_the_second_opening_is_heard(opened: Open) -> None:
    """Settings that belong to the file hold from whoever opened it last, also when a neighbour's push had opened it first."""
    opened("b").close()
    sender = opened("a")
    sender.send("b", 1)
    sender.pump()
    receiver = opened("b", max_pending=2)

    assert [(2,)] == receiver._db.read("SELECT max_pending FROM identity")


def _by_os(path: Path) -> Callable[[], None]:
    handle = os.open(path, os.O_RDONLY)
    return lambda: os.close(handle)


def _by_sqlite3(path: Path) -> Callable[[], None]:
    con = sqlite3.connect(path)
    con.execute("SELECT count(*) FROM outbox").fetchall()
    return con.close


@pytest.mark.parametrize("hold", [_by_os, _by_sqlite3])
def test_a_foreign_handle_in_this_process_is_refused(opened: Open, tmp_path: Path, hold: Callable[[Path], Callable[[], None]]) -> None:
    """A descriptor that is not ours would drop our locks when it closes; once it is closed, the file opens."""
    with Postbox(tmp_path / "a.db", agent="a", run=False) as box:
        path = box.path
    release = hold(path)
    try:
        with pytest.raises(ForeignHandle):
            Postbox(path, agent="a", run=False)
    finally:
        release()

    assert [] == opened().check()


def test_the_standard_library_may_read_in_another_process(box: Postbox, elsewhere: Callable[..., list[Any]]) -> None:
    """Other programs open the file at the same time; nothing is lost when they close it."""
    kept = box.send("b", 1)

    assert [[[1]]] == elsewhere(box.path, "SELECT count(*) FROM outbox")
    assert ["pending", "pending"] == [box.resolve(kept), box.resolve(box.send("b", 2))]


@pytest.mark.parametrize(("version", "good"), [("3.40.1", False), ("3.51.2", False), ("3.51.3", True), ("3.52.0", False), ("3.52.1", True), ("3.53.0", True), ("4.0.0", True)])
def test_sqlite_with_known_bugs_is_refused(version: str, good: bool) -> None:
    """Libraries that may damage a WAL are refused, not warned about."""
    if good:
        check_version(version)
        return
    with pytest.raises(SqliteTooOld, match=version):
        check_version(version)
