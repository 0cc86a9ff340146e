"""Read a shipped log: the files that it holds, and the last version of every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from onceward.fleet.opening import LogTrouble
from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship import segments
from onceward.fleet.ship.manifest import Epoch, Manifest, Segment
from onceward.fleet.ship.objects import Objects, objects_at
from onceward.fleet.ship.tables import TABLES, Known, day_of, standard

if TYPE_CHECKING:
    from pyarrow import fs

BRANCH: Final = pa.field("_abandoned", pa.bool_())
NEEDED: Final = ("seq", "_gone")
"""Columns that are always read."""
MARKED: Final = pa.schema([("seq", pa.int64()), ("_digest", pa.string())])
LAST: Final = 2**63 - 1
"""The highest sequence that there can be."""


class NoLog(LogTrouble):
    """There is no shipped log at that place: give the URI of ``onceward ship --to``."""


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of the log, by its id, with everything that the log has about it except rows."""

    manifest: Manifest
    level_at: int = 0
    """When a shipper found the file as its newest manifest has it; 0: not since it was shipped."""

    @property
    def seen_at(self) -> int:
        """When a shipper looked at the file last, by its clock: all until then is in the log."""
        return max(self.manifest.shipped_at, self.level_at)

    @property
    def file_id(self) -> str:
        """The file's id, which copies of it share."""
        return self.manifest.file_id

    @property
    def agent(self) -> str:
        """The agent whose file it is."""
        return self.manifest.agent

    @property
    def complete(self) -> bool:
        """Whether the log was up to date with the file at the last commit."""
        return self.manifest.complete

    @property
    def clock(self) -> int:
        """The latest moment that the file knew when it was shipped, by its own clock."""
        return max((epoch.clock for epoch in self.manifest.epochs), default=0)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The Parquet objects that count, by their paths below the log's URI."""
        return self.manifest.segments

    def segments_of(self, table: str, epoch: Epoch) -> list[Segment]:
        """Return the segments of one table in one epoch."""
        wanted = (table, epoch.number)
        return [each for each in self.segments if (each.table, each.epoch) == wanted]

    @property
    def living(self) -> tuple[Epoch, ...]:
        """The epochs in use; more than one if copies of the file are in use."""
        return tuple(filter(self.manifest.lives, self.manifest.epochs))

    def reach(self, epoch: Epoch, table: str) -> int:
        """Return the sequence up to which the living epochs certainly have rows of another one."""
        return max((self._shared(epoch, each, table) for each in self.living), default=0)

    def _shared(self, one: Epoch, other: Epoch, table: str) -> int:
        """Return the sequence up to which two epochs certainly have the same rows."""
        shared = LAST
        while one.number != other.number:
            if one.number < other.number:
                one, other = other, one
            shared = min(shared, one.inherited.get(table, 0))
            one = self.manifest.of(one.parent)
        return shared


class ShippedLog:
    """
    The log at a URI: a local folder, ``s3://``, ``gs://`` or ``abfs://``.

    It shows the newest commit of each file at the moment of the call, and only what was committed.
    Each row is there once for each epoch, in its last version. Columns: those of the public view
    without ``body`` (a moment is an Arrow timestamp in milliseconds, UTC), and in front of them
    ``_file_id``, ``_agent``, ``_epoch`` (1, and one more each time that the file was found restored
    or copied), ``_number`` (the commit), ``_gone`` (removed from the file by other means than
    pruning; without values), ``_digest`` (of the row) and ``_abandoned`` (of a past that a restored
    file has overwritten).
    """

    def __init__(self, uri: str, *, filesystem: fs.FileSystem | None = None) -> None:
        self._objects = objects_at(uri, filesystem)
        self._uri = uri

    @property
    def objects(self) -> Objects:
        """The objects of the log."""
        return self._objects

    @cached_property
    def _files(self) -> tuple[LoggedFile, ...]:
        found = (
            manifests.of_folder(self._objects, each) for each in manifests.folders(self._objects)
        )
        return tuple(self._of(each) for each in found if each is not None)

    def _of(self, manifest: Manifest) -> LoggedFile:
        return LoggedFile(manifest, manifests.level_at(self._objects, manifest))

    def files(self) -> tuple[LoggedFile, ...]:
        """
        Return the files of the log.

        Raises:
            NoLog: there is none at this place.
            LogDamaged: a manifest cannot be read.

        """
        if not self._files:
            msg = f"there is no shipped log at {self._uri}: give the URI of onceward ship --to"
            raise NoLog(msg)
        return self._files

    def file(self, file_id: str) -> LoggedFile:
        """Return the log's facts of one file; empty if it was never shipped."""
        return self._of(manifests.newest(self._objects, file_id))

    def batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        files: Iterable[LoggedFile] | None = None,
        gone: bool = False,
        abandoned: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of ``outbox``, ``inbox``, ``processed``, ``dead_letters``, ``transitions``.

        Rows come file by file. A column that a row's file did not have is NULL; columns that are
        newer than this version come last.

        Args:
            table: The name of the table.
            columns: Only these columns; ``seq`` is always read.
            files: Only these files of ``files()``.
            gone: Also rows that were removed.
            abandoned: Also rows of a past that a restored file has overwritten.

        Raises:
            LogDamaged: an object is missing or was changed; its bytes are checked by SHA-256.

        """
        names = None if columns is None else list(dict.fromkeys([*NEEDED, *columns]))
        for file in self.files() if files is None else files:
            for found in self._tables(file, table, names):
                kept = found if gone else found.filter(pc.invert(found["_gone"]))
                if not abandoned:
                    kept = kept.filter(pc.invert(kept["_abandoned"]))
                whole = _whole(kept, table, columns)
                yield from (batch for batch in whole.to_batches() if batch.num_rows)

    def _tables(
        self, file: LoggedFile, table: str, columns: list[str] | None
    ) -> Iterator[pa.Table]:
        for epoch in file.living:
            for found in self._rows(file, epoch, table, columns):
                past = pa.repeat(pa.scalar(value=False), found.num_rows)
                yield found.append_column(BRANCH, past)
        past = [each for each in file.manifest.epochs if each not in file.living]
        if past:
            yield from self._past(file, past, table, columns)

    def _past(
        self, file: LoggedFile, past: Iterable[Epoch], table: str, columns: list[str] | None
    ) -> Iterator[pa.Table]:
        """Yield rows of overwritten epochs, except rows that a living epoch has."""
        names = list(MARKED.names)
        marks = [rows for each in file.living for rows in self._rows(file, each, table, names)]
        present = pa.concat_tables([MARKED.empty_table(), *marks])
        named = None if columns is None else list(dict.fromkeys([*columns, *names]))
        for epoch in past:
            reach = file.reach(epoch, table)
            for found in self._rows(file, epoch, table, named):
                there = pc.is_in(found["seq"], value_set=present["seq"])
                same = pc.is_in(found["_digest"], value_set=present["_digest"])
                other = pc.or_(pc.greater(found["seq"], reach), pc.and_not(there, same))
                yield found.append_column(BRANCH, other)

    def _rows(
        self, file: LoggedFile, epoch: Epoch, table: str, columns: list[str] | None
    ) -> Iterator[pa.Table]:
        return last_versions(self._objects, file.segments_of(table, epoch), columns)

    def known(self, file: LoggedFile, epoch: Epoch, table: str) -> dict[int, Known]:
        """Return the rows of a table that are there in one epoch, by sequence."""
        began = TABLES[table].began
        found: dict[int, Known] = {}
        for rows in self._rows(file, epoch, table, ["seq", "id", began, "_gone"]):
            there = rows.filter(pc.invert(rows["_gone"]))
            days = [day_of(at) for at in there[began].cast(pa.int64()).to_pylist()]
            values = map(Known, there["id"].to_pylist(), days)
            found.update(zip(there["seq"].to_pylist(), values, strict=True))
        return found


def _whole(rows: pa.Table, name: str, columns: Sequence[str] | None) -> pa.Table:
    """Return rows with all columns that were asked for; NULL where their file did not have one."""
    known = {**{field.name: field.type for field in (*segments.OWN, BRANCH)}, **_types(name)}
    asked = [*known, *(c for c in rows.column_names if c not in known)]
    for column in asked if columns is None else columns:
        if column not in rows.column_names:
            kind = known.get(column, pa.string())
            rows = rows.append_column(pa.field(column, kind), pa.nulls(rows.num_rows, kind))
    return rows.select(asked if columns is None else list(columns))


def _types(name: str) -> dict[str, pa.DataType]:
    return {column: segments.TYPES[kind] for column, kind in standard()[name].items()}


def last_versions(
    objects: Objects, found: Iterable[Segment], columns: list[str] | None
) -> Iterator[pa.Table]:
    """Yield the rows of one table in one epoch, each in its last version, newest segments first."""
    return latest(found, lambda segment: segments.read(objects, segment, columns))


def latest(found: Iterable[Segment], read: Callable[[Segment], pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows that *read* returns of each segment; of each row the last version."""
    later: set[int] = set()
    for segment in newest_first(found):
        rows = read(segment)
        if later:
            seqs = rows["seq"].to_pylist()
            rows = rows.filter(pa.array([seq not in later for seq in seqs], pa.bool_()))
        if segment.again:
            later.update(rows["seq"].to_pylist())
        yield rows


def newest_first(found: Iterable[Segment]) -> list[Segment]:
    """Return segments in such an order that the first one with a row has its last version."""
    return sorted(found, key=lambda each: (each.number, each.again), reverse=True)
