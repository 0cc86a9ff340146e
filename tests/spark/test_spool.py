"""A batch's rows on disk, by sender; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[spark]' brings it")

import pyarrow as pa

from onceward.fleet.spark.spool import Spool


def _batch(numbers: range, **columns: Any) -> Any:
    return pa.RecordBatch.from_pydict({"body": [str(number) for number in numbers], **columns})


def test_rows_come_back_by_sender_in_their_order() -> None:
    """In any batches, each sender has its rows, whole, in the order in which they were added."""
    with Spool() as spool:
        for first in (0, 6, 12):
            numbers = range(first, first + 6)
            spool.add(
                _batch(numbers, agent=["alice" if number % 2 else "carol" for number in numbers])
            )

        assert [("", "alice"), ("", "carol")] == list(spool)
        assert 2 == len(spool)
        assert [{"body": str(number), "agent": "alice"} for number in range(1, 18, 2)] == spool[
            "", "alice"
        ]


def test_a_sender_is_a_file_or_an_agent() -> None:
    """``_db`` and ``agent`` may both be given, and either may be NULL."""
    with Spool() as spool:
        spool.add(_batch(range(3), agent=["alice", None, "alice"], _db=[None, "/a.db", "/a.db"]))

        assert {("", "alice"), ("/a.db", ""), ("/a.db", "alice")} == set(spool)
        assert ["1"] == [row["body"] for row in spool["/a.db", ""]]


def test_who_sent_nothing_is_not_there() -> None:
    """An empty spool has no senders, and asking for one is an error."""
    with Spool() as spool:
        assert [] == list(spool)
        with pytest.raises(KeyError):
            spool["", "nobody"]


def test_a_map_is_an_object() -> None:
    """Its keys are names, as ``to_json`` writes it; also within a struct."""
    inner = pa.map_(pa.string(), pa.int64())
    kind = pa.struct({"counts": inner})
    body = pa.array([{"counts": [("a", 1), ("b", 2)]}], kind)
    with Spool() as spool:
        spool.add(pa.record_batch({"agent": ["alice"], "body": body}))

        assert [{"agent": "alice", "body": {"counts": {"a": 1, "b": 2}}}] == spool["", "alice"]
