"""``schema/README.md`` and ``schema/DIRECTORY.md`` describe every table, view and column."""

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from onceward import Postbox
from onceward.features.history.upkeep import switch

ROOT = Path(__file__).parents[2]
PAGES = {"a.db": "README.md", "directory.db": "DIRECTORY.md"}
Described = tuple[apsw.Connection, str]


@pytest.fixture(scope="module", params=PAGES)
def file(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Described]:
    """Return a connection to a new agent's file or home's directory, and the page about it."""
    folder = tmp_path_factory.mktemp("schema")
    with Postbox(folder / "a.db", agent="a", start=False) as box:
        box.agents.register()
        con = apsw.Connection(str(folder / request.param), apsw.SQLITE_OPEN_READONLY)
        yield con, _text(PAGES[request.param])
        con.close()


def _text(page: str) -> str:
    return (ROOT / "schema" / page).read_text(encoding="utf-8")


def _described(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the documented columns, in their order, by (kind, name)."""
    found: dict[tuple[str, str], list[str]] = {}
    kind = ""
    for line in text.splitlines():
        if line in {"## Tables", "## Views"}:
            kind = line.removeprefix("## ").removesuffix("s").lower()
        elif line.startswith("### "):
            found[kind, line.removeprefix("### ")] = []
        elif kind and (match := re.match(r"- `(\w+)`: \S.*\.$", line)):
            found[next(reversed(found))].append(match[1])
    return found


def _columns(con: apsw.Connection, name: str) -> list[str]:
    return [
        str(column) for (column,) in con.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))
    ]


def test_every_column_is_described(file: Described) -> None:
    """The page and a new file have the same tables and views, with columns in the same order."""
    con, text = file
    relations = con.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    real = {(str(kind), str(name)): _columns(con, str(name)) for kind, name in relations.fetchall()}

    assert real == _described(text)


@pytest.mark.parametrize("page", PAGES.values())
def test_every_table_says_what_it_is(page: str) -> None:
    """Under each heading stands a sentence before the columns."""
    parts = re.split(r"^### ", _text(page), flags=re.MULTILINE)[1:]

    assert [] == [
        part.partition("\n")[0] for part in parts if not re.match(r"\w+\n\n[A-Z].*\.\n\n- `", part)
    ]


def test_the_trail_adds_triggers_only(tmp_path: Path) -> None:
    """Switching the transitions on and off leaves tables and views as the page describes them."""
    sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        before = box._db.read(sql)
        switch(box._db, on=True)
        during = box._db.read(sql)
        switch(box._db, on=False)

        assert (before, before) == (during, box._db.read(sql))


VIEW = re.compile(r"\bviews? `([a-z_]+)`|(?:FROM|JOIN|INTO) (onceward_[a-z_]+)")
VIEWS = re.compile(r"^CREATE VIEW (onceward_[a-z_]+)", re.MULTILINE)
INTEGRATIONS = ROOT / "src" / "onceward" / "integrations"
"""Their views are made by their first use."""
PROSE = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]


def test_every_view_that_is_named_exists() -> None:
    """Pages and examples call a view as the file does, where ``onceward sql`` is not in between."""
    made = [ROOT / "schema" / "0001_initial.sql", *INTEGRATIONS.rglob("*.py")]
    there = {name for each in made for name in VIEWS.findall(each.read_text(encoding="utf-8"))}
    named = [
        (page.name, one or other)
        for page in PROSE
        if page.suffix in {".md", ".py", ".sql"}
        for one, other in VIEW.findall(page.read_text(encoding="utf-8"))
    ]

    assert [] == [(page, name) for page, name in named if name not in there]
    assert len(named) > 15
