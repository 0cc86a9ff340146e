"""Change what a view of an agent's file has, as another version's schema would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

SQL = "SELECT sql FROM sqlite_schema WHERE name = 'onceward_outbox'"
DROP = "DROP VIEW onceward_outbox"


@contextmanager
def outbox_with(path: Path, column: str) -> Iterator[None]:
    """Let the outbox of a file have one more column while the block runs."""
    with closing(apsw.Connection(str(path))) as con:
        [(sql,)] = con.execute(SQL).fetchall()
        con.execute(DROP)
        changed = str(sql).replace(" held_by,", f" held_by, {column},")
        assert changed != sql
        con.execute(changed)
    try:
        yield
    finally:
        with closing(apsw.Connection(str(path))) as con:
            con.execute(DROP)
            con.execute(str(sql))
