"""Read a log that ``onceward ship`` filled, as tables of Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import broadcast, coalesce, col, expr, lit, row_number, udf

from onceward.errors import InvalidArgument
from onceward.fleet import logged
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.evidence import number_of
from onceward.fleet.ship import LoggedFile, ShippedLog
from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.log import NoLog
from onceward.fleet.ship.tables import DAY_MS, LAST_DAY, TABLES, Kind, standard
from onceward.fleet.spark.compaction import FOLDED, folded
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.shipped import FORMAT, Shipped
from onceward.fleet.spark.start import absolute

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
DAY: Final = (
    f"date_from_unix_date(if(unix_millis({{began}}) div {DAY_MS} between 0 and {LAST_DAY},"
    f" cast(unix_millis({{began}}) div {DAY_MS} as int), 0))"
)
"""The day on which a row began, as ``tables.day_of`` has it."""
PAST: Final = "_file_id string, _epoch bigint, _reach bigint"
"""The abandoned epochs, and up to where the living ones have their rows."""
ABANDONED: Final = "_reach IS NOT NULL AND (seq > _reach OR (_there AND _same IS NULL))"
"""As in ``ShippedLog.batches``: a row that a living epoch has is not abandoned."""
SCHEMES: Final = {"s3": "s3a"}
"""Names of filesystems that Hadoop names otherwise than pyarrow."""


def read(spark: SparkSession, uri: str, table: str) -> DataFrame:
    """
    Return a table of the log: each row of each epoch in its last version, without removed rows.

    Columns are those of ``ShippedLog.batches``, and ``day``. ``_abandoned`` rows are of a past that
    a restored file has overwritten: leave them out to see files as they are. Executors read the
    Parquet objects that the newest manifests name; a bucket needs the jars of its filesystem.

    Raises:
        NoLog: there is no log at that place.

    """
    log = ShippedLog(uri)
    base, began = _hadoop(uri), TABLES[table].began
    found = [each for file in log.files() for each in file.segments if each.table == table]
    own = ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in standard()[table].items())
    empty = spark.createDataFrame([], f"{OWN}, {own}, day date, _abandoned boolean")
    if not found:
        return empty
    paths = [f"{base}/{each.path}" for each in found]
    rows = spark.read.option("mergeSchema", "true").parquet(*paths)
    rows = rows.withColumn("day", expr(DAY.format(began=began)))
    if any(each.again for each in found):
        newest = Window.partitionBy(*ROW).orderBy(col("_number").desc())
        rows = rows.withColumn("_rank", row_number().over(newest)).where("_rank = 1").drop("_rank")
    told = _told(rows, log.files(), table)
    return empty.unionByName(told, allowMissingColumns=True).where("not _gone")


def _told(rows: DataFrame, files: Iterable[LoggedFile], table: str) -> DataFrame:
    """Return rows with a column that says which of them a restored file has lost."""
    known = [
        (each.file_id, epoch.number, each.reach(epoch, table))
        for each in files
        for epoch in each.manifest.epochs
        if epoch not in each.living
    ]
    if not known:
        return rows.withColumn("_abandoned", lit(col=False))
    past = broadcast(rows.sparkSession.createDataFrame(known, PAST))
    living = rows.join(past, ["_file_id", "_epoch"], "left_anti")
    there = living.select("_file_id", "seq", lit(col=True).alias("_there")).distinct()
    same = living.select("_file_id", "_digest", lit(col=True).alias("_same")).distinct()
    found = (
        rows.join(past, ["_file_id", "_epoch"], "left")
        .join(there, ["_file_id", "seq"], "left")
        .join(same, ["_file_id", "_digest"], "left")
    )
    told = found.withColumn("_abandoned", coalesce(expr(ABANDONED), lit(col=False)))
    return told.drop("_reach", "_there", "_same")


def evidence(
    spark: SparkSession,
    uri: str,
    beside: Fleet | None = None,
    apart: Collection[str] = (),
    retired: Collection[str] = (),
) -> DataFrame:
    """
    Return what a log says of messages, to be reconciled alone or with the files *beside* it.

    Columns are those of the table ``evidence``, rows those that SQLite judges, with one for each
    file of the log. Executors read the log with pyarrow, and the files beside it once more, to
    find those that were restored since they were shipped; but not the copies *apart*, which differ.
    A file that another one of its agent replaced, and that is not *retired*, counts as a restored
    one.

    Raises:
        NoLog: there is no log at that place.

    """
    place = absolute(uri)
    log, read = ShippedLog(place), _read(beside, apart)
    copies = {each.file_id: logged.copies(read, each) for each in log.files()}
    lost = logged.replaced(logged.missing(log, place, read, retired), read)
    spark.dataSource.register(Shipped)
    told = {"uri": place, "copies": json.dumps(copies), "lost": json.dumps(lost)}
    return spark.read.format(FORMAT).options(**told).load()


def _read(beside: Fleet | None, apart: Collection[str]) -> list[Reading]:
    """Return the files beside the log but those *apart*; one that cannot be read as not read."""
    if beside is None or not beside.paths:
        return []
    rows = beside.table("agents", "_db", "agent", "file_id").collect()
    found = {
        row._db: Reading(row._db, READ, agent=row.agent, file=number_of(row.file_id))
        for row in rows
        if row._db not in apart
    }
    paths = (one.path for one in beside.files() if one.path not in apart)
    return [found.get(path) or Reading(path, "unreadable") for path in paths]


def compact(spark: SparkSession, uri: str, *, few: int = 1) -> DataFrame:
    """
    Merge the objects of each table until *few* small ones are left; return a row per file.

    Columns: ``file_id``, ``objects_before``, ``objects_after``. Executors fold, with pyarrow, in
    the log itself: it stays what ``onceward ship`` fills, and rows stay as they are. Shippers and
    readers may run at the same time: a commit of a shipper ends the folding of its file.

    Raises:
        InvalidArgument: *few* is less than 1.
        NoLog: there is no log at that place.

    """
    if few < 1:
        raise InvalidArgument(f"few is {few}: give at least 1, the objects to leave per table")
    place = absolute(uri)
    folders = manifests.folders(ShippedLog(place).objects)
    if not folders:
        raise NoLog(f"there is no shipped log at {uri}: give the URI of onceward ship --to")
    tasks = min(len(folders), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    fold = udf(lambda folder: folded(place, folder, few), FOLDED, useArrow=False)
    found = spark.createDataFrame([(each,) for each in folders], "folder string")
    done = found.repartition(tasks).select(fold("folder").alias("file")).collect()
    return spark.createDataFrame([row.file for row in done if row.file is not None], FOLDED)


def _hadoop(uri: str) -> str:
    """Return a place of the log as Hadoop names it: without parameters of pyarrow."""
    scheme, mark, rest = absolute(uri).partition("://")
    if not mark:
        return scheme.rstrip("/")
    return f"{SCHEMES.get(scheme, scheme)}://{rest.partition('?')[0].rstrip('/')}"
