"""``onceward fleet``: reconcile many agents' files on Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from onceward.cli.durations import Span, SpanOption
from onceward.cli.exit_codes import DONE, FAILED, Usage
from onceward.cli.spark_session import (
    SESSION,
    Into,
    Paths,
    Resume,
    Session,
    extra,
    fleet_of,
    print_rows,
    told,
)

if TYPE_CHECKING:
    from onceward.fleet.report import Report

GRACE: Final = Span(900)
LATE: Final = Span(3600)


def reconcile(
    *paths: Paths,
    how: Into,
    grace: SpanOption = GRACE,
    late_after: SpanOption = LATE,
    archive: Path | None = None,
    resume: Resume = False,
) -> int:
    """
    Compare what all agents sent with what all agents received and processed.

    Writes Parquet tables, a manifest and report.html into --out. Exit code 1 if any message was
    lost, accepted twice or processed twice.

    Columns: verdict, messages, meaning.

    Args:
        grace: Messages that moved within this span before the reading count as in flight.
        late_after: A message that took longer than this from send to effect is late.
        archive: A folder that `fleet archive` filled: its messages count beside the files.

    """
    with fleet_of(paths, how) as (fleet, on_step):
        from onceward.fleet.verdicts import Rules  # noqa: PLC0415 - an extra
        from onceward.spark import archive as archives  # noqa: PLC0415 - an extra
        from onceward.spark import reconcile as job  # noqa: PLC0415 - an extra

        rules = Rules.at_present(grace=grace, late_after=late_after)
        archived = None if archive is None else archives.ledger(fleet.spark, archive)
        report = job.run(fleet, how.out, rules, archived=archived, resume=resume, on_step=on_step)
    _show(report, how)
    return FAILED if report.broken else DONE


def _show(report: Report, how: Into) -> None:
    page = how.out / "report.html"
    found = report.as_dict() | {"report": str(page)}
    print_rows(found, report.rows(), "verdict messages meaning", how)
    if how.style == "table":
        good = "[green]Nothing was lost, nothing took effect twice.[/]"
        told = "[bold red]The promise was broken.[/]" if report.broken else good
        Console(highlight=False).print(f"\n{told} The report: {page}", soft_wrap=True)


def demo(*, size: int = 1, seed: int = 0, home: Path | None = None, how: Session = SESSION) -> int:
    """
    Make a fleet with every kind of fault, and find every message of it.

    Real agents talk over real transports, by one clock and one seed; then files are restored from
    backups, copied, damaged and pruned. Exit code 1 unless exactly the made faults are found.

    Columns: verdict, made, found, meaning.

    Args:
        size: How many times over everything happens.
        seed: Chooses the messages that are made; the same seed makes the same ones.
        home: A new or an empty folder for the fleet and the report. Default: a temporary one.

    """
    if size < 1:
        msg = "--size must be at least 1"
        raise Usage(msg)
    if home is not None and home.exists() and any(home.iterdir()):
        msg = f"{home} is not empty: name a new folder"
        raise Usage(msg)
    folder = home or Path(tempfile.mkdtemp(prefix="onceward-fleet-"))
    with extra():
        from onceward.fleet.verdicts import MEANING, Rules  # noqa: PLC0415 - an extra
        from onceward.spark import reconcile as job  # noqa: PLC0415 - an extra
        from onceward.testing.fleet import build  # noqa: PLC0415 - the demo alone needs a fleet

    with told(how) as on_step:
        made = build(folder / "agents", size=size, seed=seed, on_step=on_step)
    with fleet_of((str(made.folder),), how) as (fleet, on_step):
        report = job.run(fleet, folder / "report", Rules(now=made.now), on_step=on_step)
    names = sorted({*made.verdicts, *report.verdicts})
    both = ((name, made.verdicts.get(name, 0), report.verdicts.get(name, 0)) for name in names)
    rows = [{"verdict": v, "made": m, "found": f, "meaning": MEANING[v]} for v, m, f in both]
    return _compare(rows, folder / "report" / "report.html", how)


def _compare(rows: list[dict[str, Any]], page: Path, how: Session) -> int:
    sound = all(row["made"] == row["found"] for row in rows)
    found = {"ok": sound, "verdicts": rows, "report": str(page)}
    print_rows(found, rows, "verdict made found meaning", how)
    if how.style == "table":
        Console(highlight=False).print(f"\nThe report: {page}", soft_wrap=True)
    return DONE if sound else FAILED
