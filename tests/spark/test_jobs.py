"""
Jobs over a fleet's files.

They are archive, figures and conversations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import apsw
from pyspark.sql import SparkSession
from tests.fleet import generator as fleet
from tests.fleet.generator import TASKS

from onceward.fleet.spark import metrics, pairs, threads, waits
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.keep import keep
from onceward.fleet.summary import SHARES

if TYPE_CHECKING:
    from tests.spark.conftest import Case

TYPES = ["case", "order", "check", "answer"]


def _scan(folder: Path, sql: str) -> set[tuple[Any, ...]]:
    """Return the distinct rows of a statement in all readable files."""
    found: set[tuple[Any, ...]] = set()
    for path in folder.rglob("*.db"):
        if path.name in {"directory.db", "empty.db", "notes.db"}:
            continue
        con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        found |= set(con.execute(sql).fetchall())
        con.close()
    return found


# -- figures ----------------------------------------------------------------------------------


def test_figures_add_up_to_what_the_files_hold(case: Case) -> None:
    """
    Messages sent, received and died in all hours are what the files hold.

    In the end nothing waits; copies do not count twice.
    """
    tables = {name: case.fleet.table(name, *columns) for name, columns in metrics.NEEDS.items()}
    hours = [row.asDict() for row in metrics.metrics(tables).collect()]
    folder = case.made.folder
    sent = _scan(
        folder,
        "SELECT sender, id FROM onceward_outbox "
        "UNION SELECT sender, id FROM onceward_dead_letters WHERE origin = 'outbox'",
    )
    received = _scan(
        folder,
        "SELECT recipient, id FROM onceward_inbox "
        "UNION SELECT recipient, id FROM onceward_dead_letters WHERE origin = 'inbox'",
    )
    dead = _scan(folder, "SELECT origin, sender, recipient, id, reason FROM onceward_dead_letters")

    assert (len(sent), len(received), len(dead)) == tuple(
        sum(row[name] for row in hours) for name in ("sent", "received", "dead")
    )
    last = {row["agent"]: row for row in sorted(hours, key=lambda row: row["hour"])}
    assert {(0, 0)} == {(row["out_depth"], row["in_depth"]) for row in last.values()}
    reasons = Counter[str]()
    for row in metrics.reasons(tables["dead_letters"]).collect():
        reasons[row["reason"]] += row["messages"]
    assert Counter(reason for *_, reason in dead) == reasons


def test_what_waits_is_counted_with_what_is_overdue(spark: SparkSession, tmp_path: Path) -> None:
    """Of each agent: for what its messages wait, how many, and how many should have gone on."""
    made = fleet.build(tmp_path / "agents", mishaps=["kept", "overslept"])
    inbox = Fleet(spark, (str(made.folder),)).table("inbox", *metrics.NEEDS["inbox"])
    found = {
        (row.agent, row.waits_for): (row.messages, row.overdue)
        for row in metrics.waiting(inbox, made.now).collect()
    }

    assert {
        ("keep-far", "wait"): (2, 0),
        ("late-sleep-far", "sleep"): (1, 1),
        ("late-sleep-far", "lane"): (1, 1),
    } == found


def test_time_in_which_mail_waited_counts_once_and_in_its_hour(spark: SparkSession) -> None:
    """
    Messages that wait together wait once; a wait over the hour is divided.

    A message that has not left waits until the reading.
    """
    minute = 60_000
    outbox = spark.createDataFrame(
        [
            ("a", "p", 50 * minute, 70 * minute, None),
            ("a", "p", 55 * minute, 65 * minute, None),
            ("a", "p", 80 * minute, None, 81 * minute),
            ("a", "q", 120 * minute, None, None),
        ],
        "_agent string, recipient string, c bigint, s bigint, e bigint",
    ).selectExpr(
        "_agent", "recipient", "timestamp_millis(c) created_at", "timestamp_millis(s) sent_at",
        "timestamp_millis(e) ended_at"
    )  # fmt: skip
    peers = spark.createDataFrame(
        [
            ("a", "p", "closed", 0, 1),
            ("a", "q", "open", 9, 110 * minute),
            ("a", "r", "closed", 1, 125 * minute),
        ],
        "_agent string, name string, breaker string, failures bigint, seen bigint",
    ).selectExpr("_agent", "name", "breaker", "failures", "timestamp_millis(seen) seen_at")
    rows = (
        waits.waits(outbox, peers, 130 * minute)
        .selectExpr("peer", "hour(hour) as hour", "waited_s", "unreached_s")
        .collect()
    )

    assert {
        ("p", 0): (600.0, 0.0),
        ("p", 1): (660.0, 0.0),
        ("q", 1): (0.0, 600.0),
        ("q", 2): (600.0, 600.0),
        ("r", 2): (0.0, 300.0),
    } == {(row["peer"], row["hour"]): (row["waited_s"], row["unreached_s"]) for row in rows}


# -- conversations ----------------------------------------------------------------------------


def test_conversations_are_told_in_order_across_four_files(case: Case) -> None:
    """
    Each case of the crew is one thread, each message caused by the one before.

    It goes from desk to clerk to smith to scout and back.
    """
    found = threads.messages(
        {name: case.fleet.table(name, *columns) for name, columns in threads.NEEDS.items()}
    )
    rows = [
        row.asDict()
        for row in threads.threads(found.where("session like 'case-%'"))
        .orderBy("thread", "place")
        .collect()
    ]
    told = [rows[at : at + 4] for at in range(0, len(rows), 4)]

    assert case.made.conversations == TASKS == len(told)
    assert {tuple(TYPES)} == {tuple(row["type"] for row in thread) for thread in told}
    assert all(
        after["cause"] == before["id"] for thread in told for before, after in pairwise(thread)
    )
    assert all(row["waiting"] == row["sender"] and row["waited_ms"] >= 0 for row in rows)


def test_percentiles_are_exact_in_rank_and_within_one_percent(spark: SparkSession) -> None:
    """
    A percentile is at most one percent off.

    This holds whatever was measured; below fifty milliseconds it is exact.
    """
    values = sorted(round(1.7**step) + step for step in range(40) for _ in range(step % 5 + 1))
    frame = spark.createDataFrame([(value,) for value in values], "span bigint")
    counted = (
        frame.selectExpr("'effect' as kind", f"cast({pairs.BUCKET} as int) as bucket")
        .groupBy("kind", "bucket")
        .count()
    )
    [row] = pairs.percentiles(counted).collect()
    true = {
        name: values[max(0, -(-int(100 * share) * len(values) // 100) - 1)]
        for name, share in SHARES.items()
    }

    assert len(values) == row["messages"]
    assert {} == {
        name: (row[name], value)
        for name, value in true.items()
        if abs(row[name] - value) > max(0, value / 100)
    }


# -- all of them ------------------------------------------------------------------------------


def test_a_job_that_was_broken_off_goes_on_behind_its_last_table(
    case: Case, tmp_path: Path
) -> None:
    """Tables that were finished are not made again; without resume all are."""
    made: list[str] = []

    def table(name: str, *, fails: bool = False) -> Callable[[], Any]:
        def make() -> Any:
            if fails:
                raise KeyboardInterrupt
            made.append(name)
            return case.fleet.spark.range(1)

        return make

    with pytest.raises(KeyboardInterrupt):
        keep(case.fleet, "two", tmp_path, {"one": table("one"), "two": table("two", fails=True)})
    keep(case.fleet, "two", tmp_path, {"one": table("one"), "two": table("two")}, resume=True)
    keep(case.fleet, "two", tmp_path, {"one": table("one"), "two": table("two")})

    assert ["one", "two", "one", "two"] == made
