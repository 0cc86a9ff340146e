"""Copy the evidence of files into one database, file by file, each completely or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from onceward.errors import ReadOnlyStore
from onceward.file.connection import connect, raise_meant, translate_error
from onceward.fleet import sides
from onceward.fleet.coverage import Reading
from onceward.fleet.evidence import FILE_FACTS, VIEWS, told, where
from onceward.fleet.files import stat
from onceward.fleet.opening import Unreadable, copied, identified, lacking, translated
from onceward.fleet.states import COPIED_INBOX, LOST_MARK

WORK: Final = (
    "PRAGMA page_size = 32768",  # rows are written and read in bulk: a sixth less work
    "PRAGMA journal_mode = MEMORY",  # the content is rebuilt after a crash
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = FILE",  # a fleet is larger than memory
    "PRAGMA cache_size = -65536",
    "PRAGMA temp.cache_size = -65536",
)
AGENT: Final = "agent"
"""The name of an agent's file in a workspace."""
ATTACH: Final = f"ATTACH DATABASE ? AS {AGENT}"
DETACH: Final = f"DETACH DATABASE {AGENT}"
READ_ONCE: Final = f"PRAGMA {AGENT}.cache_size = -256"
"""A file is read from begin to end: its pages are not worth memory that is cold each time."""
ALL: Final = "seq > 0"
FILLED: Final = "SELECT " + ", ".join(
    f"EXISTS (SELECT 1 FROM {AGENT}._{view})" for view in VIEWS.values()
)
"""Which views have rows: preparing to read one costs as much as reading hundreds of its rows."""
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
    sides.create(con)
    return con


def load(con: apsw.Connection, path: str, *, apart: bool = False) -> Reading:
    """
    Add the evidence of one file at one moment; return the file's facts.

    A file that cannot be read to its end adds nothing. A copy *apart* from the current file adds
    only evidence of repeated effects.
    """
    try:
        with attached(con, path):
            reading = reading_of(con, path)
            for box in _filled(con, APART if apart else VIEWS):
                add(con, box, ALL, reading.file, apart=apart)
            return reading
    except Unreadable as error:
        return Reading(path, error.reason, error.detail)


@contextmanager
def attached(con: apsw.Connection, path: str, *, busy_timeout: float = 5.0) -> Iterator[None]:
    """
    Attach a file to a workspace for one transaction, which is rolled back if the block fails.

    Raises:
        Unreadable: with the reason; also for what SQLite finds while the block reads.

    """
    con.set_busy_timeout(round(1000 * busy_timeout))
    with translated(path), _beside(con, path):
        con.execute("BEGIN")
        try:
            yield
            con.execute("COMMIT")
        finally:
            if con.in_transaction:
                con.execute("ROLLBACK")


@contextmanager
def _beside(con: apsw.Connection, path: str) -> Iterator[None]:
    """Attach a file for a block, or a copy of it if SQLite cannot write beside it."""
    if stat(path) is None:
        raise Unreadable(path, "vanished", "no such file")
    with ExitStack() as stack:
        try:
            _attach(con, path, path)
        except ReadOnlyStore:
            _attach(con, stack.enter_context(copied(path)), path)
        stack.callback(_detach, con)
        yield


def _attach(con: apsw.Connection, file: str, path: str) -> None:
    """Attach *file*, which may be a copy of the agent's file at *path*."""
    try:
        con.execute(ATTACH, (f"file:{quote(file)}?mode=ro",))
        source = identified(con, path, AGENT)
        con.execute(READ_ONCE)
        if not source.columns("onceward_streams"):
            raise lacking(source, "onceward_streams")
    except (apsw.Error, Unreadable) as error:
        _detach(con)
        raise_meant(translate_error(error, path), error)
        raise


def _detach(con: apsw.Connection) -> None:
    with suppress(apsw.Error):
        con.execute(DETACH)


def reading_of(con: apsw.Connection, path: str) -> Reading:
    """
    Return the attached file's facts at the moment of its evidence.

    Raises:
        Unreadable: its facts are not those of an agent's file.

    """
    [(told,)] = con.execute(FILE_FACTS).fetchall()
    try:
        return Reading.of(path, str(told))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(path, "foreign", f"its views say {error!r}") from error


def _filled(con: apsw.Connection, boxes: Collection[str]) -> list[str]:
    """Return those of *boxes* of which the attached file has rows."""
    [found] = con.execute(FILLED).fetchall()
    return [box for box, any_row in zip(VIEWS, found, strict=True) if any_row and box in boxes]


def add(
    con: apsw.Connection,
    box: str,
    condition: str,
    file: int,
    named: Named = (),
    *,
    table: str = "",
    apart: bool = False,
) -> None:
    """
    Add the rows of one view of the attached file that meet a condition on its columns.

    They are added to the evidence, or to *table*, which has its columns.
    """
    side = {"side": str(APART[box])} if apart else {}
    if own := where(box):
        condition = f"{condition} AND {own}"
    said, rows = told(box, **side), f"{AGENT}.{VIEWS[box]} WHERE {condition}"
    values = {"file": file, **dict(named)}
    if table:
        sides.put_into(con, table, said, rows, values)
    else:
        sides.put(con, said, rows, values)
