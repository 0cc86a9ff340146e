"""Write the report on a fleet as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Final

from onceward.fleet import charts
from onceward.fleet.verdicts import FATAL, STUCK, UNPROVED, VERDICTS, FailOn, Rules
from onceward.message.clock import iso

Row = Mapping[str, Any]
WORST: Final = 20
"""Most agents in the matrix and rows in each table; the Parquet files beside have all."""
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --good: #2da44e; --moving: #bf8700; --bad: #cf222e;
  --ended: #8c959f; --open: #8250df; --two: #0969da; --stuck: #bc4c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --good: #3fb950; --moving: #d29922;
  --bad: #f85149; --ended: #6e7681; --open: #a371f7; --two: #4493f8;
  --stuck: #db6d28; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 820px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note, .note { color: var(--soft); }
.yes { color: var(--good); font-weight: 600; } .no { color: var(--bad); font-weight: 600; }
p.stuck { color: var(--stuck); font-weight: 600; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
td, th { text-align: left; padding: 3px 10px 3px 0;
  border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .note { fill: var(--soft); }
.good { fill: var(--good); } .ended { fill: var(--ended); }
.moving { fill: var(--moving); } .open { fill: var(--open); }
.bad { fill: var(--bad); } .stuck { fill: var(--stuck); }
.axis { stroke: var(--soft); } .tick { stroke: var(--line); }
polyline { fill: none; stroke-width: 2; }
.line0 { stroke: var(--two); } .line1 { stroke: var(--good); } .line2 { stroke: var(--open); }
.dot0 { fill: var(--two); } .dot1 { fill: var(--good); } .dot2 { fill: var(--open); }
"""
HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head><body>
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Findings of a reconciliation, as plain values."""

    rules: Rules
    files: int
    """How many files were read."""
    agents: int
    verdicts: Mapping[str, int]
    unread: int = 0
    """How many files are gone or could not be read; the first of them are in ``quarantine``."""
    quarantine: Sequence[Row] = ()
    twins: Sequence[Row] = ()
    """Agents of which more than one file was read."""
    percentiles: Sequence[Row] = ()
    histogram: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    hours: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    pairs: Sequence[Row] = ()
    lanes: Sequence[Row] = ()
    examples: Sequence[Row] = ()
    waits: Sequence[Row] = ()
    """Reasons why messages wait, by recipient: their number, the next and the last moment."""
    lane_totals: Mapping[str, int] = field(default_factory=dict)
    evidence: str = ""
    """The extent to which files, the log, or both vouch for messages."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Messages that earlier runs with the same state have settled, by verdict."""

    @property
    def messages(self) -> int:
        """How many messages were judged."""
        return sum(self.verdicts.values())

    @property
    def broken(self) -> int:
        """How many messages break the promise: lost, or accepted twice."""
        return sum(self.verdicts.get(name, 0) for name in FATAL)

    @property
    def stuck(self) -> int:
        """How many messages their recipients keep, although nothing holds them up."""
        return sum(self.verdicts.get(name, 0) for name in STUCK)

    @property
    def complete(self) -> bool:
        """Whether there were files and all were read; otherwise the rest is not proved."""
        return self.files > 0 and not self.unread

    def failed(self, fail_on: FailOn = "quarantine") -> bool:
        """Return whether the run is not a success; never one if no file was read at all."""
        if self.broken or not self.files:
            return True
        if fail_on == "loss":
            return False
        undecided = sum(self.verdicts.get(name, 0) for name in UNPROVED)
        stuck = self.stuck if fail_on in {"stuck", "open"} else 0
        return self.unread > 0 or stuck > 0 or (fail_on == "open" and undecided > 0)

    def rows(self) -> list[dict[str, Any]]:
        """Return the verdicts that occur, from good to bad, and the files that were not read."""
        verdicts = [
            {"verdict": v.name, "messages": self.verdicts[v.name], "meaning": v.meaning}
            for v in VERDICTS
            if self.verdicts.get(v.name)
        ]
        return verdicts + [_unread(row) for row in self.quarantine]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for a program that reads on."""
        plain = {
            name: value
            for name, value in asdict(self).items()
            if name not in {"histogram", "hours"}
        }
        said = {"messages": self.messages, "broken": self.broken, "complete": self.complete}
        return plain | said | {"stuck": self.stuck}

    @property
    def open(self) -> int:
        """How many messages are undecided, and how many files were not read."""
        undecided = sum(self.verdicts.get(v.name, 0) for v in VERDICTS if v.weight == "open")
        return undecided + self.unread


def _unread(row: Row) -> dict[str, Any]:
    if row["reason"] == "gone":
        return {"verdict": "gone", "messages": None, "meaning": f"{row['path']}: {row['detail']}"}
    said = f"{row['reason']}: {row['path']}"
    return {"verdict": "unreadable", "messages": None, "meaning": said}


def html(report: Report) -> str:
    """Return the whole page; every text in it that came out of a file is escaped."""
    body = [
        _verdict(report),
        _verdicts(report),
        _times(report),
        _busy(report),
        _waits(report),
        _pairs(report),
        _lanes(report),
        _examples(report),
        _files(report),
        _rules(report.rules, report.evidence),
    ]
    head = HEAD.format(title="Fleet report", style=STYLE)
    return head + "\n".join(part for part in body if part) + "\n</body></html>\n"


def _verdict(report: Report) -> str:
    bad = report.failed()
    said = sentence(report)
    earlier = sum(report.before.values())
    known = f" {earlier:,} more were settled by earlier runs." if earlier else ""
    doubt = f" {report.open:,} messages or files are undecided." if report.open else ""
    stuck = f'<p class="stuck">{stuck_text(report)}</p>' if report.stuck else ""
    return (
        f"<h1>Fleet report</h1><p>{report.messages:,} messages of {report.agents:,} agents in "
        f"{report.files:,} files, "
        f'as of {iso(report.rules.now)}.</p><p class="{"no" if bad else "yes"}">{said}</p>'
        f'{stuck}<p class="note">{doubt}{known}</p>'
    )


def sentence(report: Report) -> str:
    """Return the verdict in one sentence."""
    if report.broken:
        return f"{report.broken:,} messages break the promise."
    if not report.files:
        return "No file was read: nothing is proved."
    if report.unread:
        return f"{report.unread:,} files were not read: nothing is proved about their agents."
    return "Nothing was lost, nothing took effect twice."


def stuck_text(report: Report) -> str:
    """Return one sentence on the messages that are stuck."""
    verb = "message is" if report.stuck == 1 else "messages are"
    return f"{report.stuck:,} {verb} stuck: nothing holds them up, but no worker handles them."


def _verdicts(report: Report) -> str:
    rows = [v for v in VERDICTS if report.verdicts.get(v.name)]
    drawn = charts.bars([charts.Bar(v.name, report.verdicts[v.name], v.weight) for v in rows])
    meanings = table([row for row in report.rows() if row["messages"] is not None])
    return f'<h2>Messages by verdict</h2>{drawn}<p class="note">Logarithmic scale.</p>{meanings}'


def _times(report: Report) -> str:
    if not report.percentiles:
        return ""
    note = (
        "Percentiles are exact in rank and within one percent in value; milliseconds, by the "
        "clocks of the two agents."
    )
    drawn = charts.cumulated(report.histogram)
    return (
        f'<h2>How long they took</h2>{drawn}{table(report.percentiles)}<p class="note">{note}</p>'
    )


def _busy(report: Report) -> str:
    drawn = charts.hours(report.hours)
    return f"<h2>Messages per hour</h2>{drawn}" if drawn else ""


def _waits(report: Report) -> str:
    if not report.waits:
        return ""
    note = (
        "These are not stuck. wait: kept until a wait takes it. message, reply, sleep, retry: its "
        "handler goes on then. run: its session collects messages. lane: behind such a message. "
        "resume: its agent or session is paused. next and last: when the first and the "
        "last of them go on at the latest; empty: without a time limit."
    )
    return f'<h2>Messages that wait</h2>{table(report.waits)}<p class="note">{note}</p>'


def _pairs(report: Report) -> str:
    if not report.pairs:
        return ""
    bad = [v.name for v in VERDICTS if v.weight == "bad"]
    cells = {
        (str(row["sender"]), str(row["recipient"])): (
            row["messages"],
            sum(row[name] for name in bad),
        )
        for row in report.pairs[:WORST]
    }
    columns = ("sender", "recipient", "messages", *bad, "unprocessed", "p50", "p99")
    shown = [{name: row.get(name) for name in columns} for row in report.pairs[:WORST]]
    return f"<h2>Worst pairs of agents</h2>{charts.matrix(cells)}{table(shown)}"


def _lanes(report: Report) -> str:
    if not report.lanes:
        return '<h2>Order</h2><p class="yes">No message overtook another of its lane.</p>'
    totals = ", ".join(
        f"{name.replace('_', ' ')}: {count:,}" for name, count in report.lane_totals.items()
    )
    note = (
        "overtook: handled before one of its lane that was accepted earlier, as pulling by type "
        "does. arrived late: after one that was "
        "sent later, as delayed and replayed messages do. gap: waits or is lost while later ones "
        "of its lane took effect."
    )
    return f'<h2>Order</h2><p>{totals}</p>{table(report.lanes)}<p class="note">{note}</p>'


def _examples(report: Report) -> str:
    if not report.examples:
        return ""
    note = "All of them are in findings/ beside this report."
    return f"<h2>Messages to look at</h2>{table(report.examples)}<p class='note'>{note}</p>"


def _files(report: Report) -> str:
    parts = []
    if report.quarantine:
        parts.append(f"<h2>Files that were not read</h2>{table(report.quarantine)}")
    if report.twins:
        note = (
            "Copies of one file do not change the counts. Files that diverged do: see duplicated."
        )
        parts.append(
            f"<h2>Agents with more than one file</h2>{table(report.twins)}"
            f'<p class="note">{note}</p>'
        )
    return "".join(parts)


def _rules(rules: Rules, evidence: str) -> str:
    return (
        f"<h2>Rules</h2><p>{escape(evidence)}</p>"
        f"<p>What happened after {iso(rules.cutoff)}, the last "
        f"{rules.grace:g} s before the reading, is in flight. "
        "Before that, a message is lost if its sender counts it as done, its recipient's file was "
        "read and has neither the message nor "
        "a dedup record nor a dead letter, and no record of it can have been pruned there. While "
        "its sender still keeps it, it is in flight, "
        "however old. "
        f"A message is late more than {rules.late_after:g} s after it was sent. What such a report "
        "can and cannot prove is explained "
        "in onceward's pages under “Limits of a fleet report”.</p>"
    )


def table(rows: Sequence[Row]) -> str:
    """Return rows as an HTML table, with their keys as its head; numbers stand at the right."""
    if not rows:
        return ""
    names = list(rows[0])
    numbers = {
        name for name in names if all(isinstance(row.get(name), int | float | None) for row in rows)
    }
    head = "".join(
        f"<th{' class=n' if name in numbers else ''}>{escape(name.replace('_', ' '))}</th>"
        for name in names
    )
    lines = (
        "".join(_cell(row.get(name), numeric=name in numbers) for name in names) for row in rows
    )
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: object, *, numeric: bool) -> str:
    text = "" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)
    return f"<td{' class=n' if numeric else ''}>{escape(text)}</td>"
