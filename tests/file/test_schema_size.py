"""What a connection has to parse at its first use, and the memory that an open file keeps."""

from pathlib import Path
from typing import Final

import apsw

from onceward import Postbox

TEXT: Final = 62_900
"""Most characters of SQL in a new file; groups, large bodies, takeovers and pools brought 9,000."""
PARSED: Final = 323_000
"""Most bytes that SQLite needs for them, of which tables and indexes take 106,000."""

PAGES: Final = 10_000
"""Most bytes of pages that an opening leaves in memory."""


def test_a_connection_parses_a_bounded_schema(box: Postbox) -> None:
    """The text of the schema and the memory that SQLite needs for it stay within their bounds."""
    con = apsw.Connection(str(box.file.path), flags=apsw.SQLITE_OPEN_READONLY)
    text = sum(len(str(sql or "")) for (sql,) in con.execute("SELECT sql FROM sqlite_schema"))
    parsed, _ = con.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)
    con.close()

    assert text <= TEXT, text
    assert parsed <= PARSED, parsed


def test_an_opening_releases_the_pages_that_it_read(tmp_path: Path) -> None:
    """The pages from which the schema was parsed are not kept beside what was parsed."""
    Postbox(tmp_path / "a.db", agent="a", start=False).close()
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        con = box._db._con
        assert con is not None
        pages, _ = con.status(apsw.SQLITE_DBSTATUS_CACHE_USED)

    assert PAGES >= pages, pages
