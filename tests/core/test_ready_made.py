"""Where tests copy a new file instead of creating it, the file is the one that users get."""

from pathlib import Path
from typing import Any

from tests.ready_made import ReadyMade, copied

from onceward import Postbox
from onceward.file.read_only import FileReader, opened, opened_any
from onceward.message.names import DIRECTORY

SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL ORDER BY name"
PRAGMAS = (
    "application_id", "auto_vacuum", "encoding", "journal_mode", "page_size", "user_version",
)  # fmt: skip
MIGRATIONS = "SELECT version, name, digest FROM _onceward_migrations"
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


def test_a_copied_file_is_the_one_that_an_opening_creates(
    tmp_path: Path, ready_made: ReadyMade
) -> None:
    """It has the same tables, rows, marks and settings, and a token of its own."""
    paths = [tmp_path / folder / "a.db" for folder in ("created", "copied", "again")]
    for path in paths:
        path.parent.mkdir()
    ids = set[str]()
    with Postbox(paths[0], agent="a", start=False) as box:
        ids.add(box._db.file_id)
    with copied(ready_made):
        for path in paths[1:]:
            with Postbox(path, agent="a", start=False) as box:
                ids.add(box._db.file_id)

    assert shape(paths[0]) == shape(paths[1])
    assert shape_of_home(paths[0].with_name(DIRECTORY)) == shape_of_home(
        paths[1].with_name(DIRECTORY)
    )
    assert 3 == len(ids)
