"""``schema/README.md`` describes the real file: every table, every view and every column, and nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from onceward import Postbox
from onceward.trail import switch

ROOT = Path(__file__).parents[2]
README = ROOT / "schema" / "README.md"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """Return a connection to a new agent's file."""
    path = tmp_path_factory.mktemp("schema") / "a.db"
    with Postbox(path, agent="a", run=False):
        con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        yield con
        con.close()


def _described() -> dict[tuple[str, str], list[str]]:
    """Return the documented columns, in their order, by (kind, name)."""
    found: dict[tuple[str, str], list[str]] = {}
    kind = ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line in {"## Tables", "## Views"}:
            kind = line.removeprefix("## ").removesuffix("s").lower()
        elif line.startswith("### "):
            found[kind, line.removeprefix("### ")] = []
        elif kind and (match := re.match(r"- `(\w+)`: \S.*\.$", line)):
            found[next(reversed(found))].append(match[1])
    return found


def _columns(file: apsw.Connection, name: str) -> list[str]:
    return [str(column) for (column,) in file.execute("SELECT name FROM pragma_table_info(?)", (name,))]


def test_every_column_is_described(file: apsw.Connection) -> None:
    """The page and a new file agree on tables and views, on their columns and on the order of these."""
    relations = file.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    real = {(str(kind), str(name)): _columns(file, str(name)) for kind, name in relations.fetchall()}

    assert real == _described()


def test_every_table_says_what_it_is() -> None:
    """Under each heading stands a sentence before the columns."""
    parts = re.split(r"^### ", README.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]

    assert [] == [part.partition("\n")[0] for part in parts if not re.match(r"\w+\n\n[A-Z].*\.\n\n- `", part)]


def test_the_trail_adds_triggers_only(tmp_path: Path) -> None:
    """Switching the trail on and off leaves tables and views as the page describes them."""
    sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
    with Postbox(tmp_path / "a.db", agent="a", run=False) as box:
        before = box.db.read(sql)
        switch(box.db, on=True)
        during = box.db.read(sql)
        switch(box.db, on=False)

        assert (before, before) == (during, box.db.read(sql))
