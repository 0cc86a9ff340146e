"""Append completed rows to Parquet by day, each batch once, also after a kill; read them back."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, to_date

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.fleet import manifest
from onceward.fleet.columns import table as table_of
from onceward.fleet.evidence import VIEWS
from onceward.model.clock import Clock
from onceward.spark.facts import archived
from onceward.spark.fleet import Fleet

JOB: Final = "archive"
ENDED: Final[Mapping[str, str]] = {
    "outbox": "ended_at",
    "inbox": "ended_at",
    "processed": "processed_at",
    "dead_letters": "dead_at",
    "transitions": "at",
}
"""The tables that are archived, and the moment after which a row of each no longer changes."""
SETTLE: Final = 900.0
"""Seconds before the reading that wait for the next batch: a transaction may still be open."""
KEEP: Final = 7 * 86_400.0
MARGIN: Final = 60.0
"""Seconds that pruning stays behind the cut, as time goes on while it opens a file."""
OnStep = Callable[[str], object]


class NotArchived(OncewardError):
    """The archive lacks rows of a file: nothing of the file was pruned; archive it again."""


def run(
    fleet: Fleet,
    out: Path,
    *,
    now: int | None = None,
    settle: float = SETTLE,
    resume: bool = False,
    on_step: OnStep = str,
) -> dict[str, Any]:
    """
    Append to the archive in *out* what has ended since the last batch, and return the manifest.

    A batch takes of each file what ended between the file's last cut and this
    one's, so it can be repeated: one that was broken off is written anew under
    the same number, with *resume* behind its last finished table, and only the
    manifest makes it count.

    Raises:
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process archives into it.

    """
    cut = (time.time_ns() // 1_000_000 if now is None else now) - round(1000 * settle)
    with manifest.alone(out, JOB) as own:
        return _append(
            fleet,
            own,
            manifest.plan(fleet.paths, JOB) | {"cut": cut},
            resume=resume,
            on_step=on_step,
        )


def _append(
    fleet: Fleet, out: Path, fresh: dict[str, Any], *, resume: bool, on_step: OnStep
) -> dict[str, Any]:
    known = manifest.read(out / manifest.NAME) or {}
    batches, cuts = known.get("batches", []), dict(known.get("cuts", {}))
    number, rows = len(batches) + 1, {}
    planned = _begun(out, fresh | {"number": number}, resume=resume)
    present = [file["path"] for file in planned["files"]]
    quarantined = [row["path"] for row in fleet.table("quarantine", "path").collect()]
    since = {path: cuts.get(path, -1) for path in set(present) - set(quarantined)}
    for table, moment in ENDED.items():
        on_step(f"archiving {table}")
        target = _batch(out, table, number)
        if not (target / "_SUCCESS").exists():
            shutil.rmtree(
                target, ignore_errors=True
            )  # of a table that was broken off, whichever way the session overwrites
            _ended(fleet, table, moment, since, planned["cut"]).write.partitionBy("day").parquet(
                str(target)
            )
        rows[table] = (
            fleet.spark.read.parquet(str(target)).count() if list(target.rglob("*.parquet")) else 0
        )
    cuts |= dict.fromkeys(since, planned["cut"])
    batch = {"number": number, "cut": planned["cut"], "rows": rows, "quarantined": quarantined}
    done = planned | {"batches": [*batches, batch], "cuts": cuts}
    manifest.write(out / manifest.NAME, done)
    shutil.rmtree(out / "work")
    return done


def _begun(out: Path, fresh: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    """Return the plan of the batch: that of one that was broken off, if it is to be resumed."""
    before = manifest.read(out / manifest.PLAN)
    if (
        resume
        and before is not None
        and manifest.same(before, fresh)
        and before["number"] == fresh["number"]
    ):
        return before
    for table in ENDED:
        shutil.rmtree(_batch(out, table, fresh["number"]), ignore_errors=True)
    manifest.write(out / manifest.PLAN, fresh)
    return fresh


def _batch(out: Path, table: str, number: int) -> Path:
    return out / table / f"batch={number:06d}"


def _all(table: str) -> tuple[str, ...]:
    return ("*", "frame") if "frame" in table_of(table).columns else ("*",)


def _ended(fleet: Fleet, table: str, moment: str, since: Mapping[str, int], cut: int) -> DataFrame:
    """Return the rows of a table that ended in their file's window, one read for each last cut."""
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for path, last in since.items():
        groups[last].append(path)
    parts = [
        Fleet(fleet.spark, tuple(paths), {**fleet.options, "ignoreLockedFiles": False}).table(
            table, *_all(table), where=f"{moment} >= {last} AND {moment} < {cut}"
        )
        for last, paths in groups.items()
        if last < cut
    ]
    found = parts[0] if parts else fleet.table(table, *_all(table), where="0")
    for part in parts[1:]:
        found = found.unionByName(part, allowMissingColumns=True)
    return found.withColumn("day", to_date(expr(moment)))


def read(spark: SparkSession, out: Path, table: str) -> DataFrame:
    """
    Return a table of the archive with the columns of all versions; only finished batches count.

    Raises:
        FileNotFoundError: there is no archive.

    """
    out = out.absolute()
    known = manifest.read(out / manifest.NAME)
    if known is None:
        msg = f"there is no finished archive in {out}"
        raise FileNotFoundError(msg)
    paths = [
        str(_batch(out, table, batch["number"]))
        for batch in known["batches"]
        if batch["rows"][table]
    ]
    if not paths:
        return spark.createDataFrame([], table_of(table).ddl(_all(table)))
    return (
        spark.read.option("mergeSchema", "true")
        .option("basePath", str(out / table))
        .parquet(*paths)
    )


def evidence(spark: SparkSession, out: Path) -> DataFrame:
    """Return the archive as evidence, to be reconciled beside live files."""
    return archived({table: read(spark, out, table) for table in VIEWS})


def prune(
    fleet: Fleet, out: Path, *, keep: float = KEEP, clock: Clock | None = None
) -> dict[str, int]:
    """
    Prune archived rows older than *keep* seconds from the agents' files; return counts by file.

    Each file's part of the archive is compared with the file first. Dedup records are pruned with
    the rest, as by retention: a message that is pushed again after that long is refused as stale,
    never accepted twice.

    Raises:
        NotArchived: files hold ended messages that the archive lacks; these were not pruned.
        OutputBusy: another process archives meanwhile.

    """
    with manifest.alone(out, JOB) as own:
        return _forget(fleet, own, keep, clock)


def _forget(fleet: Fleet, out: Path, keep: float, clock: Clock | None) -> dict[str, int]:
    cuts: dict[str, int] = (manifest.read(out / manifest.NAME) or {}).get("cuts", {})
    present = {path: cut for path, cut in cuts.items() if Path(path).exists()}
    missing = _missing(fleet, out, present)
    kept = {
        path: _prune(Path(path), cut, keep, clock)
        for path, cut in sorted(present.items())
        if path not in missing
    }
    if missing:
        lacks = f"{len(missing)} files hold ended messages that {out} does not"
        msg = f"{lacks}, the first is {min(missing)}: archive again"
        raise NotArchived(msg)
    return kept


def _prune(path: Path, cut: int, keep: float, clock: Clock | None) -> int:
    with Postbox(path, start=False, clock=clock) as box:
        now = box._db.now()  # the file's own time, which may be ahead of ours
    since = (now - min(cut, now - round(1000 * keep))) / 1000
    with Postbox(path, start=False, clock=clock, retention=since + MARGIN, max_retries=0) as box:
        return box.run_maintenance()


def _missing(fleet: Fleet, out: Path, cuts: Mapping[str, int]) -> set[str]:
    """Return the files with ended rows before their cut that the archive lacks."""
    found: set[str] = set()
    for table, moment in ENDED.items():
        if not cuts or table == "transitions":
            continue
        live = Fleet(fleet.spark, tuple(cuts), fleet.options).table(
            table, "_db", "seq", where=f"{moment} < {max(cuts.values())}"
        )
        behind = live.join(
            read(fleet.spark, out, table).select("_db", "seq"), ["_db", "seq"], "left_anti"
        )
        found |= {row["_db"] for row in behind.select("_db").distinct().collect()}
    return found
