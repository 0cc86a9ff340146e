"""Read one file's rows as Arrow batches by short statements, which do not hold its WAL for long."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Any, Final, cast

import apsw
import pyarrow as pa

from onceward.fleet.columns import GIVEN, Kind, Part
from onceward.fleet.evidence import number_of
from onceward.fleet.opening import Source, Unreadable, lacking, translated
from onceward.fleet.plan import Slice
from onceward.message.clock import monotonic

Rows = list[tuple[Any, ...]]
"""Sequence, whether the row is as expected, and the columns that are read."""
TYPES: Final[Mapping[Kind, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
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
"""Seconds after which a statement is ended and another continues after its last row."""
OWNER: Final = {
    "onceward_outbox": "sender",
    "onceward_inbox": "recipient",
    "onceward_processed_messages": "recipient",
}
"""The column of a view in which the file's own agent stands in every row."""
LARGE: Final = frozenset({"frame", "body", "body_bytes"})
"""Columns that may be of any length."""
HEAVY: Final = 512 * 1024
"""Bytes of these after which a batch is full: more do not stay in a core's cache."""
ENOUGH: Final = 256
"""Rows of a batch from which on it pays to expect more of the same in the next one."""
KEYED: Final = "SELECT seq, {as_before}{columns} FROM {view} WHERE {where} ORDER BY seq"
BETWEEN: Final = "seq > ? AND seq <= ?"
UNKEYED: Final = "SELECT 0, {as_before}{columns} FROM {view} WHERE {where}"
EDGES: Final = (
    "SELECT (SELECT seq FROM {view} ORDER BY seq LIMIT 1),"
    " (SELECT seq FROM {view} ORDER BY seq DESC LIMIT 1)"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns with their types, a condition, and the batch size per file."""

    columns: Mapping[str, Kind]
    where: str = ""
    rows: int = 8192

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow spells them."""
        return pa.schema([pa.field(name, TYPES[kind]) for name, kind in self.columns.items()])


@contextmanager
def snapshot(source: Source) -> Iterator[None]:
    """Read the file on one snapshot in a block."""
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
        for rows, constant in pieces:
            try:
                batch = _batch(part, wanted, rows, query.given(constant), done)
            except pa.ArrowException as error:
                raise Unreadable(source.path, "corrupt", str(error)) from error
            yield batch
            done += len(rows)


@dataclass(frozen=True, slots=True)
class Query:
    """A question to one view of one file, and the facts of its rows that are known without it."""

    shape: str
    read: Mapping[str, str]
    """SQL of the columns that are read row by row, in their order."""
    same: Mapping[str, Any]
    """Columns with one value in all rows."""

    @property
    def sql(self) -> str:
        """The statement; its rows are the sequence, whether they are as expected, the columns."""
        return self.expecting({})

    def expecting(self, constant: Mapping[str, Any]) -> str:
        """Return the statement that compares the *constant* columns, and reads the others."""
        columns = (f", {sql}" for name, sql in self.read.items() if name not in constant)
        as_before = " AND ".join(f"{self.read[name]} IS ?" for name in constant) or "1"
        return self.shape.format(as_before=as_before, columns="".join(columns))

    def given(self, constant: Mapping[str, Any]) -> Query:
        """Return the columns left to read if some are known to be *constant*."""
        read = {name: sql for name, sql in self.read.items() if name not in constant}
        return replace(self, read=read, same={**self.same, **constant})


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
        "file": number_of(source.file_id),
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
    shape, between = (KEYED, BETWEEN) if part.keyed else (UNKEYED, "1")
    conditions = [f"({condition}\n)" for condition in (part.where, wanted.where) if condition]
    kept = {"as_before": "{as_before}", "columns": "{columns}"}
    where = " AND ".join([between, *conditions]).replace("{", "{{").replace("}", "}}")
    return Query(shape.format(view=part.view, where=where, **kept), read, same)


def _expression(name: str, part: Part, there: frozenset[str] | None) -> str:
    sql = part.columns[name]
    return sql if there is None or there.issuperset(QUOTED.findall(sql)) else "NULL"


def _constant(found: re.Match[str]) -> str | int | None:
    return int(found["number"]) if found["number"] else found["text"]


class Expected:
    """
    Columns that had one value in a whole batch, and are expected to keep it.

    SQLite compares them, which costs a third of making a Python object of each value. A batch in
    which one has another value is read again; the column is read after that.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._refuted: dict[str, Any] = {}
        self._fickle: set[str] = set()
        self._learns = True

    def hold(self, rows: Rows) -> bool:
        """Return whether the rows are as expected; if not, nothing is expected any more."""
        if not self.values or all(map(itemgetter(1), rows)):
            return True
        self._refuted, self.values, self._learns = self.values, {}, True
        return False

    def learn(self, names: Iterable[str], rows: Rows) -> bool:
        """Expect what all columns of a whole batch show; return whether that is anything."""
        if not self._learns or len(rows) < ENOUGH:
            return False
        _, _, *columns = zip(*rows, strict=True)
        constant = {
            name: values[0]
            for name, values in zip(names, columns, strict=True)
            if name not in LARGE and _is_constant(values)
        }
        changed = {
            name for name, value in self._refuted.items() if constant.get(name, ...) != value
        }
        self._fickle |= changed or self._refuted.keys()
        self._refuted, self._learns = {}, False
        self.values = {name: one for name, one in constant.items() if name not in self._fickle}
        return bool(self.values)


def _is_constant(values: Sequence[Any]) -> bool:
    return values[0] == values[-1] and values.count(values[0]) == len(values)


def _pieces(
    con: apsw.Connection, query: Query, wanted: Wanted, piece: Slice
) -> Iterator[tuple[Rows, Mapping[str, Any]]]:
    """Yield the rows of a slice, and the columns that were not read as they have one value."""
    after, expected = piece.after, Expected()
    while True:
        for rows in _statement(con, query, wanted, expected.values, Slice("", after, piece.to)):
            if not expected.hold(rows):
                break
            yield rows, expected.values
            after = rows[-1][0]
            if expected.learn(query.read, rows):
                break
        else:
            return


def _statement(
    con: apsw.Connection, query: Query, wanted: Wanted, expected: Mapping[str, Any], piece: Slice
) -> Iterator[Rows]:
    sql, values = query.expecting(expected), (*expected.values(),)
    heavy = [place for place, name in enumerate(query.given(expected).read, 2) if name in LARGE]
    cursor = con.execute(sql, (*values, piece.after, piece.to))
    began = monotonic()
    while True:
        rows, broke = _taken(cursor, wanted.rows, heavy)
        if not rows:
            return
        if not broke and monotonic() - began <= HOLD:
            yield rows
            continue
        cursor.close(force=True)
        yield rows
        cursor = con.execute(sql, (*values, rows[-1][0], piece.to))
        began = monotonic()


def _taken(cursor: apsw.Cursor, limit: int, heavy: Sequence[int]) -> tuple[Rows, bool]:
    """Return the next rows, and whether an error came behind them: read on to raise it."""
    rows: Rows = []
    try:
        _take(rows, cursor, limit, heavy)
    except apsw.Error:
        if not rows:
            raise
        return rows, True
    return rows, False


def _take(rows: Rows, cursor: apsw.Cursor, limit: int, heavy: Sequence[int]) -> None:
    weight = 0
    while len(rows) < limit and weight < HEAVY:
        before = len(rows)
        rows.extend(islice(cursor, min(CHUNK if heavy else limit, limit - before)))
        if len(rows) == before:
            return
        for place in heavy:
            weight += sum(map(len, filter(None, map(itemgetter(place), rows[before:]))))


def _stream(
    con: apsw.Connection, query: Query, wanted: Wanted
) -> Iterator[tuple[Rows, Mapping[str, Any]]]:
    cursor = con.execute(query.sql)
    while rows := list(islice(cursor, wanted.rows)):
        yield rows, {}


def _batch(part: Part, wanted: Wanted, rows: Rows, query: Query, done: int) -> pa.RecordBatch:
    count = len(rows)
    seqs, _, *values = zip(*rows, strict=True)
    numbers = seqs if part.keyed else range(done + 1, done + count + 1)
    given = _repeated(wanted, query.same, count) | _numbers(numbers, part, wanted)
    read = dict(zip(query.read, values, strict=True))
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
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - rarely needed; Spark is optional here

    try:
        made = None if text is None else VariantVal.parseJson(text)
    except (ValueError, RecursionError):
        return None  # numbers, depths or sizes that SQLite takes and a VARIANT does not
    return None if made is None else {"value": bytes(made.value), "metadata": bytes(made.metadata)}
