"""
Delete from files what was read back from the log: by file id and sequence, never by path or clock.

A row is deleted if it ended, if it is older than what is to be kept by the file's own clock, and if
the log returns a row of the same file id, epoch, sequence and digest; the digest is computed anew
from the values that were read back, and from those in the file. All other rows stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.fleet import files as finding
from onceward.fleet.opening import Source, Unreadable, opened, translated
from onceward.fleet.ship.changes import Present
from onceward.fleet.ship.lineage import recognised
from onceward.fleet.ship.log import LoggedFile, ShippedLog, last_versions
from onceward.fleet.ship.manifest import Epoch
from onceward.fleet.ship.tables import Row, Shape, digest_of
from onceward.model.settings import DAY

if TYPE_CHECKING:
    from pyarrow import fs

    from onceward.model.clock import Clock

KEEP: Final = 7 * DAY
"""Seconds before a file's latest moment that stay in the file."""
SLICE: Final = 5000
"""Rows that are compared, and deleted, at once."""
LATEST: Final = """
SELECT max(clock_at,
           coalesce((SELECT max(coalesce(ended_at, created_at)) FROM onceward_outbox), 0),
           coalesce((SELECT max(coalesce(ended_at, received_at)) FROM onceward_inbox), 0),
           coalesce((SELECT max(processed_at) FROM onceward_processed_messages), 0),
           coalesce((SELECT max(at) FROM onceward_transitions), 0))
  FROM _onceward_file_info
"""
"""The latest moment that a file knows, by its own clock."""
STATES: Final = {
    "outbox": ("state", "ended_at"),
    "inbox": ("state", "ended_at"),
    "transitions": ("to_state", "at"),
    "processed": ("outcome", "processed_at"),
}
"""Tables that are pruned, with the columns of a row's state and of its end."""


@dataclass(frozen=True, slots=True)
class FilePruned:
    """The outcome for one file."""

    path: str
    file_id: str = ""
    agent: str = ""
    rows: int = 0
    """Rows that were deleted."""
    kept: int = 0
    """Rows that are old enough, but that the log does not have as they are: ship, prune again."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Proved:
    """Rows of one table that the log has as they are."""

    table: str
    rows: tuple[tuple[int, str, str, int], ...]


@dataclass(frozen=True, slots=True)
class _Archived:
    """The columns and the digest of a row in the log."""

    names: tuple[str, ...]
    digest: str


def files(
    paths: Sequence[str],
    log: str,
    *,
    keep: float = KEEP,
    filesystem: fs.FileSystem | None = None,
    clock: Clock | None = None,
) -> list[FilePruned]:
    """
    Delete what the log is found to hold from the files that *paths* name; return a line for each.

    Dedup records are pruned with the rest, as by retention: a message that is pushed again after
    that long is refused as stale, never accepted twice. Dead letters stay. A file that the log does
    not know, or that was restored since it was shipped, is left alone.

    Args:
        paths: Files, folders (all their ``*.db``) or globs.
        log: The URI that the files were shipped to.
        keep: Seconds; rows that ended later before the latest moment that the file knows stay.
        filesystem: A filesystem of pyarrow in which *log* is a path.
        clock: The clock with which the files are opened.

    """
    shipped = ShippedLog(log, filesystem=filesystem)
    return [_one(found.path, shipped, keep, clock) for found in finding.find(paths)]


def _one(path: str, log: ShippedLog, keep: float, clock: Clock | None) -> FilePruned:
    try:
        done, proved, before = _read(path, log, keep)
    except OncewardError as error:
        return FilePruned(path, error=str(error))
    if not any(each.rows for each in proved):
        return done
    with Postbox(path, start=False, clock=clock) as box:
        return replace(done, rows=sum(_deleted(box, each, before) for each in proved))


def _read(path: str, log: ShippedLog, keep: float) -> tuple[FilePruned, list[_Proved], int]:
    """Compare a file with the log in one snapshot."""
    trouble: OncewardError
    with opened(path) as source:
        try:
            with translated(path):
                source.con.execute("BEGIN")
                present = Present.of(source)
                [(latest,)] = source.con.execute(LATEST).fetchall()
            before = int(latest) + 1 - round(1000 * keep)  # type: ignore[arg-type]  # a moment
            file = log.file(source.file_id)
            proved = list(_compared(source, present, log, file, before))
            kept = sum(kept for _, kept in proved)
            done = FilePruned(path, source.file_id, source.agent, kept=kept)
            return done, [found for found, _ in proved], before
        except Unreadable:
            raise
        except OncewardError as error:  # of the log: it is no trouble of the file
            trouble = error
    raise trouble


def _deleted(box: Postbox, proved: _Proved, before: int) -> int:
    if proved.table == "processed":
        return box._prune_archived_marks([row[:2] for row in proved.rows], before)
    return box._prune_archived(proved.table, proved.rows)


def _compared(
    source: Source, present: Present, log: ShippedLog, file: LoggedFile, before: int
) -> Iterator[tuple[_Proved, int]]:
    """Yield by slices the rows that the log has as they are, and how many it has not."""
    found = recognised(source, present, file.manifest, lambda *_: {})
    known = found.history in {"same", "copied"}
    for table, (state, end) in STATES.items():
        shape = present.shapes[table]
        rows = _old(shape, shape.rows(source.con, 0, present.high[table]), end, before)
        while part := list(islice(rows, SLICE)):
            there = _archived(log, file, found.epoch, table, part) if known else {}
            same = [row for row in part if _same(shape, row, there.get(row.seq))]
            told = tuple(
                (row.seq, shape.value(row, "id"), shape.value(row, state), shape.value(row, end))
                for row in same
            )
            yield _Proved(table, told), len(part) - len(same)


def _same(shape: Shape, row: Row, archived: _Archived | None) -> bool:
    """Return whether a row of the file has the archived values in all archived columns."""
    if archived is None:
        return False
    both = [
        (name, value)
        for name, value in zip(shape.columns, row.values, strict=True)
        if name in archived.names
    ]
    names, values = zip(*both, strict=True)
    return digest_of(names, values) == archived.digest


def _old(shape: Shape, rows: Iterable[Row], end: str, before: int) -> Iterator[Row]:
    for row in rows:
        ended = shape.value(row, end)
        if ended is not None and ended < before:
            yield row


def _archived(
    log: ShippedLog, file: LoggedFile, epoch: Epoch, table: str, rows: Sequence[Row]
) -> dict[int, _Archived]:
    """Return the digests of the rows in the log that have these sequences, from their values."""
    first, last = rows[0].seq, rows[-1].seq
    near = [
        each
        for each in file.segments
        if (each.table, each.epoch) == (table, epoch.number)
        and each.first_seq <= last
        and each.last_seq >= first
    ]
    wanted = {row.seq for row in rows}
    found: dict[int, _Archived] = {}
    for table_ in last_versions(log.objects, near, None):
        names = tuple(name for name in table_.column_names if not name.startswith("_"))
        columns = [_plain(table_[name]) for name in names]
        gone = table_["_gone"].to_pylist()
        for values, is_gone in zip(zip(*columns, strict=True), gone, strict=True):
            seq = values[names.index("seq")]
            if seq in wanted and not is_gone:
                found[seq] = _Archived(names, digest_of(names, values))
    return found


def _plain(column: pa.ChunkedArray) -> list[object]:
    """Return a column's values as SQLite has them."""
    moments = pa.types.is_timestamp(column.type)
    values: list[object] = (column.cast(pa.int64()) if moments else column).to_pylist()
    return values
