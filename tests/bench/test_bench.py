"""Every case measures something and says what; how fast it was does not matter here."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.bench import command as bench
from tests.bench import report
from tests.bench.cases import CASES
from tests.bench.curves import curves
from tests.bench.measure import Goal, Lap, Pairs, alternate, compare, quantile_ms, repeat, short
from tests.bench.plan import Plan
from tests.bench.plot import plot
from tests.bench.show import number

REQUIRED = {
    "case",
    "rate",
    "raw_rate",
    "ratio",
    "p50_ms",
    "p99_ms",
    "durability",
    "goals",
    "machine",
}
TINY = 0.02

SLOW = {
    "http", "nats", "price", "wake", "dead-peers", "claim-group", "memory", "slow-disk",
    "processes",
}  # fmt: skip
"""Cases that start many processes: their rows are tested with the proof."""
ROWS = {
    "send": ["send safe", "send fast"],
    "send-many": ["send-many safe", "send-many fast"],
    "group": ["group-threads safe", "group-tasks safe"],
    "deliver": ["deliver safe"],
    "wake": ["wake safe", "wake fast", "idle safe", "idle safe"],
    "backlog": ["backlog safe"] * 9,
    "memory": ["memory safe", "import none"],
    "slow-disk": ["slow-disk safe"] * 6,
    "processes": ["processes safe"] * 3,
}
COMPARED = {"send", "send-many", "group", "deliver"}
RATES = ("rate", "raw_rate", "ratio")
SHARED = {
    "sqlite3 by hand", "litequeue", "persist-queue", "huey", "honker", "redis streams by hand",
    "NATS JetStream", "celery on redis", "taskiq on redis",
}  # fmt: skip
"""Queues that are measured in two processes too."""
PEERS = {
    "peers": SHARED | {"onceward", "DBOS on SQLite"},
    "peers-apart": SHARED | {"two agents in two processes"},
}
COMMITS = {
    "onceward": 2, "two agents in two processes": 2, "sqlite3 by hand": 3, "litequeue": 3,
    "persist-queue": 3, "huey": 2, "honker": 3,
}  # fmt: skip
"""
The least commits of a message, one by one: put, claim, acknowledge.

huey's claim is the end, and ours is committed with it where that is safe.
"""


def rows(capsys: pytest.CaptureFixture[str], case: str, folder: Path) -> list[dict[str, Any]]:
    """Return what a tiny run of a case prints, line by line."""
    assert bench.run(case, json=True, seconds=TINY, folder=folder) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.proof) if case in SLOW else case for case in CASES],
)
def test_every_row_has_the_required_keys(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Each line of a case is one JSON object, and the folder is empty afterwards.

    It names its case, numbers, durability, goals and machine. A ratio stands beside the two
    rates that it compares, and beside a goal; a queue at a durability, or as not installed.
    No library that is measured changes what this process logs.
    """
    level = logging.root.level
    found = rows(capsys, case, tmp_path)
    compared = found if case in COMPARED else []

    assert [] == [row for row in found if not REQUIRED <= row.keys()]
    assert set() == {row["case"] for row in found} - report.SHOWN, (
        "give its rows a section on the page of figures"
    )
    if case in ROWS:
        assert ROWS[case] == [f"{row['case']} {row['durability']}" for row in found]
    assert [] == [row for row in compared if not min(row[name] for name in RATES) > 0]
    assert [] == [row for row in compared if "ratio" not in row["goals"]]
    assert [] == [row for row in found if not row["durability"] and "skipped" not in row]
    if case == "peers":
        compare_peers(found)
    assert [] == list(tmp_path.iterdir())
    assert level == logging.root.level


def compare_peers(found: list[dict[str, Any]]) -> None:
    """Expect a row for each system, and that each puts, claims and ends messages in its files."""
    for case, systems in PEERS.items():
        assert systems == {row["system"] for row in found if row["case"] == case}
    local = [row for row in found if row["rate"] and row["system"] in COMMITS]
    few = [row for row in local if (row["commits"] or 0) < COMMITS[row["system"]]]
    assert [] == few


def test_words_name_goals_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``json`` each row is a line for people, its goals judged."""
    assert bench.run("send", seconds=TINY, folder=tmp_path) == 0

    for line in capsys.readouterr().out.splitlines():
        assert re.fullmatch(
            r"send \((safe|fast)\): rate .*, ratio .*, goal ratio >= 0\.\d+ (met|MISSED)", line
        )


def test_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name ends with 2 and a list of the right ones."""
    assert bench.run("sned") == 2

    assert "send-many" in capsys.readouterr().err


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    """``python -m tests.bench`` prints the same rows, without the command's extras installed."""
    command = [
        sys.executable,
        "-m",
        "tests.bench",
        "send",
        "--json",
        "--seconds",
        str(TINY),
        "--folder",
        str(tmp_path),
    ]
    answer = subprocess.run(command, capture_output=True, check=True, text=True)

    assert ["safe", "fast"] == [
        json.loads(line)["durability"] for line in answer.stdout.splitlines()
    ]


def test_ratio_is_the_median_of_neighbours() -> None:
    """Laps are compared with their neighbour in time, so one disturbed pair does not decide."""
    pairs = Pairs(
        (Lap(10, 1.0), Lap(10, 1.0), Lap(10, 10.0)), (Lap(20, 1.0), Lap(10, 1.0), Lap(1, 10.0))
    )

    assert pairs.ratio == 1.0


def test_laps_alternate_after_a_warm_up() -> None:
    """Ours and the rival take turns, and the first lap of each is not measured."""
    order: list[str] = []

    def lap(name: str) -> Lap:
        order.append(name)
        return Lap(len(order), 1.0)

    pairs = alternate(lambda: lap("ours"), lambda: lap("raw"), rounds=2)

    assert ["ours", "raw"] * 3 == order
    assert [3, 5] == [one.messages for one in pairs.ours]


def test_repeat_runs_at_least_once() -> None:
    """Even a lap without time counts its messages and waits."""
    lap = repeat(lambda: None, 0.0, messages=100)

    assert (100, 1) == (lap.messages, len(lap.waits))


def test_goals_are_judged_by_their_bound() -> None:
    """A goal says its bound and whether the printed number keeps it."""
    pairs = Pairs((Lap(90, 1.0),), (Lap(100, 1.0),))
    row = compare(
        "send",
        pairs,
        durability="safe",
        goals=[Goal("ratio", at_least=0.9), Goal("worst", at_most=5)],
        worst=6.0,
    ).as_dict({})

    assert {"ratio": {"at_least": 0.9, "met": True}, "worst": {"at_most": 5, "met": False}} == row[
        "goals"
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1234.567, 1235.0), (0.000123456, 0.0001235), (7, 7), ("x", "x"), (None, None)],
)
def test_numbers_carry_four_digits(value: object, expected: object) -> None:
    """More digits than a shared machine deserves are not printed."""
    assert expected == short(value)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 3000.0), (0.99, 4000.0), (0.0, 1000.0)])
def test_quantiles_are_milliseconds(share: float, expected: float) -> None:
    """Waits are seconds inside and milliseconds where people read them."""
    assert expected == quantile_ms([1.0, 2.0, 3.0, 4.0], share)


def test_no_waits_have_no_quantile() -> None:
    """A case that times only whole laps prints null, not zero."""
    assert quantile_ms([], 0.5) is None


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, 50_000),
        ({"seconds": 0.02}, 200),
        ({"seconds": 60.0}, 50_000),
        ({"seconds": 0.02, "size": 5000}, 5000),
    ],
)
def test_short_laps_shrink_sizes(plan: dict[str, Any], expected: int, tmp_path: Path) -> None:
    """A quick look moves fewer messages, and a given size is taken as it is."""
    assert expected == Plan(folder=tmp_path, **plan).messages(50_000, per_second=10_000)


def test_report_writes_rows_page_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows are kept, and the page and the plot can be written from them again."""
    found = rows(capsys, "send", tmp_path)
    report.measured(iter(found), tmp_path)

    kept = json.loads((tmp_path / "benchmarks.json").read_text(encoding="utf-8"))
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert found == kept
    assert {
        "benchmarks.md": page,
        "benchmarks.svg": (tmp_path / "benchmarks.svg").read_text(encoding="utf-8"),
    } == report.written(kept)
    assert page.count("| send | ") == len(found)


def test_a_case_takes_the_place_of_its_rows_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Rows of other cases and of other builds of Python stay, and each build is named.

    A second run of the same case and build replaces the first.
    """
    (first,) = [row for row in rows(capsys, "send", tmp_path) if row["durability"] == "safe"]
    other = first | {"machine": first["machine"] | {"build": "another"}}
    kept = first | {"case": "send-many"}
    report.measured(iter([kept, first, other]), tmp_path)
    report.merged(iter([first | {"rate": 7.0}]), tmp_path)

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    found = json.loads((tmp_path / "benchmarks.json").read_text(encoding="utf-8"))
    assert [kept, other, first | {"rate": 7.0}] == found
    assert ["(another)", f"({first['machine']['build']})"] == re.findall(
        r"^\| send \|.*\d (\([^)]*\)) \|", page, re.MULTILINE
    )


def drawn(picture: str) -> list[str]:
    """Return the names of all elements of a picture."""
    return [element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()]  # noqa: S314 - our own text


def peer(system: str, rate: float | None, promise: str = "at least once") -> dict[str, Any]:
    """Return a row of a comparison with other queues; without a rate it was skipped."""
    return {"case": "peers", "system": system, "rate": rate, "promise": promise}


def test_the_picture_has_a_bar_for_each_system_the_fastest_first() -> None:
    """Systems that were skipped have no bar; three squares explain the colours."""
    picture = plot([peer("slow", 1.0), peer("fast", 900.0, "exactly once"), peer("none", None)])

    assert 2 + 3 == drawn(picture).count("rect")
    assert -1 < picture.find(">fast<") < picture.find(">slow<")
    assert "none" not in picture


def grown(of: str, size: int, ratio: float) -> dict[str, Any]:
    """Return a row of growth."""
    more = {"cpu_us": 10.0, "of_smallest": ratio, "goals": {"of_smallest": {"at_most": 1.25}}}
    return {"case": "growth", "of": of, "work": "send", "size": size} | more


def test_curves_have_a_panel_for_each_thing_that_grew() -> None:
    """Each panel has a curve for each step, and one point for each size."""
    picture = curves(
        [
            grown(of, size, ratio)
            for of in ("files", "agents")
            for size, ratio in ((1, 1.0), (9, 3.0))
        ]
    )
    lines = re.findall(r'points="([^"]*)"', picture)

    assert [2, 2] == [len(line.split()) for line in lines]
    assert ["Files", "Agents"] == re.findall(r"(\w+): processor time of a step", picture)


def test_the_published_page_is_what_its_rows_say(pytestconfig: pytest.Config) -> None:
    """No figure is edited by hand: page and pictures are written from the rows beside them."""
    folder = pytestconfig.rootpath / "docs" / "reference"
    kept = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))

    assert report.written(kept) == {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("benchmarks.md", "benchmarks.svg", "benchmarks-growth.svg")
    }


def test_the_index_shows_published_rates(pytestconfig: pytest.Config) -> None:
    """The table of the index repeats four rows, and names how quickly their disk syncs."""
    docs = pytestconfig.rootpath / "docs"
    kept = json.loads((docs / "reference" / "benchmarks.json").read_text(encoding="utf-8"))
    index = (docs / "index.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| .+ \| ([\d,]+) \|$", index, re.MULTILINE)
    rates = {row["case"]: number(row["rate"]) for row in kept if row["durability"] == "safe"}
    synced = f"syncs a write in {kept[0]['machine']['sync_ms']:.2g} ms"

    assert [rates[name] for name in ("send", "send-many", "group-tasks", "deliver")] == shown
    assert synced in index
