"""Keep a batch's rows on disk by sender; memory holds one record batch or one sender's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Self

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from onceward.fleet.spark.sink import Row, Sender

BY: Final = ("_db", "agent")
PIECES: Final = """
CREATE TABLE pieces (
    number INTEGER PRIMARY KEY,
    db     TEXT NOT NULL,
    agent  TEXT NOT NULL,
    rows   BLOB NOT NULL
) STRICT
"""
BY_SENDER: Final = "CREATE INDEX by_sender ON pieces (db, agent, number)"
ADD: Final = "INSERT INTO pieces (db, agent, rows) VALUES (?, ?, ?)"
SENDERS: Final = "SELECT DISTINCT db, agent FROM pieces ORDER BY db, agent"
COUNT: Final = "SELECT count(*) FROM (SELECT DISTINCT db, agent FROM pieces)"
ROWS: Final = "SELECT rows FROM pieces WHERE db = ? AND agent = ? ORDER BY number"


class Spool(Mapping[Sender, list[Row]]):
    """The rows of a batch by sender, in order of arrival; deleted with the block or the process."""

    def __init__(self) -> None:
        self._con = apsw.Connection(
            ""
        )  # a database without a name: SQLite spills its cache into a private file
        self._con.execute(f"{PIECES}; {BY_SENDER}")
        self._schema: pa.Schema = pa.schema([])

    def __enter__(self) -> Self:
        self._con.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the rows of one record batch; all batches have the same columns."""
        self._schema = batch.schema
        named = {name: _texts(batch, name) for name in BY}
        places = pa.table({**named, "place": pa.array(range(batch.num_rows), pa.int64())})
        for group in (
            places.group_by(list(BY), use_threads=False).aggregate([("place", "list")]).to_pylist()
        ):
            rows = batch.take(pa.array(group["place_list"], pa.int64()))
            self._con.execute(ADD, (group["_db"], group["agent"], rows.serialize().to_pybytes()))

    def __getitem__(self, sender: Sender) -> list[Row]:
        pieces = self._con.execute(ROWS, sender).fetchall()
        if not pieces:
            raise KeyError(sender)
        return [
            row
            for (piece,) in pieces
            for row in pa.ipc.read_record_batch(pa.py_buffer(piece), self._schema).to_pylist(
                maps_as_pydicts="strict"
            )
        ]

    def __iter__(self) -> Iterator[Sender]:
        for db, agent in self._con.execute(SENDERS).fetchall():
            yield str(db), str(agent)

    def __len__(self) -> int:
        [(count,)] = self._con.execute(COUNT).fetchall()
        return int(str(count))


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.repeat(pa.scalar(""), batch.num_rows)
    return pc.fill_null(batch.column(name).cast(pa.string()), "")
