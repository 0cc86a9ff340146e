"""The types of the fleet's tables."""

from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fleet.planted import plant

from onceward.fleet.columns import GIVEN, ON_REQUEST, tables, views

STORED: dict[Any, set[str]] = {
    "text": {"string"},
    "integer": {"bigint", "timestamp"},
    "real": {"double"},
}
"""Types of columns by that of a value."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an agent's file, not to be changed."""
    return plant(tmp_path_factory.mktemp("planted") / "carol.db")


@pytest.mark.parametrize("name", views())
def test_a_column_has_the_type_of_its_values(planted: Path, name: str) -> None:
    """A column that a view computes has no declared type: its values have one."""
    con = apsw.Connection(str(planted), flags=apsw.SQLITE_OPEN_READONLY)
    columns = tables()[name].columns
    read = [one for one in columns if one not in GIVEN | ON_REQUEST]
    kinds = ", ".join(f'typeof("{one}")' for one in read)
    rows = con.execute(f"SELECT {kinds} FROM {views()[name]}").fetchall()
    con.close()

    assert rows
    wrong = {
        (column, columns[column], stored)
        for row in rows
        for column, stored in zip(read, row, strict=True)
        if stored != "null" and columns[column] not in STORED[stored]
    }
    assert not wrong
