"""Copy what files say of messages into one database, file by file, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from onceward.file.connection import connect
from onceward.fleet.coverage import Reading
from onceward.fleet.evidence import COLUMNS, FILE_FACTS, VIEWS, expression, where
from onceward.fleet.opening import Source, Unreadable, lacking, opened, translated
from onceward.fleet.states import COPIED_INBOX, LOST_MARK

WORK: Final = (
    "PRAGMA page_size = 32768",  # rows are written and read in bulk: a sixth less work
    "PRAGMA journal_mode = MEMORY",  # what is written is made anew after a crash
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = FILE",  # a fleet is larger than memory
    "PRAGMA cache_size = -65536",
    "PRAGMA temp.cache_size = -65536",
)
EVIDENCE: Final = f"CREATE TEMP TABLE evidence ({', '.join(COLUMNS)})"
ATTACH: Final = "ATTACH DATABASE ? AS agent"
DETACH: Final = "DETACH DATABASE agent"
ROWS: Final = """
INSERT INTO temp.{table} ({names}, file)
SELECT {columns}, :file FROM agent.{view} WHERE {condition}
"""
ALL: Final = "seq > 0"
APART: Final = {"inbox": COPIED_INBOX, "processed": LOST_MARK}
"""The views of a differing copy that show what happened twice, and the side of their rows."""
Named = Sequence[tuple[str, object]]
"""Values of a condition, by name."""


def workspace(path: Path) -> apsw.Connection:
    """Return a connection to a new database of a job, with an empty table of evidence."""
    path.unlink(missing_ok=True)
    path.touch()
    con = connect(path)
    for pragma in WORK:
        con.execute(pragma)
    con.execute(EVIDENCE)
    return con


def load(con: apsw.Connection, path: str, *, apart: bool = False) -> Reading:
    """
    Add the evidence of one file, as of one moment; return what the file says of itself.

    A file that cannot be read to its end adds nothing. Of a copy *apart* from the file that goes
    on only what shows that something happened twice is added.
    """
    try:
        with attached(con, path):
            reading = reading_of(con, path)
            for box in APART if apart else VIEWS:
                add(con, box, ALL, reading.file, apart=apart)
            return reading
    except Unreadable as error:
        return Reading(path, error.reason, error.detail)


@contextmanager
def attached(con: apsw.Connection, path: str, *, busy_timeout: float = 5.0) -> Iterator[Source]:
    """
    Attach a file to a workspace for one transaction, which is rolled back if the block fails.

    Raises:
        Unreadable: with the reason; also for what SQLite finds while the block reads.

    """
    with opened(path, busy_timeout=busy_timeout) as source, translated(path):
        if not source.columns("onceward_streams"):
            raise lacking(source, "onceward_streams")
        con.set_busy_timeout(round(1000 * busy_timeout))
        con.execute(ATTACH, (f"file:{quote(source.con.filename)}?mode=ro",))
        try:
            con.execute("BEGIN")
            yield source
            con.execute("COMMIT")
        finally:
            if con.in_transaction:
                con.execute("ROLLBACK")
            with suppress(apsw.Error):
                con.execute(DETACH)


def reading_of(con: apsw.Connection, path: str) -> Reading:
    """
    Return what the attached file says of itself, at the moment of its evidence.

    Raises:
        Unreadable: it says what no agent's file does.

    """
    [(told,)] = con.execute(FILE_FACTS).fetchall()
    try:
        return Reading.of(path, str(told))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(path, "foreign", f"its views say {error!r}") from error


def add(
    con: apsw.Connection,
    box: str,
    condition: str,
    file: int,
    named: Named = (),
    *,
    table: str = "evidence",
    apart: bool = False,
) -> None:
    """Add the rows of one view of the attached file that meet a condition on its columns."""
    names = [name for name in COLUMNS if name != "file"]
    said = {name: expression(box, name) for name in names}
    if apart:
        said["side"] = str(APART[box])
    columns = ", ".join(said.values())
    if own := where(box):
        condition = f"{condition} AND {own}"
    sql = ROWS.format(
        table=table,
        names=", ".join(names),
        columns=columns,
        view=VIEWS[box],
        condition=condition,
    )
    con.execute(sql, {"file": file, **dict(named)})
