"""
Ended messages are appended to Parquet once, whatever is broken off or locked.

No two runs write into one folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import apsw
from pyspark.sql import SparkSession

from onceward import Postbox
from onceward.fleet.columns import EVIDENCE
from onceward.fleet.manifest import OutputBusy, alone
from onceward.fleet.verdicts import Rules
from onceward.spark import archive
from onceward.spark import reconcile as reconciling
from onceward.spark.archive import NotArchived
from onceward.spark.fleet import Fleet
from onceward.spark.keep import keep
from onceward.spark.reconcile import reconcile
from onceward.testing import ManualClock

if TYPE_CHECKING:
    from tests.spark.conftest import Case


def _ended(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((row["_db"], row["seq"], row["id"], row["state"], row["frame"]) for row in rows)


def test_an_archive_grows_by_what_has_ended_and_reads_back_equal(
    case: Case, tmp_path: Path
) -> None:
    """
    Each batch has what ended since the last.

    A batch that was broken off is repeated, and counts once; then files may be pruned.
    """
    shutil.copytree(case.made.folder, tmp_path / "agents")
    fleet, out, now = (
        Fleet(case.fleet.spark, (str(tmp_path / "agents"),)),
        tmp_path / "archive",
        case.made.now,
    )
    first = archive.run(fleet, out, now=now, settle=0)
    shutil.copytree(
        out / "outbox" / "batch=000001", out / "outbox" / "batch=000002"
    )  # what a killed second batch leaves
    second = archive.run(fleet, out, now=now + 1000, settle=0)

    live = fleet.table("outbox", "*", "frame", where="ended_at IS NOT NULL").collect()
    assert _ended(live) == _ended(archive.read(fleet.spark, out, "outbox").collect())
    assert ([len(live), 0], 2) == (
        [batch["rows"]["outbox"] for batch in (*first["batches"], second["batches"][1])],
        len(second["batches"]),
    )
    assert "day=2026-01-01" in {path.name for path in (out / "outbox" / "batch=000001").iterdir()}

    clock = ManualClock(now + 10 * 86_400_000)
    pruned = archive.prune(fleet, out, keep=86_400, clock=clock)
    assert sum(pruned.values()) > len(live)
    assert [] == fleet.table("outbox", where="ended_at IS NOT NULL AND state = 'acked'").collect()
    both = fleet.table("evidence", *EVIDENCE).unionByName(archive.evidence(fleet.spark, out))
    frames = reconcile(both, Rules(now=now))
    assert dict(case.made.verdicts) == {
        row["verdict"]: row["count"]
        for row in frames.groupBy("verdict").count().orderBy("verdict").collect()
    }


def test_two_archives_into_one_folder_are_refused(case: Case, tmp_path: Path) -> None:
    """
    The second run is refused while the first writes, pruning included.

    The lock ends with its holder.
    """
    out = tmp_path / "archive"

    def meanwhile(said: str) -> None:
        if said == "archiving transitions":
            with pytest.raises(OutputBusy, match="archive"):
                archive.run(case.fleet, out)
            with pytest.raises(OutputBusy):
                archive.prune(case.fleet, out)

    done = archive.run(case.fleet, out, now=case.made.now, settle=0, on_step=meanwhile)

    assert [1] == [batch["number"] for batch in done["batches"]]
    with alone(out, archive.JOB):
        pass


class _Cut(Exception):
    """The run is broken off."""


def test_an_archive_that_was_broken_off_goes_on_behind_its_last_table(
    case: Case, tmp_path: Path
) -> None:
    """
    Resumed, a run keeps its cut and its written rows; else it begins its batch again.

    Either way each row is there once.
    """
    out, now, told = tmp_path / "archive", case.made.now, list[str]()

    def cut(said: str) -> None:
        if said == "archiving processed":
            raise _Cut

    with pytest.raises(_Cut):
        archive.run(case.fleet, out, now=now, settle=0, on_step=cut)
    before = (out / "outbox" / "batch=000001" / "_SUCCESS").stat().st_mtime_ns
    done = archive.run(case.fleet, out, now=now + 5000, settle=0, resume=True, on_step=told.append)

    assert (before, now) == (
        (out / "outbox" / "batch=000001" / "_SUCCESS").stat().st_mtime_ns,
        done["batches"][0]["cut"],
    )
    live = case.fleet.table("outbox", "*", "frame", where="ended_at IS NOT NULL").collect()
    assert _ended(live) == _ended(archive.read(case.fleet.spark, out, "outbox").collect())
    assert 5 == len(told)


def test_a_file_that_is_locked_meanwhile_fails_the_batch(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """
    A locked file fails the batch, and the next run has all.

    Were the file left out, the cut would pass over what ended in it.
    """
    path = box("alice", 2)
    with (
        Postbox(path, start=False) as alice,
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
    ):
        alice.run_until_idle()
        for message in bob.messages(timeout=0):
            message.ack()
        bob.run_until_idle()
        now = alice._db.now() + 1000
    fleet, out = (
        Fleet(spark, (str(tmp_path / "*.db"),), {"busyTimeout": "0.05"}),
        tmp_path / "archive",
    )
    held = apsw.Connection(str(path))

    def hold(said: str) -> None:
        if said == "archiving outbox":
            held.execute("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").fetchall()

    with pytest.raises(Exception, match="locked"):
        archive.run(fleet, out, now=now, settle=0, on_step=hold)
    held.execute("ROLLBACK; PRAGMA journal_mode = WAL").fetchall()
    held.close()
    done = archive.run(fleet, out, now=now + 1000, settle=0, resume=True)

    assert [2] == [batch["rows"]["outbox"] for batch in done["batches"]]


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


def test_what_is_not_archived_is_not_pruned(
    spark: SparkSession, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """A file with ended messages that the archive does not hold is left alone, loudly."""
    path = box("alice", 2)
    with (
        Postbox(path, start=False) as alice,
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
    ):
        alice.run_until_idle()
        for message in bob.messages(timeout=0):
            message.ack()
        bob.run_until_idle()
        now = alice._db.now() + 1000
    fleet, out = Fleet(spark, (str(tmp_path / "*.db"),)), tmp_path / "archive"
    archive.run(fleet, out, now=now, settle=0)
    shutil.rmtree(out / "outbox")
    (out / "outbox" / "batch=000001").mkdir(parents=True)
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    manifest["batches"][0]["rows"]["outbox"] = 0
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    with pytest.raises(NotArchived, match=r"alice\.db"):
        archive.prune(fleet, out, keep=0, clock=ManualClock(now + 86_400_000))
    assert 2 == len(fleet.table("outbox").collect())
