"""Read one file's rows as Arrow batches by short statements, which do not hold its WAL for long."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, cast

import apsw
import pyarrow as pa

from onceward.fleet.columns import GIVEN, Kind, Part
from onceward.fleet.opening import Source, Unreadable, lacking, translated
from onceward.fleet.plan import Slice

TYPES: Final[Mapping[Kind, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}
QUOTED: Final = re.compile(r'"(\w+)"')
CONSTANT: Final = re.compile(r"NULL|'(?P<text>[^']*)'|(?P<number>\d+)")
"""An expression that is the same for all rows: it is not read with each."""
CHUNK: Final = 64
HOLD: Final = 0.5
"""Seconds after which a statement is ended and another goes on behind its last row."""
OWNER: Final = {
    "onceward_outbox": "sender",
    "onceward_inbox": "recipient",
    "onceward_processed_messages": "recipient",
}
"""The column of a view in which the file's own agent stands in every row."""
LARGE: Final = frozenset({"frame", "body", "body_bytes"})
"""Columns that may be of any length."""
HEAVY: Final = 256 * 1024
"""Bytes of these after which a batch is full: more do not stay in a core's cache."""
KEYED: Final = "SELECT seq{columns} FROM {view} WHERE seq > ? AND seq <= ?{where} ORDER BY seq"
UNKEYED: Final = "SELECT 0{columns} FROM {view} WHERE 1{where}"
EDGES: Final = (
    "SELECT (SELECT seq FROM {view} ORDER BY seq LIMIT 1),"
    " (SELECT seq FROM {view} ORDER BY seq DESC LIMIT 1)"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns with their types, a condition, and how much is read of every file at once."""

    columns: Mapping[str, Kind]
    where: str = ""
    rows: int = 8192

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow spells them."""
        return pa.schema([pa.field(name, TYPES[kind]) for name, kind in self.columns.items()])


@contextmanager
def snapshot(source: Source) -> Iterator[None]:
    """Let all that the block reads of the file be of one moment."""
    with translated(source.path):
        source.con.execute("BEGIN")
        try:
            yield
        finally:
            if source.con.in_transaction:
                source.con.execute("ROLLBACK")


def edges(source: Source, part: Part) -> tuple[int, int]:
    """Return the first and the last sequence of a part; (0, 0) if it is empty or missing."""
    if not source.columns(part.view):
        return 0, 0
    [found] = source.con.execute(EDGES.format(view=part.view)).fetchall()
    first, last = (cast("int", seq or 0) for seq in found)
    return first, last


def batches(source: Source, part: Part, wanted: Wanted, piece: Slice) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of a part whose sequence is in *piece*, in that order.

    Raises:
        Unreadable: the file broke, or its schema does not have the view.

    """
    with translated(source.path):
        query = _query(source, part, wanted, piece)
        if query is None:
            return
        pieces = (
            _pieces(source.con, query, wanted, piece)
            if part.keyed
            else _stream(source.con, query, wanted)
        )
        done = 0
        for rows in pieces:
            try:
                batch = _batch(part, wanted, rows, query, done)
            except pa.ArrowException as error:
                raise Unreadable(source.path, "corrupt", str(error)) from error
            yield batch
            done += len(rows)


@dataclass(frozen=True, slots=True)
class Query:
    """A question to one view of one file, and the facts of its rows that are known without it."""

    sql: str
    names: Sequence[str]
    """The columns that are read row by row, in their order."""
    same: Mapping[str, Any]
    """Columns with one value in all rows."""


def _query(source: Source, part: Part, wanted: Wanted, piece: Slice) -> Query | None:
    there = source.columns(part.view) if part.view.isidentifier() else None
    if there is not None and not there:
        if part.name in {"outbox", "inbox"}:
            raise lacking(source, part.view)
        return None  # a table that came with a later version is empty in this file
    same: dict[str, Any] = {
        "_db": source.path,
        "_agent": source.agent,
        "_epoch": piece.epoch,
        OWNER.get(part.view, ""): source.agent,
    }
    known = {*GIVEN, *same, "seq" if part.keyed else ""}
    columns = {name: _expression(name, part, there) for name in wanted.columns if name not in known}
    same |= {
        name: _constant(found)
        for name, sql in columns.items()
        if (found := CONSTANT.fullmatch(sql))
    }
    read = {name: sql for name, sql in columns.items() if name not in same}
    where = "".join(
        f" AND ({condition}\n)" for condition in (part.where, wanted.where) if condition
    )
    shape = KEYED if part.keyed else UNKEYED
    return Query(
        shape.format(
            columns="".join(f", {sql}" for sql in read.values()), view=part.view, where=where
        ),
        list(read),
        same,
    )


def _expression(name: str, part: Part, there: frozenset[str] | None) -> str:
    sql = part.columns[name]
    return sql if there is None or there.issuperset(QUOTED.findall(sql)) else "NULL"


def _constant(found: re.Match[str]) -> str | int | None:
    return int(found["number"]) if found["number"] else found["text"]


def _pieces(
    con: apsw.Connection, query: Query, wanted: Wanted, piece: Slice
) -> Iterator[list[tuple[Any, ...]]]:
    heavy = [place for place, name in enumerate(query.names, 1) if name in LARGE]
    cursor, began = con.execute(query.sql, (piece.after, piece.to)), time.monotonic()
    while rows := _take(cursor, wanted.rows, heavy):
        if time.monotonic() - began > HOLD:
            cursor.close()
            yield rows
            cursor, began = con.execute(query.sql, (rows[-1][0], piece.to)), time.monotonic()
        else:
            yield rows


def _take(cursor: apsw.Cursor, limit: int, heavy: Sequence[int]) -> list[tuple[Any, ...]]:
    if not heavy:
        return list(islice(cursor, limit))
    rows: list[tuple[Any, ...]] = []
    weight = 0
    while (
        len(rows) < limit
        and weight < HEAVY
        and (more := list(islice(cursor, min(CHUNK, limit - len(rows)))))
    ):
        rows += more
        weight += sum(
            len(value) for place in heavy for value in map(itemgetter(place), more) if value
        )
    return rows


def _stream(con: apsw.Connection, query: Query, wanted: Wanted) -> Iterator[list[tuple[Any, ...]]]:
    cursor = con.execute(query.sql)
    while rows := list(islice(cursor, wanted.rows)):
        yield rows


def _batch(
    part: Part, wanted: Wanted, rows: Sequence[tuple[Any, ...]], query: Query, done: int
) -> pa.RecordBatch:
    count = len(rows)
    seqs, *values = zip(*rows, strict=True)
    numbers = seqs if part.keyed else range(done + 1, done + count + 1)
    given = _repeated(wanted, query.same, count) | _numbers(numbers, part, wanted)
    read = dict(zip(query.names, values, strict=True))
    arrays = [
        given[name] if name in given else _array(name, kind, read[name])
        for name, kind in wanted.columns.items()
    ]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.record_batch(arrays, schema=wanted.schema)


def _repeated(wanted: Wanted, same: Mapping[str, Any], count: int) -> dict[str, pa.Array]:
    return {
        name: pa.repeat(pa.scalar(value, TYPES[wanted.columns[name]]), count)
        for name, value in same.items()
        if name in wanted.columns
    }


def _numbers(seqs: Iterable[int], part: Part, wanted: Wanted) -> dict[str, pa.Array]:
    names = {"_seq", "seq" if part.keyed else "_seq"} & wanted.columns.keys()
    return dict.fromkeys(names, pa.array(seqs, pa.int64())) if names else {}


def _array(name: str, kind: Kind, values: Sequence[Any]) -> pa.Array:
    if name == "body_bytes":
        values = [_bytes(value) for value in values]
    if kind == "variant":
        values = [_variant(value) for value in values]
    return pa.array(values, TYPES[kind])


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text)
    except binascii.Error:
        return None


def _variant(text: str | None) -> dict[str, bytes] | None:
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - asked for seldom, and this file is read without Spark as well

    try:
        made = None if text is None else VariantVal.parseJson(text)
    except (ValueError, RecursionError):
        return None  # numbers, depths or sizes that SQLite takes and a VARIANT does not
    return None if made is None else {"value": bytes(made.value), "metadata": bytes(made.metadata)}
