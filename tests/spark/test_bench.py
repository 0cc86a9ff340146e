"""The benchmark of reconciling measures both sides, and that they agree."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from pyspark.sql import SparkSession
from tests.bench import command as bench


def test_reconciling_is_measured_beside_the_same_by_hand(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A tiny run prints one row with both rates, the growth and its goals.

    The growth is from an eighth to full size; its findings are checked.
    """
    assert 0 == bench.run("fleet-reconcile", json=True, seconds=0.01, folder=tmp_path)

    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ("fleet-reconcile", {"per_minute", "growth"}) == (row["case"], set(row["goals"]))
    assert min(row["rate"], row["raw_rate"], row["ratio"], row["growth"]) > 0
