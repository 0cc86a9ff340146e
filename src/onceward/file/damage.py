"""
Find values that the tables of an agent's file cannot hold, once they have caused an error.

Each table is STRICT, so SQLite writes no value of another type; a damaged page can still hold one.
Checking each value that is read would cost every read, so the tables are examined after an error
that such a value may have caused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.errors import StoreCorrupt
from onceward.message.clock import monotonic

LONGEST: Final = 1.0
"""Maximum seconds of one examination: it may run in the turn to write."""
SOUND_FOR: Final = 60.0
"""Seconds in which a file that was examined without a finding is not examined again."""
OPCODES: Final = 20_000
"""Steps of SQLite between two checks of the clock."""
TABLES: Final = """
SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB '_onceward_*' ORDER BY name
"""
# It reads the whole table, and compares each value with the type and the CHECKs of its column.
FIRST: Final = "SELECT quick_check FROM pragma_quick_check(?) WHERE quick_check <> 'ok' LIMIT 1"


def find(con: Any) -> str | None:
    """
    Return the first value that its table cannot hold, in the words of SQLite.

    Return None if there is none, or if none was found in time.
    """
    until = monotonic() + LONGEST
    con.set_progress_handler(lambda: monotonic() > until, OPCODES)
    try:
        with suppress(apsw.InterruptError, apsw.BusyError):
            for (table,) in con.execute(TABLES).fetchall():
                for (said,) in con.execute(FIRST, (table,)).fetchall():
                    return f"{said} (found by quick_check of {table})"
    except (apsw.CorruptError, UnicodeDecodeError) as error:
        return str(error)
    finally:
        con.set_progress_handler(None)
    return None


def corrupt(path: Path | str, said: str) -> StoreCorrupt:
    """Return the error for a value that was found."""
    return StoreCorrupt(
        f"{path}: {said}: a page is damaged or the schema was altered; the file was not changed: "
        "restore a backup or recover a copy"
    )
