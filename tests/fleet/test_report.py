"""
The page of a reconciliation: whole, well-formed and safe with any text; without Spark.

The text is what the files said.
"""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, get_args
from xml.etree import ElementTree as ET

import pytest

from onceward.fleet import charts
from onceward.fleet.report import Report, html, table
from onceward.fleet.verdicts import FATAL, NAMES, VERDICTS, FailOn, Rules

HOSTILE = """<script>alert("x")</script>&'"""
PLAIN = Report(
    rules=Rules(now=1_767_225_600_000), files=2, agents=2, verdicts={"delivered_once": 10}
)


def _report(**more: Any) -> Report:
    given = {
        "rules": PLAIN.rules,
        "files": 2,
        "agents": 2,
        "verdicts": {"delivered_once": 1_000_000, "lost": 3, "unwitnessed": 2},
    }
    pair = {
        "sender": HOSTILE,
        "recipient": "bob",
        "messages": 5,
        "unprocessed": 0,
        "p50": 1,
        "p99": None,
    } | dict.fromkeys(NAMES, 0)
    lines = {"effect": [(-1, 1), (0, 4), (12, 5), (90_000, 1)], "store": [(3, 2)]}
    hours = {"sent": [(490_000, 7), (490_003, 2)], "processed": [(490_000, 9)]}
    full = {
        "unread": 1,
        "quarantine": [{"path": HOSTILE, "reason": "corrupt", "detail": HOSTILE}],
        "twins": [{"agent": HOSTILE, "files": "a, b"}],
        "percentiles": [{"span": "effect", "messages": 11, "p50": 0}], "histogram": lines,
        "hours": hours, "pairs": [pair], "lanes": [{"sender": HOSTILE, "overtook": 1}],
        "lane_totals": {"overtook": 1}, "examples": [{"id": HOSTILE, "verdict": "lost"}],
    }  # fmt: skip
    return Report(**{**given, **full, **more})


class _Balance(HTMLParser):
    """Follows the tags of a page; every one that is opened is closed."""

    EMPTY = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.stack.pop()


def test_what_files_say_is_shown_and_never_run() -> None:
    """An agent may be called like a script: its name stands on the page as text."""
    page = html(_report())

    assert "script" not in _Balance(page).seen
    assert "&lt;script&gt;alert(&quot;x&quot;)" in page


def test_the_page_and_its_pictures_are_well_formed() -> None:
    """Every tag is closed, and every picture is a document of its own."""
    page = html(_report())
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)

    assert [] == _Balance(page).stack
    assert (4, ["svg"] * 4) == (len(pictures), [ET.fromstring(picture).tag for picture in pictures])  # noqa: S314 - our own


def test_the_first_line_says_whether_the_promise_held() -> None:
    """A reader of one sentence reads the right one."""
    assert "Nothing was lost, nothing took effect twice." in html(PLAIN)
    assert "3 messages break the promise." in html(_report())
    assert "3 messages or files are undecided." in html(_report())


EMPTY = Report(rules=PLAIN.rules, files=0, agents=0, verdicts={})


def test_an_empty_fleet_has_a_page_too_that_praises_nothing() -> None:
    """Without a file nothing is proved: the page says so."""
    assert "0 messages of 0 agents" in html(EMPTY)
    assert "No file was read: nothing is proved." in html(EMPTY)
    assert "Nothing was lost" not in html(EMPTY)


UNREAD = replace(PLAIN, unread=1)
UNDECIDED = replace(PLAIN, verdicts={"delivered_once": 1, "orphan": 1})
LOST = replace(PLAIN, verdicts={"delivered_once": 1, "lost": 1})


@pytest.mark.parametrize(
    ("report", "complete", "failed"),
    [
        (PLAIN, True, []),
        (UNDECIDED, True, ["open"]),
        (replace(PLAIN, verdicts={"waiting": 2, "kept": 1}), True, []),
        (replace(PLAIN, verdicts={"unprocessed": 1}), True, ["stuck", "open"]),
        (UNREAD, False, ["quarantine", "stuck", "open"]),
        (LOST, True, ["loss", "quarantine", "stuck", "open"]),
        (EMPTY, False, ["loss", "quarantine", "stuck", "open"]),
        (replace(EMPTY, unread=2), False, ["loss", "quarantine", "stuck", "open"]),
    ],
)
def test_success_needs_files_that_were_read(
    report: Report, *, complete: bool, failed: list[FailOn]
) -> None:
    """A report without a file is never green, whatever is asked of it."""
    levels: tuple[FailOn, ...] = get_args(FailOn)

    assert (complete, failed) == (report.complete, [on for on in levels if report.failed(on)])
    assert complete == report.as_dict()["complete"]


def test_unread_files_are_rows_of_the_printed_table() -> None:
    """A file that was not read stands among the verdicts, with its reason."""
    unread = {"path": "/a.db", "reason": "corrupt", "detail": "no database"}

    assert {"verdict": "unreadable", "messages": None, "meaning": "corrupt: /a.db"} == replace(
        PLAIN, unread=1, quarantine=[unread]
    ).rows()[-1]


def test_what_waits_is_told_from_what_is_stuck() -> None:
    """The page says for what messages wait and until when, and alarms for stuck ones alone."""
    wait = {"recipient": "bob", "verdict": "waiting", "waits_for": "sleep", "messages": 2}
    waits = html(replace(PLAIN, waits=[wait | {"next_at": "2026-01-04T00:00:00.000Z"}]))
    stuck = html(replace(PLAIN, verdicts={"unprocessed": 1}))

    assert ("<td>sleep</td>" in waits, "2026-01-04T00:00:00.000Z" in waits) == (True, True)
    assert (False, True) == tuple('class="stuck">1 message' in page for page in (waits, stuck))


def test_a_bar_of_three_is_seen_beside_a_million() -> None:
    """Scales are logarithmic: what is bad is rare, and must be seen."""
    drawn = ET.fromstring(  # noqa: S314 - our own
        charts.bars([charts.Bar("good", 1_000_000, "good"), charts.Bar("lost", 3, "bad")])
    )
    [good, bad] = [float(rect.get("width", "0")) for rect in drawn.iter("rect")]

    assert good / 20 < bad < good


def test_numbers_stand_at_the_right_and_nothing_is_left_blank() -> None:
    """A column of numbers is one also where a number is missing."""
    assert "<th class=n>n</th>" in table([{"a": "x", "n": 1}, {"a": "y", "n": None}])


@pytest.mark.parametrize("name", NAMES)
def test_every_verdict_says_what_it_means(name: str) -> None:
    """A word of the report is explained on the page that uses it."""
    [verdict] = [verdict for verdict in VERDICTS if verdict.name == name]

    assert verdict.meaning in html(_report(verdicts={name: 1})).replace("&#x27;", "'")
    assert (name in FATAL) <= (verdict.weight == "bad")
