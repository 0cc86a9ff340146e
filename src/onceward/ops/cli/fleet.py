"""``onceward fleet reconcile`` and ``demo``: find lost messages in many agents' files."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console
from rich.markup import escape

from onceward.ops.cli.durations import Span, SpanOption
from onceward.ops.cli.exit_codes import DONE, FAILED, Usage
from onceward.ops.cli.output import safe
from onceward.ops.cli.spark_session import (
    REPORTING,
    SESSION,
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
    from onceward.fleet.report import Report
    from onceward.fleet.verdicts import FailOn, Rules

GRACE: Final = Span(900)
LATE: Final = Span(3600)
SPARK_FROM: Final = 20 * 1024**3
"""Bytes of files, about ten million messages, above which starting Spark pays off."""
Engine = Literal["auto", "sqlite", "spark"]


def reconcile(
    *paths: Paths,
    how: Reporting = REPORTING,
    grace: SpanOption = GRACE,
    late_after: SpanOption = LATE,
    fail_on: Literal["loss", "quarantine", "stuck", "open"] = "quarantine",
    engine: Engine = "auto",
    log: str | None = None,
    state: Path | None = None,
    retired: tuple[str, ...] = (),
    resume: Resume = False,
) -> int:
    """
    Compare the messages that agents sent with those that agents received and processed.

    Writes every message with its verdict, a manifest and report.html to --out; without --out it
    only prints. Exit code 1 if any message was lost, accepted twice or processed twice, or if a
    file could not be read.

    Columns: verdict, messages, meaning.

    Example: onceward fleet reconcile '/srv/agents/**/*.db' --out /var/reports/today

    Args:
        grace: Messages that changed less than this long before the reading count as in flight.
        late_after: A message that took longer than this from send to effect is late.
        fail_on: loss: fail for broken promises alone. stuck: also for messages that are stuck at
            their recipients. open: also for these and for undecided messages.
        engine: sqlite needs no extra. auto: Spark from 20 GiB, if it is installed.
        log: URI of a log that `ship` wrote; read in addition to the files, or alone.
        state: A file that is kept between runs: each run reads only new and unsettled messages.
        retired: Agent or path whose file is permanently gone: it no longer fails the run.
            Repeatable.
        resume: Continue an interrupted run into --out. Spark.

    """
    from onceward.fleet.verdicts import Rules  # noqa: PLC0415 - of this command only

    if retired and state is None and log is None:
        raise Usage("--retired needs --state or --log, which know the earlier files")
    rules = Rules.at_present(grace=grace, late_after=late_after)
    size = existing(paths) if paths or log is None else 0
    alone = state is not None or log is not None  # Spark is not worth its start for these
    if _chosen(engine, 0 if alone else size, spark=resume) == "spark":
        if state is not None:
            raise Usage("--state is for --engine sqlite")
        report = _on_spark(paths, how, rules, log=log, retired=retired, resume=resume)
    else:
        report = _in_process(paths, how, rules, state=state, log=log, retired=retired)
    _show(report, how, fail_on)
    return FAILED if report.failed(fail_on) else DONE


def _chosen(engine: Engine, size: int, *, spark: bool) -> Engine:
    if engine == "sqlite" and spark:
        raise Usage("--resume needs --engine spark")
    if engine != "auto":
        return engine
    large = size >= SPARK_FROM and find_spec("pyspark") is not None
    return "spark" if spark or large else "sqlite"


def _in_process(paths: tuple[str, ...], how: Reporting, rules: Rules, **more: Any) -> Report:
    from onceward.fleet.run import reconcile as job  # noqa: PLC0415 - of this command only

    with told(how) as on_step:
        asked: dict[str, Any] = {"failfast": how.failfast, "on_step": on_step, **more}
        return job(*paths, out=how.out, rules=rules, **asked)


def _on_spark(paths: tuple[str, ...], how: Reporting, rules: Rules, **more: Any) -> Report:
    resume = more.get("resume", False)
    with results(how, resume=resume) as out, fleet_of(paths, how) as (fleet, on_step):
        from onceward.fleet.spark import reconcile as job  # noqa: PLC0415 - an extra

        return job.run(fleet, out, rules, on_step=on_step, **more)


def _show(report: Report, how: Reporting, fail_on: FailOn) -> None:
    from onceward.fleet.report import sentence, stuck_text  # noqa: PLC0415 - of this command only

    page = None if how.out is None else str(how.out / "report.html")
    where = f" The report: {escape(safe(page))}" if page else ""
    found = report.as_dict() | {"report": page}
    print_rows(found, report.rows(), "verdict messages meaning", how)
    if how.style == "table":
        colour = "bold red" if report.failed(fail_on) else "green"
        said = f"\n[{colour}]{sentence(report)}[/]{where}"
        if report.stuck:
            said += f"\n[yellow]{stuck_text(report)}[/]"
        if report.evidence:
            said += f"\n[dim]{report.evidence}[/]"
        Console(highlight=False).print(said, soft_wrap=True)


def demo(
    *,
    size: int = 1,
    seed: int = 0,
    home: Path | None = None,
    engine: Literal["sqlite", "spark"] = "sqlite",
    how: Session = SESSION,
) -> int:
    """
    Create a fleet with a known number of some faults, and find every affected message.

    Real agents talk by file, with one clock and one seed; then files are restored from backups,
    copied and damaged. Exit code 1 unless exactly the planted faults are found.

    Columns: verdict, made, found, meaning.

    Example: onceward fleet demo --size 2 --home /tmp/fleet

    Args:
        size: How many times everything happens.
        seed: Chooses the messages; the same seed makes the same ones.
        home: A new or empty folder for the fleet and the report. Default: a temporary one.
        engine: sqlite needs no extra; spark needs onceward[spark].

    """
    if size < 1:
        raise Usage("--size must be at least 1")
    if home is not None and home.exists() and any(home.iterdir()):
        raise Usage(f"{home} is not empty: name a new folder")
    home = home or Path(tempfile.mkdtemp(prefix="onceward-fleet-"))
    from onceward.fleet.verdicts import MEANING, Rules  # noqa: PLC0415 - of this command only
    from onceward.testing.fleet import build  # noqa: PLC0415 - the demo alone needs a fleet

    with told(how) as on_step:
        made = build(home / "agents", size=size, seed=seed, on_step=on_step)
    into = Reporting(out=home / "report", json=how.json, cores=how.cores, memory=how.memory)
    paths, rules = (str(made.folder),), Rules(now=made.now)
    job = _on_spark if engine == "spark" else _in_process
    report = job(paths, into, rules)
    names = sorted({*made.verdicts, *report.verdicts})
    both = ((name, made.verdicts.get(name, 0), report.verdicts.get(name, 0)) for name in names)
    rows = [{"verdict": v, "made": m, "found": f, "meaning": MEANING[v]} for v, m, f in both]
    return _compare(rows, home / "report" / "report.html", how)


def _compare(rows: list[dict[str, Any]], page: Path, how: Session) -> int:
    sound = all(row["made"] == row["found"] for row in rows)
    found = {"ok": sound, "verdicts": rows, "report": str(page)}
    print_rows(found, rows, "verdict made found meaning", how)
    if how.style == "table":
        Console(highlight=False).print(
            f"\nThe report: {safe(str(page))}", soft_wrap=True, markup=False
        )
    return DONE if sound else FAILED
