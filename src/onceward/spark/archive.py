"""Read a log that ``onceward ship`` filled, as tables of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, row_number

from onceward.fleet.evidence import VIEWS
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.tables import Kind, standard
from onceward.spark.compaction import Compaction
from onceward.spark.facts import archived

ROW: Final = ("_file_id", "_epoch", "seq")
"""Columns that name one row of one history of a file."""
SPARK_TYPES: Final[dict[Kind, str]] = {
    "text": "string",
    "integer": "bigint",
    "moment": "timestamp",
}
OWN: Final = (
    "_file_id string, _agent string, _epoch bigint, _number bigint, _gone boolean, _digest string"
)
SCHEMES: Final = {"s3": "s3a"}
"""Names of filesystems that Hadoop names otherwise than pyarrow."""


def read(spark: SparkSession, uri: str, table: str) -> DataFrame:
    """
    Return a table of the log: each row of each epoch in its last version, without removed rows.

    Columns are those of ``ShippedLog.batches`` but ``_abandoned``, and ``day``. Executors read the
    Parquet objects that the newest manifests name; a bucket needs the jars of its filesystem.

    Raises:
        NoLog: there is no log at that place.

    """
    log = ShippedLog(uri)
    base = _hadoop(uri)
    found = [each for file in log.files() for each in file.segments if each.table == table]
    own = ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in standard()[table].items())
    empty = spark.createDataFrame([], f"{OWN}, {own}, day date")
    if not found:
        return empty
    paths = [f"{base}/{each.path}" for each in found]
    options = {"mergeSchema": "true", "basePath": f"{base}/data/{table}"}
    rows = spark.read.options(**options).parquet(*paths).drop("agents")
    if any(each.again for each in found):
        newest = Window.partitionBy(*ROW).orderBy(col("_number").desc())
        rows = rows.withColumn("_rank", row_number().over(newest)).where("_rank = 1").drop("_rank")
    return empty.unionByName(rows, allowMissingColumns=True).where("not _gone")


def evidence(spark: SparkSession, uri: str) -> DataFrame:
    """Return what ended, as evidence to be reconciled beside live files, from all epochs."""
    tables = {name: read(spark, uri, name) for name in VIEWS}
    ended = {
        name: table.where("ended_at is not null") if "ended_at" in table.columns else table
        for name, table in tables.items()
    }
    return archived(ended)


def compact(spark: SparkSession, uri: str, *, few: int = 1) -> DataFrame:
    """
    Fold each file's objects of a day until *few* small ones are left; return a row for each file.

    Columns: ``file_id``, ``objects_before``, ``objects_after``. Executors fold, with pyarrow, in
    the log itself: it stays what ``onceward ship`` fills, and rows stay as they are. Shippers and
    readers may go on meanwhile: what a shipper commits first ends the folding of its file.

    Raises:
        NoLog: there is no log at that place.

    """
    files = len(ShippedLog(uri).files())
    spark.dataSource.register(Compaction)
    tasks = min(files, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    place = uri if "://" in uri else str(Path(uri).absolute())
    options = {"uri": place, "few": str(few), "tasks": str(tasks)}
    done = spark.read.format(Compaction.name()).options(**options).load()
    return spark.createDataFrame(done.collect(), done.schema)


def _hadoop(uri: str) -> str:
    """Return a place of the log as Hadoop names it: without parameters of pyarrow."""
    scheme, mark, rest = uri.partition("?")[0].rstrip("/").partition("://")
    return f"{SCHEMES.get(scheme, scheme)}{mark}{rest}" if mark else str(Path(scheme).absolute())
