"""``onceward fleet``: many agents' files at once, on Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from rich.console import Console

from onceward.cli.durations import Span, SpanOption
from onceward.cli.exit_codes import DONE, FAILED, Usage
from onceward.cli.output import document, show
from onceward.cli.spark_session import SESSION, Into, Session, extra, fleet_of, told
from onceward.cli.target import Answer, Quiet

if TYPE_CHECKING:
    from onceward.spark.report import Report

GRACE: Final = Span(900)
LATE: Final = Span(3600)


def reconcile(
    *paths: str,
    how: Into,
    grace: SpanOption = GRACE,
    late_after: SpanOption = LATE,
    archive: Path | None = None,
    resume: Annotated[bool, Quiet] = False,
) -> int:
    """
    Hold what all agents sent against what all agents received and processed.

    Writes Parquet tables, a manifest and report.html into --out. Columns: verdict, messages, meaning. Exit code 1 if any message was
    lost, accepted twice or processed twice.

    Args:
        paths: Files, folders (all their *.db) or globs, quoted so that the shell leaves them alone.
        how: Where results go, and how Spark works.
        grace: What happened within this span before the reading is in flight, whatever it looks like.
        late_after: A message that took longer than this from send to effect is late.
        archive: A folder that `fleet archive` filled: what it holds counts beside the files.
        resume: Go on with a run into --out that was broken off, instead of reading again.

    """
    with fleet_of(paths, how) as (fleet, tell):
        from onceward.spark import archive as archives  # noqa: PLC0415 - an extra
        from onceward.spark import reconcile as job  # noqa: PLC0415 - an extra
        from onceward.spark.verdicts import Rules  # noqa: PLC0415 - an extra

        rules = Rules.at_present(grace=grace, late_after=late_after)
        archived = None if archive is None else archives.ledger(fleet.spark, archive)
        report = job.run(fleet, how.out, rules, archived=archived, resume=resume, tell=tell)
    _show(report, how)
    return FAILED if report.broken else DONE


def _show(report: Report, how: Into) -> None:
    if how.json:
        document(report.as_dict() | {"report": str(how.out / "report.html")})
        return
    show(report.rows(), ("verdict", "messages", "meaning"), how.style)
    if how.style == "table":
        console = Console(highlight=False)
        said = (
            "[green]Nothing was lost, nothing took effect twice.[/]"
            if not report.broken
            else "[bold red]The promise was broken.[/]"
        )
        console.print(f"\n{said} The report: {how.out / 'report.html'}", soft_wrap=True)


def demo(*, size: int = 1, seed: int = 0, home: Path | None = None, how: Session = SESSION) -> int:
    """
    Make a fleet in which everything went wrong, and find every message of it.

    Real agents talk over real transports, by one clock and one seed; then files are restored from backups, copied, damaged and pruned.
    Columns: verdict, made, found, meaning. Exit code 1 unless exactly what was made is found.

    Args:
        size: How many times over everything happens.
        seed: Which messages are made; the same seed makes the same ones.
        home: Where the fleet and the report are kept: a new or an empty folder. Default: a new temporary one.
        how: How Spark works.

    """
    if size < 1:
        msg = "--size must be at least 1"
        raise Usage(msg)
    if home is not None and home.exists() and any(home.iterdir()):
        msg = f"{home} is not empty: name a new folder"
        raise Usage(msg)
    folder = home or Path(tempfile.mkdtemp(prefix="onceward-fleet-"))
    with extra():
        from onceward.spark import reconcile as job  # noqa: PLC0415 - an extra
        from onceward.spark.verdicts import MEANING, Rules  # noqa: PLC0415 - an extra
        from onceward.testing.fleet import build  # noqa: PLC0415 - nobody else needs a fleet

    with told(how) as tell:
        made = build(folder / "agents", size=size, seed=seed, tell=tell)
    with fleet_of((str(made.folder),), how) as (fleet, tell):
        report = job.run(fleet, folder / "report", Rules(now=made.now), tell=tell)
    names = sorted({*made.verdicts, *report.verdicts})
    rows = [
        {
            "verdict": n,
            "made": made.verdicts.get(n, 0),
            "found": report.verdicts.get(n, 0),
            "meaning": MEANING[n],
        }
        for n in names
    ]
    _compare(rows, folder / "report" / "report.html", how)
    return DONE if all(row["made"] == row["found"] for row in rows) else FAILED


def _compare(rows: list[dict[str, Any]], page: Path, how: Answer) -> None:
    if how.json:
        document(
            {
                "ok": all(row["made"] == row["found"] for row in rows),
                "verdicts": rows,
                "report": str(page),
            }
        )
        return
    show(rows, ("verdict", "made", "found", "meaning"), how.style)
    if how.style == "table":
        Console(highlight=False).print(f"\nThe report: {page}", soft_wrap=True)
