"""Build the graph of agents (nodes) and messages (edges) with counts and latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from onceward.fleet import manifest
from onceward.spark.pairs import pairs, percentiles, spans

RECONCILED: Final = "reconcile"
"""The job whose folder the graph is drawn in."""
DRAWN: Final = 2000
"""Most edges of the picture, the busiest first: a larger picture cannot be read."""


def run(spark: SparkSession, out: Path) -> list[dict[str, Any]]:
    """
    Write edges/, nodes/ and graph.dot of the reconciliation in *out*; return the busiest edges.

    Raises:
        OutputBusy: another process writes into the folder.

    """
    with manifest.alone(out, RECONCILED) as own:
        edges(spark.read.parquet(str(own / "frames"))).write.mode("overwrite").parquet(
            str(own / "edges")
        )
        stored = spark.read.parquet(str(own / "edges"))
        nodes(stored).write.mode("overwrite").parquet(str(own / "nodes"))
        rows = [
            row.asDict()
            for row in stored.orderBy("messages", ascending=False).limit(DRAWN).collect()
        ]
        (own / "graph.dot").write_text(dot(rows), encoding="utf-8")
        return rows


def edges(frames: DataFrame) -> DataFrame:
    """Return per pair of agents: messages by verdict, percentiles from send to effect in ms."""
    times = (
        percentiles(spans(frames), "sender", "recipient")
        .where("kind = 'effect'")
        .drop("kind", "messages")
    )
    return pairs(frames).join(times, ["sender", "recipient"], "left")


def nodes(found: DataFrame) -> DataFrame:
    """Return per agent: how many messages it sent and received, and with how many agents."""
    ends = found.selectExpr("stack(2, sender, 'out', recipient, 'in') as (agent, side)", "messages")
    return ends.groupBy("agent").agg(
        *(
            expr(f"coalesce(sum(if(side = '{side}', messages, 0)), 0) as {name}")
            for side, name in (("out", "sent"), ("in", "received"))
        ),
        *(
            expr(f"count_if(side = '{side}') as {name}")
            for side, name in (("out", "peers_out"), ("in", "peers_in"))
        ),
    )


def dot(rows: list[dict[str, object]]) -> str:
    """Return edges as a graph in the language of Graphviz."""
    lines = (
        f'  "{_text(row["sender"])}" -> "{_text(row["recipient"])}" [label="{row["messages"]}"];'
        for row in rows
    )
    return "digraph fleet {\n" + "\n".join(lines) + "\n}\n"


def _text(name: object) -> str:
    return str(name).replace("\\", "\\\\").replace('"', '\\"')
