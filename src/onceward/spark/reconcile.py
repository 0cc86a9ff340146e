"""Every message that any agent sent against every message that any agent received and processed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from onceward.fleet import manifest
from onceward.fleet.columns import WITNESS
from onceward.fleet.report import Report, html
from onceward.fleet.verdicts import Rules
from onceward.spark.facts import evidence, gather, present
from onceward.spark.fleet import Fleet
from onceward.spark.judge import DDL, MOMENTS, NUMBERS, QUESTIONS, answer, state, witnesses
from onceward.spark.measure import report, write

JOB: Final = "reconcile"
PLAIN: Final = {f"parquet.enable.dictionary#{name}": "false" for name in ("id", *MOMENTS, *NUMBERS)}
"""Columns whose values hardly repeat: looking for repetitions in them was half of all writing."""
WHOLE: Final = {"partitionOverwriteMode": "static"}
"""Also in a session that is set otherwise: rows of an interrupted run must not stay."""
OPEN: Final = f"sender is null or verdict in {QUESTIONS}"
OnStep = Callable[[str], object]


def reconcile(ledger: DataFrame, agents: DataFrame, rules: Rules) -> DataFrame:
    """
    Return one row per message of the fleet with its verdict.

    *ledger* has the columns of ``facts.NEEDS``, *agents* a row (``_db``,
    ``_agent``) for each file that was read. A ledger of live files may be put together with
    one of archived tables, see ``facts.ledger``.
    """
    stated = state(gather(evidence(ledger).unionByName(present(agents))), rules)
    return answer(stated, witnesses(stated, rules), rules)


def run(
    fleet: Fleet,
    out: Path,
    rules: Rules | None = None,
    *,
    archived: DataFrame | None = None,
    resume: bool = False,
    on_step: OnStep = str,
) -> Report:
    """
    Read a fleet once, judge every message, and write what was found into the folder *out*.

    There are ``frames/`` (every message), ``findings/`` (those to look at),
    ``pairs/``, ``spans/``, ``hours/`` and ``lanes/`` as Parquet, and
    ``report.html``. ``manifest.json`` is written last and says that all is
    there. With *resume* a run that was broken off goes on behind its last
    finished step. The archived ledger counts beside the live files.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it.

    """
    with manifest.alone(out, JOB) as own:
        planned = manifest.prepare(
            own, manifest.plan(fleet.paths, JOB, rules or Rules.at_present()), resume=resume
        )
        return _run(fleet, own, planned, archived, on_step)


def _run(
    fleet: Fleet, out: Path, planned: dict[str, Any], archived: DataFrame | None, on_step: OnStep
) -> Report:
    rules = manifest.rules(planned)
    work = out / "work" / str(rules.now)
    if not (work / "measured").exists():
        on_step(f"reading {len(planned['files'])} files")
        frames = _judged(fleet, work, rules, archived, on_step)
        on_step("measuring")
        write(frames, out)
        (work / "measured").touch()
    files = _files(work / "facts" / "open=true")
    quarantine = [
        {"path": row["id"], "reason": row["verdict"], "detail": row["recipient"]}
        for row in files
        if row["verdict"] != "read"
    ]
    found = report(
        out,
        [(row["recipient"], row["id"]) for row in files if row["verdict"] == "read"],
        quarantine,
        rules,
    )
    (out / "report.html").write_text(html(found), encoding="utf-8")
    if (
        settled := work / "facts" / "open=false"
    ).exists():  # not so where only the manifest is missing
        shutil.rmtree(out / "frames", ignore_errors=True)
        settled.rename(out / "frames")
    manifest.write(
        out / manifest.NAME,
        planned | {"verdicts": dict(found.verdicts), "quarantined": len(quarantine)},
    )
    shutil.rmtree(out / "work")
    return found


def _judged(
    fleet: Fleet, work: Path, rules: Rules, archived: DataFrame | None, on_step: OnStep
) -> DataFrame:
    """Return all messages with verdicts; those settled when gathered are not written again."""
    spark, settled = fleet.spark, work / "facts" / "open=false"

    def facts() -> DataFrame:
        live = fleet.table("witness", *WITNESS)
        return state(
            gather(live if archived is None else live.unionByName(evidence(archived))), rules
        ).selectExpr("*", f"{OPEN} as open")

    stated = stored(spark, work / "facts", f"{DDL}, open boolean", facts, by="open")
    on_step("judging")
    stored(
        spark,
        work / "judged",
        DDL,
        lambda: answer(stated.where("open"), witnesses(stated, rules), rules),
    )
    settled.mkdir(exist_ok=True)
    for part in (work / "judged").glob("part-*"):
        part.rename(settled / part.name)
    return spark.read.schema(DDL).parquet(str(settled))


def _files(path: Path) -> list[dict[str, Any]]:
    """Return what the reading said of each file."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = (
        ds.dataset(path)
        .to_table(columns=["id", "recipient", "verdict"], filter=ds.field("sender").is_null())
        .sort_by("id")
        .to_pylist()
    )
    return rows


def stored(
    spark: SparkSession, path: Path, ddl: str, make: Callable[[], DataFrame], *, by: str = ""
) -> DataFrame:
    """Return what *make* makes, read from the Parquet folder of this run or an earlier one."""
    if not (path / "_SUCCESS").exists():
        make().write.mode("overwrite").options(**PLAIN, **WHOLE).partitionBy(
            *([by] if by else [])
        ).parquet(str(path))
    return spark.read.schema(ddl).parquet(str(path))
