"""Big files: a postbox whose tables hold a busy year, written by plain SQL in a few seconds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.bench.mail import BODY_BYTES, UNBOUNDED, note

from onceward import Postbox, Transaction
from onceward.message.frame import digest
from onceward.message.settings import DAY

OUTBOX: Final = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, state, due_at, sent_at, ended_at,
  frame, created_at)
SELECT printf('%08x-0000-7000-8000-000000000000', i), 'bob', 's' || (i % :lanes),
       's' || (i % :lanes), 'bench.note',
       :state, :due_at, :ended_at, :ended_at, :frame, :now
  FROM n
"""
COUNT: Final = (
    "UPDATE _onceward_counters SET value = value + :count WHERE name IN ('ended_pending', 'acked')"
)
SHORT: Final = 64
"""Bytes of a body where ten million of them lie in a file."""
SLICE: Final = 20_000
"""Rows of one transaction, so that neither WAL nor memory grows with the file."""
LANES: Final = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :lanes)
INSERT INTO _onceward_lanes (sender, name, rank, session)
  SELECT 'alice', 's' || i, 2, 's' || i FROM n
"""
INBOX: Final = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, frame, digest, received_at)
SELECT 'alice', printf('%08x-0000-7000-8000-000000000000', i), 1 + i % :lanes, 's' || (i % :lanes),
       'bench.note', 2,
       :frame, :digest, :now
  FROM n
"""
HANDLED: Final = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
  received_at, ended_at)
SELECT 'bob', printf('%08x-0000-7000-8000-000000000000', i), 1, 'default', 'bench.note', 2,
       'processed', :frame, :digest, :now, :now
  FROM n
"""
MARKS: Final = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT 'bob', printf('%08x-0000-7000-8000-000000000000', i), 'default', 'processed', :now FROM n
"""
HANDLED_COUNT: Final = (
    "UPDATE _onceward_counters SET value = value + :count WHERE name IN ('ended', 'processed')"
)
HEADS: Final = (
    "UPDATE _onceward_lanes SET head_seq = (SELECT min(seq) FROM _onceward_inbox "
    "WHERE _onceward_inbox.lane_id = _onceward_lanes.lane_id AND state = 'pending')"
)
HEADER: Final = (
    '{"specversion":"1.0","id":"any","source":"urn:onceward:alice","type":"bench.note",'
    '"recipient":"bob","data":%s}'
)


def pending(path: Path, count: int, *, lanes: int = 1) -> None:
    """Let *count* messages wait in the outbox, spread over so many lanes."""
    _fill(path, count, state="pending", lanes=lanes)


def delayed(path: Path, count: int) -> None:
    """Let *count* messages wait in the outbox until tomorrow."""
    _fill(path, count, state="pending", due_at=_now() + round(1000 * DAY))


def acked(path: Path, count: int, *, size: int = BODY_BYTES) -> None:
    """Let *count* messages lie in the outbox that were acknowledged and not pruned yet."""
    _fill(path, count, state="acked", ended_at=_now(), size=size)


def handled(path: Path, count: int) -> None:
    """Let *count* short messages from bob lie in alice's inbox that were handled."""
    frame = HEADER % note(size=SHORT).model_dump_json()
    named = {"frame": frame, "digest": digest(frame)}
    with Postbox(path, agent="alice", start=False, max_pending=UNBOUNDED) as box:
        for first in range(0, count, SLICE):
            part = {"first": first, "count": min(SLICE, count - first), "now": _now()}
            with box.begin() as tx:
                tx.execute(HANDLED, named | part)
                tx.execute(MARKS, part)
                tx.execute(HANDLED_COUNT, {"count": part["count"]})


def inbox(path: Path, count: int, *, lanes: int) -> None:
    """Let *count* messages from alice wait in bob's inbox, spread over so many lanes."""
    frame = HEADER % note().model_dump_json()
    named = {"lanes": lanes, "frame": frame, "digest": digest(frame)}
    with Postbox(path, agent="bob", start=False) as box:
        with box.begin() as tx:
            tx.execute(LANES, {"lanes": lanes})
        for done in range(0, count, SLICE):
            with box.begin() as tx:
                tx.execute(
                    INBOX, named | {"first": done, "count": min(SLICE, count - done), "now": _now()}
                )
        with box.begin() as tx:
            tx.execute(HEADS)


def _fill(
    path: Path,
    count: int,
    *,
    state: str,
    lanes: int = 1,
    due_at: int | None = None,
    ended_at: int | None = None,
    size: int = BODY_BYTES,
) -> None:
    named = {
        "lanes": lanes,
        "state": state,
        "due_at": due_at,
        "ended_at": ended_at,
        "frame": HEADER % note(size=size).model_dump_json(),
    }
    with Postbox(path, agent="alice", start=False, max_pending=UNBOUNDED) as box:
        for done in range(0, count, SLICE):
            rows = min(SLICE, count - done)
            with box.begin() as tx:
                tx.execute(OUTBOX, named | {"first": _first(tx), "count": rows, "now": _now()})
                if state == "acked":
                    tx.execute(COUNT, {"count": rows})


def _first(tx: Transaction) -> int:
    [(last,)] = tx.execute("SELECT coalesce(max(seq), 0) FROM _onceward_outbox")
    return int(last) + 1


def _now() -> int:
    return time.time_ns() // 1_000_000
