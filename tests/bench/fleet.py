"""
Case ``fleet``: a fleet's tables in Spark beside one process that scans the same files.

It also measures what ten thousand files cost.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import apsw
from tests.bench import fill
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.fleet import files, spark
from onceward.fleet.plan import tasks
from onceward.fleet.spark import follow, gateway
from onceward.fleet.spark.options import Options
from onceward.fleet.spark.positions import Positions
from onceward.message.names import DIRECTORY

FILES: Final = 100
DIFFERENT: Final = 10
ROWS: Final = 2_000_000
ALL: Final = "SELECT * FROM onceward_outbox"
NARROW: Final = ("id", "state", "created_at")
SOME: Final = "SELECT id, state, created_at FROM onceward_outbox"
LARGE: Final = 10_000
SKIPPED: Final = "not installed: pip install 'onceward[spark]'"


def fleet(plan: Plan) -> Iterator[Result]:
    """
    Read all columns and three, in Spark and by hand; then plan, and look again.

    The plan and the second look are over ten thousand files.
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        yield Result(case="fleet", durability="", more={"skipped": SKIPPED})
        return
    rows, many = plan.messages(ROWS, per_second=10_000), plan.scaled(LARGE, per_second=2500)
    folder = plan.room("fleet")
    _make(folder, rows)
    with _session() as session:
        yield _read(plan, session, folder, columns=("*", "frame"), by_hand=ALL, at_least=0.5)
        yield _read(plan, session, folder, columns=NARROW, by_hand=SOME, at_least=0.7)
    yield _many(plan.room("many"), many)


def _make(folder: Path, rows: int) -> None:
    fill.acked(folder / "0.db", max(1, rows // FILES))
    for number in range(
        1, FILES
    ):  # the same bytes under many names: a fleet of gigabytes would measure the disk
        if number < DIFFERENT:
            shutil.copyfile(folder / "0.db", folder / f"{number}.db")
        else:
            os.link(folder / f"{number % DIFFERENT}.db", folder / f"{number}.db")


@contextmanager
def _session() -> Iterator[Any]:
    ours = not gateway.running()
    try:
        yield spark.session()
    finally:
        if ours:
            spark.stop()


def _read(
    plan: Plan,
    session: Any,
    folder: Path,
    *,
    columns: tuple[str, ...],
    by_hand: str,
    at_least: float,
) -> Result:
    frame = spark.read(session, str(folder), "outbox", columns=",".join(columns))

    def ours() -> Lap:
        before = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return Lap(rows, time.perf_counter() - before)

    def scan() -> Lap:
        before = time.perf_counter()
        return Lap(
            sum(_scan(path, by_hand) for path in _agents(folder)), time.perf_counter() - before
        )

    rows = scan().messages
    pairs = alternate(ours, scan, rounds=plan.rounds)
    more = {"columns": len(frame.columns), "rows": rows, "files": FILES}
    return compare("fleet", pairs, durability="", goals=[Goal("ratio", at_least=at_least)], **more)


def _agents(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.db") if path.name != DIRECTORY)


def _scan(path: Path, sql: str) -> int:
    con = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return sum(1 for _ in con.execute(sql))
    finally:
        con.close()


def _many(folder: Path, many: int) -> Result:
    """
    Time the planning of a fleet of *many* small files.

    They are planned at once, as a stream's first step, and as an idle one.
    """
    Postbox(folder / "0.db", agent="alice", start=False).close()
    with Postbox(folder / "0.db", start=False, hold_unknown=True) as box:
        box.send("bob", "one")
    for number in range(1, many):
        os.link(
            folder / "0.db", folder / f"{number}.db"
        )  # ten thousand copies would be gigabytes; they are opened one at a time
    os.utime(folder / "0.db", ns=(1, 1))
    options = Options.of({"path": str(folder), "table": "outbox"})
    planned = _timed(
        lambda: tasks(
            files.find(options.path), target=options.max_partition_bytes, least=4, edges=None
        )
    )
    follower, known = follow.Follower(options), dict[str, Any]()
    first = _timed(lambda: known.update(_step(follower, {})))
    whole = first + _timed(lambda: _look_at_all(follower, known))
    idle = _timed(lambda: _step(follower, known))
    more = {
        "files": many,
        "planning_s": planned,
        "first_step_s": first,
        "all_looked_at_s": whole,
        "idle_step_s": idle,
    }
    return Result(
        case="fleet-planning",
        durability="",
        more=more,
        goals=(
            Goal("planning_s", at_most=5),
            Goal("first_step_s", at_most=5),
            Goal("idle_step_s", at_most=1.5),
        ),
    )


def _look_at_all(follower: follow.Follower, known: dict[str, Any]) -> None:
    while follower.behind:
        known.update(_step(follower, known))


def _step(follower: follow.Follower, known: Positions) -> Positions:
    return follow.advance(known, follower.heads(known), None)


def _timed(work: Any) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before
