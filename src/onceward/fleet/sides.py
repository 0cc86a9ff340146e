"""
Keep the evidence of a workspace: a table for each side of plain messages, and one for the rest.

A table of a side has one row of a message at most, and is ordered by message, so that the sides
are joined without an index. A second row of a message, as of another copy of its file, goes to
``others`` with all rows that came with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import apsw

from onceward.fleet.evidence import COLUMNS
from onceward.fleet.states import INBOX, MARK, OUTBOX
from onceward.fleet.verdict_sql import KEY

TABLES: Final[Mapping[str, str]] = {str(OUTBOX): "sent", str(INBOX): "taken", str(MARK): "marked"}
"""The tables of the sides of plain messages, by the SQL of the side."""
OTHERS: Final = "others"
ALL: Final = (*TABLES.values(), OTHERS)
VIEW: Final = "evidence"
"""All rows of all tables."""
ROWS: Final = tuple(name for name in COLUMNS if name != "side")
CREATE: Final = (
    *(
        f"CREATE TEMP TABLE {name} ({', '.join(ROWS)}, PRIMARY KEY ({', '.join(KEY)}))"
        " WITHOUT ROWID"
        for name in TABLES.values()
    ),
    f"CREATE TEMP TABLE {OTHERS} ({', '.join(COLUMNS)})",
)
UNION: Final = " UNION ALL ".join(
    f"SELECT {side} AS side, {', '.join(ROWS)} FROM temp.{table}"
    for side, table in (*TABLES.items(), ("side", OTHERS))
)
PUT: Final = "INSERT INTO temp.{table} ({names}) SELECT {columns} FROM {rows}"
REMOVE: Final = "DELETE FROM temp.{table} WHERE file = ?"
EMPTY: Final = "DELETE FROM temp.{table}"
Told = Mapping[str, str]
"""SQL of each column of evidence."""
Named = Mapping[str, object]
"""Values of SQL, by name."""


def create(con: apsw.Connection) -> None:
    """Create the tables of a workspace, and the view of all their rows."""
    for sql in CREATE:
        con.execute(sql)
    con.execute(f"CREATE TEMP VIEW {VIEW} AS {UNION}")


def put(con: apsw.Connection, said: Told, rows: str, named: Named) -> None:
    """Add *rows*, which are SQL after FROM, as *said*."""
    table = TABLES.get(said["side"], OTHERS)
    try:
        put_into(con, table, said, rows, named)
    except apsw.ConstraintError:
        put_into(con, OTHERS, said, rows, named)


def put_into(con: apsw.Connection, table: str, said: Told, rows: str, named: Named) -> None:
    """Add *rows* to one table, as ``put``."""
    names = ROWS if table in TABLES.values() else COLUMNS
    columns = ", ".join(said[name] for name in names)
    sql = PUT.format(table=table, names=", ".join(names), columns=columns, rows=rows)
    con.execute(sql, dict(named))


def merge(con: apsw.Connection, table: str) -> None:
    """Add all rows of a temporary table with the columns of evidence."""
    known = {name: name for name in COLUMNS}
    for side in TABLES:
        put(con, known | {"side": side}, f"temp.{table} WHERE side = {side}", {})
    put(con, known, f"temp.{table} WHERE side NOT IN ({', '.join(TABLES)})", {})


def remove(con: apsw.Connection, file: int) -> None:
    """Remove the rows of all copies of a file."""
    for table in ALL:
        con.execute(REMOVE.format(table=table), (file,))


def empty(con: apsw.Connection) -> None:
    """Remove all rows."""
    for table in ALL:
        con.execute(EMPTY.format(table=table))
