"""Start a local Spark session, or register the source in the user's own session."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit

from onceward.fleet import files
from onceward.fleet.columns import InvalidOption
from onceward.fleet.spark import gateway, mistakes
from onceward.fleet.spark.options import Options, spelt
from onceward.fleet.spark.spool import BY
from onceward.fleet.spark.writer import Sending, check

MEMORY: Final = "2g"
CORES: Final = os.cpu_count() or 1
DEFAULTS: Final = {
    "spark.master": f"local[{CORES}]",
    "spark.app.name": "onceward",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",  # no port, no threads, no noise
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # as the files' own times
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": str(2 * CORES),  # 200 tasks would cost more than their work
    # Rows that lie together already are grouped once, not twice.
    "spark.sql.execution.combineAdjacentAggregation": "true",
    # A hundred are fewer than one job has, so that the next began without any.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # As all other programs read them, and half the work of the old kind.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.worker.reuse": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default is a folder in the current one.
    "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/onceward-warehouse",
}


def session(**conf: Any) -> SparkSession:
    """
    Return a local Spark session with our source; an existing one is reused and given *conf*.

    The heap is ``spark.driver.memory``. Keywords are Spark's settings with
    underscores for dots, or exactly as Spark spells them:
    ``session(**{"spark.master": "local[4]"})``.

    Raises:
        NoJava, SparkDidNotStart: see each class.

    """
    given = {_setting(name): _text(value) for name, value in conf.items()}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in (
        given if SparkSession.getActiveSession() is not None else DEFAULTS | given
    ).items():
        builder = builder.config(name, value)
    if SparkContext._gateway is not None:
        spark = builder.getOrCreate()
    else:
        with gateway.announced(given.get("spark.driver.memory", MEMORY)):
            spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register format ``onceward`` in *spark*; its executors need the package installed."""
    from onceward.fleet.spark.source import Onceward  # noqa: PLC0415

    spark.dataSource.register(Onceward)


def stop() -> None:
    """End the session and the JVM that it ran in; a session may be started again afterwards."""
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    connected = SparkContext._gateway
    if connected is not None and gateway.running():
        connected.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    gateway.stop()


def read(spark: SparkSession, path: str | Sequence[str], table: str, **options: Any) -> DataFrame:
    """Return one table of all files that *path* names."""
    paths = [absolute(one) for one in ([path] if isinstance(path, str) else path)]
    given = {"table": table} | {spelt(name): _text(value) for name, value in options.items()}
    with mistakes.analysed():
        files.check(paths)
        Options.of({**given, "path": json.dumps(paths)})
    return spark.read.format("onceward").options(**given).load(paths)


def send(frame: DataFrame, path: str | Sequence[str], **options: Any) -> None:
    """Send the rows of a frame from the executors, all rows of one sender by one of them."""
    by = [name for name in BY if name in frame.columns]
    paths = [absolute(one) for one in ([path] if isinstance(path, str) else path)]
    given = {spelt(name): _text(value) for name, value in options.items()}
    with mistakes.analysed():
        if len(by) > 1:
            twice = "columns agent and _db may name the same file twice: keep one of them"
            raise InvalidOption(twice)
        Sending.of(given)
        check(frame.schema)
    rows = frame.repartition(*(coalesce(col(name), lit("")) for name in by))
    writer = rows.write.format("onceward").mode("append").option("commits", "executors")
    writer.options(**given).save(paths[0] if len(paths) == 1 else json.dumps(paths))


def absolute(path: str) -> str:
    """Return a path that Spark's own process, which may run in another folder, understands."""
    return path if path.startswith("file:") or "://" in path else os.path.abspath(path)  # noqa: PTH100 - a glob's links are not followed


def _setting(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
