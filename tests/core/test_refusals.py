"""Refusals: what cannot be a postbox raises one kind of error, and every byte stays as it was."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.errors import (
    ForeignHandle,
    InvalidMessage,
    SchemaMismatch,
    SqliteTooOld,
    StoreCorrupt,
    StoreUnusable,
    WrongAgent,
)
from onceward.file.connection import check_version

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


def host(path: Path, *statements: str) -> None:
    """Make a database of another program."""
    con = sqlite3.connect(path)
    for sql in statements:
        con.execute(sql)
    con.commit()
    con.close()


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE TABLE _onceward_outbox (x)",
        "CREATE TABLE _OnceWard_OutBox (x)",
        "CREATE VIEW onceward_send AS SELECT 1 AS x",
        "CREATE TABLE _onceward_migrations (v)",
        "CREATE TABLE _ONCEWARD_MIGRATIONS (v)",
        "CREATE TABLE q (x); CREATE INDEX _onceward_outbox_key ON q (x)",
        "CREATE TABLE onceward_inbox (x)",
        (
            "CREATE TABLE q (x);"
            " CREATE TRIGGER _onceward_outbox_guard AFTER INSERT ON q BEGIN SELECT 1; END"
        ),
    ],
)
def test_a_host_that_uses_our_names_is_refused_untouched(tmp_path: Path, taken: str) -> None:
    """
    A table, view, index or trigger of our name in any case is a mismatch.

    The file stays byte for byte as it was.
    """
    path = tmp_path / "host.db"
    con = sqlite3.connect(path)
    con.executescript(taken)
    con.close()
    before = path.read_bytes()

    with pytest.raises(SchemaMismatch):
        Postbox(path, agent="a", start=False)

    assert (before, ["host.db"]) == (
        path.read_bytes(),
        sorted(each.name for each in tmp_path.iterdir()),
    )


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_database_is_refused_untouched(tmp_path: Path, data: bytes) -> None:
    """Garbage, cut-off headers and zeros are corrupt, and stay as they were for a recovery."""
    path = tmp_path / "a.db"
    path.write_bytes(data)

    with pytest.raises(StoreCorrupt):
        Postbox(path, agent="a", start=False)

    assert (data, ["a.db"]) == (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir()))


def test_a_file_cut_in_the_middle_is_refused_untouched(opened: Open, tmp_path: Path) -> None:
    """A database that lost its second half is corrupt, and is not repaired without the operator."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        box.send_many([("b", "x" * 1000)] * 50)
    whole = box.file.path.read_bytes()
    box.file.path.write_bytes(whole[: len(whole) // 2 - 1000])

    with pytest.raises(StoreCorrupt):
        opened(at=box.file.path)

    assert whole[: len(whole) // 2 - 1000] == box.file.path.read_bytes()


@pytest.mark.parametrize("data", [b"", None], ids=["empty", "host"])
def test_a_file_that_is_nobodys_is_not_adopted_without_a_name(
    tmp_path: Path, data: bytes | None
) -> None:
    """Without an agent's name nothing is made of a file that has none, and it stays as it is."""
    path = tmp_path / "x.db"
    if data is None:
        host(path, "CREATE TABLE t (x)")
    else:
        path.write_bytes(data)
    before = path.read_bytes()

    with pytest.raises(StoreUnusable, match="agent"):
        Postbox(path, start=False)

    assert (before, ["x.db"]) == (
        path.read_bytes(),
        sorted(each.name for each in tmp_path.iterdir()),
    )


def test_a_file_that_does_not_exist_needs_a_name(tmp_path: Path) -> None:
    """Opening an agent's file by a mistyped path creates nothing."""
    with pytest.raises(StoreUnusable):
        Postbox(tmp_path / "a.db", start=False)

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("still_open", [True, False])
def test_the_wrong_agent_is_refused(opened: Open, still_open: bool) -> None:
    """A file opens under its own name only, whether this process has it open already or not."""
    box = opened()
    if not still_open:
        box.close()

    with pytest.raises(WrongAgent, match="'a', not 'b'"):
        Postbox(box.file.path, agent="b", start=False)

    assert [] == opened().file.check()


@pytest.mark.parametrize("name", ["", "all", "a b", "../a", "a\n"])
def test_an_agent_must_bear_a_legal_name_at_birth(tmp_path: Path, name: str) -> None:
    """No file is made for an agent that no agent could write to."""
    with pytest.raises(InvalidMessage):
        Postbox(tmp_path / "a.db", agent=name, start=False)

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


def _dangling_link(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "moved.db")
    return tmp_path / "link"


def _endless_name(tmp_path: Path) -> Path:
    return tmp_path / ("x" * 300)


def _nul(tmp_path: Path) -> Path:
    return Path(f"{tmp_path}/a\0b")


def _pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "p")
    return tmp_path / "p"


def _hard_link(tmp_path: Path) -> Path:
    Postbox(tmp_path / "a.db", agent="a", start=False).close()
    (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")
    return tmp_path / "b.db"


@pytest.mark.parametrize(
    "make",
    [
        _missing_folder,
        _folder,
        _below_a_file,
        _symlink_loop,
        _dangling_link,
        _endless_name,
        _nul,
        _pipe,
        _hard_link,
    ],
)
def test_places_that_cannot_hold_a_file_are_refused(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    """
    A path that cannot be a database of its own raises the same kind of error.

    It is never a bare OSError.
    """
    with pytest.raises(StoreUnusable):
        Postbox(make(tmp_path), agent="a", start=False)


def _by_os(path: Path) -> Callable[[], None]:
    handle = os.open(path, os.O_RDONLY)
    return lambda: os.close(handle)


def _by_sqlite3(path: Path) -> Callable[[], None]:
    con = sqlite3.connect(path)
    con.execute("SELECT count(*) FROM _onceward_outbox").fetchall()
    return con.close


@pytest.mark.parametrize("hold", [_by_os, _by_sqlite3])
def test_a_foreign_handle_in_this_process_is_refused(
    opened: Open, tmp_path: Path, hold: Callable[[Path], Callable[[], None]]
) -> None:
    """
    A descriptor that is not ours would drop our locks when it closes.

    Once it is closed, the file opens.
    """
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        path = box.file.path
    release = hold(path)
    try:
        with pytest.raises(ForeignHandle):
            Postbox(path, agent="a", start=False)
    finally:
        release()

    assert [] == opened().file.check()


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("3.40.1", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.52.0", False),
        ("3.52.1", True),
        ("3.53.0", True),
        ("4.0.0", True),
    ],
)
def test_sqlite_with_known_bugs_is_refused(version: str, good: bool) -> None:
    """Libraries that may damage a WAL are refused, not warned about."""
    if good:
        check_version(version)
        return
    with pytest.raises(SqliteTooOld, match=version):
        check_version(version)
