"""Compare a shipped log with the files that were shipped to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

from onceward.fleet.opening import opened
from onceward.fleet.ship import ShippedLog
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
    con = apsw.Connection(":memory:")
    log.into_sqlite(con, files=[file])
    found: Rows = {}
    for name in TABLES:
        cursor = con.execute(f"SELECT * FROM {name} WHERE _epoch = ?", (wanted,))
        rows = cursor.fetchall()
        names = [str(row[1]) for row in con.execute(f"PRAGMA table_info({name})")]
        plain = [dict(zip(names, row, strict=True)) for row in rows]
        found[name] = {
            int(str(row["seq"])): {
                key: value for key, value in row.items() if not key.startswith("_")
            }
            for row in plain
        }
        assert len(rows) == len(found[name]), f"a row of {name} is there twice"
    con.close()
    return found


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
