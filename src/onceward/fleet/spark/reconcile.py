"""Compare every sent message of a fleet with every received and processed one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from onceward.fleet import manifest
from onceward.fleet.coverage import Reading
from onceward.fleet.logged import missing
from onceward.fleet.register import reading_of
from onceward.fleet.report import Report
from onceward.fleet.run import JOB, OnStep, finish
from onceward.fleet.ship import ShippedLog
from onceward.fleet.spark import archive, copies
from onceward.fleet.spark.facts import DDL, alone, apart, decided, gather, owners, readings, state
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.measure import sums, write
from onceward.fleet.spark.start import absolute
from onceward.fleet.summary import report_of
from onceward.fleet.verdict_sql import MINTED, MOMENTS, OPEN_VERDICTS, SEQUENCES
from onceward.fleet.verdicts import Rules

PLAIN: Final = {
    f"parquet.enable.dictionary#{name}": "false" for name in ("id", *MOMENTS, *SEQUENCES)
}
"""Columns whose values hardly repeat: looking for repetitions in them was half of all writing."""
WHOLE: Final = {"partitionOverwriteMode": "static"}
"""Also in a session that is set otherwise: rows of an interrupted run must not stay."""
OPEN: Final = f"sender is null or verdict in {OPEN_VERDICTS} or not {MINTED}"


def reconcile(evidence: DataFrame, rules: Rules) -> DataFrame:
    """
    Return one row per message of the fleet with its verdict.

    *evidence* is the table ``evidence`` of live files, or that of a shipped log, see
    ``archive.evidence``, or both. It is read at once: what files say of themselves and of their
    messages must be of one moment.
    """
    stated = state(gather(evidence), rules).localCheckpoint()
    read = _told(stated)
    found = owners(stated, read)
    if not found:
        return decided(stated, read, rules)
    both = apart(evidence, found, rules).localCheckpoint()
    rest = decided(alone(stated, found), read, rules)
    return rest.unionByName(decided(both, _told(both), rules))


def _told(stated: DataFrame) -> list[Reading]:
    files = stated.where("sender is null").select("id", "recipient", "verdict").collect()
    return readings(row.asDict() for row in files)


def run(
    fleet: Fleet,
    out: Path,
    rules: Rules | None = None,
    *,
    log: str | None = None,
    retired: Collection[str] = (),
    resume: bool = False,
    on_step: OnStep = str,
) -> Report:
    """
    Read a fleet once, judge every message, and write what was found into the folder *out*.

    There are ``frames/`` (every message), ``findings/`` (those to look at),
    ``pairs/``, ``spans/``, ``hours/`` and ``lanes/`` as Parquet, and
    ``report.html``. ``manifest.json`` is written last and says that all is
    there. With *resume* a run that was broken off goes on behind its last
    finished step. *log* is the URI of a shipped log, which counts beside the files, or instead of
    them; it knows what files have pruned since. A file of the log that is not among the
    fleet's, nor *retired* by its agent's name, counts as unread, with the reason ``gone``.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it.
        NamesNoFile: a path names no file; nothing is written.

    """
    planned = manifest.plan(fleet.paths, JOB, rules or Rules.at_present(), resume=resume)
    wanted = planned | {"log": log, "retired": sorted(retired)}
    with manifest.alone(out, JOB) as own:
        return _run(fleet, own, manifest.prepare(own, wanted, resume=resume), on_step)


def _run(fleet: Fleet, out: Path, planned: dict[str, Any], on_step: OnStep) -> Report:
    rules = manifest.rules(planned)
    work = out / "work" / str(rules.now)
    if not (work / "measured").exists():
        on_step(f"reading {len(planned['files'])} files")
        frames = _judged(fleet, work, planned, on_step)
        on_step("measuring")
        write(frames, out)
        (work / "measured").touch()
    read = _files(work / "facts" / "open=true")
    found = report_of(sums(out), read + _gone(planned, read), rules)
    if (
        settled := work / "facts" / "open=false"
    ).exists():  # not so where only the manifest is missing
        shutil.rmtree(out / "frames", ignore_errors=True)
        settled.rename(out / "frames")
    finish(out, planned, found)
    return found


def _gone(planned: dict[str, Any], read: list[Reading]) -> list[Reading]:
    """Return the files of the log that are not among those that were read beside it."""
    log = planned["log"]
    if log is None:
        return []
    uri = absolute(log)
    beside = [one for one in read if not one.path.startswith(f"{uri}#")]
    known = missing(ShippedLog(uri), uri, beside, planned["retired"])
    return [reading_of(one) for one in known]


def _judged(fleet: Fleet, work: Path, planned: dict[str, Any], on_step: OnStep) -> DataFrame:
    """Return all messages with verdicts; those settled when gathered are not written again."""
    spark, settled = fleet.spark, work / "facts" / "open=false"
    log, rules = planned["log"], manifest.rules(planned)

    def of_log(apart: Collection[str]) -> DataFrame:
        return archive.evidence(spark, log, fleet, apart, planned["retired"])

    def evidence() -> DataFrame:
        apart = copies.differing_copies(fleet, work) if fleet.paths else {}
        live = [copies.evidence(fleet, apart)] if fleet.paths else []
        shipped = [] if log is None else [of_log(apart)]
        return reduce(DataFrame.unionByName, [*live, *shipped])

    def facts() -> DataFrame:
        return state(gather(evidence()), rules).selectExpr("*", f"{OPEN} as open")

    stated = stored(spark, work / "facts", f"{DDL}, open boolean", facts, by="open")
    opened, read = stated.where("open").drop("open"), _files(work / "facts" / "open=true")
    found = owners(opened, read)
    if found:
        both = stored(spark, work / "apart", DDL, lambda: apart(evidence(), found, rules))

    def judged() -> DataFrame:
        if not found:
            return decided(opened, read, rules)
        rest = decided(alone(opened, found), read, rules)
        return rest.unionByName(decided(both, _files(work / "apart"), rules))

    on_step("judging")
    stored(spark, work / "judged", DDL, judged)
    settled.mkdir(exist_ok=True)
    for part in (work / "judged").glob("part-*"):
        part.rename(settled / part.name)
    return spark.read.schema(DDL).parquet(str(settled))


def _files(path: Path) -> list[Reading]:
    """Return what was read of each file."""
    if not path.exists():
        return []
    rows = ds.dataset(path).to_table(
        columns=["id", "recipient", "verdict"], filter=ds.field("sender").is_null()
    )
    return readings(rows.to_pylist())


def stored(
    spark: SparkSession, path: Path, ddl: str, make: Callable[[], DataFrame], *, by: str = ""
) -> DataFrame:
    """Return what *make* makes, read from the Parquet folder of this run or an earlier one."""
    if not (path / "_SUCCESS").exists():
        make().write.mode("overwrite").options(**PLAIN, **WHOLE).partitionBy(
            *([by] if by else [])
        ).parquet(str(path))
    return spark.read.schema(ddl).parquet(str(path))
