"""What a connection has to parse at its first use, in each of the files that are delivered to."""

from typing import Final

import apsw

from onceward import Postbox

TEXT: Final = 50_000
"""Most characters of SQL in a new file."""
PARSED: Final = 300_000
"""Most bytes that SQLite needs for them, of which tables and indexes take 106,000."""


def test_a_connection_parses_a_bounded_schema(box: Postbox) -> None:
    """The text of the schema and the memory that SQLite needs for it stay within their bounds."""
    con = apsw.Connection(str(box.file.path), flags=apsw.SQLITE_OPEN_READONLY)
    text = sum(len(str(sql or "")) for (sql,) in con.execute("SELECT sql FROM sqlite_schema"))
    parsed, _ = con.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)
    con.close()

    assert text <= TEXT, text
    assert parsed <= PARSED, parsed
