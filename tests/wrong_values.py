"""Put values into tables that these cannot hold, as a damaged page does."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import apsw

from onceward.file.last_seen import LastSeen

TABLES = """
SELECT name FROM pragma_table_list
 WHERE schema = 'main' AND type = 'table' AND strict AND name GLOB '_onceward_*' ORDER BY name
"""
COLUMNS = "SELECT name, type FROM pragma_table_info(?)"
DEFINED = "SELECT sql FROM sqlite_schema WHERE name = ?"
REDEFINE = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
TRIGGERS = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?"
DUMMIES = {"TEXT": "x", "INTEGER": 1, "BLOB": b"x", "REAL": 1.0}
NOT_UTF8 = object()
"""A text whose bytes are not UTF-8."""
Column = tuple[str, str, str]
"""Table, column and declared type."""


def columns(path: Path) -> list[Column]:
    """Return every typed column of our tables."""
    con = _connect(path)
    found = [
        (str(table), str(name), str(kind))
        for (table,) in con.execute(TABLES).fetchall()
        for name, kind in con.execute(COLUMNS, (table,))
    ]
    con.close()
    return found


def fill(path: Path) -> None:
    """Put a row into each empty table that takes one of dummies."""
    con = apsw.Connection(str(path))
    for (table,) in con.execute(TABLES).fetchall():
        kinds = [kind for _, kind in con.execute(COLUMNS, (table,))]
        row = [DUMMIES[kind] for kind in kinds]
        places = ", ".join("?" * len(row))
        with suppress(apsw.ConstraintError):
            con.execute(
                f"INSERT INTO {table} SELECT {places} WHERE NOT EXISTS (SELECT 1 FROM {table})", row
            )
    con.close()


def put(path: Path, table: str, column: str, value: object) -> int:
    """Put *value* into a column of all rows; return how many rows have it now."""
    con = _connect(path)
    whole = str(con.execute(DEFINED, (table,)).get)
    triggers = con.execute(TRIGGERS, (table,)).fetchall()
    for name, _ in triggers:
        con.execute(f"DROP TRIGGER {name}")
    con = _redefined(con, path, table, _loosened(whole, column))
    try:
        if value is NOT_UTF8:
            con.execute(f"UPDATE {table} SET {column} = CAST(x'ff' AS TEXT)")
        else:
            con.execute(f"UPDATE {table} SET {column} = ?", (value,))
        changed = con.changes()
    except (apsw.ConstraintError, apsw.MismatchError):  # of a key
        changed = 0
    for _, sql in triggers:
        con.execute(str(sql))
    _redefined(con, path, table, whole).close()
    _note_as_left(path)
    return changed


def _note_as_left(path: Path) -> None:
    """Note the file as it is now, so that its next opening does not take it for a restored one."""
    seen = LastSeen(path)
    noted = seen._read()
    if noted is not None:
        inode, changed_at, size = seen._left
        seen._write(noted._replace(inode=inode, changed_at=changed_at, size=size))


def _loosened(sql: str, column: str) -> str:
    """Return the definition of a table whose columns hold any value."""
    sql = re.sub(r"\)\s*STRICT\s*$", ")", sql)
    sql = re.sub(r"\)\s*STRICT, WITHOUT ROWID\s*$", ") WITHOUT ROWID", sql)
    sql = re.sub(r"(\b(?:INTEGER|TEXT|BLOB|REAL)\s+)NOT NULL", r"\1", sql)
    return re.sub(
        rf"(\b{column}\b\s+)(INTEGER|TEXT|BLOB|REAL)(?!\s+PRIMARY)", r"\1BLOB", sql, count=1
    )


def _redefined(con: apsw.Connection, path: Path, table: str, sql: str) -> apsw.Connection:
    con.pragma("writable_schema", 1)
    con.execute(REDEFINE, (sql, table))
    con.close()
    return _connect(path)


def _connect(path: Path) -> apsw.Connection:
    con = apsw.Connection(str(path))
    con.pragma("ignore_check_constraints", 1)
    return con
