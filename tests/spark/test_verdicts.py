"""Spark gives each message the verdict that SQLite gives it."""

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from pyspark.sql import SparkSession
from tests.fleet.cases import RULES, evidence, expected

from onceward.fleet.columns import EVIDENCE
from onceward.fleet.spark.reconcile import reconcile


def test_every_case_has_the_same_verdict_on_spark(spark: SparkSession) -> None:
    """The same SQL judges, whichever engine runs it."""
    ddl = ", ".join(f"{name} {kind}" for name, kind in EVIDENCE.items())
    frames = reconcile(spark.createDataFrame(evidence(), ddl), RULES)

    assert expected() == {
        (row["sender"], row["recipient"], row["id"]): row["verdict"] for row in frames.collect()
    }
