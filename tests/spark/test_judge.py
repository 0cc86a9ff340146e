"""One message after the other: what its two sides say, and the verdict that follows."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import pyarrow as pa
from pyspark.sql import SparkSession

from onceward.fleet.verdicts import NAMES, Rules
from onceward.spark.reconcile import reconcile

NOW = 10_000_000_000
GRACE = 900.0
OLD = NOW - 5_000_000
"""Long before the grace."""
FRESH = NOW - 1000
"""Within the grace."""

Said = tuple[str, dict[str, Any]]


def out(state: str, ended: int | None = None, **more: Any) -> Said:
    """Return what the sender's outbox says."""
    return "outbox", {"state": state, "at": OLD, "created_at": OLD, "ended_at": ended} | more


def taken(state: str, at: int = OLD, **more: Any) -> Said:
    """Return what the recipient's inbox says."""
    return "inbox", {"state": state, "at": at} | more


def mark(outcome: str = "processed", at: int = OLD, seq: int = 1, **more: Any) -> Said:
    """Return what the recipient's marks say."""
    return "processed", {"state": outcome, "at": at, "_seq": seq, "consumer": ""} | more


def dead(origin: str, reason: str = "rejected") -> Said:
    """Return what a side's dead letters say."""
    return "dead_letters", {"origin": origin, "reason": reason, "at": OLD, "created_at": OLD}


CASES: dict[str, tuple[str, list[Said]]] = {
    "acked and processed": ("delivered_once", [out("acked", OLD), taken("processed"), mark()]),
    "processed, the sender has not heard of it yet": (
        "delivered_once",
        [out("sent"), taken("processed"), mark()],
    ),
    "processed, the inbox row pruned": ("delivered_once", [out("acked", OLD), mark()]),
    "a stale copy of the recipient's file beside it": (
        "delivered_once",
        [out("acked", OLD), taken("pending"), taken("processed"), mark()],
    ),
    "a stale copy of the sender's file beside it": (
        "delivered_once",
        [out("pending"), out("acked", OLD), taken("processed"), mark()],
    ),
    "a mark seen twice": (
        "delivered_once",
        [out("acked", OLD), taken("processed"), mark(), mark()],
    ),
    "marks of other consumers": (
        "delivered_once",
        [out("acked", OLD), taken("processed"), mark(), mark(at=OLD + 5, consumer="copy")],
    ),
    "took two hours": (
        "late",
        [out("acked", OLD + 9_000_000), taken("processed"), mark(at=OLD + 7_200_001)],
    ),
    "given up, then processed": ("late", [dead("outbox"), taken("processed"), mark()]),
    "dropped": ("dropped", [out("acked", OLD), taken("dropped"), mark("dropped")]),
    "withdrawn": ("cancelled", [out("cancelled", OLD)]),
    "expired at the sender": ("expired", [dead("outbox", "expired")]),
    "expired in the inbox": ("expired", [out("failed", OLD), taken("expired"), mark("expired")]),
    "dead at the recipient": ("dead_lettered", [out("failed", OLD), dead("inbox"), mark("dead")]),
    "dead at the recipient, discarded there": ("dead_lettered", [out("failed", OLD), mark("dead")]),
    "dead at the recipient, all traces gone": ("dead_lettered", [out("failed", OLD)]),
    "dead at the sender": ("dead_lettered", [dead("outbox")]),
    "waits for its push, however long": ("in_flight", [out("pending")]),
    "was stored, is gone there, will be asked for": ("in_flight", [out("sent")]),
    "acked a moment ago, after the recipient's file was read": ("in_flight", [out("acked", FRESH)]),
    "arrived a moment ago, after the sender's file was read": (
        "in_flight",
        [taken("processed", FRESH), mark(at=FRESH)],
    ),
    "in the inbox since a moment": ("in_flight", [out("sent"), taken("pending", FRESH)]),
    "in the inbox since long": ("unprocessed", [out("sent"), taken("pending")]),
    "in somebody's hands since long": ("unprocessed", [out("sent"), taken("processing")]),
    "confirmed, and no trace": ("lost", [out("acked", OLD)]),
    "never sent": ("orphan", [taken("processed"), mark()]),
    "accepted twice": (
        "duplicated",
        [out("acked", OLD), taken("processed"), mark(), taken("pending", OLD + 1)],
    ),
    "accepted twice, dead once": (
        "duplicated",
        [out("acked", OLD), dead("inbox"), taken("pending", OLD + 1)],
    ),
    "processed at two moments": (
        "double_processed",
        [out("acked", OLD), taken("processed"), mark(), mark(at=OLD + 1)],
    ),
    "processed under two numbers": (
        "double_processed",
        [out("acked", OLD), taken("processed"), mark(), mark(seq=2)],
    ),
    "never sent, processed twice": (
        "double_processed",
        [taken("processed"), mark(), mark(at=OLD + 1)],
    ),
}
ELSEWHERE: dict[str, tuple[str, tuple[str, str], list[Said]]] = {
    "the recipient's file was not read": (
        "unwitnessed",
        ("alice", "stranger"),
        [out("acked", OLD)],
    ),
    "the recipient's file was not read, the sender still has it": (
        "in_flight",
        ("alice", "stranger"),
        [out("pending")],
    ),
    "the recipient's file broke while it was read": (
        "unwitnessed",
        ("alice", "broken"),
        [out("acked", OLD)],
    ),
    "the sender's file was not read": (
        "unwitnessed",
        ("stranger", "bob"),
        [taken("processed"), mark()],
    ),
    "the recipient's records begin later": ("forgotten", ("alice", "pruned"), [out("acked", OLD)]),
    "the recipient's records begin earlier": (
        "lost",
        ("alice", "pruned"),
        [out("acked", OLD + 2000)],
    ),
    "the sender's records begin later": (
        "forgotten",
        ("tidied", "bob"),
        [taken("processed"), mark()],
    ),
    "the sender's records begin later, and it waits": (
        "unprocessed",
        ("tidied", "bob"),
        [taken("pending")],
    ),
    "the sender's records begin earlier": (
        "orphan",
        ("tidied", "bob"),
        [taken("processed"), mark(at=OLD + 2000)],
    ),
}
COLUMNS = {
    "_seq": pa.int64(), "box": pa.string(), "id": pa.string(), "sender": pa.string(),
    "recipient": pa.string(), "lane": pa.string(), "priority": pa.string(), "state": pa.string(),
    "origin": pa.string(), "consumer": pa.string(), "reason": pa.string(),
    **dict.fromkeys(("at", "created_at", "sent_at", "ended_at"), pa.timestamp("ms", "UTC")),
}  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    all_cases = {name: (("alice", "bob"), said) for name, (_, said) in CASES.items()}
    all_cases |= {name: (pair, said) for name, (_, pair, said) in ELSEWHERE.items()}
    rows = [
        {
            "_seq": 1,
            "box": box,
            "id": name,
            "sender": pair[0],
            "recipient": pair[1],
            "lane": "l",
            "priority": "normal",
        }
        | values
        for name, (pair, said) in all_cases.items()
        for box, values in said
    ]
    # What is left of records that were pruned: a number that tells of others before it, and the
    # oldest moment that remains.
    later = {
        "at": OLD + 1000,
        "created_at": OLD + 1000,
        "ended_at": OLD + 1000,
        "_seq": 99,
        "lane": "l",
        "priority": "normal",
    }
    rows.append(
        later
        | {
            "box": "processed",
            "id": "later",
            "sender": "x",
            "recipient": "pruned",
            "state": "processed",
            "consumer": "",
        }
    )
    rows.append(
        later
        | {"box": "outbox", "id": "later", "sender": "tidied", "recipient": "x", "state": "acked"}
    )
    rows.append({"box": "quarantine", "id": "/broken.db", "state": "corrupt"})
    return rows


@pytest.fixture(scope="module")
def verdicts(spark: SparkSession) -> dict[str, str]:
    """Return the verdict of every case, judged together."""
    table = pa.Table.from_pylist(_rows(), schema=pa.schema(COLUMNS))
    names = ("alice", "bob", "pruned", "tidied", "broken")
    agents = spark.createDataFrame(
        pa.table({"_db": [f"/{name}.db" for name in names], "_agent": list(names)})
    )
    frames = reconcile(spark.createDataFrame(table), agents, Rules(now=NOW, grace=GRACE))
    return {row["id"]: row["verdict"] for row in frames.where("id <> 'later'").collect()}


@pytest.mark.parametrize("name", [*CASES, *ELSEWHERE])
def test_what_two_sides_say_has_one_verdict(name: str, verdicts: dict[str, str]) -> None:
    """Every combination that files can be in is judged as the page of verdicts says."""
    expected = CASES[name][0] if name in CASES else ELSEWHERE[name][0]

    assert expected == verdicts[name]


def test_every_verdict_is_tried() -> None:
    """No word of the report is without a case."""
    assert set(NAMES) == {case[0] for case in (*CASES.values(), *ELSEWHERE.values())}


def test_no_message_is_left_out(verdicts: dict[str, str]) -> None:
    """A message gets one verdict, and a file that broke is no message."""
    assert {*CASES, *ELSEWHERE} == set(verdicts)
