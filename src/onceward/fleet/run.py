"""Compare what all agents sent with what all received, in SQLite and in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.errors import InvalidArgument
from onceward.fleet import manifest
from onceward.fleet.copies import load_all
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.engine import give_verdicts
from onceward.fleet.figures import measure
from onceward.fleet.files import find
from onceward.fleet.increment import load_changes, remember
from onceward.fleet.loading import workspace
from onceward.fleet.logged import load_log
from onceward.fleet.opening import Unreadable
from onceward.fleet.register import gone, reading_of
from onceward.fleet.report import Report, html
from onceward.fleet.summary import report_of
from onceward.fleet.unsettled import State, kept
from onceward.fleet.verdicts import Rules

JOB: Final = "reconcile"
MESSAGES: Final = "messages.db"
"""Name of the SQLite file of results: tables messages, pairs, spans, hours, lanes; findings."""
OnStep = Callable[[str], object]


def reconcile(
    *paths: str | Path,
    out: str | Path | None = None,
    rules: Rules | None = None,
    log: str | None = None,
    state: str | Path | None = None,
    retired: Collection[str] = (),
    failfast: bool = False,
    on_step: OnStep = str,
) -> Report:
    """
    Read the files of a fleet once, judge every message, and write the findings to the folder *out*.

    *paths* are files, folders (all their ``*.db``) or globs. There are ``messages.db`` (a SQLite
    file with every message and its verdict) and ``report.html``; ``manifest.json`` is written last
    and says that all is there. Without *out* nothing is kept but the report that is returned. It
    lists what cannot be read: ask ``report.failed()``.

    *log* is the URI of a shipped log (extra ``ship``), which counts beside the files, or instead
    of them; it knows what files have pruned since.

    *state* is a file that is kept between runs: a run reads what is new since the last one, and
    again what was not settled then. It is written when all else is there, in one transaction.

    A file that *state* or *log* knows and that is not among the files of *paths* counts as unread,
    with the reason ``gone``, until it is back or its agent or path is among *retired*. A state
    forgets a retired file; a log does not, so name it in each run.

    Raises:
        InvalidArgument: both *log* and *state* are given, or *retired* without either.
        OutputTaken: the folder is not empty, and not ours.
        OutputBusy: another process writes into it, or uses the state.
        NoState: *state* is another kind of file.
        NamesNoFile: a path names no file; nothing is written.
        Unreadable: *failfast* is set, and a file cannot be read.

    """
    if log is not None and state is not None:
        raise InvalidArgument("a state belongs to files: give either log or state")
    if retired and log is None and state is None:
        raise InvalidArgument("retired names files of a log or a state: also give log or state")
    named = tuple(str(path) for path in paths)
    wanted = manifest.plan(named, JOB, rules or Rules.at_present()) | {"log": log}
    with manifest.folder(out) as folder, manifest.alone(folder, JOB) as own:
        planned = manifest.prepare(own, wanted, resume=False)
        run = _Run(own, planned, retired, on_step, failfast=failfast)
        if state is None:
            return run.whole(log)
        with kept(Path(state)) as before:
            return run.since(before)


class _Run:
    """One reconciliation into a folder."""

    def __init__(
        self,
        out: Path,
        planned: dict[str, Any],
        retired: Collection[str],
        on_step: OnStep,
        *,
        failfast: bool,
    ) -> None:
        self._out, self._planned, self._on_step = out, planned, on_step
        self._retired, self._failfast = retired, failfast
        self._new = out / "work" / MESSAGES

    def whole(self, log: str | None) -> Report:
        """Judge all messages that the files, and the log, know."""
        with closing(workspace(self._new)) as con:
            self._on_step(f"reading {len(self._planned['files'])} files")
            readings = load_all(con, [file["path"] for file in self._planned["files"]])
            if log is not None:
                self._on_step("reading the log")
                readings += load_log(con, log, readings, self._retired)
            report = self._judged(con, readings)
        return self._finished(report)

    def since(self, state: State) -> Report:
        """Judge what is new since *state*, and what was not settled; then move the state on."""
        with closing(workspace(self._new)) as con:
            self._on_step("reading what is new")
            done = load_changes(con, find(self._planned["paths"]), state)
            readings = [one.reading for one in done]
            missing = gone(state.known(), readings)
            retired = [one for one in missing if one.named(self._retired)]
            state.retire(retired)
            readings += [reading_of(one) for one in missing if one not in retired]
            report = self._judged(con, readings)
            report = replace(report, before=state.settled())
            state.keep(con, complete=report.complete)
        remember(state, done, report.rules.now)
        self._finished(report)
        state.commit()
        return report

    def _judged(self, con: apsw.Connection, readings: Sequence[Reading]) -> Report:
        refuse_unread(readings, failfast=self._failfast)
        rules = manifest.rules(self._planned)
        self._on_step("judging")
        give_verdicts(con, readings, rules)
        self._on_step("measuring")
        return report_of(measure(con), readings, rules)

    def _finished(self, report: Report) -> Report:
        self._new.replace(self._out / MESSAGES)
        finish(self._out, self._planned, report)
        return report


def refuse_unread(readings: Sequence[Reading], *, failfast: bool) -> None:
    """Raise Unreadable for the first file that was not read, if the caller wants that."""
    for one in readings:
        if failfast and one.state != READ:
            raise Unreadable(one.path, one.state, one.detail)  # type: ignore[arg-type]


def finish(out: Path, planned: dict[str, Any], report: Report) -> None:
    """Write the page, then the manifest that marks all as complete; remove leftovers."""
    (out / "report.html").write_text(html(report), encoding="utf-8")
    done = {"verdicts": dict(report.verdicts), "quarantined": report.unread}
    manifest.finish(out, planned | done)
