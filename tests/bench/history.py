"""
Cost of a look back in a file of a million messages, beside hand-written SQL.

Both read the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.bench.fill import HEADER, SLICE
from tests.bench.mail import note
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan

from onceward import Postbox

FULL: Final = 1_000_000
PER_SECOND: Final = 100_000
START: Final = 1_700_000_000_000
STEP: Final = 10
"""Milliseconds from one message to the next."""
EACH: Final = 1000
"""Messages of one channel, of one sender, of one span of time."""
TALK: Final = 10
"""Messages of one conversation."""
LOOKS: Final = 21
MOST_MS: Final = 20.0
FILL: Final = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
  received_at, ended_at, channel, correlation_id)
SELECT 'agent' || (i % :many), printf('%08x-0000-7000-8000-000000000000', i), 1, 's' || (i % :many),
       'bench.note', 2, 'processed',
       :frame, zeroblob(16), :start + i * :step, :start + i * :step, 'c' || (i * 7 % :many),
       'r' || (i / :talk)
  FROM n
"""
COUNT: Final = (
    "UPDATE _onceward_counters SET value = value + :count WHERE name IN ('ended', 'processed')"
)
RAW: Final = """
SELECT id, sender, session, type, topic, rank, state, attempts, received_at, reason, frame
  FROM _onceward_inbox WHERE {} ORDER BY seq DESC LIMIT 100
"""
RAW_COUNT: Final = "SELECT count(*) FROM _onceward_inbox WHERE {}"


def history(plan: Plan) -> Iterator[Result]:
    """
    Look for a channel, a sender, a time and a conversation in turns.

    Each is under 20 ms in the median.
    """
    total = plan.messages(FULL, per_second=PER_SECOND)
    many, path = max(1, total // EACH), plan.room("history") / "box.db"
    _fill(path, total, many)
    with Postbox(path, start=False, retention=1e9) as box:
        box.file.run_maintenance()
        middle = START + total // 2 * STEP
        asked: dict[str, tuple[dict[str, Any], str | None]] = {
            "channel": ({"channel": f"c{many // 2}"}, f"channel = 'c{many // 2}'"),
            "sender": ({"sender": f"agent{many // 3}"}, f"sender = 'agent{many // 3}'"),
            "time": ({"since": middle, "until": middle + EACH * STEP}, None),
            "correlation": (
                {"correlation_id": f"r{total // TALK // 2}"},
                f"correlation_id = 'r{total // TALK // 2}'",
            ),
            "newest": ({"count": False}, "1"),
        }
        for name, (filters, where) in asked.items():
            yield _compared(box, name, total, filters, where)


def _compared(
    box: Postbox, name: str, total: int, filters: dict[str, Any], where: str | None
) -> Result:
    """
    Look and read by hand in turns.

    A time has no index of its own, so no hand-written statement is near it.
    """
    ours, raw = [], []
    found = 0
    for _ in range(LOOKS):
        took, page = _timed(lambda: box.history(**filters))
        ours.append(took)
        found = page.total_count or len(page.messages)
        if where is not None:
            raw.append(_timed(lambda: _by_hand(box, where, count="count" not in filters))[0])
    more: dict[str, Any] = {"filter": name, "messages": total, "found": found, "ms": median(ours)}
    if raw:
        more["raw_ms"] = median(raw)
    return Result(
        case="history",
        durability="safe",
        rate=1000 / median(ours),
        more=more,
        goals=(Goal("ms", at_most=MOST_MS),),
    )


def _by_hand(box: Postbox, where: str, *, count: bool) -> None:
    with box.begin() as tx:
        tx.execute(RAW.format(where))
        if count:
            tx.execute(RAW_COUNT.format(where))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return 1000 * (time.perf_counter() - start), answer


def _fill(path: Path, total: int, many: int) -> None:
    named = {
        "many": many,
        "start": START,
        "step": STEP,
        "talk": TALK,
        "frame": HEADER % note().model_dump_json(),
    }
    with Postbox(path, agent="bob", start=False, retention=1e9) as box:
        for first in range(0, total, SLICE):
            count = min(SLICE, total - first)
            with box.begin() as tx:
                tx.execute(FILL, named | {"first": first, "count": count})
                tx.execute(COUNT, {"count": count})
