"""Separate the evidence of differing copies, as ``fleet.copies`` does for SQLite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, col, create_map, expr, lit

from onceward.fleet.columns import EVIDENCE
from onceward.fleet.copies import DIFFERS, differing
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.evidence import number_of
from onceward.fleet.loading import workspace
from onceward.fleet.opening import FILE_STATES
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.states import COPIED_INBOX, FILE, INBOX, LOST_MARK, MARK

STATE: Final = 1 + FILE_STATES.index("differs")
KEPT: Final = f"side IN ({FILE}, {INBOX}, {MARK})"
SIDE: Final = (
    f"CASE side WHEN {INBOX} THEN {COPIED_INBOX} WHEN {MARK} THEN {LOST_MARK} ELSE side END"
)


def differing_copies(fleet: Fleet, work: Path) -> dict[str, str]:
    """
    Return the finding on each copy that differs from the file in use, by path.

    Executors tell which files have one id, this process compares those that share it. The answer
    is kept in *work*: a run that is resumed goes on with it.
    """
    kept = work / "copies.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_found(fleet, work)), encoding="utf-8")
    found: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _found(fleet: Fleet, work: Path) -> dict[str, str]:
    agents = fleet.table("agents", "_db", "agent", "file_id")
    shared = agents.groupBy("file_id").count().where("count > 1").select("file_id")
    rows = agents.join(shared, "file_id").collect()
    group = [Reading(row._db, READ, agent=row.agent, file=number_of(row.file_id)) for row in rows]
    names = {one.path: one.agent for one in group}
    with closing(workspace(work / "copies.db")) as con:
        found = differing(con, group)
    return {
        path: DIFFERS.format(living=living, agent=names[path]) for path, living in found.items()
    }


def evidence(fleet: Fleet, apart: Mapping[str, str]) -> DataFrame:
    """Return the evidence of a fleet; of copies *apart* only what shows what happened twice."""
    if not apart:
        return fleet.table("evidence", *EVIDENCE)
    said = fleet.table("evidence", "_db", *EVIDENCE)
    why = create_map(*(lit(text) for pair in apart.items() for text in pair))
    detail = why[coalesce(col("_db"), col("id"))]
    told = said.withColumn("why", detail).where(f"why IS NULL OR {KEPT}")
    changed = {
        "state": expr(f"IF(why IS NOT NULL AND side = {FILE}, {STATE}, state)"),
        "recipient": expr(f"IF(why IS NOT NULL AND side = {FILE}, why, recipient)"),
        "side": expr(f"IF(why IS NULL, side, {SIDE})"),
    }
    return told.withColumns(changed).select(*EVIDENCE)
