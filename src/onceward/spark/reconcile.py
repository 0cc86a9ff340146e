"""Every message that any agent sent against every message that any agent received and processed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from onceward.spark import manifest
from onceward.spark.facts import AGGREGATES, NEEDS, gather
from onceward.spark.fleet import Fleet
from onceward.spark.judge import judge
from onceward.spark.measure import report, write
from onceward.spark.report import Report, html
from onceward.spark.verdicts import Rules

JOB: Final = "reconcile"
UNLIKE: Final = ("id", "created_at", "sent_at", "received_at", "processed_at", "lane", "out_seq", "in_seq", "mark_seq", *AGGREGATES)
PLAIN: Final = {f"parquet.enable.dictionary#{name}": "false" for name in UNLIKE}
"""Columns whose values hardly repeat: looking for repetitions in them was half of all writing."""
Tell = Callable[[str], object]


def reconcile(ledger: DataFrame, agents: DataFrame, rules: Rules) -> DataFrame:
    """
    Return one row per message of the fleet with its verdict.

    *ledger* has the columns of ``facts.NEEDS``, *agents* a row (``_db``,
    ``_agent``) for each file that was read. A ledger of live files may be put together with
    one of archived tables, see ``facts.ledger``.
    """
    return judge(gather(ledger), agents, rules)


def run(
    fleet: Fleet, out: Path, rules: Rules | None = None, *, archived: DataFrame | None = None, resume: bool = False, tell: Tell = str
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

    """
    out, given = out.absolute(), rules or Rules.at_present()  # Spark's own process may stand elsewhere
    planned = manifest.prepare(out, manifest.plan(fleet, JOB, given), resume=resume)
    rules = manifest.rules(planned)
    work = out / "work" / str(rules.now)
    tell(f"reading {len(planned['files'])} files")
    agents = stored(fleet.spark, work / "agents", lambda: fleet.table("agents", "_db", "_agent"))
    facts = stored(fleet.spark, work / "facts", lambda: gather(_ledger(fleet, archived)))
    tell("judging")
    frames = stored(fleet.spark, work / "frames", lambda: judge(facts, agents, rules))
    tell("measuring")
    write(frames, out)
    quarantine = _unread(fleet, work / "facts")
    found = report(out, work / "agents", quarantine, rules)
    shutil.rmtree(out / "frames", ignore_errors=True)
    (work / "frames").rename(out / "frames")
    (out / "report.html").write_text(html(found), encoding="utf-8")
    manifest.write(out / manifest.NAME, planned | {"verdicts": dict(found.verdicts), "quarantined": len(quarantine)})
    shutil.rmtree(out / "work")
    return found


def _ledger(fleet: Fleet, archived: DataFrame | None) -> DataFrame:
    live = fleet.table("ledger", *NEEDS)
    return live if archived is None else live.unionByName(archived, allowMissingColumns=True)


def _unread(fleet: Fleet, facts: Path) -> list[dict[str, Any]]:
    """Return the files that could not be read, now or while the facts were gathered."""
    rows = fleet.table("quarantine", "path", "reason", "detail").orderBy("path").collect()
    known = {row["path"]: row.asDict() for row in rows}
    met = ds.dataset(facts).to_table(columns=["id"], filter=ds.field("sender").is_null())["id"].to_pylist()
    return [
        known.get(path) or {"path": path, "reason": "passing", "detail": "unreadable while it was read"} for path in sorted({*known, *met})
    ]


def stored(spark: SparkSession, path: Path, make: Callable[[], DataFrame]) -> DataFrame:
    """Return what *make* makes, out of the Parquet folder that it was written to now, or by a run before this one."""
    if not (path / "_SUCCESS").exists():
        make().write.mode("overwrite").options(**PLAIN).parquet(str(path))
    return spark.read.parquet(str(path))
