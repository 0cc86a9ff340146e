"""A file whose tables were copied is the one that the statements of the schema create."""

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.children import PYTHON, Child
from tests.ready_made import ReadyMade, copied

from onceward import Postbox
from onceward.errors import DiskFull, StoreUnusable
from onceward.file import image
from onceward.file.backup import copy_file
from onceward.file.database import Database
from onceward.file.read_only import FileReader, opened, opened_any
from onceward.message.names import DIRECTORY

SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL ORDER BY name"
PRAGMAS = (
    "application_id", "auto_vacuum", "encoding", "journal_mode", "page_size", "user_version",
)  # fmt: skip
MIGRATIONS = "SELECT version, name, digest, applied_at > 0 FROM _onceward_migrations"
META = "SELECT version, opened, revision FROM meta"
INFO = "SELECT agent, durability, max_pending, max_inbox, max_body, opened FROM _onceward_file_info"


def shape(path: Path) -> dict[str, Any]:
    """Return all of a file but its times, and the token that no two files share."""
    with opened(path) as file:
        return _same(file) | {sql: file.rows(sql) for sql in (MIGRATIONS, INFO)}


def shape_of_home(path: Path) -> dict[str, Any]:
    """Return all of a home's directory but its times."""
    with opened_any(path) as file:
        return _same(file) | {META: file.rows(META)}


def _same(file: FileReader) -> dict[str, Any]:
    return {
        SCHEMA: file.rows(SCHEMA),
        **{name: file.rows(f"PRAGMA {name}") for name in PRAGMAS},
        **{name: file.rows(f"SELECT count(*) FROM {name}") for (name,) in file.rows(TABLES)},
    }


KILLED_IN_BETWEEN = """
import os, signal, sys
from onceward.file.database import Database

Database._prepare = lambda self, con: os.kill(os.getpid(), signal.SIGKILL)
Database.open(sys.argv[1], agent="a")
"""


def migrated(path: Path) -> list[tuple[Any, ...]]:
    """Return the steps of a file, and whether their times are known."""
    with opened(path) as file:
        return file.rows("SELECT version, applied_at > 0 FROM _onceward_migrations")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each file that had no tables was found empty under its lock."""
    found, look = list[bool](), image._is_empty

    def told(con: apsw.Connection, page: int) -> bool:
        found.append(look(con, page))
        return found[-1]

    monkeypatch.setattr(image, "_is_empty", told)
    return found


def created(folder: Path) -> tuple[Any, ...]:
    """Create an agent's file and a home's directory in a new folder; return both, and the id."""
    folder.mkdir()
    with Postbox(folder / "a.db", agent="a", start=False) as box:
        file_id = box._db.file_id
    return shape(folder / "a.db"), shape_of_home(folder / DIRECTORY), file_id


def test_pages_that_were_freed_are_made_again(tmp_path: Path) -> None:
    """A file that is created afterwards is like the one before."""
    one = created(tmp_path / "one")
    image.forget()
    assert 0 == image._pages.cache_info().currsize
    two = created(tmp_path / "two")

    assert one[:2] == two[:2]


def test_a_copy_is_what_the_statements_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[bool], ready_made: ReadyMade
) -> None:
    """It has the same tables, rows, marks and settings, as have the files that tests write."""
    one, two = created(tmp_path / "one"), created(tmp_path / "two")
    with copied(ready_made):
        written = created(tmp_path / "written")
    assert [True] * 4 == copies
    monkeypatch.setattr(image, "copy_tables", lambda _con, _create: None)
    by_statements = created(tmp_path / "by statements")

    assert by_statements[:2] == one[:2] == two[:2] == written[:2]
    assert 4 == len({made[2] for made in (one, two, written, by_statements)})


@pytest.mark.parametrize("checkpointed", [False, True])
def test_nothing_is_copied_over_what_another_process_has_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[bool], *, checkpointed: bool
) -> None:
    """Its commits are in the WAL, or in the file already; none of them is lost."""
    copy = image.copy_tables

    def late(con: apsw.Connection, create: image.CreateTables) -> None:
        with closing(apsw.Connection(con.filename)) as other:
            other.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (7)")
            if checkpointed:
                other.wal_checkpoint(None, apsw.SQLITE_CHECKPOINT_TRUNCATE)
            copy(con, create)

    monkeypatch.setattr(image, "copy_tables", late)
    db = Database.open(tmp_path / "a.db", agent="a")
    theirs = db.read("SELECT x FROM theirs")
    db.close()

    assert ([False], [(7,)]) == (copies, theirs)
    assert [(1, 1)] == migrated(tmp_path / "a.db")


def test_a_file_of_another_page_size_is_created_by_statements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[bool]
) -> None:
    """A VFS may ask for one, or keep bytes of each page for itself."""
    with closing(apsw.Connection(":memory:")) as other:
        other.execute("PRAGMA page_size = 1024; CREATE TABLE mine (x)")
        small = other.serialize("main")
    monkeypatch.setattr(image, "pages", lambda _: small)

    Database.open(tmp_path / "a.db", agent="a").close()

    assert ([], [(1, 1)]) == (copies, migrated(tmp_path / "a.db"))


def test_a_full_disk_leaves_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the copy is in it; with room, the next opening creates the tables."""
    look = image._is_empty

    def full(con: apsw.Connection, page: int) -> bool:
        assert look(con, page)
        raise apsw.FullError

    monkeypatch.setattr(image, "_is_empty", full)
    with pytest.raises(DiskFull):
        Database.open(tmp_path / "a.db", agent="a")
    monkeypatch.setattr(image, "_is_empty", look)
    with opened_any(tmp_path / "a.db") as file:
        assert [] == file.rows(SCHEMA)

    Database.open(tmp_path / "a.db", agent="a").close()

    assert [(1, 1)] == migrated(tmp_path / "a.db")


@pytest.mark.broken("its process was killed")
def test_a_file_without_an_owner_gets_one(tmp_path: Path) -> None:
    """A kill after the copy leaves tables only; readers say so, and the next opening goes on."""
    path = tmp_path / "a.db"
    with Child([*PYTHON, "-c", KILLED_IN_BETWEEN, path], "stdout") as child:
        child.ended()
    assert Path(f"{path}-wal").stat().st_size

    with pytest.raises(StoreUnusable, match="does not belong to an agent yet"):
        Database.open(path)
    with pytest.raises(StoreUnusable, match="is not an agent's file"):
        copy_file(path, tmp_path / "copy")
    with pytest.raises(StoreUnusable, match="is not an agent's file"), opened(path):
        pass
    Postbox(path, agent="b", start=False).close()

    assert [(1, 1)] == migrated(path)


def test_commits_after_the_copy_are_synced(tmp_path: Path) -> None:
    """The copy alone is not."""
    db = Database.open(tmp_path / "a.db", agent="a")
    with db.writer.exclusive() as con:
        level = con.execute("PRAGMA synchronous").fetchall()
    db.close()

    assert [(2,)] == level
