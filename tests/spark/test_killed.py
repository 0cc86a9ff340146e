"""What killed processes leave behind is reconciled: nothing lost, nothing twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from pyspark.sql import SparkSession

from onceward.fleet.columns import EVIDENCE
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.reconcile import reconcile
from onceward.fleet.verdicts import NAMES, SETTLED, VERDICTS, Rules


def test_a_team_whose_processes_were_killed_has_lost_and_doubled_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Four real processes, killed by SIGKILL at work, settle no message twice.

    All they have settled is settled once, and the rest is on its way.
    """
    home = tmp_path / "team"
    command = [
        sys.executable,
        "-m",
        "onceward",
        "demo",
        "--seconds",
        "3",
        "--kills",
        "3",
        "--json",
        "--home",
        str(home),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert 0 == done.returncode, done.stderr
    said = json.loads(done.stdout)

    fleet = Fleet(spark, (str(home),))
    frames = reconcile(
        fleet.table("evidence", *EVIDENCE),
        Rules.at_present(grace=0),
    )
    found = dict.fromkeys(NAMES, 0) | {
        row["verdict"]: row["count"] for row in frames.groupBy("verdict").count().collect()
    }

    assert [0] * 6 == [
        found[verdict.name] for verdict in VERDICTS if verdict.weight in {"bad", "open"}
    ]
    assert sum(found[name] for name in SETTLED) >= said["results"] > 0
    assert 3 == sum(said["kills"].values())
