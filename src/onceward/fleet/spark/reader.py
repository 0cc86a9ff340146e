"""Read a table of the whole fleet: plan tasks, read rows, handle unreadable files."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from onceward.fleet import plan
from onceward.fleet.columns import InvalidOption, Kind, tables, views
from onceward.fleet.evidence import FILE_FACTS, file_row
from onceward.fleet.opening import FILE_STATES, Source, Unreadable
from onceward.fleet.rows import TYPES, Wanted, batches, edges, snapshot
from onceward.fleet.spark import mistakes
from onceward.fleet.spark.held import held
from onceward.fleet.spark.options import Options
from onceward.message.log import log

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Task(InputPartition):
    """The slices that one Spark task reads."""

    def __init__(self, slices: list[plan.Slice]) -> None:
        super().__init__(slices)


class Reader(DataSourceReader):
    """The rows of one table in all files; filters are left to Spark, see ``where``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._wanted = Wanted(wanted_columns(options, schema), options.where, options.batch_rows)

    @mistakes.reported()
    def partitions(self) -> list[InputPartition]:
        """Plan the tasks by the files' names and sizes; only files larger than a task are read."""
        options = self._options
        keyed = [part.keyed for part in options.chosen.parts]
        cut = self._edges if keyed == [True] and not options.whole else None
        target, least = options.max_partition_bytes, options.min_partition_num
        planned = plan.tasks(options.files(strict=True), target=target, least=least, edges=cut)
        return [Task(slices) for slices in planned]

    def _edges(self, path: str) -> tuple[int, int]:
        try:
            with self._options.opened(path) as source:
                if self._options.mode == "DROPMALFORMED":
                    source.check()  # its slices are read apart: none could leave the others out
                return edges(source, self._options.chosen.parts[0])
        except Unreadable:
            return 0, 0  # the task that reads it, whole, finds out and tells

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        settle()
        return read(self._options, self._wanted, partition.value or [])


def wanted_columns(options: Options, schema: StructType) -> dict[str, Kind]:
    """
    Return the columns that Spark wants, by name.

    Raises:
        InvalidOption: the table has no such column, or of another type.

    """
    known = options.chosen.columns
    for field in schema.fields:
        if known.get(field.name) != field.dataType.simpleString():
            kind = field.dataType.simpleString()
            lacks = f"table {options.table} has no column {field.name} of type {kind}"
            raise InvalidOption(f"{lacks}: {options.chosen.ddl()}")
    return {field.name: known[field.name] for field in schema.fields}


def read(options: Options, wanted: Wanted, slices: list[plan.Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some slices, file by file; the options decide about unreadable files."""
    if options.table == "quarantine":
        yield from _quarantine(options, wanted, slices)
        return
    left_out: list[Unreadable] = []
    with without_collector():
        for piece in slices:
            rows = _rows(options, wanted, piece)
            try:
                yield from rows if options.mode == "PERMISSIVE" or piece.cut else held(rows)
            except Unreadable as error:
                if piece.cut and options.mode == "DROPMALFORMED":
                    raise _half(error) from error
                if not options.leaves_out(error.reason):
                    raise
                left_out.append(error)
                if options.table == "evidence":
                    state = 1 + FILE_STATES.index(error.reason)
                    yield _record(wanted, file_row(error.path, state=state, said=error.detail))
    if left_out:
        log.warning(
            "files were skipped, see table quarantine", count=len(left_out), first=str(left_out[0])
        )


def _half(error: Unreadable) -> Unreadable:
    """Return why a file fails the job of which other tasks may have delivered rows already."""
    cure = "it is too large for one task: exclude it, or read with mode PERMISSIVE"
    return Unreadable(error.path, error.reason, f"{error.detail}; {cure}")


def _rows(options: Options, wanted: Wanted, piece: plan.Slice) -> Iterator[pa.RecordBatch]:
    with options.opened(piece.path) as source:
        if piece.file_id not in {"", source.file_id}:
            raise Unreadable(piece.path, "vanished", "another file has replaced it")
        with snapshot(source) if options.whole else nullcontext():
            for part in options.chosen.parts:
                yield from batches(source, part, wanted, piece)
            if options.table == "evidence":
                [(said,)] = source.con.execute(FILE_FACTS).fetchall()
                row = file_row(piece.path, state=1 + FILE_STATES.index("read"), said=str(said))
                yield _record(wanted, row)


def _quarantine(
    options: Options, wanted: Wanted, slices: list[plan.Slice]
) -> Iterator[pa.RecordBatch]:
    for piece in slices:
        try:
            with options.opened(piece.path) as source:
                source.check()
                _read_all(source, piece)
        except Unreadable as error:
            at = time.time_ns() // 1000
            yield _record(
                wanted,
                {"path": error.path, "reason": error.reason, "detail": error.detail, "at": at},
            )


def _read_all(source: Source, piece: plan.Slice) -> None:
    """Raise Unreadable for what a reader of any table would find."""
    for table in (tables()[name] for name in views()):
        contents = [name for name in ("frame", "body") if name in table.columns]
        wanted = Wanted(table.named(["*", *contents[:1]]))  # a body is read from its frame
        for part in table.parts:
            for _ in batches(source, part, wanted, piece):
                pass


def _record(wanted: Wanted, values: Mapping[str, object]) -> pa.RecordBatch:
    arrays = [pa.array([values.get(name)], TYPES[kind]) for name, kind in wanted.columns.items()]
    return cast("pa.RecordBatch", pa.record_batch(arrays, schema=wanted.schema))


def settle() -> None:
    """
    Take what is loaded by now out of the cyclic collector's sight, once in a worker process.

    PySpark collects after each task, and each time walks through all modules
    that it has loaded: more work than reading a small file.
    """
    if not gc.get_freeze_count() and TaskContext.get() is not None:
        gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the garbage collector off rows, which have no cycles: it took a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
