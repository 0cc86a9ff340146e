"""Write the results of a reconciliation to tables of a catalog, such as Iceberg's or Delta's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, timestamp_millis

from onceward.errors import OncewardError
from onceward.fleet import manifest
from onceward.fleet.run import JOB

RESULTS: Final = ("frames", "findings", "pairs", "spans", "hours", "lanes")
"""The folders of a finished run; each becomes a table."""
RUN: Final = "run_at"
"""The column that tells runs apart: the moment by which a run has judged."""


class NotFinished(OncewardError):
    """The folder has no finished reconciliation of Spark: run one into it first."""


def write_to(spark: SparkSession, out: Path, namespace: str, *, using: str = "") -> list[str]:
    """
    Append the results of the run in *out* to tables ``NAMESPACE.onceward_frames`` and so on.

    Return the names of the tables. One that is not there is made, of the format *using* or of the
    catalog's own. Rows bear ``run_at``; a table that has this run already is left as it is, so an
    interrupted call can be repeated.

    Raises:
        NotFinished: the folder holds no finished reconciliation of Spark.

    """
    done = manifest.read(out / manifest.NAME)
    if done is None or done["job"] != JOB or not (out / "frames").is_dir():
        msg = f"there is no finished reconciliation of Spark in {out}: run one into it first"
        raise NotFinished(msg)
    now = manifest.rules(done).now
    targets = {f"{namespace}.onceward_{name}": str(out.absolute() / name) for name in RESULTS}
    for target, path in targets.items():
        rows = spark.read.parquet(path).withColumn(RUN, timestamp_millis(lit(now)))
        _append(rows, target, now, using)
    return list(targets)


def _append(rows: DataFrame, target: str, now: int, using: str) -> None:
    spark, writer = rows.sparkSession, rows.writeTo(target)
    if not spark.catalog.tableExists(target):
        (writer.using(using) if using else writer).create()
    elif spark.table(target).where(f"unix_millis({RUN}) = {now}").isEmpty():
        writer.append()
