"""Read what files of a shipped log say of messages: a format of Spark, a task for each file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final

import apsw
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from onceward.fleet import logged, sides
from onceward.fleet.columns import EVIDENCE
from onceward.fleet.coverage import READ
from onceward.fleet.evidence import COLUMNS, file_row
from onceward.fleet.opening import FILE_STATES
from onceward.fleet.rows import TYPES
from onceward.fleet.ship import LoggedFile, ShippedLog

DDL: Final = ", ".join(f"{name} {kind}" for name, kind in EVIDENCE.items())
SCHEMA: Final = pa.schema([pa.field(name, TYPES[kind]) for name, kind in EVIDENCE.items()])
ALL: Final = f"SELECT {', '.join(COLUMNS)} FROM temp.{sides.VIEW}"
BATCH: Final = 8192
FORMAT: Final = "onceward-log"


class Shipped(DataSource):
    """The evidence of a log, and a row for each of its files; used by ``archive.evidence``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of evidence."""
        return DDL

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return what reads the log at ``uri``, given ``copies`` beside it and ``lost`` files."""
        told = self.options
        return _Reader(told["uri"], json.loads(told["copies"]), json.loads(told["lost"]))


class _Reader(DataSourceReader):
    def __init__(self, uri: str, copies: dict[str, list[str]], lost: list[str]) -> None:
        self._uri, self._copies, self._lost = uri, copies, lost

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each file of the log."""
        return [InputPartition(each.file_id) for each in ShippedLog(self._uri).files()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what one file says."""
        log, file_id = ShippedLog(self._uri), str(partition.value)
        with closing(apsw.Connection("")) as con:  # on disk, for as long as it is open
            sides.create(con)
            logged.tables(con)
            file, copies = log.file(file_id), self._copies.get(file_id, ())
            with con:  # one transaction
                lost = file_id in self._lost
                said = _lost(con, log, file) if lost else _file(con, log, self._uri, file, copies)
            yield from said
            rows = con.execute(ALL)
            while some := list(islice(rows, BATCH)):
                yield _batch(some)


def _lost(con: apsw.Connection, log: ShippedLog, file: LoggedFile) -> list[pa.RecordBatch]:
    """Add what took effect in a file that another one replaced; it has no row of its own."""
    logged.load_lost(con, log, file)
    return []


def _file(
    con: apsw.Connection, log: ShippedLog, uri: str, file: LoggedFile, copies: Sequence[str]
) -> list[pa.RecordBatch]:
    """Add the evidence of a file to a workspace; return the file's own row."""
    one = logged.load_file(con, log, uri, file, copies)
    state = 1 + FILE_STATES.index(one.state)
    said = logged.said(file) if one.state == READ else one.detail
    row = file_row(one.path, state=state, said=said)
    return [_batch([tuple(row.get(name) for name in COLUMNS)])]


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    return pa.record_batch([pa.array(columns[one.name], one.type) for one in SCHEMA], schema=SCHEMA)
