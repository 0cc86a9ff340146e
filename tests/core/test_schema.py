"""The schema itself: one file, each object made once."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw

from onceward import Postbox
from onceward.file import migrations

CHANGES = re.compile(r"^\s*(?:ALTER|DROP)\b", re.MULTILINE)
INDEXES = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"


def _normalised(definition: str) -> str:
    """Return what an index holds, without its name, spelled in one way."""
    return re.sub(r"\s+", " ", definition.partition(" ON ")[2]).strip().lower()


def test_no_two_indexes_are_the_same(box: Postbox) -> None:
    """An index that repeats another would be maintained by every write and read by none."""
    held = Counter(_normalised(sql) for (sql,) in box._db.read(INDEXES))

    assert [] == [each for each, times in held.items() if times > 1]


def test_the_comparison_sees_a_repeated_index() -> None:
    """Names, case and spacing do not hide a duplicate."""
    con = apsw.Connection(":memory:")
    con.execute("CREATE TABLE t (x, y); CREATE INDEX a ON t (x, y) WHERE x IS NOT NULL")
    con.execute("CREATE INDEX b ON  T  (x,\n y) WHERE x is not NULL")

    assert 1 == len({_normalised(sql) for (sql,) in con.execute(INDEXES)})


def test_the_schema_is_one_step_that_changes_nothing() -> None:
    """Until the first release every object is created once, in its final shape."""
    [step] = migrations.migrations()

    assert (1, "0001_initial", []) == (step.version, step.name, CHANGES.findall(step.sql))


def test_the_file_is_one_that_old_sqlite_reads(
    box: Postbox, shell: Callable[[Path, str], str]
) -> None:
    """The machine's own shell, whose SQLite is years older, can read every table and view."""
    box.send("b", 1)
    names = [
        name
        for (name,) in box._db.read(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
        )
    ]

    assert dict.fromkeys(names, "1") == {
        name: shell(box.file.path, f'SELECT count(*) >= 0 FROM "{name}"') for name in names
    }
