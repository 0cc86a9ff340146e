"""Results of a run are appended to tables of a catalog, once for each run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import pyarrow.parquet as pq

from onceward.fleet.spark import reconcile
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.lake import RESULTS, NotFinished, write_to
from onceward.fleet.verdict_sql import FRAME
from onceward.fleet.verdicts import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE = {
    "spark.sql.catalog.lake": (
        "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    ),
    "spark.sql.catalog.lake.driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
}
"""A catalog of tables that are appended to, made of what Spark itself brings."""
NOW = 4_000_000_000_000


def test_each_run_is_appended_once(spark: SparkSession, mail: Path, tmp_path: Path) -> None:
    """A call that is repeated adds nothing, the next run adds its rows beside those of the last."""
    url = f"jdbc:derby:{tmp_path}/lake;create=true"
    for name, value in {**LAKE, "spark.sql.catalog.lake.url": url}.items():
        spark.conf.set(name, value)
    spark.sql("CREATE NAMESPACE lake.audit")
    fleet = Fleet(spark, (str(mail),))
    for number in range(2):
        out = tmp_path / str(number)
        reconcile.run(fleet, out, Rules(now=NOW + number))
        for _ in range(2):
            tables = write_to(spark, out, "lake.audit")

    assert [f"lake.audit.onceward_{name}" for name in RESULTS] == tables
    parts = (tmp_path / "1" / "frames").glob("*.parquet")
    columns = {tuple(pq.read_schema(part).names) for part in parts}
    assert [(*FRAME, "file")] == list(columns), "Spark takes those of any one file for all"
    found = spark.table("lake.audit.onceward_frames").groupBy("run_at").count()
    assert [5, 5] == [row["count"] for row in found.collect()]
    counted = spark.sql("SELECT sum(messages) AS n FROM lake.audit.onceward_pairs").collect()
    assert 2 * 5 == counted[0]["n"]
    assert not Path("derby.log").exists()


def test_a_run_that_is_not_finished_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Half of a run does not go into tables."""
    with pytest.raises(NotFinished):
        write_to(spark, tmp_path, "lake.audit")
