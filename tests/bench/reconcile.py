"""
Reconciliation of a whole fleet, against the same by hand.

The rival scans every file in one process, into a dictionary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.message.frame import digest
from onceward.message.names import DIRECTORY

if TYPE_CHECKING:
    from onceward.fleet.spark.fleet import Fleet

MESSAGES: Final = 1_000_000
PAIRS: Final = 40
FEW: Final = 2
"""Pairs of a sending and a receiving file that share the messages; few for a quick look."""
GROWTH: Final = 8
LOST: Final = 3
"""Messages of each pair that were never received: what is measured has to be found."""
ROUNDS: Final = 3
BEGAN: Final = 1_767_225_600_000
AGE: Final = 3_600_000
MINUTE: Final = 60.0
HEADER: Final = (
    '{"specversion":"1.0","id":"any","source":"urn:onceward:near","type":"bench.note",'
    '"recipient":"far","data":%s}'
)
NUMBERS: Final = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
ID: Final = "printf('%08x-0000-7000-8000-000000000000', i)"
SENT: Final = f"""
{NUMBERS}
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, state, sent_at, ended_at, frame,
  created_at)
SELECT {ID}, :peer, 's' || (i % 50), 's' || (i % 50), 'bench.note', 'acked', :at + i + 5,
  :at + i + 9, :frame, :at + i FROM n
"""
LANES: Final = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 49)
INSERT INTO _onceward_lanes (sender, name, rank, session) SELECT :peer, 's' || i, 2, 's' || i FROM n
"""
TAKEN: Final = f"""
{NUMBERS}
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
  received_at, ended_at)
SELECT :peer, {ID}, 1 + i % 50, 's' || (i % 50), 'bench.note', 2, 'processed', :frame, :digest,
  :at + i + 5, :at + i + 7 FROM n
"""
MARKED: Final = f"""
{NUMBERS}
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT :peer, {ID}, 's' || (i % 50), 'processed', :at + i + 7 FROM n
"""
BY_HAND: Final = {
    "near": (
        (
            "SELECT sender, recipient, id, state, created_at, sent_at, ended_at, lane, seq "
            "FROM onceward_outbox"
        ),
    ),
    "far": (
        "SELECT sender, recipient, id, state, received_at, lane, seq FROM onceward_inbox",
        "SELECT sender, recipient, id, outcome, processed_at, seq FROM onceward_processed_messages",
    ),
}
GOALS: Final = (Goal("per_minute", at_least=5_000_000), Goal("growth", at_most=9.0))


def reconcile(plan: Plan) -> Iterator[Result]:
    """
    Reconcile a fleet of full size and one of an eighth.

    The rate is of messages, reading to report.
    """
    from onceward.fleet import spark  # noqa: PLC0415 - an extra
    from onceward.fleet.spark.fleet import Fleet  # noqa: PLC0415 - an extra

    size = plan.messages(MESSAGES, per_second=100_000)
    couples = PAIRS if plan.seconds is None else FEW
    each = max(GROWTH * (LOST + 1), size // couples)
    small, full = (
        fill(plan.room(name), couples, each // part)
        for name, part in (("small", GROWTH), ("full", 1))
    )
    session, numbers = spark.session(), count()
    few, all_ = (Fleet(session, (str(folder),)) for folder in (small, full))

    def lap(fleet: Fleet) -> Lap:
        return ours(fleet, plan.folder / f"out-{next(numbers)}")

    pairs = alternate(lambda: lap(all_), lambda: by_hand(full), rounds=min(ROUNDS, plan.rounds))
    eighth = min(lap(few).seconds for _ in range(len(pairs.ours)))
    rate = max(one.rate for one in pairs.ours)
    more = {
        "per_minute": MINUTE * rate,
        "growth": min(one.seconds for one in pairs.ours) / eighth,
        "messages": pairs.ours[0].messages,
    }
    yield compare(
        "fleet-reconcile", pairs, durability="none", goals=GOALS, files=2 * couples, **more
    )


def ours(fleet: Fleet, out: Path) -> Lap:
    """Reconcile as the command does: facts, verdicts, figures, Parquet and the page."""
    from onceward.fleet.spark import reconcile as job  # noqa: PLC0415 - an extra
    from onceward.fleet.verdicts import Rules  # noqa: PLC0415 - an extra

    began = time.perf_counter()
    report = job.run(fleet, out, Rules(now=BEGAN + AGE * 24))
    spent = time.perf_counter() - began
    check(report.verdicts, report.files)
    return Lap(report.messages, spent)


def check(verdicts: Any, files: int) -> None:
    """Raise unless exactly what was lost was found: a fast wrong answer is not an answer."""
    if verdicts.get("lost") != LOST * files // 2:
        msg = f"{LOST * files // 2} messages were lost, found were {dict(verdicts)}"
        raise AssertionError(msg)


def by_hand(folder: Path) -> Lap:
    """
    Read the same columns of all files in this process into a dictionary by message.

    Every message's rows are put together.
    """
    began = time.perf_counter()
    found: dict[tuple[str, str, str], list[Any]] = {}
    paths = sorted(path for path in folder.glob("*.db") if path.name != DIRECTORY)
    for path in paths:
        con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        for sql in BY_HAND[path.stem.partition("-")[0]]:
            for sender, recipient, message_id, *rest in con.execute(sql):
                found.setdefault((sender, recipient, message_id), []).append(rest)
        con.close()
    verdicts = Counter("lost" if len(rows) == 1 else "delivered_once" for rows in found.values())
    spent = time.perf_counter() - began
    check(verdicts, len(paths))
    return Lap(len(found), spent)


def fill(folder: Path, pairs: int, each: int, received: Sequence[str] = (TAKEN, MARKED)) -> Path:
    """
    Make pairs of files with so many messages each.

    All are acknowledged, all but a few of them *received* by these statements.
    """
    frame = HEADER % note().model_dump_json()
    for pair in range(pairs):
        near, far = f"near-{pair}", f"far-{pair}"
        named = {"frame": frame, "digest": digest(frame), "at": BEGAN}
        with (
            Postbox(
                folder / f"{near}.db",
                agent=near,
                start=False,
                durability="fast",
                max_pending=UNBOUNDED,
            ) as box,
            box.begin() as tx,
        ):
            tx.execute(SENT, named | {"peer": far, "count": each})
        with (
            Postbox(folder / f"{far}.db", agent=far, start=False, durability="fast") as box,
            box.begin() as tx,
        ):
            tx.execute(LANES, {"peer": near})
            for sql in received:
                tx.execute(sql, named | {"peer": near, "count": each - LOST})
    return folder
