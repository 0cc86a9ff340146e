"""
Store the queues of sessions with runs: waiting messages, settings, and drops.

A session's queue is a separate lane without a sender: all messages of the session move into it from
their arrival lanes, in order of arrival.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from onceward.core.rows import claimable, dead_letters, declarations, inbox, lanes, limits
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.errors import InvalidArgument
from onceward.file.transaction import Rows, StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.names import quoted
from onceward.message.queue_modes import WISH, WORKER_RESULT, QueuePolicy, WaitTimes
from onceward.message.vocabulary import PARKED, QueueMode

RANK: Final = 2
FAIR_AMONG: Final = 256
"""Number of sessions, those with the oldest messages first, that share slots in turn."""
LANES_MAX: Final = 200
"""Maximum lanes from which one pass takes messages."""
ALL: Final = 10_000
"""Maximum messages of one run."""
MOST: Final = 2**63 - 1
SEQ: Final = attrgetter("seq")

OPEN_UNDER: Final = (
    "SELECT session FROM _onceward_runs WHERE state = 'open' AND session GLOB ? LIMIT 1"
)
DECLARED: Final = """
SELECT mode, debounce_for, cap, overflow, aborted, inject FROM _onceward_session_handlers AS h
 WHERE :session GLOB h.pattern
 ORDER BY h.pattern <> :session, length(h.pattern) DESC, h.pattern LIMIT 1
"""
OURS: Final = """
EXISTS (SELECT 1 FROM json_each(:patterns) AS h
         WHERE coalesce(l.session, (SELECT b.session FROM _onceward_inbox AS b
                                     WHERE b.seq = l.head_seq)) GLOB h.value)
"""
OTHERS: Final = """
SELECT min(b.seq)
  FROM json_each(?) AS j
  JOIN _onceward_inbox AS b ON b.seq = j.value
 WHERE NOT EXISTS (SELECT 1 FROM json_each(?) AS h WHERE b.session GLOB h.value)
"""
GOES_ON: Final = """
NOT EXISTS (SELECT 1
              FROM _onceward_session_queues AS q
             WHERE q.session = l.session AND q.paused_at IS NOT NULL)
"""
# A plus before the sender keeps the planner on the index of ready lanes, here and below.
AGENDA: Final = f"""
SELECT (SELECT paused_at FROM _onceward_file_info),
       EXISTS (SELECT 1
                 FROM _onceward_lanes AS l
                WHERE head_seq IS NOT NULL AND due_at IS NULL AND +sender IS NOT NULL AND {OURS}),
       EXISTS (SELECT 1
                 FROM _onceward_lanes AS l
                WHERE head_seq IS NOT NULL
                  AND due_at IS NULL
                  AND +sender IS NULL
                  AND {OURS}
                  AND {GOES_ON}),
       (SELECT due_at
          FROM _onceward_lanes AS l
         WHERE due_at < {PARKED} AND {OURS}
         ORDER BY due_at LIMIT 1)
"""
SOURCES: Final = f"""
SELECT l.lane_id, l.head_seq, l.session IS NULL FROM _onceward_lanes AS l
 WHERE l.head_seq IS NOT NULL
   AND l.due_at IS NULL
   AND l.owner IS NULL
   AND +l.sender IS NOT NULL
   AND {OURS}
 ORDER BY l.head_seq LIMIT :limit
"""
ARRIVED: Final = f"""
SELECT seq, session, lane_id, type, rank, sender, id,
       CASE WHEN instr(frame, '"{WISH}"') THEN frame ELSE '' END
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending' AND seq <= ?
 ORDER BY seq LIMIT ?
"""
# A session waits since its head came, or since its last run ended: the longest wait is first.
READY: Final = f"""
SELECT w.lane_id, w.session, w.token
  FROM (SELECT l.lane_id, l.session, l.token, l.head_seq
          FROM _onceward_lanes AS l
         WHERE l.head_seq IS NOT NULL
           AND l.due_at IS NULL
           AND l.owner IS NULL
           AND +l.sender IS NULL
           AND {OURS}
           AND {GOES_ON}
         ORDER BY l.head_seq LIMIT {FAIR_AMONG}) AS w
  LEFT JOIN _onceward_inbox AS b ON b.seq = w.head_seq
  LEFT JOIN _onceward_runs AS r ON r.seq = (SELECT max(seq)
                                              FROM _onceward_runs
                                             WHERE session = w.session)
 ORDER BY max(b.received_at, coalesce(r.ended_at, 0)), coalesce(r.seq, 0), w.head_seq
 LIMIT :limit
"""
LANE: Final = """
SELECT lane_id, token, owner, due_at
  FROM _onceward_lanes
 WHERE sender IS NULL AND name = ? AND rank = 2
"""
SUSPECTS: Final = f"""
SELECT l.lane_id, l.name, l.token FROM _onceward_lanes AS l
 WHERE l.suspect = 1 AND l.owner IS NULL AND l.head_seq IS NOT NULL AND l.sender IS NULL
   AND {OURS} AND {GOES_ON}
 ORDER BY l.rank, l.head_seq LIMIT 1
"""
QUEUE: Final = """
SELECT mode, debounce_for, cap, overflow, aborted, inject, waiting_since_at, arrived_at, retry_at,
       goes_on_with, paused_at, reordered, next_mode
  FROM _onceward_session_queues WHERE session = ?
"""
ARRIVE: Final = """
INSERT INTO _onceward_session_queues (session, waiting_since_at, arrived_at)
VALUES (:session, :now, :now)
ON CONFLICT (session) DO UPDATE
   SET waiting_since_at = coalesce(waiting_since_at, :now), arrived_at = :now
"""
KNOW: Final = (
    "INSERT INTO _onceward_session_queues (session) VALUES (?) ON CONFLICT (session) DO NOTHING"
)
BEGUN: Final = """
UPDATE _onceward_session_queues
   SET waiting_since_at = CASE WHEN :more THEN waiting_since_at END, retry_at = NULL,
       goes_on_with = NULL,
       reordered = reordered AND :more, next_mode = CASE WHEN :more THEN next_mode END
 WHERE session = :session
"""
REST: Final = "UPDATE _onceward_session_queues SET retry_at = ? WHERE session = ?"
GO_ON_WITH: Final = "UPDATE _onceward_session_queues SET goes_on_with = ? WHERE session = ?"
STEER: Final = """
UPDATE _onceward_session_queues
   SET next_mode = ?, retry_at = NULL, goes_on_with = NULL, waiting_since_at = NULL
 WHERE session = ?
"""
PAUSE: Final = (
    "UPDATE _onceward_session_queues SET paused_at = coalesce(paused_at, ?) WHERE session = ?"
)
RESUME: Final = "UPDATE _onceward_session_queues SET paused_at = NULL WHERE session = ?"
SET: Final = """
UPDATE _onceward_session_queues
   SET mode = :mode, debounce_for = :debounce_for, cap = :cap, overflow = :overflow,
       aborted = :aborted, inject = :inject
 WHERE session = :session
"""
COLUMNS: Final = "seq, sender, id, session, frame, digest, expires_at, attempts, received_at"
NEXT: Final = f"""
SELECT {COLUMNS}
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending' AND run_seq IS NULL
 ORDER BY seq LIMIT ?
"""
NEXT_PLACED: Final = f"""
SELECT {COLUMNS}
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending' AND run_seq IS NULL
 ORDER BY coalesce(position, seq), seq LIMIT ?
"""
OF_SEQS: Final = f"""
SELECT {COLUMNS}
  FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'pending'
 ORDER BY coalesce(position, seq)
"""
HELD: Final = f"""
SELECT count(*), coalesce(sum(rank = 0 OR type = '{WORKER_RESULT}'), 0)
  FROM _onceward_inbox WHERE lane_id = ? AND state = 'pending' AND run_seq IS NULL
"""
OLDEST: Final = f"""
SELECT seq FROM _onceward_inbox
 WHERE lane_id = ?
   AND state = 'pending'
   AND run_seq IS NULL
   AND rank <> 0
   AND type <> '{WORKER_RESULT}'
 ORDER BY coalesce(position, seq) LIMIT ?
"""
REORDERED: Final = "UPDATE _onceward_session_queues SET reordered = 1 WHERE session = ?"


Change = Callable[[StoreTransaction], object]
"""One write to a session's row."""


class NewMessage(NamedTuple):
    """A message that is not in a queue yet."""

    seq: int
    session: str
    lane_id: int
    type: str
    rank: int
    sender: str
    id: str
    frame: str
    """Its frame if that may request a mode, else empty."""

    @property
    def protected(self) -> bool:
        """Whether no full queue may drop it."""
        return self.rank == 0 or self.type == WORKER_RESULT


class Queue(NamedTuple):
    """The policy and state of one session's queue."""

    policy: QueuePolicy
    waits: WaitTimes
    rest_at: Millis | None
    goes_on_with: str | None
    """The messages of a waiting run, as JSON: its next run has the same ones."""
    paused: bool
    reordered: bool
    next_mode: QueueMode | None
    """Mode of the next run, if a message has requested one."""


def look_up(tx: StoreTransaction, session: str, declared: QueuePolicy) -> Queue:
    """Return a session's queue; its missing settings are those *declared*."""
    rows = tx.rows(QUEUE, (session,))
    if not rows:
        fresh = declared, WaitTimes(), None, None
        return Queue(*fresh, paused=False, reordered=False, next_mode=None)
    *own, since_at, arrived_at, rest_at, goes_on_with, paused_at, reordered, next_mode = rows[0]
    return Queue(
        declared.merged(**_policy_fields(own)),
        WaitTimes(since_at, arrived_at),
        rest_at,
        goes_on_with,
        paused=paused_at is not None,
        reordered=bool(reordered),
        next_mode=next_mode,
    )


def _policy_fields(row: Sequence[Any]) -> dict[str, Any]:
    """Return the first columns of a queue's or handler's row as fields of a policy."""
    *rest, inject = row
    fields = ("mode", "debounce_for", "cap", "overflow", "aborted")
    return dict(zip(fields, rest, strict=True)) | {
        "inject": None if inject is None else bool(inject)
    }


def declared(tx: StoreTransaction, session: str) -> QueuePolicy:
    """Return the declared policy of a session's handler, or the defaults."""
    rows = tx.rows(DECLARED, {"session": session})
    return QueuePolicy(**_policy_fields(rows[0])) if rows else QueuePolicy()


class RunAgenda(NamedTuple):
    """The work for runs in the sessions of one process."""

    paused_at: Millis | None
    """Since when the file is paused; None if it is not."""
    arrived: int
    """Whether a message is not in a queue yet."""
    ready: int
    """Whether a queue may begin a run."""
    due_at: Millis | None
    """When the first backed-off or leased lane is due."""


def agenda(read: Rows, patterns: str) -> RunAgenda:
    """Return the work for runs in the sessions of *patterns*."""
    return RunAgenda._make(read(AGENDA, {"patterns": patterns})[0])


def know(tx: StoreTransaction, session: str) -> None:
    """Create a session's row if it has none."""
    tx.run(KNOW, (session,))


def set_policy(tx: StoreTransaction, session: str, fields: Mapping[str, Any]) -> None:
    """Set the policy of one session's queue."""
    tx.run(SET, {**fields, "session": session})


def pause(tx: StoreTransaction, session: str) -> None:
    """Pause a session: begin no further runs."""
    tx.run(PAUSE, (tx.now, session))


def resume(tx: StoreTransaction, session: str) -> None:
    """Resume a session after ``pause``."""
    tx.run(RESUME, (session,))


def rest(tx: StoreTransaction, session: str, due_at: Millis) -> None:
    """Delay the next run of a session until a moment."""
    tx.run(REST, (due_at, session))


def go_on_with(tx: StoreTransaction, session: str, seqs: Sequence[int]) -> None:
    """Allow a session only a run with the same messages, once its lane is due."""
    tx.run(GO_ON_WITH, (json.dumps(seqs), session))


def steer(tx: StoreTransaction, session: str, mode: str) -> None:
    """Make the next run of a session begin at once, in a mode."""
    tx.run(STEER, (mode, session))


def begun(tx: StoreTransaction, session: str, *, more: bool) -> None:
    """Record that a run has begun, and whether messages are left for another."""
    tx.run(BEGUN, {"more": more, "session": session})


def lane_of(tx: StoreTransaction, session: str) -> int | None:
    """Return the lane of a session's queue; None if it has none."""
    return next((int(row[0]) for row in tx.rows(LANE, (session,))), None)


def hurry(tx: StoreTransaction, lane_id: int) -> None:
    """Make a queue due now, unless a run has it."""
    lanes.hurry(tx, [lane_id])


def defer(tx: StoreTransaction, lane_id: int, due_at: Millis) -> None:
    """Make a queue due at a moment, unless a run has it."""
    lanes.rest(tx, lane_id, due_at)


def open_under(tx: StoreTransaction, pattern: str) -> str | None:
    """Return a session of a pattern that has an open run."""
    return next((str(session) for (session,) in tx.rows(OPEN_UNDER, (pattern,))), None)


def unregister(tx: StoreTransaction, pattern: str) -> None:
    """Stop serving sessions of a pattern by runs."""
    declarations.serve_no_more(tx, pattern)


def oldest(tx: StoreTransaction, lane_id: int, limit: int) -> list[int]:
    """Return the oldest droppable messages of a queue."""
    return [seq for (seq,) in tx.rows(OLDEST, (lane_id, limit))]


def name_queue(tx: StoreTransaction, session: str, dead: Iterable[LeasedMessage]) -> None:
    """Record in dead letters which queue refused them."""
    dead_letters.set_queue(tx, session, [(each.sender, each.id) for each in dead])


def register(
    tx: StoreTransaction, pattern: str, policy: QueuePolicy, allow_override_from: Sequence[str]
) -> None:
    """
    Serve sessions of a pattern by runs in all processes.

    Workers and readers then skip their messages. Lanes that wait for turns of handlers with a key
    wait no longer: runs have no key.
    """
    named = {
        name: getattr(policy, name)
        for name in ("mode", "debounce_for", "cap", "overflow", "aborted")
    }
    declarations.serve(
        tx,
        named
        | {
            "pattern": pattern,
            "inject": int(policy.inject),
            "allow_override_from": json.dumps(list(allow_override_from)),
        },
    )
    if parked := claimable.parked_of_runs(tx):
        lanes.free(tx, parked)


def arrivals(tx: StoreTransaction, patterns: str, limit: int) -> list[NewMessage]:
    """
    Return messages of sessions with runs that are not in a queue yet, by arrival.

    Return about *limit* messages at most; stop at the first truncated lane, to keep arrival order.
    """
    sources = tx.rows(SOURCES, {"patterns": patterns, "limit": LANES_MAX + 1})
    upto = sources[LANES_MAX][1] - 1 if len(sources) > LANES_MAX else MOST
    found: list[NewMessage] = []
    for lane_id, head, shared in sources[:LANES_MAX]:
        # of the others, only those that came before the last of these count
        if len(found) >= limit:
            found = sorted(found, key=SEQ)[:limit]
            upto = min(upto, found[-1].seq)
        if head > upto:
            break
        rows = tx.rows(ARRIVED, (lane_id, upto, limit))
        if len(rows) == limit:
            upto = min(upto, rows[-1][0])
        if shared:
            rows = _before_others(tx, rows, patterns)
        found += map(NewMessage._make, rows)
    found = [each for each in found if each.seq <= upto]
    return sorted(found, key=SEQ)[:limit]


def _before_others(
    tx: StoreTransaction, rows: list[tuple[Any, ...]], patterns: str
) -> list[tuple[Any, ...]]:
    """Return the rows before the first one of a session without runs."""
    [(first,)] = tx.rows(OTHERS, (json.dumps([row[0] for row in rows]), patterns))
    return rows if first is None else [row for row in rows if row[0] < first]


def enqueue(tx: StoreTransaction, session: str, fresh: Sequence[NewMessage]) -> int:
    """Move arrivals to the end of their session's queue; return the queue's lane."""
    lane_id = lanes.open_queue(tx, session, RANK)
    tx.run(ARRIVE, {"session": session, "now": tx.now})
    inbox.move(tx, lane_id, [each.seq for each in fresh])
    lanes.set_heads(tx, [lane_id, *{each.lane_id for each in fresh}], moved=True)
    return lane_id


def update_head(tx: StoreTransaction, lane_id: int) -> None:
    """Update a lane's head after some of its messages ended."""
    lanes.set_heads(tx, [lane_id], moved=True)


def ready(tx: StoreTransaction, patterns: str, limit: int) -> list[tuple[int, str, int]]:
    """Return (lane, session, token) of ready queues, the longest waiting first."""
    rows = tx.rows(READY, {"patterns": patterns, "limit": limit})
    return [(lane_id, name, token) for lane_id, name, token in rows]


def suspects(read: Rows, patterns: str) -> list[tuple[int, str, int]]:
    """Return (lane, session, token) of the first queue whose run may have killed its process."""
    return [(lane, name, token) for lane, name, token in read(SUSPECTS, {"patterns": patterns})]


def next_messages(
    tx: StoreTransaction, held: Lease, queue: Queue, limit: int
) -> list[LeasedMessage]:
    """Return the messages of the continuing run, or the first ones of the queue."""
    if queue.goes_on_with is not None:
        rows = tx.rows(OF_SEQS, (queue.goes_on_with,))
        if rows:
            return _read(rows, held)
    return waiting(tx, held, limit, placed=queue.reordered)


def waiting(tx: StoreTransaction, held: Lease, limit: int, *, placed: bool) -> list[LeasedMessage]:
    """Return the first messages of a queue, as if leased for their next attempt."""
    return _read(tx.rows(NEXT_PLACED if placed else NEXT, (held.lane_id, limit)), held)


def of_seqs(tx: StoreTransaction, seqs: Iterable[int], held: Lease) -> list[LeasedMessage]:
    """Return a run's messages that still wait, with the attempt counted when they were bound."""
    return _read(tx.rows(OF_SEQS, (json.dumps(list(seqs)),)), held, counted=True)


def _read(
    rows: list[tuple[Any, ...]], held: Lease, *, counted: bool = False
) -> list[LeasedMessage]:
    found = [LeasedMessage(held, *row) for row in rows]
    return found if counted else [each._replace(attempt=each.attempt + 1) for each in found]


def counts(tx: StoreTransaction, lane_id: int) -> tuple[int, int]:
    """Return how many messages wait in a queue, and how many of them are protected."""
    [(count, protected)] = tx.rows(HELD, (lane_id,))
    return int(count), int(protected)


def record_drops(
    tx: StoreTransaction, session: str, policy: str, dropped: Sequence[tuple[LeasedMessage, str]]
) -> None:
    """Record messages that a full queue dropped, with a line each for the next summary."""
    rows = [
        (each.id, each.sender, session, "queue", session, policy, line, tx.now)
        for each, line in dropped
    ]
    limits.record_drops(tx, rows)
    bump(tx, dropped_by_policy=len(rows))


def reorder(tx: StoreTransaction, session: str, ids: Sequence[str]) -> list[str]:
    """
    Move waiting messages to the front in the order of *ids*; return the new order of all.

    Raises:
        InvalidArgument: one of them does not wait in this queue.

    """
    lane_id = lane_of(tx, session)
    unheld = None if lane_id is None else Lease(lane_id, 0, "", isolate=False)
    listed = [] if unheld is None else waiting(tx, unheld, -1, placed=True)
    by_id = {each.id: each for each in listed}
    missing = [each for each in ids if each not in by_id]
    if missing or len(set(ids)) != len(ids):
        named = ", ".join(map(quoted, missing or ids))
        raise InvalidArgument(f"not waiting in the queue of {session!r}, or given twice: {named}")
    chosen = [by_id[each] for each in ids] + [each for each in listed if each.id not in set(ids)]
    places = zip(sorted(each.seq for each in listed), (each.seq for each in chosen), strict=True)
    inbox.place(tx, list(places))
    tx.run(REORDERED, (session,))
    return [each.id for each in chosen]
