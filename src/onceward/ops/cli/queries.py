"""Hold all SQL of the command line, on the public views only."""

from __future__ import annotations

from typing import Final


def _matches(**columns: str) -> str:
    """Return a condition: each parameter is NULL, or equal to its column."""
    tests = (f"(:{name} IS NULL OR {column} = :{name})" for name, column in columns.items())
    return "\n   AND ".join(tests)


def _listing(view: str, columns: str, where: str, order: str) -> str:
    return f"SELECT {columns}\n  FROM {view}\n WHERE {where}\n ORDER BY {order}\n LIMIT :limit"


def _ids(view: str) -> str:
    return f"SELECT id FROM {view} WHERE id >= :low AND id < :high ORDER BY id LIMIT 3"


STATE_SESSION: Final = {"state": "state", "session": "session"}
EITHER_PEER: Final = "(:peer IS NULL OR sender = :peer OR recipient = :peer)"
SENT: Final = _matches(peer="recipient", **STATE_SESSION)
RECEIVED: Final = _matches(peer="sender", **STATE_SESSION)

QUEUES: Final = f"""
SELECT 'outbox' AS box, recipient AS peer, session, state,
       count(*) AS messages, min(created_at) AS oldest_at
  FROM onceward_outbox
 WHERE {SENT}
 GROUP BY recipient, session, state
 UNION ALL
SELECT 'inbox', sender, session, state, count(*), min(received_at)
  FROM onceward_inbox
 WHERE {RECEIVED}
 GROUP BY sender, session, state
 UNION ALL
SELECT 'dead', CASE origin WHEN 'outbox' THEN recipient ELSE sender END AS peer, session,
       'dead' AS state, count(*), min(dead_at)
  FROM onceward_dead_letters
 WHERE (:state IS NULL OR :state = 'dead') AND {EITHER_PEER}
   AND (:session IS NULL OR session = :session)
 GROUP BY 2, session
 ORDER BY 1 DESC, 2, 3, 4
 LIMIT :limit
"""
LANES: Final = _listing(
    "onceward_lanes AS l",
    "l.sender, l.lane, l.session, l.priority, l.state, l.head_id, l.attempts, l.due_at, l.leased,"
    "\n       (SELECT b.reason FROM onceward_inbox AS b"
    "\n         WHERE b.sender = l.sender AND b.id = l.head_id) AS reason",
    _matches(state="l.state", peer="l.sender", session="l.session"),
    "l.sender, l.lane, l.priority",
)
OUTBOX: Final = _listing(
    "onceward_outbox",
    "id, recipient, session, type, topic, priority, state, attempts, key, created_at, due_at,"
    " expires_at, sent_at, ended_at, reason, held_by",
    SENT,
    "seq DESC",
)
INBOX: Final = _listing(
    "onceward_inbox",
    "id, sender, session, lane, type, topic, priority, state, attempts, received_at, expires_at,"
    " ended_at, reason",
    RECEIVED,
    "seq DESC",
)
# The message that recv would lease next.
NEXT: Final = f"""
SELECT b.frame, b.attempts + 1 AS attempt, b.received_at
  FROM onceward_inbox AS b
  JOIN onceward_lanes AS l ON l.sender = b.sender AND l.lane = b.lane AND l.priority = b.priority
 WHERE b.state = 'pending' AND l.state <> 'empty' AND coalesce(l.due_at, 0) <= :now
   AND coalesce(b.expires_at, :now + 1) > :now
   AND {_matches(type="b.type", session="b.session")}
 ORDER BY CASE b.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'normal' THEN 2
                          WHEN 'low' THEN 3 ELSE 4 END, b.seq
 LIMIT 1
"""
IDS: Final = _ids("""(SELECT id FROM onceward_outbox UNION SELECT id FROM onceward_inbox
   UNION SELECT id FROM onceward_dead_letters UNION SELECT id FROM onceward_processed_messages)""")
ROWS: Final = """
SELECT 'outbox' AS box, id, sender, recipient, session, lane, type, topic, priority, state,
       attempts, key, created_at, NULL AS received_at, due_at, held_by, expires_at, sent_at,
       ended_at, reason, NULL AS last_error, frame
  FROM onceward_outbox WHERE id = :id
 UNION ALL
SELECT 'inbox', id, sender, recipient, session, lane, type, topic, priority, state,
       attempts, NULL, NULL, received_at, NULL, NULL, expires_at, NULL,
       ended_at, reason, NULL, frame
  FROM onceward_inbox WHERE id = :id
 UNION ALL
SELECT 'dead', id, sender, recipient, session, lane, type, topic, priority, 'dead',
       attempts, NULL, created_at, NULL, NULL, NULL, NULL, NULL, dead_at, reason, last_error, frame
  FROM onceward_dead_letters WHERE id = :id
 UNION ALL
SELECT 'processed', id, sender, recipient, session, NULL, NULL, NULL, NULL, outcome,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, processed_at, NULL, NULL, NULL
  FROM onceward_processed_messages WHERE id = :id
"""
TRANSITIONS: Final = """
SELECT at, box, peer, from_state, to_state, reason
  FROM onceward_transitions
 WHERE id = :id
 ORDER BY seq
"""
RECORDS_TRANSITIONS: Final = """
SELECT name FROM sqlite_schema
 WHERE type = 'trigger' AND name = '_onceward_transitions_inbox_insert'
"""
LAST_TRANSITION: Final = "SELECT coalesce(max(seq), 0) AS seq FROM onceward_transitions"
NEXT_TRANSITIONS: Final = """
SELECT seq, at, agent, box, id, peer, from_state, to_state, reason
  FROM onceward_transitions
 WHERE seq > :after
 ORDER BY seq LIMIT :limit
"""
STATS: Final = "SELECT * FROM onceward_stats"
PEERS: Final = """
SELECT name, url, breaker, failures, in_flight, number, stream_number, due_at, seen_at, last_error
  FROM onceward_peers ORDER BY name
"""
PEER: Final = "SELECT name, url, breaker, failures, due_at FROM onceward_peers WHERE name = :name"
DEAD: Final = _listing(
    "onceward_dead_letters",
    "id, origin, sender, recipient, session, type, priority, reason, last_error, attempts,"
    " created_at, dead_at, late_outcome, topic, replays",
    _matches(reason="reason", origin="origin", session="session", type="type")
    + f"\n   AND {EITHER_PEER} AND (:before IS NULL OR dead_at < :before)",
    "seq",
)
DEAD_IDS: Final = _ids("onceward_dead_letters")
DEAD_ONE: Final = """
SELECT id, origin, sender, recipient, session, lane, type, topic, priority, reason, last_error,
       attempts, created_at, dead_at, late_outcome, late_at, channel, kind, correlation_id, mailbox,
       queue, replays, frame
  FROM onceward_dead_letters WHERE id = :id
"""
RUNS: Final = _listing(
    "onceward_runs",
    "id, session, mode, state, messages, consumed, cause, started_at, checkpoint_at, ended_at,"
    " left_at, returned_at, lease_at, owner",
    _matches(**STATE_SESSION),
    "seq DESC",
)
RUN_IDS: Final = _ids("onceward_runs")
RUN: Final = """
SELECT id, session, mode, state, messages, event_ids, consumed, partial, result, cause,
       token, owner, lease_at, started_at, checkpoint_at, ended_at, left_at, returned_at
  FROM onceward_runs WHERE id = :id
"""
SESSIONS: Final = """
SELECT session, state, mode, debounce_for, cap, overflow, aborted, inject, waiting, bound, run,
       dropped, due_at, arrived_at, paused_at
  FROM onceward_session_queues ORDER BY session LIMIT :limit
"""
WAITING: Final = """
SELECT position, id, sender, type, priority, attempts, received_at, expires_at
  FROM onceward_session_queue_messages WHERE session = :session ORDER BY position LIMIT :limit
"""
WAITING_IDS: Final = _ids("onceward_session_queue_messages")
SINCE: Final = """
SELECT peer, sum(sent) AS sent, sum(received) AS received
  FROM (SELECT recipient AS peer, 1 AS sent, 0 AS received
          FROM onceward_outbox WHERE seq > :sent
         UNION ALL
        SELECT sender, 0, 1 FROM onceward_inbox WHERE seq > :received)
 GROUP BY peer ORDER BY peer
"""
WRITTEN: Final = "PRAGMA data_version"
SCHEDULES_AMISS: Final = """
SELECT name, origin, last_error
  FROM onceward_schedules
 WHERE paused_at IS NULL AND last_error IS NOT NULL OR origin = 'withdrawn'
 ORDER BY name
"""
IDLE: Final = """
SELECT recipient, count(*) AS messages, min(created_at) AS oldest_at
  FROM onceward_outbox WHERE state IN ('pending', 'sending') AND coalesce(due_at, 0) <= :now
   AND held_by IS NULL
 GROUP BY recipient ORDER BY recipient
"""
BREAKERS: Final = """
SELECT name, breaker, failures, last_error FROM onceward_peers
 WHERE breaker <> 'closed' OR failures >= :failures ORDER BY name
"""
IN_INBOX: Final = "SELECT inbox_pending + inbox_processing AS messages FROM onceward_stats"
# Lanes with an expired lease count; sessions with runs have onceward_session_queues.
UNHANDLED: Final = """
SELECT count(*) AS lanes, min(b.received_at) AS oldest_at,
       (SELECT count(*) FROM onceward_lanes WHERE state = 'leased' AND due_at > :now) AS leased
  FROM onceward_lanes AS l JOIN onceward_inbox AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE (l.state = 'ready' OR l.due_at <= :now)
   AND l.session NOT IN (SELECT session FROM onceward_session_queues)
"""
FAILING: Final = """
SELECT l.head_id, l.attempts, b.reason, count(*) OVER () AS lanes
  FROM onceward_lanes AS l JOIN onceward_inbox AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE l.attempts > 1 AND b.reason IS NOT NULL
 ORDER BY l.attempts DESC, b.seq LIMIT 1
"""
AWAITING: Final = """
SELECT head_id, awaits, request_id, asked_at, count(*) OVER () AS lanes
  FROM onceward_lanes
 WHERE awaits IS NOT NULL
 ORDER BY asked_at LIMIT 1
"""
DROPPED: Final = """
SELECT scope, name, policy, count(*) AS messages
  FROM onceward_drops
 GROUP BY scope, name, policy
 ORDER BY messages DESC LIMIT 5
"""
