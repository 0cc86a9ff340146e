"""Files, their log, and both are judged alike by SQLite and by Spark, whatever became of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from tests.fleet.lives import DAY, TO_A_LOG, Judged, Life
from tests.fleet.mishaps import handling, post

from onceward.fleet import ship
from onceward.fleet.report import Report
from onceward.fleet.spark import reconcile
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.verdicts import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAYS = {"files": (True, False), "log": (False, True), "both": (True, True)}
"""By name: whether files are read, and whether the log is."""


@pytest.fixture
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    """Return three agents with a seed."""
    made = Life(tmp_path, getattr(request, "param", 0))
    yield made
    made.world.rest()
    shutil.rmtree(tmp_path / "agents")  # its files break every rule


def by_spark(spark: SparkSession, life: Life, log: str | None, *, files: bool) -> Judged:
    """Return the verdict of Spark on each message."""
    paths = (str(life.world.folder),) if files else ()
    out, now = life.folder / f"spark-{len(list(life.folder.iterdir()))}", life.world.clock.now()
    reconcile.run(Fleet(spark, paths), out, Rules(now=now), log=log)
    frames = spark.read.parquet(str(out / "frames"))
    rows = frames.select("sender", "recipient", "id", "verdict").collect()
    return {(row.sender, row.recipient, row.id): row.verdict for row in rows}


def told_apart(spark: SparkSession, life: Life, log: str) -> dict[str, tuple[Judged, Judged]]:
    """Return by way what SQLite says and what Spark says, where they differ."""
    found: dict[str, tuple[Judged, Judged]] = {}
    for way, (files, logged) in WAYS.items():
        uri = log if logged else None
        one: tuple[Report, Judged] = life.reconcile(log=uri, files=files)
        other = by_spark(spark, life, uri, files=files)
        if one[1] != other:
            found[way] = one[1], other
    return found


@pytest.mark.broken("the recipient's file was restored")
def test_a_loss_is_found_from_the_log_too(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    """What a restored file lost is lost, and took effect twice once its sender sent it again."""
    near, far = life.world.open("ada"), life.world.open(handling("bob"))
    post(near, "bob", 3)
    life.world.run(near, far)
    life.world.rest()
    life.keep("bob")
    near, far = life.world.open("ada"), life.world.open(handling("bob"))
    post(near, "bob", 4)
    life.world.run(near, far)
    life.world.rest()
    log = str(tmp_path / "log")
    ship.files([str(life.world.folder)], log)
    life.restore("bob")
    life.world.clock.advance(DAY)
    ship.files([str(life.world.folder)], log)

    for files, logged in WAYS.values():
        judged = by_spark(spark, life, log if logged else None, files=files)
        assert ["delivered_once"] * 3 + ["lost"] * 4 == sorted(judged.values())
    near, far = life.world.open("ada"), life.world.open(handling("bob"))
    post(near, "bob", 1)
    life.world.run(near, far)
    life.world.clock.advance(DAY)
    life.world.rest()
    ship.files([str(life.world.folder)], log)

    assert {} == told_apart(spark, life, log)
    again = by_spark(spark, life, log, files=False)
    told = 1  # the question of the restored file for what it had sent
    assert ["delivered_once"] * (4 + told) + ["double_processed"] * 4 == sorted(again.values())


@pytest.mark.broken("rows were deleted by hand")
def test_both_find_what_was_deleted_by_hand(
    spark: SparkSession, life: Life, tmp_path: Path
) -> None:
    """The log excuses none of it: neither a row of one file, nor of both."""
    near, far = life.world.open("ada"), life.world.open(handling("bob"))
    post(near, "bob", 6)
    life.world.run(near, far)
    life.world.clock.advance(1)
    life.world.rest()
    log = str(tmp_path / "log")
    ship.files([str(life.world.folder)], log)
    for name, condition, tables in (
        ("bob", "seq IN (1, 2, 3)", ("inbox", "processed_messages")),
        ("ada", "seq IN (3, 4)", ("outbox",)),
    ):
        with life.world.open(name).begin() as tx:
            for table in tables:
                tx.execute(f"DELETE FROM _onceward_{table} WHERE {condition}")
    life.world.clock.advance(DAY)
    life.world.rest()

    judged = by_spark(spark, life, log, files=True)
    assert ["delivered_once"] * 2 + ["lost"] * 3 + ["orphan"] == sorted(judged.values())
    assert {} == told_apart(spark, life, log)


@pytest.mark.broken("the recipient's file was restored")
def test_both_take_a_differing_copy_apart(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    """Neither takes what a file aside has for what the restored one has; both name it alike."""
    for count in (3, 4):
        near, far = life.world.open("ada"), life.world.open(handling("bob"))
        post(near, "bob", count)
        life.world.run(near, far)
        life.world.clock.advance(1)
        life.world.rest()
        if count == 3:
            life.keep("bob")
    old = life.world.path("bob", "old")
    old.parent.mkdir()
    life.path("bob").rename(old)
    shutil.copyfile(life.folder / "bob.kept", life.path("bob"))
    life.world.clock.advance(DAY)
    life.world.open("bob")
    life.world.rest()
    fleet, rules = Fleet(spark, (str(life.world.folder),)), Rules(now=life.world.clock.now())
    found = reconcile.run(fleet, tmp_path / "one", rules)

    assert {"delivered_once": 3, "lost": 4} == dict(found.verdicts)
    assert ["differs"] == [row["reason"] for row in found.quarantine]
    assert life.reconcile()[0].quarantine == found.quarantine
    log = str(tmp_path / "log")
    life.world.open("eve")
    life.world.rest()
    ship.files([str(life.world.folder)], log)
    life.world.path("eve").unlink()
    missed = reconcile.run(fleet, tmp_path / "two", rules, log=log)
    assert ["differs", "gone"] == sorted(str(row["reason"]) for row in missed.quarantine)
    assert life.reconcile(log=log)[0].quarantine == missed.quarantine


def test_both_miss_a_shipped_file(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    """A file that its log knows and that is not beside it is told, until its agent is retired."""
    near, far = life.world.open("ada"), life.world.open(handling("bob"))
    post(near, "bob", 3)
    life.world.run(near, far)
    life.world.rest()
    log, fleet = str(tmp_path / "log"), Fleet(spark, (str(life.world.folder),))
    ship.files([str(life.world.folder)], log)
    life.world.path("bob").unlink()
    rules = Rules(now=life.world.clock.now())
    missed = reconcile.run(fleet, tmp_path / "one", rules, log=log)
    retired = reconcile.run(fleet, tmp_path / "two", rules, log=log, retired=["bob"])

    assert life.reconcile(log=log)[0].quarantine == missed.quarantine
    assert ["gone"] == [row["reason"] for row in missed.quarantine]
    assert [] == retired.quarantine


@pytest.mark.broken("files are restored, copied and moved")
@pytest.mark.parametrize("life", [1, 4], indirect=True)
def test_engines_agree(spark: SparkSession, life: Life) -> None:
    """Message by message, after each of some days."""
    _agree(spark, life, days=2)


@pytest.mark.proof
@pytest.mark.broken("files are restored, copied and moved")
@pytest.mark.parametrize("life", range(10, 16), indirect=True)
def test_engines_agree_for_long(spark: SparkSession, life: Life) -> None:
    """With more seeds, and more days."""
    _agree(spark, life, days=5)


def _agree(spark: SparkSession, life: Life, *, days: int) -> None:
    log = str(life.folder / "log")
    for _ in range(days):
        life.work()
        life.mischief(*TO_A_LOG)
        life.work()
        life.world.clock.advance(DAY)
        ship.files([str(life.world.folder)], log)
        life.mischief("restore", "")

        assert {} == told_apart(spark, life, log)
