"""Tell the columns of public views, of a file and of this version's schema."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from typing import Final

import apsw

from onceward.file.migrations import migrations

COLUMNS: Final = "SELECT name, type FROM pragma_table_info(?)"
VIEWS: Final = "SELECT name FROM sqlite_schema WHERE type = 'view'"


def columns_of(con: apsw.Connection, view: str) -> dict[str, str]:
    """Return the declared types of a view's columns; an unknown view has no columns."""
    return {str(name): str(kind) for name, kind in con.execute(COLUMNS, (view,))}


@lru_cache(maxsize=1)
def declared() -> Mapping[str, Mapping[str, str]]:
    """Return the columns of all views of this version, by view."""
    with closing(apsw.Connection(":memory:")) as con:
        for step in migrations():
            con.execute(step.sql)
        return {str(view): columns_of(con, str(view)) for (view,) in con.execute(VIEWS)}
