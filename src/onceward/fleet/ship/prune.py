"""
Delete from files what was read back from the log: by file id and sequence, never by path or clock.

A row is deleted if it ended, if it is older than what is to be kept by the file's own clock, and if
the log returns a row of the same file id, epoch, sequence and digest; the digest is computed again
from the values that were read back, and from those in the file. All other rows stay.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.fleet import files as finding
from onceward.fleet.opening import Source, opened
from onceward.fleet.rows import snapshot
from onceward.fleet.ship import segments
from onceward.fleet.ship.changes import Budget, Limit, Present
from onceward.fleet.ship.lineage import Found, recognised
from onceward.fleet.ship.log import LAST, LoggedFile, ShippedLog, latest
from onceward.fleet.ship.manifest import Segment
from onceward.fleet.ship.tables import Row, Shape, digest_of
from onceward.message.settings import DAY, Controls

if TYPE_CHECKING:
    from pyarrow import fs

    from onceward.message.clock import Clock

KEEP: Final = 7 * DAY
"""Seconds before a file's latest moment that stay in the file."""
SLICE: Final = 5000
"""Rows that are compared, and deleted, at once, if they are not large."""
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
    """Rows that are old enough, but differ from the log or are missing there: ship, prune again."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one table of a file that are old enough, compared with the log."""

    file_id: str
    agent: str
    table: str
    before: int
    """The moment before which a row is old enough."""
    proved: tuple[tuple[int, str, str, int], ...]
    """Sequence, id, state and end of the rows that are identical in the log."""
    kept: int


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
    Delete the rows that the log holds from the files that *paths* name; return one line per file.

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
    done, box = FilePruned(path), None
    try:
        with ExitStack() as ending, closing(_pieces(path, log, keep)) as pieces:
            for piece in pieces:
                rows = 0
                if piece.proved:
                    box = box or ending.enter_context(
                        Postbox(path, start=False, testing=Controls(clock=clock))
                    )
                    rows = _deleted(box, piece)
                done = replace(
                    done,
                    file_id=piece.file_id,
                    agent=piece.agent,
                    rows=done.rows + rows,
                    kept=done.kept + piece.kept,
                )
    except OncewardError as error:
        return replace(done, error=str(error))
    return done


def _deleted(box: Postbox, piece: _Piece) -> int:
    if piece.table == "processed":
        return box._prune_archived_marks([row[:2] for row in piece.proved], piece.before)
    return box._prune_archived(piece.table, piece.proved)


def _pieces(path: str, log: ShippedLog, keep: float) -> Generator[_Piece, None, None]:
    """Compare a file with the log piece by piece; no snapshot is held between two pieces."""
    with opened(path) as source:
        file = log.file(source.file_id)
        with snapshot(source):
            present = Present.of(source)
            found = recognised(source, present, file.manifest, lambda *_: {})
            [(now,)] = source.con.execute(LATEST).fetchall()
        before = int(now) + 1 - round(1000 * keep)  # type: ignore[arg-type]  # a moment
        yield _Piece(source.file_id, source.agent, "", before, (), 0)
        for table, (state, end) in STATES.items():
            shape, after = present.shapes[table], 0
            archive = _Archive(log, file, found, table)
            while rows := _old(source, shape, after, end, before):
                same = archive.same(shape, rows)
                proved = tuple(
                    (row.seq, *(shape.value(row, name) for name in ("id", state, end)))
                    for row in same
                )
                after, kept = rows[-1].seq, len(rows) - len(same)
                yield _Piece(source.file_id, source.agent, table, before, proved, kept)


def _old(source: Source, shape: Shape, after: int, end: str, before: int) -> list[Row]:
    """Return the next rows that ended before a moment, as many as one piece has."""
    found, budget = [], Budget(SLICE, Limit().bytes)
    with snapshot(source):
        for row in shape.rows(source.con, after, LAST):
            ended = shape.value(row, end)
            waits = shape.value(row, "waits_for")  # no step has taken it: its row will change
            if ended is not None and ended < before and waits is None:
                found.append(row)
                budget.spend(row)
            if not budget.left:
                break
    return found


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


class _Archive:
    """The rows of one table that the log has of the history that a file continues."""

    def __init__(self, log: ShippedLog, file: LoggedFile, found: Found, table: str) -> None:
        known = found.history in {"same", "copied"}
        self._segments = file.segments_of(table, found.epoch) if known else []
        self._objects = log.objects
        self._read: dict[str, pa.Table] = {}

    def same(self, shape: Shape, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are identical in the log."""
        there = self._digests(rows)
        return [row for row in rows if _same(shape, row, there.get(row.seq))]

    def _digests(self, rows: Sequence[Row]) -> dict[int, _Archived]:
        """Return the digests of the rows that have these sequences, from their values."""
        first, last = rows[0].seq, rows[-1].seq
        near = [s for s in self._segments if s.first_seq <= last and s.last_seq >= first]
        self._read = {s.path: self._table(s) for s in near}
        wanted = pa.array([row.seq for row in rows], pa.int64())
        found: dict[int, _Archived] = {}
        for table in latest(near, lambda s: self._chosen(s, wanted)):
            names = tuple(name for name in table.column_names if not name.startswith("_"))
            columns = [segments.plain(table[name]) for name in ("_gone", *names)]
            for gone, *values in zip(*columns, strict=True):
                if not gone:
                    seq = values[names.index("seq")]
                    found[seq] = _Archived(names, digest_of(names, values))
        return found

    def _table(self, segment: Segment) -> pa.Table:
        known = self._read.get(segment.path)
        return segments.read(self._objects, segment) if known is None else known

    def _chosen(self, segment: Segment, seqs: pa.Array) -> pa.Table:
        table = self._read[segment.path]
        return table.filter(pc.is_in(table["seq"], value_set=seqs))
