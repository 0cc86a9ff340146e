"""Replay or discard dead letters in bulk, by a filter, through the agents' own files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, udf

from onceward import Postbox
from onceward.errors import InvalidMessage, OncewardError
from onceward.fleet import manifest
from onceward.spark.fleet import Fleet
from onceward.spark.reader import without_collector

JOB: Final = "replay"
Action = Literal["replay", "discard"]
CHOSEN: Final = ("_db", "id", "origin", "sender", "recipient", "reason", "type", "dead_at")
RECEIPTS: Final = "array<struct<id: string, outcome: string, detail: string, at: bigint>>"


def plan(fleet: Fleet, where: str, action: Action, out: Path) -> DataFrame:
    """
    Write down which dead letters match, and change nothing; return them.

    *where* is any condition of Spark's on the columns of ``dead_letters``. The
    plan in *out* is what ``carry_out`` does, no more and no less.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it.

    """
    with manifest.alone(out, JOB) as own:
        if (own / "receipts").exists():
            msg = f"{out} holds the receipts of a plan that was carried out: name a new folder"
            raise manifest.OutputTaken(msg)
        planned = manifest.prepare(
            own, manifest.plan(fleet.paths, JOB) | {"where": where, "action": action}, resume=False
        )
        chosen = fleet.table("dead_letters", "*", "frame").where(where).select(*CHOSEN)
        chosen.write.mode("overwrite").parquet(str(own / "plan"))
        stored = fleet.spark.read.parquet(str(own / "plan"))
        manifest.write(own / manifest.NAME, planned | {"planned": stored.count()})
        shutil.rmtree(own / "work")
        return stored


def carry_out(spark: SparkSession, out: Path) -> DataFrame:
    """
    Do what the plan in *out* says, once, and return the receipts: ``_db, id, outcome, detail, at``.

    Outcomes: ``replayed`` or ``discarded``; ``gone`` where the letter is no
    longer there, as after a run that was broken off: doing it again does
    nothing twice, because messages keep their ids; ``failed`` with the reason.
    Receipts are kept in *out*; a plan that has them all is not done again.

    Raises:
        FileNotFoundError: there is no plan in the folder.
        OutputBusy: another process executes it.

    """
    told = manifest.read(out / manifest.NAME)
    if told is None or told["job"] != JOB:
        msg = f"there is no plan in {out}: make one first"
        raise FileNotFoundError(msg)
    with manifest.alone(out, JOB) as own:
        done = own / "receipts"
        if not (done / "_SUCCESS").exists():
            receipts(spark.read.parquet(str(own / "plan")), told["action"]).write.mode(
                "overwrite"
            ).parquet(str(done))
        return spark.read.parquet(str(done))


def receipts(chosen: DataFrame, action: Action) -> DataFrame:
    """Replay or discard dead letters (``_db``, ``id``), one task for each file; return receipts."""
    by_file = chosen.groupBy("_db").agg(expr("array_sort(collect_list(id)) as ids"))
    settled = udf(
        lambda path, ids: _settle(path, ids, action), RECEIPTS, useArrow=False
    ).asNondeterministic()
    told = by_file.select("_db", settled("_db", "ids").alias("told")).selectExpr(
        "_db", "inline(told)"
    )
    return told.selectExpr("_db", "id", "outcome", "detail", "timestamp_micros(at) as at")


def _settle(path: str, ids: list[str], action: Action) -> list[tuple[str, str, str, int]]:
    with without_collector():
        try:
            with Postbox(path, start=False) as box:
                return [_receipt(message_id, *_one(box, message_id, action)) for message_id in ids]
        except OncewardError as error:
            return [_receipt(message_id, "failed", str(error)) for message_id in ids]


def _one(box: Postbox, message_id: str, action: Action) -> tuple[str, str]:
    try:
        if action == "discard":
            return ("discarded", "") if box.dead_letters.discard(message_id) else ("gone", "")
        box.dead_letters.replay(message_id)
    except InvalidMessage:
        return "gone", ""
    except OncewardError as error:
        return "failed", str(error)
    return "replayed", ""


def _receipt(message_id: str, outcome: str, detail: str) -> tuple[str, str, str, int]:
    return message_id, outcome, detail, time.time_ns() // 1000
