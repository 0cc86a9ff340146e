"""Frames and streams that are sent, in the hands of Spark, whose driver may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Postbox
from onceward.fleet import spark as door
from onceward.fleet.columns import InvalidOption
from onceward.fleet.opening import opened

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from pyspark.errors import AnalysisException
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

from onceward.fleet.spark.writer import Sending, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RELAY = str(Path(__file__).with_name("relay.py"))
PATIENCE = 180.0
STEPS = ("batch after", "stream between", "stream after")


def agents(folder: Path, *names: str) -> Path:
    """Make agents' files in a folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        Postbox(folder / f"{name}.db", agent=name, start=False).close()
    return folder


def bodies(path: Path) -> list[Any]:
    """Return the bodies of an agent's outbox, sorted."""
    with opened(str(path)) as source:
        return sorted(
            json.loads(str(body))
            for (body,) in source.con.execute("SELECT frame -> '$.data' FROM onceward_outbox")
        )


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Return messages of alice and carol in turns, spread over four tasks."""
    agent = "IF(id % 2 = 0, 'alice', 'carol') AS agent"
    return (
        spark.range(count)
        .repartition(4)
        .selectExpr(agent, "'bob' AS recipient", "CAST(id AS STRING) AS body", "struct(id) AS s")
        .drop("s")
    )


def test_a_frame_is_sent_once_however_often_it_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    Rows of one agent come from several tasks; every file recognises a named query.

    An unnamed one is new each time.
    """
    agents(tmp_path, "alice", "carol")
    writer = numbers(spark, 20).write.format("onceward").mode("append").options(holdUnknown=True)

    for _ in range(2):
        writer.option("query", "nightly").option("batch", 20261121).save(str(tmp_path))
    assert (list(range(0, 20, 2)), list(range(1, 20, 2))) == tuple(
        bodies(tmp_path / f"{name}.db") for name in ("alice", "carol")
    )
    with pytest.raises(Exception, match="already sent with other rows"):
        numbers(spark, 18).write.format("onceward").mode("append").options(
            holdUnknown=True, query="nightly", batch=20261121
        ).save(str(tmp_path))

    numbers(spark, 2).write.format("onceward").mode("append").options(holdUnknown=True).save(
        str(tmp_path)
    )
    assert 11 == len(bodies(tmp_path / "alice.db"))


def test_executors_commit_the_files_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """
    All rows of an agent are committed by one task, in however many partitions they come.

    A second run, in other partitions, sends nothing, and other rows are refused.
    """
    agents(tmp_path, "alice", "carol")
    rows = numbers(spark, 20).unionByName(
        spark.sql("SELECT 'alice' AS agent, CAST(NULL AS STRING) AS recipient, '99' AS body")
    )
    how: dict[str, Any] = {"query": "nightly", "batch": 7, "hold_unknown": True}
    how["bad_records_path"] = str(tmp_path / "bad")
    for count, path in ((5, str(tmp_path)), (2, [str(tmp_path), f"{tmp_path}/alice.db"])):
        door.send(rows.repartition(count), path, **how)

        assert (list(range(0, 20, 2)), list(range(1, 20, 2))) == tuple(
            bodies(tmp_path / f"{name}.db") for name in ("alice", "carol")
        )
    [bad] = (tmp_path / "bad" / "nightly" / "7").glob("*.json")
    assert "99" == json.loads(bad.read_text())["record"]["body"]
    with pytest.raises(Exception, match="already sent with other rows"):
        door.send(numbers(spark, 18), str(tmp_path), **how)
    with pytest.raises(AnalysisException, match="keep one of them"):
        door.send(numbers(spark, 1).selectExpr("*", "agent AS _db"), str(tmp_path), **how)


def test_a_stream_is_sent_by_the_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch is a batch of its query, by ``foreachBatch`` and by the format."""
    target, source = agents(tmp_path / "target", "alice"), agents(tmp_path / "source", "dave")
    with Postbox(source / "dave.db", start=False, hold_unknown=True) as dave:
        dave.session().send_many([("bob", number) for number in range(10)], type="note")

    def forward(frame: DataFrame, batch: int) -> None:
        door.send(frame, str(target), query="relay", batch=batch, hold_unknown=True)

    for last in (False, True):
        came = spark.readStream.format("onceward").options(table="outbox", columns="body")
        rows = came.load(str(source)).selectExpr("'alice' AS agent", "'bob' AS recipient", "body")
        writer = rows.writeStream.foreachBatch(forward)
        if last:  # the same by the format itself, under the query's own name
            writer = rows.repartition("agent").writeStream.format("onceward")
            writer = writer.options(path=str(target), commits="executors", holdUnknown=True)
        checkpoint = str(tmp_path / f"checkpoint-{last}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    assert sorted([*range(10), *range(10)]) == bodies(target / "alice.db")


@pytest.mark.parametrize("commits", ["driver", "executors"])
def test_writings_of_one_micro_batch_and_equal_ones_of_several_are_all_sent(
    commits: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A batch has the number that it is given, and without one that of its micro-batch."""
    target, source = agents(tmp_path / "target", "alice"), agents(tmp_path / "source", "dave")

    def forward(frame: DataFrame, batch: int) -> None:
        rows = frame.selectExpr("'alice' AS agent", "'bob' AS recipient", "body")
        two = ({"query": "two", "batch": 2 * batch + half} for half in range(2))
        for more in (*two, {}):
            writer = rows.coalesce(1).write.format("onceward").mode("append")
            writer.options(commits=commits, holdUnknown=True, **more).save(str(target))

    came = spark.readStream.format("onceward").options(table="outbox", columns="body")
    writer = came.load(str(source)).writeStream.foreachBatch(forward)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        with Postbox(source / "dave.db", start=False, hold_unknown=True) as dave:
            dave.send("bob", 7, type="note")
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    assert [7] * 6 == bodies(target / "alice.db")


def test_a_stream_numbers_its_batches_itself() -> None:
    """One number for all would send the first micro-batch alone."""
    with pytest.raises(InvalidOption, match="omit the option batch"):
        StreamWriter(Sending.of({"path": "/fleet", "batch": "1"}), StructType())


@pytest.mark.parametrize("body", ["map(1, 2)", "struct(array(map(current_date(), 1)) AS days)"])
def test_a_map_whose_keys_are_no_text_is_refused(
    body: str, spark: SparkSession, tmp_path: Path
) -> None:
    """It is not an object of JSON, in no row: no record is bad by it, the frame is."""
    folder, bad = agents(tmp_path / "agents", "alice"), tmp_path / "bad"
    frame = spark.sql(f"SELECT 'alice' AS agent, 'alice' AS recipient, {body} AS body")
    writer = frame.write.format("onceward").mode("append").options(badRecordsPath=str(bad))

    with pytest.raises(Exception, match="JSON has text keys only: cast them to STRING"):
        writer.save(str(folder))
    assert ([], False) == (bodies(folder / "alice.db"), bad.exists())


@pytest.mark.parametrize("fatal", [0, 19])
def test_a_killed_worker_sends_nothing_twice(
    fatal: int, spark: SparkSession, tmp_path: Path
) -> None:
    """
    A task killed before it has collected its first row, or its last, is run again.

    It is the task's Python process that is killed. What other tasks had collected is sent once
    with it, and the batch is recognised when it is written again.
    """
    folder, killed = agents(tmp_path / "agents", "alice", "carol"), tmp_path / "killed"

    def deadly(body: str) -> str:
        if int(body) == fatal and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return body

    rows = numbers(spark, 20).withColumn("body", udf(deadly, "string", useArrow=False)("body"))
    writer = rows.write.format("onceward").mode("append").options(holdUnknown=True, query="deadly")
    for _ in range(2):
        writer.save(str(folder))

    assert killed.exists()
    assert (list(range(0, 20, 2)), list(range(1, 20, 2))) == tuple(
        bodies(folder / f"{name}.db") for name in ("alice", "carol")
    )


@pytest.mark.parametrize(
    ("mode", "options", "expression", "said"),
    [
        ("overwrite", {}, "body", "cannot be overwritten"),
        ("append", {"hold": "true"}, "body", "no writing option 'hold'"),
        ("append", {}, "body AS text", "column 'text' is unknown"),
    ],
)
def test_what_cannot_be_sent_is_said_at_once(
    spark: SparkSession,
    tmp_path: Path,
    *,
    mode: str,
    options: dict[str, str],
    expression: str,
    said: str,
) -> None:
    """Wrong modes, options and columns are refused before a task runs."""
    frame = numbers(spark, 2).selectExpr("agent", "recipient", expression)

    with pytest.raises(Exception, match=said):
        frame.write.format("onceward").mode(mode).options(**options).save(str(tmp_path))


def test_a_killed_driver_loses_nothing_and_sends_nothing_twice(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    A program killed at each step in turn, and started again each time, sends all once.

    The steps are when all files have committed and Spark does not know it, between two files of a
    micro-batch, and when its last file has committed and the checkpoint does not know it. Each
    statement inside of a commit is tried with the sink.
    """
    source, target = (
        agents(tmp_path / "source", "dave"),
        agents(tmp_path / "target", "alice", "carol"),
    )
    state = str(tmp_path_factory.mktemp("state"))
    with Postbox(source / "dave.db", start=False, hold_unknown=True) as dave:
        dave.session().send_many([("bob", number) for number in range(10)], type="note")

    ended = [_relay(step, f"{source}/*.db", str(target), state) for step in STEPS]

    assert [-signal.SIGKILL] * len(STEPS) == ended
    assert 0 == _relay("", f"{source}/*.db", str(target), state)
    for name, first in (("alice", 100), ("carol", 101)):
        assert [*range(10), *range(first, 200, 2)] == bodies(target / f"{name}.db")


def _relay(step: str, *given: str) -> int:
    """Run the program until it ends, or ends itself at a step; return its exit code."""
    env = os.environ | {"RELAY_DIES": step, "PYTHONPATH": str(Path(RELAY).with_name("dying"))}
    return subprocess.run(
        [sys.executable, RELAY, *given],
        check=False,
        timeout=PATIENCE,
        start_new_session=True,
        env=env,
    ).returncode
