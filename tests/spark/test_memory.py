"""
Memory is bounded by a batch, not by a file.

Twice the rows need no more of it, in a worker or in the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceward import Postbox

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

from onceward.fleet.spark import gateway, read, reconcile
from onceward.fleet.spark.fleet import Fleet
from onceward.fleet.spark.spool import Spool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="how much a process needed at most is read from /proc",
)
ROWS = 12_000
FRAME = 4_000
"""Characters of a frame: all of the rows are some fifty megabytes."""
SLACK = 24 * 1024 * 1024
"""
Bytes a process may differ by from run to run.

They are a few batches, and less than half of what was added.
"""
FILL = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, state, frame, created_at)
SELECT printf('%08x-0000-7000-8000-000000000000', i), 'bob', 's', 's', 'note', 'pending',
  :frame, 1 FROM n
"""


def _file(folder: Path, rows: int) -> Path:
    folder.mkdir()
    with (
        Postbox(
            folder / "alice.db", agent="alice", start=False, durability="fast", max_pending=rows + 1
        ) as box,
        box.begin() as tx,
    ):
        tx.execute(FILL, {"count": rows, "frame": '{"data":"' + FRAME * "x" + '"}'})
    return folder


def _peaks() -> tuple[int, int]:
    """Return the most memory this process ever had, and any worker of our JVM ever had."""
    [(jvm, _)] = gateway._running
    return _peak(os.getpid()), max(_peak(pid) for pid in _below(jvm.pid))


def _peak(pid: int) -> int:
    return _kib(pid, "VmHWM") * 1024


def _below(parent: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        if path.exists() and _kib(int(path.name), "PPid") == parent:
            yield int(path.name)
            yield from _below(int(path.name))


def _kib(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def test_neither_reading_nor_reconciling_grows_with_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    A file of fifty megabytes and one of a hundred need the same memory.

    This is so for the workers and for the driver.
    """

    def work(folder: Path) -> tuple[int, int]:
        rows = (
            read(spark, str(folder), "outbox", columns="frame", snapshot=True)
            .selectExpr("sum(length(frame)) AS total")
            .collect()
        )
        assert FRAME * ROWS < rows[0]["total"]
        assert reconcile.run(Fleet(spark, (str(folder),)), folder / "out").files == 1
        return _peaks()

    twice, once = (
        _file(tmp_path / "twice", 2 * ROWS),
        _file(tmp_path / "once", ROWS),
    )  # first, as writing them needs memory too
    (driver, worker), (driver_after, worker_after) = work(once), work(twice)

    assert (True, True) == (driver_after - driver < SLACK, worker_after - worker < SLACK), (
        driver,
        driver_after,
        worker,
        worker_after,
    )


def test_a_batch_that_is_sent_is_spooled(tmp_path: Path) -> None:
    """All senders' rows are on disk: this process grows by those of one sender, not by all."""
    import pyarrow as pa  # noqa: PLC0415 - with the extra

    bodies = [f"{number:08d}" + "x" * FRAME for number in range(500)]
    before = _peak(os.getpid())
    with Spool() as spool:
        for sender in range(40):
            spool.add(
                pa.RecordBatch.from_pydict({"agent": [f"agent-{sender:02d}"] * 500, "body": bodies})
            )
        seen = [len(spool[sender]) for sender in spool]

    assert [500] * 40 == seen
    assert _peak(os.getpid()) - before < SLACK < 40 * 500 * FRAME / 2
