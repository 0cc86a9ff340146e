"""``onceward fleet archive``, ``metrics``, ``threads``, ``graph``, ``export``, ``replay``: what is made of a fleet's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from onceward.cli.durations import Span, SpanOption
from onceward.cli.exit_codes import DONE, PARTLY, NothingThere
from onceward.cli.output import document, show
from onceward.cli.spark_session import SESSION, Into, Session, fleet_of, working
from onceward.cli.target import Quiet
from onceward.model.clock import SystemClock

KEEP: Final = Span(7 * 86_400)
SETTLE: Final = Span(900)
LISTED: Final = 100
"""Rows that are printed; the Parquet files have all."""
Resume = Annotated[bool, Quiet]


def archive(
    *paths: str,
    how: Into,
    settle: SpanOption = SETTLE,
    confirm_archived: Annotated[bool, Quiet] = False,
    keep: SpanOption = KEEP,
    resume: Resume = False,
) -> int:
    """
    Append what has ended to Parquet files by day, each message once.

    Columns: table, rows.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted.
        how: Where the archive is, and how Spark works.
        settle: What ended within this span before the reading is left to the next batch.
        confirm_archived: Then compare the archive with the files, and forget in these what it holds and is older than --keep.
        keep: How long the files keep what is archived.
        resume: Go on with a batch that was broken off, instead of writing it anew.

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import archive as job  # noqa: PLC0415 - an extra

        done = job.run(fleet, how.out, settle=settle, resume=resume, tell=tell)
        pruned = job.prune(fleet, how.out, keep=keep) if confirm_archived else {}
    last = done["batches"][-1]
    if how.json:
        document({"batch": last, "pruned": pruned})
    else:
        rows = [{"table": name, "rows": count} for name, count in last["rows"].items()]
        show(
            [
                *rows,
                *(
                    {"table": f"pruned from {path}", "rows": count}
                    for path, count in pruned.items()
                ),
            ],
            ("table", "rows"),
            how.style,
        )
    return DONE


def metrics(*paths: str, how: Into, resume: Resume = False) -> int:
    """
    Figures per agent and hour, and why messages died.

    Throughput, depth, retries, dead letters by reason and hour, how long mail waited for whom, and who is not reached at present.

    Columns: agent, hour, sent, received, out_depth, in_depth, out_retries, in_retries, dead.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted.
        how: Where results go, and how Spark works.
        resume: Go on with a run into --out that was broken off.

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import metrics as job  # noqa: PLC0415 - an extra
        from onceward.spark.keep import keep as write  # noqa: PLC0415 - an extra
        from onceward.spark.waits import waits  # noqa: PLC0415 - an extra

        tables, now = (
            {name: fleet.table(name, *columns) for name, columns in job.NEEDS.items()},
            SystemClock().now(),
        )
        made = {
            "hours": lambda: job.metrics(tables),
            "reasons": lambda: job.reasons(tables["dead_letters"]),
            "breakers": lambda: job.breakers(tables["peers"]),
            "waits": lambda: waits(tables["outbox"], tables["peers"], now),
        }
        kept = write(fleet, "metrics", how.out, made, resume=resume, tell=tell)
        found = {name: _rows(table) for name, table in kept.items()}
    columns = (
        "agent",
        "hour",
        "sent",
        "received",
        "out_depth",
        "in_depth",
        "out_retries",
        "in_retries",
        "dead",
    )
    _print(found, "hours", columns, how)
    return DONE


def threads(*paths: str, how: Into, resume: Resume = False) -> int:
    """
    Conversations across agents, and who waited for whom.

    What was said after what, in order, and how long who waited.

    Columns: thread, messages, agents, began_at, last_at, open.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted.
        how: Where results go, and how Spark works.
        resume: Go on with a run into --out that was broken off.

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import threads as job  # noqa: PLC0415 - an extra
        from onceward.spark.keep import keep as write  # noqa: PLC0415 - an extra

        found = job.messages(
            {name: fleet.table(name, *columns) for name, columns in job.NEEDS.items()}
        )
        made = {
            "threads": lambda: job.threads(found),
            "conversations": lambda: job.conversations(found),
        }
        kept = write(fleet, "threads", how.out, made, resume=resume, tell=tell)
        rows = {"conversations": _rows(kept["conversations"].orderBy("began_at"))}
    _print(
        rows, "conversations", ("thread", "messages", "agents", "began_at", "last_at", "open"), how
    )
    return DONE


def graph(reconciled: Path, *, how: Session = SESSION) -> int:
    """
    Who talks to whom, out of a reconciliation.

    Writes edges and nodes as Parquet, and graph.dot for Graphviz, into its folder.

    Columns: sender, recipient, messages, p50, p99.

    Args:
        reconciled: The folder that fleet reconcile wrote to.
        how: How Spark works.

    """
    if not (reconciled / "manifest.json").exists():
        msg = f"there is no finished reconciliation in {reconciled}: run onceward fleet reconcile --out {reconciled}"
        raise NothingThere(msg)
    with working(how) as (fleet, tell):
        from onceward.spark import graph as job  # noqa: PLC0415 - an extra

        tell("drawing the graph")
        rows = job.run(fleet.spark, reconciled)
    _print(
        {"edges": rows[:LISTED]}, "edges", ("sender", "recipient", "messages", "p50", "p99"), how
    )
    return DONE


def export(*paths: str, how: Into, redact: tuple[str, ...] = (), where: str = "true") -> int:
    """
    Conversations as JSON Lines, with parts blacked out.

    One line for each, in conversations.jsonl.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted.
        how: Where results go, and how Spark works.
        redact: JSON pointers into the bodies, such as /customer/email; * stands for every member or item.
        where: Only messages of which this holds: a condition in Spark's SQL on sender, recipient, session, type, sent_at, thread ...

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import export as job  # noqa: PLC0415 - an extra

        count = job.run(fleet, how.out, redact=redact, where=where, tell=tell)
    if how.json:
        document({"conversations": count, "file": str(how.out / "conversations.jsonl")})
    else:
        show(
            [{"file": str(how.out / "conversations.jsonl"), "conversations": count}],
            ("file", "conversations"),
            how.style,
        )
    return DONE


def replay(
    *paths: str,
    where: str,
    how: Into,
    action: Literal["replay", "discard"] = "replay",
    go: Annotated[bool, Quiet] = False,
) -> int:
    """
    Replay or discard dead letters in bulk, by a plan that is written first.

    The plan lies in --out. With --go it is carried out as it is, and receipts are kept beside it. Exit code 6 if some failed.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted.
        where: Which: a condition in Spark's SQL on the columns of dead letters, such as "reason = 'expired' and type like 'invoice.%'".
        how: Where the plan and the receipts are kept, and how Spark works.
        action: What is done with them.
        go: Carry the plan in --out out, instead of making one.

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import replay as job  # noqa: PLC0415 - an extra

        tell("carrying out the plan" if go else "planning")
        found = (
            job.carry_out(fleet.spark, how.out) if go else job.plan(fleet, where, action, how.out)
        )
        counts = [
            row.asDict() for row in found.groupBy("outcome" if go else "reason").count().collect()
        ]
        rows = _rows(found)
    name, column = ("done", "outcome") if go else ("planned", "reason")
    _print({name: rows, "counts": counts}, name, ("id", column, "_db"), how)
    return PARTLY if any(row.get("outcome") == "failed" for row in counts) else DONE


def _rows(table: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.limit(LISTED).collect()]


def _print(
    found: dict[str, list[dict[str, Any]]], name: str, columns: tuple[str, ...], how: Session
) -> None:
    if how.json:
        document(found)
    else:
        show(found[name], columns, how.style)
