"""Draw the graph of agents (nodes) and messages (edges) of a reconciliation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.fleet import manifest
from onceward.fleet.figures import TABLES
from onceward.fleet.run import JOB, MESSAGES

DRAWN: Final = 2000
"""Maximum edges of the picture, the busiest first: a larger one is unreadable."""
PAIRS: Final = f"SELECT {', '.join(TABLES['pairs'])} FROM pairs"
Row = dict[str, Any]


def draw(out: Path) -> list[Row]:
    """
    Write graph.dot of the reconciliation in *out*; return its edges, the busiest first.

    Raises:
        OutputBusy: another process writes into the folder.

    """
    with manifest.alone(out, JOB) as own:
        rows = sorted(edges(own), key=lambda row: (-row["messages"], row["sender"]))[:DRAWN]
        (own / "graph.dot").write_text(dot(rows), encoding="utf-8")
        return rows


def edges(out: Path) -> list[Row]:
    """Return per pair of agents: messages by verdict, percentiles from send to effect in ms."""
    if not (out / MESSAGES).exists():
        from pyarrow import dataset  # noqa: PLC0415 - only for Spark's results, which are Parquet

        rows: list[Row] = dataset.dataset(out / "pairs").to_table().to_pylist()
        return rows
    with closing(apsw.Connection(str(out / MESSAGES), apsw.SQLITE_OPEN_READONLY)) as con:
        return [dict(zip(TABLES["pairs"], row, strict=True)) for row in con.execute(PAIRS)]


def nodes(found: Iterable[Row]) -> list[Row]:
    """Return per agent: how many messages it sent and received, and with how many agents."""
    agents: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(("sent", "received", "peers_out", "peers_in"), 0)
    )
    for row in found:
        for side, count, peers in (("sender", "sent", "out"), ("recipient", "received", "in")):
            agents[row[side]][count] += row["messages"]
            agents[row[side]][f"peers_{peers}"] += 1
    return [{"agent": name, **counts} for name, counts in sorted(agents.items())]


def dot(rows: Iterable[Row]) -> str:
    """Return edges as a graph in the language of Graphviz."""
    lines = (
        f'  "{_text(row["sender"])}" -> "{_text(row["recipient"])}" [label="{row["messages"]}"];'
        for row in rows
    )
    return "digraph fleet {\n" + "\n".join(lines) + "\n}\n"


def _text(name: object) -> str:
    return str(name).replace("\\", "\\\\").replace('"', '\\"')
