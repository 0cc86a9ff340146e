"""Give the rows of a batch to the sink: tasks collect them, the driver commits file by file."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from onceward.fleet.columns import InvalidOption
from onceward.fleet.spark import sink
from onceward.fleet.spark.options import flag, paths
from onceward.fleet.spark.spool import Spool
from onceward.message.log import log
from onceward.message.names import quoted

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
COMMITS: Final = {"driver": False, "executors": True}
OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "path": ("paths", paths),
    "query": ("query", str),
    "batch": ("number", int),
    "holdunknown": ("hold_unknown", flag),
    "busytimeout": ("busy_timeout", float),
    "badrecordspath": ("bad_records_path", str),
    "commits": ("by_executors", lambda text: COMMITS[text.lower()]),
}
"""Field of a batch, and the conversion of its text, by the option in small letters."""


@dataclass(frozen=True)
class Collected(WriterCommitMessage):
    """The rows of one partition on their way to the driver."""

    query: str
    number: int
    partition: int
    rows: bytes


@dataclass(frozen=True)
class Committed(WriterCommitMessage):
    """Messages that one task has sent, by file."""

    number: int
    sent: tuple[sink.Sent, ...]


@dataclass(frozen=True)
class Sending:
    """How rows are sent, from the options of the format."""

    batch: sink.Batch
    """The options; each batch has its own query and number unless an option names them."""
    numbered: bool = False
    """Whether the number of the batch is an option."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names this run, where no query is named."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Sending:
        """
        Return *given*, checked.

        Raises:
            InvalidOption: see its message.

        """
        known = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(known.keys() - OPTIONS.keys() - {"checkpointlocation"}):
            raise InvalidOption(
                f"there is no writing option {unknown[0]!r}: the options are "
                f"{', '.join(sink.WRITING)}"
            )
        options = {
            field: _value(name, known[name], convert)
            for name, (field, convert) in OPTIONS.items()
            if name in known
        }
        return cls(sink.Batch(**options), numbered="batch" in known)

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Collect the rows of one task for the driver, or send them where executors commit."""
        context = TaskContext.get()
        told = (context.getLocalProperty(name) for name in (QUERY, BATCH)) if context else ("", "")
        query, number = told
        given = self.batch.number if self.numbered else int(number or 0)
        batch = self._batch(self.batch.query or query or self.run, given)
        if batch.by_executors:
            with Spool() as rows:
                for piece in batches:
                    rows.add(piece)
                return Committed(batch.number, tuple(sink.hand_over(rows, batch)))
        partition = context.partitionId() if context is not None else 0
        return Collected(batch.query, batch.number, partition, packed(batches))

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Send the rows of all tasks, in the order of partitions and of rows in them."""
        told = [one for one in messages if isinstance(one, Collected | Committed)]
        collected = sorted(
            (one for one in told if isinstance(one, Collected) and one.rows),
            key=lambda one: one.partition,
        )
        sent = [file for one in told if isinstance(one, Committed) for file in one.sent]
        if collected:
            batch = self._batch(collected[0].query, collected[0].number)
            with Spool() as rows:
                for one in collected:
                    for piece in pa.ipc.open_stream(one.rows):
                        rows.add(piece)
                sent = sink.hand_over(rows, batch)
        log.info(
            "batch sent",
            batch=told[0].number if told else None,
            messages=sum(one.messages for one in sent),
            bad_records=sum(one.bad_records for one in sent),
            files=len(sent),
            waiting=sum(one.waiting for one in sent),
        )

    def _batch(self, query: str, number: int) -> sink.Batch:
        return replace(self.batch, query=query, number=number)


class Writer(DataSourceArrowWriter):
    """Sends the rows of a frame."""

    def __init__(self, sending: Sending, schema: StructType) -> None:
        check(schema)
        self._sending = sending

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Collect one task's rows, or send them."""
        return self._sending.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send all rows, unless the named query and batch were sent before."""
        self._sending.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: files recognise their committed batches, and nothing else was written."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch."""

    def __init__(self, sending: Sending, schema: StructType) -> None:
        if sending.numbered:
            raise InvalidOption("a stream numbers its batches itself: omit the option batch")
        check(schema)
        self._sending = sending

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Collect one task's rows, or send them."""
        return self._sending.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Send the micro-batch; Spark repeats it after a crash, and each file recognizes it."""
        self._sending.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Do nothing: files recognise their committed batches, and nothing else was written."""


def _value(name: str, text: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(text)
    except (ValueError, KeyError) as error:
        spelt = next(each for each in sink.WRITING if each.lower() == name)
        raise InvalidOption(f"option {spelt} does not accept {quoted(text)}") from error


def check(schema: StructType) -> None:
    """Raise InvalidOption unless rows of this schema can be messages."""
    sink.check_columns(schema.fieldNames())
    for kind in _keys(schema):
        if not isinstance(kind, StringType):
            keys = f"a map has keys of type {kind.simpleString()}, and JSON has text keys only"
            raise InvalidOption(f"{keys}: cast them to STRING, or build the body with to_json")


def _keys(kind: DataType) -> Iterator[DataType]:
    """Yield the types of the keys of all maps within a type."""
    match kind:
        case MapType():
            yield kind.keyType
            yield from _keys(kind.valueType)
        case ArrayType():
            yield from _keys(kind.elementType)
        case StructType():
            for one in kind.fields:
                yield from _keys(one.dataType)


def packed(batches: Iterator[pa.RecordBatch]) -> bytes:
    """Return record batches as compressed bytes; none if there are no rows."""
    out = pa.BufferOutputStream()
    writer = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            writer = pa.ipc.new_stream(
                out, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
            )
        writer.write_batch(batch)
    if writer is None:
        return b""
    writer.close()
    return bytes(out.getvalue())
