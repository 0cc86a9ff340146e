"""Sums over the judged messages: written as Parquet, and taken together for the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from onceward.fleet.report import Report
from onceward.fleet.verdicts import VERDICTS, Rules
from onceward.spark.order import MARKS, lanes
from onceward.spark.pairs import SHARES, hours, middle, pairs, percentiles, spans

LISTED: Final = 200
"""Rows of each kind that a report lists at most; the Parquet files have all."""
LOOK_AT: Final = (
    *(verdict.name for verdict in VERDICTS if verdict.weight in {"bad", "open"}),
    "unprocessed",
)
SHOWN: Final = [
    "verdict",
    "id",
    "sender",
    "recipient",
    "sender_says",
    "recipient_says",
    "created_at",
    "received_at",
    "processed_at",
]
BAD: Final = tuple(verdict.name for verdict in VERDICTS if verdict.weight == "bad")
Rows = list[dict[str, Any]]


def write(frames: DataFrame, out: Path) -> None:
    """Write aggregates of the judged messages to *out*: findings, spans, pairs, hours, lanes."""
    todo: dict[str, Callable[[], object]] = {
        "lanes": lambda: _write(lanes(frames), out / "lanes"),
        "pairs": lambda: _pairs(frames, out),
        "hours": lambda: _write(hours(frames), out / "hours"),
        "findings": lambda: _write(frames.where(f"verdict in {LOOK_AT}"), out / "findings"),
    }
    carried = inheritable_thread_target(frames.sparkSession)
    with ThreadPoolExecutor(
        len(todo)
    ) as pool:  # each has moments in which it has nothing for Spark to do
        for done in [pool.submit(carried(work)) for work in todo.values()]:
            done.result()


def _pairs(frames: DataFrame, out: Path) -> None:
    _write(spans(frames), out / "spans")
    histogram = frames.sparkSession.read.parquet(str(out / "spans"))
    times = (
        percentiles(histogram, "sender", "recipient")
        .where("kind = 'effect'")
        .drop("kind", "messages")
    )
    _write(pairs(frames).join(times, ["sender", "recipient"], "left"), out / "pairs")


def _write(found: DataFrame, path: Path) -> None:
    found.coalesce(1).write.mode("overwrite").parquet(str(path))


def report(out: Path, agents: Sequence[tuple[str, str]], quarantine: Rows, rules: Rules) -> Report:
    """Return the report from what ``write`` has written: small files, read without Spark."""
    pairs_of, spans_of, lanes_of = (_table(out / name) for name in ("pairs", "spans", "lanes"))
    histogram = _histogram(spans_of)
    return Report(
        rules=rules,
        files=len(agents),
        agents=len({agent for agent, _ in agents}),
        verdicts={
            v.name: count for v in VERDICTS if (count := pc.sum(pairs_of[v.name]).as_py() or 0)
        },
        quarantine=quarantine[:LISTED],
        twins=_twins(agents),
        percentiles=[_percentiles(kind, line) for kind, line in histogram.items()],
        histogram=histogram,
        hours=_hours(_table(out / "hours")),
        pairs=_worst(pairs_of),
        lanes=_first(
            lanes_of, [("overtook", "descending"), ("gap", "descending"), ("example", "ascending")]
        ),
        lane_totals={name: pc.sum(lanes_of[name]).as_py() or 0 for name in MARKS},
        examples=_dated(ds.dataset(out / "findings").head(LISTED, columns=SHOWN)),
    )


def _table(path: Path) -> pa.Table:
    return ds.dataset(path).to_table()


def _first(table: pa.Table, order: list[tuple[str, str]]) -> Rows:
    rows: Rows = table.take(pc.select_k_unstable(table, LISTED, order)).to_pylist()
    return rows


def _dated(table: pa.Table) -> Rows:
    return [
        {
            name: str(value) if name.endswith("_at") and value else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def _twins(agents: Sequence[tuple[str, str]]) -> Rows:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for agent, path in agents:
        files[agent].append(path)
    return [
        {"agent": name, "files": ", ".join(sorted(paths))}
        for name, paths in sorted(files.items())
        if len(paths) > 1
    ][:LISTED]


def _histogram(found: pa.Table) -> dict[str, list[tuple[int, int]]]:
    lines: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in (
        found.group_by(["kind", "bucket"])
        .aggregate([("count", "sum")])
        .sort_by([("kind", "ascending"), ("bucket", "ascending")])
        .to_pylist()
    ):
        lines[row["kind"]].append((middle(row["bucket"]), row["count_sum"]))
    return dict(lines)


def _percentiles(kind: str, line: list[tuple[int, int]]) -> dict[str, Any]:
    total, upto = sum(count for _, count in line), 0
    found: dict[str, Any] = {"span": kind, "messages": total}
    for ms, count in line:
        upto += count
        for name, share in SHARES.items():
            if upto >= share * total:
                found.setdefault(name, ms)
    return found


def _hours(found: pa.Table) -> dict[str, list[tuple[int, int]]]:
    lines: dict[str, list[tuple[int, int]]] = {"sent": [], "processed": []}
    for row in found.sort_by("hour").to_pylist():
        lines[row["what"]].append((int(row["hour"].timestamp()) // 3600, row["count"]))
    return lines


def _worst(found: pa.Table) -> Rows:
    """Return the pairs with most bad messages, then most waiting, then the slowest."""
    bad = found[BAD[0]]
    for name in BAD[1:]:
        bad = pc.add(bad, found[name])
    slow = pc.fill_null(found["p99"], -1)
    order = [
        ("bad", "descending"),
        ("unprocessed", "descending"),
        ("slow", "descending"),
        ("sender", "ascending"),
    ]
    rows = _first(found.append_column("bad", bad).append_column("slow", slow), order)
    return [{name: value for name, value in row.items() if name != "slow"} for row in rows]
