"""Reconciliation finds exactly what was done to a fleet, message by message, whatever its size."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from onceward.fleet import manifest
from onceward.fleet.columns import WITNESS
from onceward.fleet.manifest import OutputTaken
from onceward.fleet.report import Report
from onceward.fleet.verdicts import FATAL, Rules
from onceward.model.names import DIRECTORY
from onceward.spark import reconcile
from onceward.spark.facts import NEEDS, evidence
from onceward.spark.fleet import Fleet
from onceward.spark.order import MARKS
from onceward.testing import fleet as generator


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


def test_a_witness_says_what_the_ledger_says(case: Case) -> None:
    """
    Numbers or texts, live or archived, a message is told in the same words.

    Beside them each file tells of itself.
    """
    numbers, texts = (
        case.fleet.table("witness", *WITNESS),
        evidence(case.fleet.table("ledger", *NEEDS)),
    )

    assert ([], []) == (
        numbers.where("side > 0 or state > 1").exceptAll(texts).collect(),
        texts.exceptAll(numbers).collect(),
    )
    files = {
        row["id"]: row["recipient"] for row in numbers.where("side = 0 and state = 1").collect()
    }
    assert {
        row["_db"]: row["_agent"] for row in case.fleet.table("agents", "_db", "_agent").collect()
    } == files


def test_overtaking_and_gaps_are_counted_by_lane(case: Case) -> None:
    """Order is judged within a lane: exactly the messages that were pulled out of it stand out."""
    assert {"overtook": case.made.order, "arrived_late": 0, "gap": case.made.gaps} == dict(
        case.report.lane_totals
    )
    assert {"swap-near": (case.made.order, 0), "pull-near": (0, case.made.gaps)} == {
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
    assert len(rows) == len({(row["sender"], row["recipient"], row["id"]) for row in rows})


def test_findings_are_the_messages_to_look_at(case: Case) -> None:
    """The short list has all that is bad, unproved or stuck, and what both sides say of it."""
    rows = ds.dataset(case.out / "findings").to_table().to_pylist()
    said = {(row["verdict"], row["sender_says"], row["recipient_says"]) for row in rows}

    assert {
        ("lost", "acked", "nothing"),
        ("orphan", "nothing", "processed"),
        ("double_processed", "acked", "processed"),
        ("duplicated", "sent", "processed"),
        ("unprocessed", "sent", "pending"),
        ("unwitnessed", "acked", "nothing"),
        ("forgotten", "acked", "nothing"),
    } == said


def test_files_that_nobody_can_read_and_files_read_twice_are_named(case: Case) -> None:
    """A report never hides what it did not see."""
    assert ["empty.db", "notes.db", "witness-far.db"] == sorted(
        Path(row["path"]).name for row in case.report.quarantine
    )
    assert ["desk-0", "double-far", "twice-far"] == [row["agent"] for row in case.report.twins]


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

    assert (paths, case.made.quarantined) == (
        {file["path"] for file in told["files"]},
        told["quarantined"],
    )
    assert (
        {"now": case.made.now, "grace": 900.0, "late_after": 3600.0},
        dict(case.made.verdicts),
    ) == (told["rules"], told["verdicts"])


@pytest.mark.broken("everything that can go wrong went wrong in these files")
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_larger_fleet_is_judged_as_exactly(
    size: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Counts are exact at any size, not about right."""
    made = generator.build(tmp_path, size=size)
    fleet = Fleet(spark, (str(tmp_path),))
    frames = reconcile.reconcile(
        fleet.table("ledger", *NEEDS), fleet.table("agents", "_db", "_agent"), Rules(now=made.now)
    )

    assert dict(made.verdicts) == {
        row["verdict"]: row["count"]
        for row in frames.groupBy("verdict").count().orderBy("verdict").collect()
    }


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
    assert set(MARKS) == set(case.report.lane_totals)
    assert manifest.read(case.out / manifest.NAME) is not None
