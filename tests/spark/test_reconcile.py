"""Reconciliation finds exactly what was done to a fleet, message by message, whatever its size."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import apsw
import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from tests.fleet import generator
from tests.fleet.mishaps import HEALTHY

from onceward.fleet import manifest
from onceward.fleet.columns import EVIDENCE
from onceward.fleet.manifest import OutputTaken
from onceward.fleet.report import Report
from onceward.fleet.run import reconcile as in_process
from onceward.fleet.spark import facts, reconcile
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.summary import LANE_MARKS
from onceward.fleet.verdicts import FATAL, Rules
from onceward.message.names import DIRECTORY


@dataclass(frozen=True)
class Case:
    """A fleet with everything in it, and what was found there."""

    made: generator.Fleet
    fleet: Fleet
    out: Path
    report: Report


@pytest.fixture(scope="module")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return one fleet of size one and its reconciliation; no test changes either."""
    folder = tmp_path_factory.mktemp("reconcile")
    made = generator.build(folder / "agents")
    fleet = Fleet(spark, (str(made.folder),))
    return Case(
        made, fleet, folder / "out", reconcile.run(fleet, folder / "out", Rules(now=made.now))
    )


def test_every_message_gets_the_verdict_of_what_was_done_to_it(case: Case) -> None:
    """No class is missed or mixed up with another; bad weather and backups leave no trace."""
    assert dict(case.made.verdicts) == dict(case.report.verdicts)
    assert sum(case.made.verdicts[name] for name in FATAL) == case.report.broken


def test_overtaking_and_gaps_are_counted_by_lane(case: Case) -> None:
    """Order is judged within a lane: exactly the messages that were pulled out of it stand out."""
    assert {"overtook": case.made.order, "arrived_late": 0, "gap": case.made.gaps} == dict(
        case.report.lane_totals
    )
    assert {"swap-near": (case.made.order, 0), "pull-near": (0, 2), "first-in-near": (0, 2)} == {
        row["sender"]: (row["overtook"], row["gap"]) for row in case.report.lanes
    }


def test_the_parquet_files_hold_every_message_once(case: Case) -> None:
    """A reader that goes on finds the same verdicts, one row per message."""
    rows = (
        ds.dataset(case.out / "frames")
        .to_table(columns=["sender", "recipient", "id", "verdict"])
        .to_pylist()
    )

    assert dict(case.made.verdicts) == dict(sorted(Counter(row["verdict"] for row in rows).items()))
    alone = [row for row in rows if row["sender"] != "same-near"]  # two tenants, the same ids
    assert len(alone) == len({(row["sender"], row["recipient"], row["id"]) for row in alone})


def test_findings_are_the_messages_to_look_at(case: Case) -> None:
    """The short list has all that is bad, unproved or stuck, and what both sides say of it."""
    rows = ds.dataset(case.out / "findings").to_table().to_pylist()
    said = {(row["verdict"], row["sender_says"], row["recipient_says"]) for row in rows}

    assert {
        ("lost", "acked", "nothing"),
        ("orphan", "nothing", "processed"),
        ("double_processed", "acked", "processed"),
        ("duplicated", "sent", "pending"),  # by the copy that goes on
        ("unprocessed", "sent", "pending"),
        ("unprocessed", "sent", "waiting"),
        ("unwitnessed", "acked", "nothing"),
        ("forgotten", "acked", "nothing"),
        ("forgotten", "nothing", "processed"),
    } == said


def test_files_that_nobody_can_read_and_files_read_twice_are_named(case: Case) -> None:
    """A report never hides what it did not see."""
    found = {(Path(row["path"]).name, row["reason"]) for row in case.report.quarantine}
    assert {
        ("double-far.db", "differs"),
        ("empty.db", "empty"),
        ("notes.db", "corrupt"),
        ("twice-far.db", "differs"),
        ("witness-far.db", "corrupt"),
    } == found
    assert ["desk-0", "room-far", "room-near", "same-far", "same-near"] == [
        row["agent"] for row in case.report.twins
    ]


def test_the_page_needs_nothing_from_anywhere(case: Case) -> None:
    """The report is one file: no script, no link, no image, no font from elsewhere."""
    page = (case.out / "report.html").read_text(encoding="utf-8")

    assert [] == [
        word
        for word in ("http:", "https:", "<script", "<link", "src=", "@import", "url(")
        if word in page
    ]
    assert (4, True) == (page.count("<svg"), "default-src 'none'" in page)


def test_the_manifest_says_what_was_read_by_which_rules(case: Case) -> None:
    """Beside the results stands from what, and how, they were made."""
    told = json.loads((case.out / "manifest.json").read_text(encoding="utf-8"))
    files = case.made.folder.rglob("*.db")
    paths = {str(path) for path in files if path.name != DIRECTORY}

    assert (paths, case.made.quarantined + case.made.differing) == (
        {file["path"] for file in told["files"]},
        told["quarantined"],
    )
    assert (
        {"now": case.made.now, "grace": 900.0, "late_after": 3600.0},
        dict(case.made.verdicts),
    ) == (told["rules"], told["verdicts"])


@pytest.mark.broken("everything that can go wrong went wrong in these files")
@pytest.mark.parametrize("size", [2, 4])
def test_a_larger_fleet_is_judged_as_exactly(
    size: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Counts are exact at any size, not about right."""
    made = generator.build(tmp_path, size=size)
    fleet = Fleet(spark, (str(tmp_path),))
    frames = reconcile.reconcile(fleet.table("evidence", *EVIDENCE), Rules(now=made.now))

    assert dict(made.verdicts) == {
        row["verdict"]: row["count"]
        for row in frames.groupBy("verdict").count().orderBy("verdict").collect()
    }


def test_verdicts_stay_as_they_were_judged(spark: SparkSession, tmp_path: Path) -> None:
    """A file that goes while its messages are looked at makes none of them lost."""
    made = generator.build(tmp_path, mishaps=())
    fleet = Fleet(spark, (str(tmp_path),))
    frames = reconcile.reconcile(fleet.table("evidence", *EVIDENCE), Rules(now=made.now))
    (tmp_path / "clerk-0.db").unlink()

    assert dict(made.verdicts) == {
        row["verdict"]: row["count"] for row in frames.groupBy("verdict").count().collect()
    }


@pytest.mark.broken("two tenants chose the same ids")
def test_a_file_that_goes_before_tenants_are_told_apart_makes_no_message_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read once more is judged by what its files say then."""
    made = generator.build(tmp_path / "agents", mishaps=("same_ids",))
    [path] = (path for path in made.folder.rglob("same-far.db") if "east" in str(path))

    def found(*given: Any) -> Any:
        path.unlink()
        return facts.owners(*given)

    monkeypatch.setattr(reconcile, "owners", found)
    fleet = Fleet(spark, (str(made.folder),))
    report = reconcile.run(fleet, tmp_path / "out", Rules(now=made.now))

    east = made.verdicts["lost"] + HEALTHY
    assert {"unwitnessed": east, "forgotten": made.verdicts["forgotten"]} == {
        name: report.verdicts.get(name, 0) for name in ("unwitnessed", "forgotten")
    }
    assert (0, sum(made.verdicts.values())) == (
        report.verdicts.get("lost", 0),
        sum(report.verdicts.values()),
    )


class _Cut(Exception):
    """The run is broken off."""


def test_a_run_that_was_broken_off_goes_on_without_reading_again(
    case: Case, tmp_path: Path
) -> None:
    """
    Gathered rows are kept, so a run resumes even when the files are gone.

    The rules stay those of its beginning.
    """
    shutil.copytree(case.made.folder, tmp_path / "agents")
    fleet, out = Fleet(case.fleet.spark, (str(tmp_path / "agents"),)), tmp_path / "out"

    def cut(said: str) -> None:
        if said == "judging":
            raise _Cut

    with pytest.raises(_Cut):
        reconcile.run(fleet, out, Rules(now=case.made.now), on_step=cut)
    assert not (out / "manifest.json").exists()
    shutil.rmtree(tmp_path / "agents")
    report = reconcile.run(fleet, out, Rules(now=case.made.now + 1), resume=True)

    assert (dict(case.made.verdicts), case.made.now) == (dict(report.verdicts), report.rules.now)
    assert ["frames", "work"] == sorted(
        name for name in ("frames", "work") if (out / name).exists() or name == "work"
    )
    assert not (out / "work").exists()


def test_a_folder_of_somebody_else_is_left_alone(case: Case, tmp_path: Path) -> None:
    """Results never go among files that no job of ours wrote."""
    (tmp_path / "thesis.txt").write_text("ten years of work", encoding="utf-8")

    with pytest.raises(OutputTaken):
        reconcile.run(case.fleet, tmp_path, Rules(now=case.made.now))
    assert ["thesis.txt"] == [path.name for path in tmp_path.iterdir()]


def test_marks_of_lanes_have_names(case: Case) -> None:
    """The counts of the report are those that the lanes know."""
    assert set(LANE_MARKS) == set(case.report.lane_totals)
    assert manifest.read(case.out / manifest.NAME) is not None


SAME = ("sender", "recipient", "id", "verdict", "sender_says", "recipient_says", "out_seq")


def _judged(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in SAME) for row in rows), key=repr)


def _of(report: Report) -> dict[str, Any]:
    found = report.as_dict()
    for name in ("pairs", "lanes", "percentiles", "quarantine"):
        found[name] = sorted(
            (sorted((key, row[key]) for key in row if key != "lane") for row in found[name]),
            key=repr,
        )
    return {name: value for name, value in found.items() if name != "examples"}


@pytest.mark.broken("everything that can go wrong went wrong in these files")
@pytest.mark.parametrize("mishaps", [None, (), ("lost", "tenants", "overdue", "same_ids")])
def test_both_engines_find_the_same(
    mishaps: tuple[str, ...] | None, spark: SparkSession, tmp_path: Path
) -> None:
    """Message by message and sum by sum, SQLite's results are those of Spark."""
    made = generator.build(tmp_path / "agents", mishaps=mishaps)
    fleet, rules = Fleet(spark, (str(made.folder),)), Rules(now=made.now)
    spark_report = reconcile.run(fleet, tmp_path / "spark", rules)
    report = in_process(made.folder, out=tmp_path / "sqlite", rules=rules)
    frames = ds.dataset(tmp_path / "spark" / "frames").to_table().to_pylist()
    with closing(apsw.Connection(str(tmp_path / "sqlite" / "messages.db"))) as con:
        rows = con.execute(f"SELECT {', '.join(SAME)} FROM messages")
        messages = [dict(zip(SAME, row, strict=True)) for row in rows]

    assert _judged(frames) == _judged(messages)
    assert _of(spark_report) == _of(report)
    assert dict(made.verdicts) == dict(report.verdicts)
