"""Compare a shipped log with the files that were shipped to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from onceward.fleet.opening import opened
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.segments import plain
from onceward.fleet.ship.tables import TABLES, Shape

Rows = dict[str, dict[int, dict[str, Any]]]
"""Rows by sequence, by table."""


def rows_of_file(path: Path) -> Rows:
    """Return all rows of a file that are shipped."""
    found: Rows = {}
    with opened(str(path)) as source:
        for name, table in TABLES.items():
            shape = Shape.of(source, table)
            found[name] = {
                row.seq: dict(zip(shape.columns, row.values, strict=True))
                for row in shape.rows(source.con, 0, 2**63 - 1)
            }
    return found


def rows_of_log(log: ShippedLog | str | Path, file_id: str, *, epoch: int | None = None) -> Rows:
    """Return the rows that the log has of a file's latest epoch, without those that are gone."""
    log = log if isinstance(log, ShippedLog) else ShippedLog(str(log))
    file = log.file(file_id)
    wanted = file.manifest.epoch if epoch is None else epoch
    found: Rows = {}
    for name in TABLES:
        rows = [row for batch in log.batches(name, files=[file]) for row in _rows(batch)]
        wanted_rows = [row for row in rows if row["_epoch"] == wanted]
        found[name] = {
            row["seq"]: {key: value for key, value in row.items() if not key.startswith("_")}
            for row in wanted_rows
        }
        assert len(wanted_rows) == len(found[name]), f"a row of {name} is there twice"
    return found


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch, moments as milliseconds."""
    values = zip(*(plain(column) for column in batch.columns), strict=True)
    return [dict(zip(batch.schema.names, row, strict=True)) for row in values]


def id_of(path: Path) -> str:
    """Return the id of a file."""
    with opened(str(path)) as source:
        return source.file_id


def level(log: ShippedLog | str | Path, paths: Iterable[Path]) -> list[str]:
    """Return what differs between the log and the files; nothing if it is level with them."""
    differ = []
    for path in paths:
        there, shipped = rows_of_file(path), rows_of_log(log, id_of(path))
        differ += [f"{path.name} {name}" for name in TABLES if there[name] != shipped[name]]
    return differ
