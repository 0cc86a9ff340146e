"""
Find the lanes that may be claimed: the most urgent and oldest first, those of runs never.

Every statement that orders lanes stands here. A lane is ready if it has a head and neither a lease
nor a backoff; a suspect, whose head may have ended its process, comes after all others. A parked
lane waits for the turn of its group (see ``lanes``).
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Final, NamedTuple, cast

from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED

URGENT_FIRST: Final = "ORDER BY rank, head_seq"
SESSION: Final = """
coalesce(_onceward_lanes.session,
         (SELECT b.session FROM _onceward_inbox AS b WHERE b.seq = _onceward_lanes.head_seq))
"""
"""The session of a lane's head: a lane that sessions share by an ordering key has none."""
ORDINARY: Final = f"""
NOT EXISTS (SELECT 1 FROM _onceward_session_handlers AS h WHERE {SESSION} GLOB h.pattern)
"""
READY: Final = f"""
SELECT lane_id, token, isolate_upto_seq, session IS NULL, rank FROM _onceward_lanes
 WHERE head_seq IS NOT NULL AND due_at IS NULL AND {ORDINARY}
   AND (:session IS NULL OR {SESSION} = :session)
 {URGENT_FIRST}
 LIMIT :limit
"""
READY_KINDS: Final = f"""
SELECT _onceward_lanes.lane_id, token, isolate_upto_seq, _onceward_lanes.session IS NULL,
       _onceward_lanes.rank, head_seq, h.type, h.topic
  FROM _onceward_lanes CROSS JOIN _onceward_inbox AS h ON h.seq = head_seq
 WHERE head_seq IS NOT NULL AND due_at IS NULL AND {ORDINARY}
   AND (_onceward_lanes.rank, head_seq) > (:rank, :seq)
 ORDER BY _onceward_lanes.rank, head_seq
 LIMIT :limit
"""
READY_OR_DUE: Final = f"""
SELECT lane_id, token, isolate_upto_seq, session IS NULL, rank,
       EXISTS (SELECT 1 FROM _onceward_lanes WHERE due_at <= :now)
  FROM _onceward_lanes
 WHERE head_seq IS NOT NULL AND due_at IS NULL AND {ORDINARY}
   AND (SELECT paused_at FROM _onceward_file_info) IS NULL
   AND NOT (:limited AND EXISTS (SELECT 1 FROM _onceward_handler_limits))
 {URGENT_FIRST}
 LIMIT :limit
"""
# Lanes that wait for the turn of a group: leased by workers that know no groups, after all others.
PARKED_LANES: Final = f"""
SELECT lane_id, token, isolate_upto_seq, session IS NULL, rank FROM _onceward_lanes
 WHERE head_seq IS NOT NULL AND due_at = {PARKED} AND {ORDINARY}
 {URGENT_FIRST}
 LIMIT ?
"""
PARKED_OF_RUNS: Final = f"""
SELECT lane_id FROM _onceward_lanes
 WHERE head_seq IS NOT NULL AND due_at = {PARKED} AND NOT {ORDINARY}
"""
SUSPECTS: Final = f"""
SELECT lane_id, token, isolate_upto_seq, session IS NULL, rank
  FROM _onceward_lanes INDEXED BY _onceward_lanes_suspects
 WHERE suspect = 1 AND owner IS NULL AND head_seq IS NOT NULL AND {ORDINARY}
   AND (:session IS NULL OR {SESSION} = :session)
 {URGENT_FIRST}
 LIMIT :limit
"""
LANE_OF: Final = f"""
SELECT l.lane_id, l.token, l.isolate_upto_seq, b.attempts + 1
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = ? AND b.state = 'pending' AND l.owner IS NULL
   AND (l.due_at IS NULL OR l.suspect = 1 OR l.due_at = {PARKED})
"""
CLOSED: Final = """
SELECT paused_at IS NOT NULL OR (:limited AND EXISTS (SELECT 1 FROM _onceward_handler_limits))
  FROM _onceward_file_info
"""
WITH_RUNS: Final = """
SELECT min(b.seq)
  FROM json_each(?) AS j
  JOIN _onceward_inbox AS b ON b.seq = j.value
  JOIN _onceward_session_handlers AS h ON b.session GLOB h.pattern
"""
HAS_MORE: Final = """
SELECT 1 FROM _onceward_lanes WHERE lane_id = ? AND head_seq IS NOT NULL AND owner IS NULL
"""
# A damaged date, of another type, is greater than any number: readers of the result report it.
FIRST_DUE: Final = f"""coalesce(
       (SELECT min(due_at) FROM _onceward_lanes WHERE due_at < {PARKED}),
       (SELECT min(due_at) FROM _onceward_lanes WHERE due_at > {PARKED}))"""
NEXT_DUE: Final = f"SELECT {FIRST_DUE}"
AGENDA: Final = f"""
SELECT (SELECT paused_at FROM _onceward_file_info),
       CASE WHEN EXISTS (SELECT 1
                           FROM _onceward_lanes
                          WHERE head_seq IS NOT NULL AND due_at IS NULL AND {ORDINARY})
            THEN 1
            WHEN EXISTS (SELECT 1
                           FROM _onceward_lanes INDEXED BY _onceward_lanes_suspects
                          WHERE suspect = 1 AND owner IS NULL AND head_seq IS NOT NULL
                            AND {ORDINARY})
            THEN 2 ELSE 0 END,
       {FIRST_DUE},
       EXISTS (SELECT 1 FROM _onceward_lanes WHERE head_seq IS NOT NULL AND due_at = {PARKED}),
       (SELECT coalesce(max(concurrency), 0) FROM _onceward_handler_limits HAVING count(*) > 0)
"""
# A lane that is known and empty, while no other lane is ready and none waits for a date or a type.
FREE: Final = """
SELECT lane_id, token, isolate_upto_seq, 1 + (SELECT seq FROM sqlite_sequence
                                               WHERE name = '_onceward_inbox')
  FROM _onceward_lanes
 WHERE sender = :sender AND name = :name AND rank = :rank
   AND (session = :session OR session IS NULL)
   AND head_seq IS NULL AND due_at IS NULL AND owner IS NULL AND called_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM _onceward_lanes WHERE head_seq IS NOT NULL AND due_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM _onceward_awaited_types)
   AND NOT EXISTS (SELECT 1 FROM _onceward_session_handlers AS h WHERE :session GLOB h.pattern)
   AND (SELECT paused_at FROM _onceward_file_info) IS NULL
   AND NOT EXISTS (SELECT 1 FROM _onceward_handler_limits)
"""
ONLY_SUSPECTS: Final = 2
ReadyLane = tuple[int, int, int, int, int]
"""Lane, token, isolation limit, whether sessions share it, rank."""


class Agenda(NamedTuple):
    """The work for workers and readers in the lanes of a file."""

    paused_at: Millis | None
    """Since when the file is paused; None if it is not."""
    ready: int
    """1: a lane may be claimed now; ``ONLY_SUSPECTS``: one, if no other call runs; 0: none."""
    due_at: Millis | None
    """When the first backed-off or leased lane is due."""
    parked: int
    """Whether a lane waits for the turn of its group."""
    limited: int | None
    """The highest concurrency that is set for a handler; None if no limit is set in the file."""


class FreeLane(NamedTuple):
    """A lane without messages, and the sequence that the next message of the inbox gets."""

    lane_id: int
    token: int
    isolate_upto_seq: int
    next_seq: int


def agenda(read: Rows) -> Agenda:
    """Return the work for workers and readers in the lanes of a file."""
    return Agenda(*read(AGENDA, ())[0])


def next_due(read: Rows) -> Millis | None:
    """Return when the first backed-off or leased lane is due."""
    return cast("Millis | None", read(NEXT_DUE, ())[0][0])


def ready(read: Rows, limit: int, session: str | None = None) -> list[ReadyLane]:
    """
    Return the claimable lanes, the most urgent and oldest first.

    Lanes whose heads belong to sessions with runs are excluded. *shared* means that several
    sessions share the lane: ``before_runs`` limits how far it may be claimed.
    """
    return cast("list[ReadyLane]", read(READY, {"session": session, "limit": limit}))


def in_turn(found: list[ReadyLane], served: Container[int]) -> list[ReadyLane]:
    """Return lanes with those of *served* after the others of their rank."""
    return sorted(found, key=lambda lane: (lane[4], lane[0] in served))


def ready_or_due(
    tx: StoreTransaction, limit: int, *, limited: bool
) -> tuple[list[ReadyLane], bool]:
    """
    Return what ``ready`` does, nothing if paused; and whether a backoff or lease ran out.

    *limited*: nothing either while limits of handlers are set in the file.
    """
    rows = tx.rows(READY_OR_DUE, {"now": tx.now, "limit": limit, "limited": limited})
    return rows, bool(rows and rows[0][-1])


def is_closed(tx: StoreTransaction, *, limited: bool) -> bool:
    """Return whether the file is paused, or, if *limited*, has set limits of handlers."""
    return bool(tx.rows(CLOSED, {"limited": limited})[0][0])


def ready_kinds(
    tx: StoreTransaction, limit: int, *, after: tuple[int, int]
) -> list[tuple[Any, ...]]:
    """Return claimable lanes after a rank and head, their head, and its type and topic."""
    rank, seq = after
    return tx.rows(READY_KINDS, {"rank": rank, "seq": seq, "limit": limit})


def parked(read: Rows, limit: int) -> list[ReadyLane]:
    """Return the lanes that wait for the turn of their groups, the most urgent and oldest first."""
    return cast("list[ReadyLane]", read(PARKED_LANES, (limit,)))


def parked_of_runs(tx: StoreTransaction) -> list[int]:
    """Return the lanes of sessions with runs that wait for turns: runs know no groups."""
    return [lane_id for (lane_id,) in tx.rows(PARKED_OF_RUNS)]


def suspects(tx: StoreTransaction, limit: int, session: str | None = None) -> list[ReadyLane]:
    """Return the lanes whose heads may have killed their process."""
    return cast("list[ReadyLane]", tx.rows(SUSPECTS, {"session": session, "limit": limit}))


def of_message(tx: StoreTransaction, seq: int) -> list[tuple[Any, ...]]:
    """Return lane, token, isolation limit and next attempt of a message that may be claimed."""
    return tx.rows(LANE_OF, (seq,))


def before_runs(tx: StoreTransaction, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows, sequence first, before the first one of a session with runs."""
    [(first,)] = tx.rows(WITH_RUNS, (json.dumps([row[0] for row in rows]),))
    return rows if first is None else [row for row in rows if row[0] < first]


def find_free(
    tx: StoreTransaction, sender: str, name: str, rank: int, *, session: str
) -> FreeLane | None:
    """
    Return the lane of a new message if the message would be claimed next, and not alone.

    Its lane is known and empty, no other lane is ready, no handler waits for a type or has a set
    limit, and the session has no runs.
    """
    named = {"sender": sender, "name": name, "rank": rank, "session": session}
    for row in tx.rows(FREE, named):
        lane = FreeLane(*row)
        if lane.next_seq is not None and lane.isolate_upto_seq < lane.next_seq:
            return lane
    return None


def has_more(read: Rows, lane_id: int) -> bool:
    """Return whether messages wait in a lane that is not leased."""
    return bool(read(HAS_MORE, (lane_id,)))


HEAD_AWAITS: Final = """
SELECT 1
  FROM _onceward_lanes AS l
  JOIN _onceward_pending_replies AS r ON r.asker_seq = l.head_seq
 WHERE l.sender = ? AND l.name = ? AND l.rank = ? AND r.state = 'open'
"""
IS_SUSPECT: Final = "SELECT suspect FROM _onceward_lanes WHERE lane_id = ?"


def head_awaits(tx: StoreTransaction, sender: str, name: str, rank: int) -> bool:
    """Return whether the handler of a lane's head has an unanswered request."""
    return bool(tx.rows(HEAD_AWAITS, (sender, name, rank)))


def is_suspect(tx: StoreTransaction, lane_id: int) -> bool:
    """Return whether a lane's head may have killed its process."""
    [(suspect,)] = tx.rows(IS_SUSPECT, (lane_id,)) or [(0,)]
    return bool(suspect)
