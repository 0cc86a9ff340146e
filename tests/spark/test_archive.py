"""
Spark reads the log that files were shipped to, and judges files beside it.

No two runs write into one folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from pyspark.sql import SparkSession

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.fleet import ship
from onceward.fleet.columns import EVIDENCE
from onceward.fleet.manifest import OutputBusy, alone
from onceward.fleet.ship import prune
from onceward.fleet.ship.compaction import compacted
from onceward.fleet.ship.log import NoLog
from onceward.fleet.spark import archive
from onceward.fleet.spark import reconcile as reconciling
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.keep import keep
from onceward.fleet.spark.reconcile import reconcile
from onceward.fleet.verdicts import Rules
from onceward.testing import ManualClock

if TYPE_CHECKING:
    from tests.spark.conftest import Case


def _rows(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((row["seq"], row["id"], row["state"], row["frame"]) for row in rows)


def test_a_log_reads_back_as_the_files_were(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """Each row is there once, in its last version, before and after executors fold the log."""
    path, log = box("alice", 3), str(tmp_path / "log")
    ship.files([str(path)], log)
    with (
        Postbox(path, start=False) as alice,
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
    ):
        alice.run_until_idle()
        for message in bob.receive_each(timeout=0):
            message.ack()
        bob.run_until_idle()
    ship.files([str(tmp_path / "*.db")], log)

    live = Fleet(spark, (str(path),)).table("outbox", "*", "frame").collect()
    assert _rows(live) == _rows(archive.read(spark, log, "outbox").collect())
    assert 3 == archive.read(spark, log, "processed").count()
    assert 0 == archive.read(spark, log, "transitions").count()
    shipped = {each.agent: each for each in ship.ShippedLog(log).files()}
    alike = {(part.table, part.epoch, part.day) for part in shipped["alice"].segments}
    folded = {row.file_id: row for row in archive.compact(spark, log).collect()}
    alice = folded[shipped["alice"].file_id]
    assert {each.file_id for each in shipped.values()} == folded.keys()
    assert len(alike) < alice.objects_before
    assert len(alike) == alice.objects_after
    assert _rows(live) == _rows(archive.read(spark, log, "outbox").collect())
    assert [] == [each.error for each in ship.files([str(path)], log) if each.error]


@pytest.mark.broken("the file was restored")
def test_rows_of_an_overwritten_past_are_told(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """Row by row the column is that of the log itself: what a restored file has lost."""
    path, log = box("alice", 3), str(tmp_path / "log")
    shutil.copyfile(path, tmp_path / "kept")
    with Postbox(path, start=False, hold_unknown=True) as alice:
        alice.send("bob", "lost")
    ship.files([str(path)], log)
    shutil.copyfile(tmp_path / "kept", path)
    with Postbox(path, start=False, hold_unknown=True) as alice:
        alice.send("bob", "instead")
        alice.send("bob", "more")
    ship.files([str(path)], log)

    def told(rows: Any) -> list[tuple[Any, ...]]:
        return sorted((row["_epoch"], row["seq"], row["id"], row["_abandoned"]) for row in rows)

    batches = ship.ShippedLog(log).batches("outbox")
    expected = told(row for batch in batches for row in batch.to_pylist())
    read = archive.read(spark, log, "outbox")
    assert [True] == [row[3] for row in expected if row[3]]
    assert expected == told(read.collect())
    assert 5 == read.where("not _abandoned").select("seq").distinct().count()


@pytest.mark.parametrize(("few", "error"), [(0, InvalidArgument), (1, NoLog)])
def test_folding_to_no_objects_or_where_no_log_is_fails(
    few: int, error: type[Exception], spark: SparkSession, tmp_path: Path
) -> None:
    """A last object would be folded for ever, and a wrong place is not taken for an empty log."""
    with pytest.raises(error):
        archive.compact(spark, str(tmp_path), few=few)


def test_a_log_is_read_and_folded_by_its_uri(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """A folder has a URI of one slash or of three, as Spark and pyarrow spell it."""
    ship.files([str(box("alice", 3))], str(tmp_path / "log"))

    for uri in (f"file:{tmp_path}/log", f"file://{tmp_path}/log/"):
        assert 3 == archive.read(spark, uri, "outbox").count()
        assert [1] == [row.objects_after for row in archive.compact(spark, uri).collect()]


def test_a_column_that_came_later_is_null_in_older_rows(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """Objects with and without the column are read together, before and after they are folded."""
    path, log = box("alice", 0), str(tmp_path / "log")
    with Postbox(path, start=False) as alice:
        alice.send("alice", 0)
        alice.run_until_idle()
        for message in alice.receive_each(timeout=0):
            message.ack()
    ship.files([str(path)], log)
    con = apsw.Connection(str(path))
    [(sql,)] = con.execute("SELECT sql FROM sqlite_schema WHERE name = 'onceward_inbox'").fetchall()
    con.execute("DROP VIEW onceward_inbox")
    con.execute(str(sql).replace("SELECT seq", "SELECT 'fresh' AS colour, seq", 1))
    con.close()
    with Postbox(path, start=False) as alice:
        for number in range(2):
            alice.send("alice", number)
        alice.run_until_idle()
    ship.files([str(path)], log)
    shipped = ship.ShippedLog(log)
    colours = [
        value
        for batch in shipped.batches("inbox", columns=["colour"])
        for value in batch["colour"].to_pylist()
    ]

    read = archive.read(spark, log, "inbox")
    compacted(shipped.objects, shipped.files()[0].manifest, few=1)
    folded = archive.read(spark, log, "inbox")

    assert [None, "fresh", "fresh"] == sorted(colours, key=str)
    for rows in (read, folded):
        assert [None, "fresh", "fresh"] == sorted((r["colour"] for r in rows.collect()), key=str)


def test_files_that_were_pruned_are_judged_beside_their_log(case: Case, tmp_path: Path) -> None:
    """The log has what the files forgot: each message keeps its verdict."""
    shutil.copytree(case.made.folder, tmp_path / "agents")
    fleet, log = Fleet(case.fleet.spark, (str(tmp_path / "agents"),)), str(tmp_path / "log")
    ship.files(fleet.paths, log)
    clock = ManualClock(case.made.now + 10 * 86_400_000)
    pruned = prune.files(fleet.paths, log, keep=0, clock=clock)
    assert sum(done.rows for done in pruned) > 40

    shipped = archive.evidence(fleet.spark, log, fleet)
    both = fleet.table("evidence", *EVIDENCE).unionByName(shipped)
    frames = reconcile(both, Rules(now=case.made.now))

    assert dict(case.made.verdicts) == {
        row["verdict"]: row["count"]
        for row in frames.groupBy("verdict").count().orderBy("verdict").collect()
    }


@pytest.mark.parametrize("job", ["reconcile", "metrics"])
def test_two_runs_into_one_folder_are_refused(case: Case, tmp_path: Path, job: str) -> None:
    """
    The second run is refused before anything is read, and changes nothing.

    The lock ends with its holder.
    """
    runs: dict[str, Callable[[], object]] = {
        "reconcile": lambda: reconciling.run(case.fleet, tmp_path),
        "metrics": lambda: keep(case.fleet, "metrics", tmp_path, {}),
    }
    with alone(tmp_path, job):
        with pytest.raises(OutputBusy, match="another process works on"):
            runs[job]()
        assert [".lock"] == [path.name for path in tmp_path.iterdir()]
    with alone(tmp_path, job):
        pass
