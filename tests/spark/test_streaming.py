"""A stream of the fleet, through restarts, in the hands of Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Postbox

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Made = Callable[..., Path]


@pytest.fixture
def follow(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, Any]]]:
    """
    Return a function that runs the stream and returns all it ever wrote.

    It runs until nothing is new, as a new query on the same checkpoint.
    """
    state = tmp_path_factory.mktemp("state")

    def run(**options: Any) -> list[dict[str, Any]]:
        given = {
            "table": "outbox",
            "columns": "_db,_seq,_epoch,id",
            "manifests": str(state / "positions"),
        } | options
        frame = spark.readStream.format("onceward").options(**given).load(f"{tmp_path}/*.db")
        writer = frame.writeStream.option("checkpointLocation", str(state / "checkpoint")).trigger(
            availableNow=True
        )
        query = writer.start(str(state / "written"), format="parquet")
        assert query.awaitTermination(120)
        written = spark.read.parquet(str(state / "written")).collect()
        return [
            row.asDict() | {"batches": len(list((state / "checkpoint" / "commits").glob("[0-9]*")))}
            for row in written
        ]

    return run


def send(path: Path, count: int) -> None:
    """Let an agent send so many more."""
    with Postbox(path, start=False, hold_unknown=True) as box:
        box.session().send_many([("bob", number) for number in range(count)], type="note")


def test_a_stream_goes_on_where_it_stopped(
    box: Made, follow: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    """
    Each row comes once, and once more for each new epoch; also in turns.

    It is so across restarts, new files, and a file that was restored.
    """
    alice = box("alice", 30)
    backup = alice.read_bytes()
    box("carol", 5)
    first = follow(maxRowsPerTrigger=10)
    assert 35 == len({row["id"] for row in first}) == len(first)
    assert 4 <= first[0]["batches"]

    send(alice, 3)
    box("dave", 2)
    second = follow(lookFor=0)
    assert 40 == len({row["id"] for row in second}) == len(second)

    alice.write_bytes(backup)
    third = follow()
    assert Counter(
        {("alice.db", 0): 33, ("alice.db", 1): 30, ("carol.db", 0): 5, ("dave.db", 0): 2}
    ) == Counter((Path(row["_db"]).name, row["_epoch"]) for row in third)
    assert third[0]["batches"] == second[0]["batches"] + 1


def test_what_has_no_sequence_cannot_be_followed(spark: SparkSession, tmp_path: Path) -> None:
    """Peers and lanes are states, not rows that come: the stream is refused with a way out."""
    frame = spark.readStream.format("onceward").option("table", "peers").load(str(tmp_path))
    query = (
        frame.writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "state"))
        .start()
    )

    with pytest.raises(Exception, match="follow transitions"):
        query.awaitTermination(60)


def test_a_stream_without_files_named_is_refused(spark: SparkSession) -> None:
    """Nothing at all is not a fleet: a forgotten path would be a stream of nothing for ever."""
    with pytest.raises(Exception, match="no files are given"):
        spark.readStream.format("onceward").option("table", "outbox").load()


def test_the_lag_of_a_stream_is_in_its_progress(
    spark: SparkSession, box: Made, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The rows that wait, by agent, are in the latest offset of each progress of the query."""
    box("alice", 9), box("carol", 1)
    state = tmp_path_factory.mktemp("state")
    reader = spark.readStream.format("onceward").options(table="outbox", maxRowsPerTrigger=4)
    writer = reader.load(str(tmp_path)).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()

    assert query.awaitTermination(120)
    told = [json.loads(one.sources[0].latestOffset) for one in query.recentProgress]
    assert [6, 2, 0] == [one["lag"] for one in told if one][:3]
    assert {"alice": 6} == told[0]["lag_by_agent"]
