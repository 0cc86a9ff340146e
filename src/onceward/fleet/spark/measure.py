"""Write sums over the judged messages as Parquet, and combine them for the report."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from onceward.fleet.spark.order import lanes
from onceward.fleet.spark.pairs import hours, pairs, percentiles, spans
from onceward.fleet.summary import (
    LISTED,
    LOOK_AT,
    SHOWN,
    WAITS,
    WAITS_BY,
    WAITS_SUMS,
    Rows,
    Sums,
)


def write(frames: DataFrame, out: Path) -> None:
    """Write aggregates of the judged messages to *out*: findings, spans, pairs, hours, lanes."""
    todo: dict[str, Callable[[], object]] = {
        "lanes": lambda: _write(lanes(frames), out / "lanes"),
        "pairs": lambda: _pairs(frames, out),
        "hours": lambda: _write(hours(frames), out / "hours"),
        "waits": lambda: _write(_waits(frames), out / "waits"),
        "findings": lambda: _write(frames.where(f"verdict in {LOOK_AT}"), out / "findings"),
    }
    carried = inheritable_thread_target(frames.sparkSession)
    with ThreadPoolExecutor(
        len(todo)
    ) as pool:  # each has moments in which it has nothing for Spark to do
        for done in [pool.submit(carried(work)) for work in todo.values()]:
            done.result()


def _waits(frames: DataFrame) -> DataFrame:
    """Return what messages wait for; moments are milliseconds."""
    numbered = frames.where(f"verdict in {WAITS}").withColumn(
        "waits_until_at", expr("unix_millis(waits_until_at)")
    )
    sums = (expr(sql).alias(name) for name, sql in WAITS_SUMS.items())
    return numbered.groupBy(*WAITS_BY).agg(*sums)


def _pairs(frames: DataFrame, out: Path) -> None:
    _write(spans(frames), out / "spans")
    histogram = frames.sparkSession.read.parquet(str(out / "spans"))
    times = (
        percentiles(histogram, "sender", "recipient")
        .where("kind = 'effect'")
        .drop("kind", "messages")
    )
    _write(pairs(frames).join(times, ["sender", "recipient"], "left"), out / "pairs")


def _write(found: DataFrame, path: Path) -> None:
    found.coalesce(1).write.mode("overwrite").parquet(str(path))


def sums(out: Path) -> Sums:
    """Return the sums that ``write`` has written: small tables, read without Spark."""
    hours = [
        {"hour": int(row["hour"].timestamp()) // 3600, "what": row["what"], "count": row["count"]}
        for row in _table(out / "hours")
    ]
    return Sums(
        pairs=_table(out / "pairs"),
        spans=_table(out / "spans"),
        hours=hours,
        lanes=_table(out / "lanes"),
        waits=_table(out / "waits"),
        examples=_dated(ds.dataset(out / "findings").head(LISTED, columns=SHOWN)),
    )


def _table(path: Path) -> Rows:
    rows: Rows = ds.dataset(path).to_table().to_pylist()
    return rows


def _dated(table: pa.Table) -> Rows:
    return [
        {
            name: str(value) if name.endswith("_at") and value else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]
