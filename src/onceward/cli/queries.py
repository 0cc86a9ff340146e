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
  FROM outbox_view
 WHERE {SENT}
 GROUP BY recipient, session, state
 UNION ALL
SELECT 'inbox', sender, session, state, count(*), min(received_at)
  FROM inbox_view
 WHERE {RECEIVED}
 GROUP BY sender, session, state
 UNION ALL
SELECT 'dead', CASE origin WHEN 'outbox' THEN recipient ELSE sender END AS peer, session,
       'dead' AS state, count(*), min(dead_at)
  FROM dead_letter_view
 WHERE (:state IS NULL OR :state = 'dead') AND {EITHER_PEER}
   AND (:session IS NULL OR session = :session)
 GROUP BY 2, session
 ORDER BY 1 DESC, 2, 3, 4
 LIMIT :limit
"""
LANES: Final = _listing(
    "lane_view AS l",
    "l.sender, l.lane, l.session, l.priority, l.state, l.head_id, l.attempts, l.due_at, l.claimed,"
    "\n       (SELECT b.reason FROM inbox_view AS b"
    "\n         WHERE b.sender = l.sender AND b.id = l.head_id) AS reason",
    _matches(state="l.state", peer="l.sender", session="l.session"),
    "l.sender, l.lane, l.priority",
)
OUTBOX: Final = _listing(
    "outbox_view",
    "id, recipient, session, type, topic, priority, state, attempts, key, created_at, due_at,"
    " expires_at, sent_at, ended_at, reason",
    SENT,
    "seq DESC",
)
INBOX: Final = _listing(
    "inbox_view",
    "id, sender, session, lane, type, topic, priority, state, attempts, received_at, expires_at,"
    " ended_at, reason",
    RECEIVED,
    "seq DESC",
)
# The message that recv would lease next.
NEXT: Final = f"""
SELECT b.frame, b.attempts + 1 AS attempt, b.received_at
  FROM inbox_view AS b
  JOIN lane_view AS l ON l.sender = b.sender AND l.lane = b.lane AND l.priority = b.priority
 WHERE b.state = 'pending' AND l.state <> 'empty' AND coalesce(l.due_at, 0) <= :now
   AND coalesce(b.expires_at, :now + 1) > :now
   AND {_matches(type="b.type", session="b.session")}
 ORDER BY CASE b.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'normal' THEN 2
                          WHEN 'low' THEN 3 ELSE 4 END, b.seq
 LIMIT 1
"""
IDS: Final = _ids("""(SELECT id FROM outbox_view UNION SELECT id FROM inbox_view
   UNION SELECT id FROM dead_letter_view UNION SELECT id FROM processed_view)""")
ROWS: Final = """
SELECT 'outbox' AS box, id, sender, recipient, session, lane, type, topic, priority, state,
       attempts, key, created_at, NULL AS received_at, due_at, expires_at, sent_at, ended_at,
       reason, NULL AS last_error, frame
  FROM outbox_view WHERE id = :id
 UNION ALL
SELECT 'inbox', id, sender, recipient, session, lane, type, topic, priority, state,
       attempts, NULL, NULL, received_at, NULL, expires_at, NULL, ended_at, reason, NULL, frame
  FROM inbox_view WHERE id = :id
 UNION ALL
SELECT 'dead', id, sender, recipient, session, lane, type, topic, priority, 'dead',
       attempts, NULL, created_at, NULL, NULL, NULL, NULL, dead_at, reason, last_error, frame
  FROM dead_letter_view WHERE id = :id
 UNION ALL
SELECT 'processed', id, sender, recipient, session, NULL, NULL, NULL, NULL, outcome,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, processed_at, NULL, NULL, NULL
  FROM processed_view WHERE id = :id
"""
TRANSITIONS: Final = """
SELECT at, box, peer, from_state, to_state, reason FROM trail_view WHERE id = :id ORDER BY seq
"""
STATS: Final = "SELECT * FROM stats_view"
PEERS: Final = """
SELECT name, url, breaker, failures, in_flight, number, stream_number, due_at, seen_at, last_error
  FROM peer_view ORDER BY name
"""
PEER: Final = "SELECT name, url, breaker, failures, due_at FROM peer_view WHERE name = :name"
DEAD: Final = _listing(
    "dead_letter_view",
    "id, origin, sender, recipient, session, type, priority, reason, last_error, attempts,"
    " created_at, dead_at, late, topic, replays",
    _matches(reason="reason", origin="origin", session="session", type="type")
    + f"\n   AND {EITHER_PEER} AND (:before IS NULL OR dead_at < :before)",
    "seq",
)
DEAD_IDS: Final = _ids("dead_letter_view")
DEAD_ONE: Final = """
SELECT id, origin, sender, recipient, session, lane, type, topic, priority, reason, last_error,
       attempts, created_at, dead_at, late, late_at, channel, kind, correlation_id, mailbox, queue,
       replays, frame
  FROM dead_letter_view WHERE id = :id
"""
RUNS: Final = _listing(
    "run_view",
    "id, session, mode, state, messages, consumed, cause, started_at, checkpoint_at, ended_at,"
    " lease_at, owner",
    _matches(**STATE_SESSION),
    "seq DESC",
)
RUN_IDS: Final = _ids("run_view")
RUN: Final = """
SELECT id, session, mode, state, messages, event_ids, consumed, takes_more, partial, result, cause,
       token, owner, lease_at, started_at, checkpoint_at, ended_at
  FROM run_view WHERE id = :id
"""
SESSIONS: Final = """
SELECT session, state, mode, debounce_for, cap, overflow, aborted, inject, waiting, bound, run,
       dropped, due_at, arrived_at, paused_at
  FROM session_queue_view ORDER BY session LIMIT :limit
"""
WAITING: Final = """
SELECT place, id, sender, type, priority, attempts, received_at, expires_at
  FROM waiting_view WHERE session = :session ORDER BY place LIMIT :limit
"""
WAITING_IDS: Final = _ids("waiting_view")
WRITTEN: Final = "PRAGMA data_version"
NEWEST: Final = """
SELECT max(coalesce((SELECT created_at FROM outbox_view ORDER BY seq DESC LIMIT 1), 0),
           coalesce((SELECT received_at FROM inbox_view ORDER BY seq DESC LIMIT 1), 0)) AS at
"""
IDLE: Final = """
SELECT recipient, count(*) AS messages, min(created_at) AS oldest_at
  FROM outbox_view WHERE state IN ('pending', 'sending') AND coalesce(due_at, 0) <= :now
 GROUP BY recipient ORDER BY recipient
"""
BREAKERS: Final = """
SELECT name, breaker, failures, last_error FROM peer_view
 WHERE breaker <> 'closed' OR failures >= :failures ORDER BY name
"""
# Lanes with an expired lease count; sessions with runs have session_queue_view.
UNHANDLED: Final = """
SELECT count(*) AS lanes, min(b.received_at) AS oldest_at,
       (SELECT count(*) FROM lane_view WHERE state = 'leased' AND due_at > :now) AS leased
  FROM lane_view AS l JOIN inbox_view AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE (l.state = 'ready' OR l.due_at <= :now)
   AND l.session NOT IN (SELECT session FROM session_queue_view)
"""
FAILING: Final = """
SELECT l.head_id, l.attempts, b.reason, count(*) OVER () AS lanes
  FROM lane_view AS l JOIN inbox_view AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE l.attempts > 1 AND b.reason IS NOT NULL
 ORDER BY l.attempts DESC, b.seq LIMIT 1
"""
