"""Write rows as Parquet objects, partitioned by day and by a hash of the agent; read them back."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.fleet.ship.manifest import LogDamaged, Segment, folder_of
from onceward.fleet.ship.objects import Objects
from onceward.fleet.ship.tables import Kind, Row, Shape

BUCKETS: Final = 16
"""Partitions of a day by the hash of the agent's name."""
SMALL: Final = 1024 * 1024
"""Bytes up to which a table is not packed with zstd: that saves nothing, and reading it doubles."""
EPOCH_DAY: Final = date(1970, 1, 1)
TYPES: Final[Mapping[Kind, pa.DataType]] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "moment": pa.timestamp("ms", tz="UTC"),
}
OWN: Final = pa.schema(
    [
        pa.field("_file_id", pa.string()),
        pa.field("_agent", pa.string()),
        pa.field("_epoch", pa.int64()),
        pa.field("_number", pa.int64()),
        pa.field("_gone", pa.bool_()),
        pa.field("_digest", pa.string()),
    ]
)
"""Columns that the log adds to those of the view."""


def bucket_of(agent: str) -> int:
    """Return the partition of an agent: the first byte of the name's SHA-256, modulo 16."""
    return hashlib.sha256(agent.encode("utf-8", "surrogatepass")).digest()[0] % BUCKETS


class Writer:
    """Writes the segments of one commit of one file."""

    def __init__(
        self, objects: Objects, *, file_id: str, agent: str, epoch: int, number: int
    ) -> None:
        self._objects, self._file_id, self._agent = objects, file_id, agent
        self._epoch, self._number = epoch, number

    def rows(self, shape: Shape, rows: Iterable[Row]) -> Iterator[Segment]:
        """Write rows by day, those with earlier versions apart; yield the segments."""
        groups: defaultdict[tuple[int, bool], list[Row]] = defaultdict(list)
        for row in rows:
            groups[row.day, row.again].append(row)
        for (day, again), found in sorted(groups.items()):
            found.sort(key=lambda row: row.seq)
            yield self.table(shape.table.name, self._arrow(shape, found), day=day, again=again)

    def _arrow(self, shape: Shape, rows: Sequence[Row]) -> pa.Table:
        names = list(shape.columns)
        seq = names.index("seq")
        blank = (None,) * len(names)
        values = [row.values or (*blank[:seq], row.seq, *blank[seq + 1 :]) for row in rows]
        columns = dict(zip(names, zip(*values, strict=True), strict=True))
        count = len(rows)
        own = {
            "_file_id": [self._file_id] * count,
            "_agent": [self._agent] * count,
            "_epoch": [self._epoch] * count,
            "_number": [self._number] * count,
            "_gone": [row.gone for row in rows],
            "_digest": [row.digest for row in rows],
        }
        schema = pa.schema(
            [*OWN, *(pa.field(name, TYPES[kind]) for name, kind in shape.columns.items())]
        )
        return pa.table({**own, **columns}, schema=schema)

    def table(self, name: str, table: pa.Table, *, day: int, again: bool) -> Segment:
        """Write one segment; its name is new each time, so nothing is overwritten."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd" if table.nbytes > SMALL else "snappy")
        data = sink.getvalue().to_pybytes()
        path = (
            f"data/{name}/day={EPOCH_DAY + timedelta(days=day)}/agents={bucket_of(self._agent):02d}"
            f"/{folder_of(self._file_id).rpartition('/')[2]}-{self._number:08d}-{uuid4().hex}.parquet"
        )
        self._objects.put(path, data)
        seqs = table.column("seq")
        return Segment(
            path=path,
            table=name,
            epoch=self._epoch,
            number=self._number,
            rows=table.num_rows,
            first_seq=seqs[0].as_py(),
            last_seq=seqs[-1].as_py(),
            day=day,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            again=again,
        )


def read(objects: Objects, segment: Segment, columns: Sequence[str] | None = None) -> pa.Table:
    """
    Return the rows of a segment once its bytes are found to be those that were written.

    A column that its file did not have is left out.

    Raises:
        LogDamaged: the object is missing, or has other bytes.

    """
    try:
        data = objects.get(segment.path)
    except FileNotFoundError as error:
        raise LogDamaged(
            f"{segment.path} is missing: read again if the log was compacted in between, "
            "otherwise restore it from a copy"
        ) from error
    if hashlib.sha256(data).hexdigest() != segment.sha256:
        raise LogDamaged(f"{segment.path} was altered: restore it from a copy of the log")
    file = pq.ParquetFile(pa.BufferReader(data))
    names = file.schema_arrow.names
    there = None if columns is None else [column for column in columns if column in names]
    return file.read(columns=there, use_threads=False)


def plain(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return a column's values as SQLite has them: moments as milliseconds."""
    moments = pa.types.is_timestamp(column.type)
    values: list[object] = (column.cast(pa.int64()) if moments else column).to_pylist()
    return values
