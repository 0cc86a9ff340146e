"""``onceward fleet metrics``, ``threads``, ``graph``, ``export`` and ``replay``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from onceward.message.clock import SystemClock
from onceward.ops.cli.exit_codes import DONE, PARTLY, NothingThere
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.spark_session import (
    REPORTING,
    SESSION,
    Into,
    Paths,
    Reporting,
    Resume,
    Session,
    existing,
    fleet_of,
    print_rows,
    results,
    told,
)

if TYPE_CHECKING:
    from onceward.fleet.opening import Unreadable

LISTED: Final = 100
"""Rows that are printed; the Parquet files have all."""


def metrics(*paths: Paths, how: Reporting = REPORTING, resume: Resume = False) -> int:
    """
    Count messages per agent and hour, and dead letters by reason.

    Throughput, depth, retries, dead letters by reason and hour, waiting times by recipient, what
    handlers wait for, and peers that are currently not reached.

    Columns: agent, hour, sent, received, out_depth, in_depth, out_retries, in_retries, dead.

    Example: onceward fleet metrics '/srv/agents/**/*.db' --out /var/metrics
    """
    with results(how, resume=resume) as out, fleet_of(paths, how) as (fleet, on_step):
        from onceward.fleet.spark import metrics as job  # noqa: PLC0415 - an extra
        from onceward.fleet.spark.keep import keep as write  # noqa: PLC0415 - an extra
        from onceward.fleet.spark.waits import waits  # noqa: PLC0415 - an extra

        tables = {name: fleet.table(name, *columns) for name, columns in job.NEEDS.items()}
        now = SystemClock().now()
        made = {
            "hours": lambda: job.metrics(tables),
            "reasons": lambda: job.reasons(tables["dead_letters"]),
            "breakers": lambda: job.breakers(tables["peers"]),
            "waiting": lambda: job.waiting(tables["inbox"], now),
            "waits": lambda: waits(tables["outbox"], tables["peers"], now),
        }
        kept = write(fleet, "metrics", out, made, resume=resume, on_step=on_step)
        found = {name: _rows(table) for name, table in kept.items()}
    columns = "agent hour sent received out_depth in_depth out_retries in_retries dead"
    print_rows(found, found["hours"], columns, how)
    return DONE


def threads(*paths: Paths, how: Reporting = REPORTING, resume: Resume = False) -> int:
    """
    Collect conversations across agents, and how long each agent waited for an answer.

    Columns: thread, messages, agents, began_at, last_at, open.

    Example: onceward fleet threads '/srv/agents/**/*.db' --out /var/threads
    """
    with results(how, resume=resume) as out, fleet_of(paths, how) as (fleet, on_step):
        from onceward.fleet.spark import threads as job  # noqa: PLC0415 - an extra
        from onceward.fleet.spark.keep import keep as write  # noqa: PLC0415 - an extra

        tables = {name: fleet.table(name, *columns) for name, columns in job.NEEDS.items()}
        found = job.messages(tables)
        made = {
            "threads": lambda: job.threads(found),
            "conversations": lambda: job.conversations(found),
        }
        kept = write(fleet, "threads", out, made, resume=resume, on_step=on_step)
        rows = _rows(kept["conversations"].orderBy("began_at"))
    print_rows({"conversations": rows}, rows, "thread messages agents began_at last_at open", how)
    return DONE


def graph(reconciled: Path, *, how: Session = SESSION) -> int:
    """
    Draw the graph of senders and recipients of a reconciliation.

    Writes graph.dot for Graphviz into its folder.

    Columns: sender, recipient, messages, p50, p99.

    Example: onceward fleet graph /var/reports/today

    Args:
        reconciled: The folder that fleet reconcile wrote.

    """
    if not (reconciled / "manifest.json").exists():
        cure = f"run onceward fleet reconcile --out {reconciled}"
        raise NothingThere(f"there is no finished reconciliation in {reconciled}: {cure}")
    from onceward.fleet import graph as job  # noqa: PLC0415 - of this command only

    rows = job.draw(reconciled)
    found = {"edges": rows[:LISTED], "nodes": job.nodes(rows)[:LISTED]}
    print_rows(found, found["edges"], "sender recipient messages p50 p99", how)
    return DONE


def export(*paths: Paths, how: Into, redact: tuple[str, ...] = (), where: str = "1") -> int:
    """
    Export conversations as JSON Lines, with parts of the bodies redacted.

    conversations.jsonl has one line for each conversation. Exit code 6 if a file could not be read.

    Columns: file, conversations.

    Example: onceward fleet export '/srv/agents/**/*.db' --out /srv/export --redact /name

    Args:
        redact: JSON pointers into bodies, such as /customer/email; * is every member or item.
        where: A condition in SQL on sender, recipient, session, type, sent_at, thread ...

    """
    from onceward.fleet.export import export as job  # noqa: PLC0415 - of this command only

    existing(paths)
    with told(how) as on_step:
        done = job(*paths, out=how.out, redact=redact, where=where, on_step=on_step)
    found = {"conversations": done.conversations, "file": str(done.file)} | _unread(done.unread)
    print_rows(found, [found], "file conversations", how)
    return PARTLY if done.unread else DONE


def replay(
    *paths: Paths,
    where: str,
    how: Into,
    action: Literal["replay", "discard"] = "replay",
    go: Annotated[bool, Quiet] = False,
) -> int:
    """
    Replay or discard dead letters in bulk, by a plan that is written first.

    The plan is written to --out. With --go it is executed unchanged, and receipts are written
    beside it. Exit code 6 if some failed, or if a file could not be read.

    Columns: id, reason or outcome, _db.

    Example: onceward fleet replay '/srv/agents/**/*.db' --where "reason = 'rejected'" --out replays

    Args:
        where: A condition in SQL on dead letters, such as "reason = 'expired'".
        action: Replay the dead letters, or discard them.
        go: Execute the plan in --out, instead of writing one.

    """
    from onceward.fleet import replay as job  # noqa: PLC0415 - of this command only

    existing(paths)
    unread: Sequence[Unreadable] = ()
    if go:
        rows = job.carry_out(how.out)
    else:
        rows, unread = job.plan(*paths, out=how.out, where=where, action=action)
    name, column = ("done", "outcome") if go else ("planned", "reason")
    counts = Counter(row[column] for row in rows)
    found = {name: rows[:LISTED], "counts": [{column: k, "count": n} for k, n in counts.items()]}
    print_rows(found | _unread(unread), rows[:LISTED], f"id {column} _db", how)
    return PARTLY if unread or (go and counts["failed"]) else DONE


def _unread(files: Sequence[Unreadable]) -> dict[str, Any]:
    return {"unreadable": [{"path": one.path, "reason": one.reason} for one in files]}


def _rows(table: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.limit(LISTED).collect()]
