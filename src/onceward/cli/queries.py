"""Hold all SQL of the command line, on the public views only."""

from __future__ import annotations

from typing import Final

QUEUES: Final = """
SELECT 'outbox' AS box, recipient AS peer, session, state, count(*) AS messages, min(created_at) AS oldest_at
  FROM outbox_view
 WHERE (:state IS NULL OR state = :state) AND (:peer IS NULL OR recipient = :peer) AND (:session IS NULL OR session = :session)
 GROUP BY recipient, session, state
 UNION ALL
SELECT 'inbox', sender, session, state, count(*), min(received_at)
  FROM inbox_view
 WHERE (:state IS NULL OR state = :state) AND (:peer IS NULL OR sender = :peer) AND (:session IS NULL OR session = :session)
 GROUP BY sender, session, state
 UNION ALL
SELECT 'dead', CASE origin WHEN 'outbox' THEN recipient ELSE sender END AS peer, session, 'dead' AS state, count(*), min(dead_at)
  FROM dead_letter_view
 WHERE (:state IS NULL OR :state = 'dead') AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:session IS NULL OR session = :session)
 GROUP BY 2, session
 ORDER BY 1 DESC, 2, 3, 4
 LIMIT :limit
"""
LANES: Final = """
SELECT l.sender, l.lane, l.session, l.priority, l.state, l.head_id, l.attempts, l.due_at, l.claimed,
       (SELECT b.reason FROM inbox_view AS b WHERE b.sender = l.sender AND b.id = l.head_id) AS reason
  FROM lane_view AS l
 WHERE (:state IS NULL OR l.state = :state) AND (:peer IS NULL OR l.sender = :peer) AND (:session IS NULL OR l.session = :session)
 ORDER BY l.sender, l.lane, l.priority
 LIMIT :limit
"""
OUTBOX: Final = """
SELECT id, recipient, session, type, topic, priority, state, attempts, key, created_at, due_at, expires_at, sent_at, ended_at, reason
  FROM outbox_view
 WHERE (:state IS NULL OR state = :state) AND (:peer IS NULL OR recipient = :peer) AND (:session IS NULL OR session = :session)
 ORDER BY seq DESC
 LIMIT :limit
"""
INBOX: Final = """
SELECT id, sender, session, lane, type, topic, priority, state, attempts, received_at, expires_at, ended_at, reason
  FROM inbox_view
 WHERE (:state IS NULL OR state = :state) AND (:peer IS NULL OR sender = :peer) AND (:session IS NULL OR session = :session)
 ORDER BY seq DESC
 LIMIT :limit
"""
# The message that recv would lease next.
NEXT: Final = """
SELECT b.frame, b.attempts + 1 AS attempt, b.received_at
  FROM inbox_view AS b
  JOIN lane_view AS l ON l.sender = b.sender AND l.lane = b.lane AND l.priority = b.priority
 WHERE b.state = 'pending' AND l.state <> 'empty' AND coalesce(l.due_at, 0) <= :now AND coalesce(b.expires_at, :now + 1) > :now
   AND (:type IS NULL OR b.type = :type) AND (:session IS NULL OR b.session = :session)
 ORDER BY CASE b.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'normal' THEN 2 WHEN 'low' THEN 3 ELSE 4 END, b.seq
 LIMIT 1
"""
IDS: Final = """
SELECT id FROM (SELECT id FROM outbox_view UNION SELECT id FROM inbox_view UNION SELECT id FROM dead_letter_view
                UNION SELECT id FROM processed_view)
 WHERE id >= :low AND id < :high
 ORDER BY id
 LIMIT 3
"""
ROWS: Final = """
SELECT 'outbox' AS box, id, sender, recipient, session, lane, type, topic, priority, state, attempts, key, created_at, NULL AS received_at,
       due_at, expires_at, sent_at, ended_at, reason, NULL AS last_error, frame
  FROM outbox_view WHERE id = :id
 UNION ALL
SELECT 'inbox', id, sender, recipient, session, lane, type, topic, priority, state, attempts, NULL, NULL, received_at,
       NULL, expires_at, NULL, ended_at, reason, NULL, frame
  FROM inbox_view WHERE id = :id
 UNION ALL
SELECT 'dead', id, sender, recipient, session, lane, type, topic, priority, 'dead', attempts, NULL, created_at, NULL,
       NULL, NULL, NULL, dead_at, reason, last_error, frame
  FROM dead_letter_view WHERE id = :id
 UNION ALL
SELECT 'processed', id, sender, recipient, session, NULL, NULL, NULL, NULL, outcome, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, processed_at, NULL, NULL, NULL
  FROM processed_view WHERE id = :id
"""
TRANSITIONS: Final = (
    "SELECT at, box, peer, from_state, to_state, reason FROM trail_view WHERE id = :id ORDER BY seq"
)
STATS: Final = "SELECT * FROM stats_view"
PEERS: Final = """
SELECT name, url, breaker, failures, in_flight, number, stream_number, due_at, seen_at, last_error FROM peer_view ORDER BY name
"""
PEER: Final = "SELECT name, url, breaker, failures, due_at FROM peer_view WHERE name = :name"
DEAD: Final = """
SELECT id, origin, sender, recipient, session, type, priority, reason, last_error, attempts, created_at, dead_at, late, topic, replays
  FROM dead_letter_view
 WHERE (:reason IS NULL OR reason = :reason) AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:origin IS NULL OR origin = :origin)
   AND (:session IS NULL OR session = :session) AND (:before IS NULL OR dead_at < :before) AND (:type IS NULL OR type = :type)
 ORDER BY seq
 LIMIT :limit
"""
DEAD_IDS: Final = (
    "SELECT id FROM dead_letter_view WHERE id >= :low AND id < :high ORDER BY id LIMIT 3"
)
DEAD_ONE: Final = """
SELECT id, origin, sender, recipient, session, lane, type, topic, priority, reason, last_error, attempts, created_at, dead_at,
       late, late_at, channel, kind, correlation_id, mailbox, queue, replays, frame
  FROM dead_letter_view WHERE id = :id
"""
RUNS: Final = """
SELECT id, session, mode, state, messages, consumed, cause, started_at, checkpoint_at, ended_at, lease_at, owner
  FROM run_view
 WHERE (:state IS NULL OR state = :state) AND (:session IS NULL OR session = :session)
 ORDER BY seq DESC LIMIT :limit
"""
RUN_IDS: Final = "SELECT id FROM run_view WHERE id >= :low AND id < :high ORDER BY id LIMIT 3"
RUN: Final = """
SELECT id, session, mode, state, messages, event_ids, consumed, takes_more, partial, result, cause, token, owner, lease_at, started_at,
       checkpoint_at, ended_at
  FROM run_view WHERE id = :id
"""
SESSIONS: Final = """
SELECT session, state, mode, debounce_for, cap, overflow, aborted, inject, waiting, bound, run, dropped, due_at, arrived_at, paused_at
  FROM session_queue_view ORDER BY session LIMIT :limit
"""
WAITING: Final = """
SELECT place, id, sender, type, priority, attempts, received_at, expires_at
  FROM waiting_view WHERE session = :session ORDER BY place LIMIT :limit
"""
WAITING_IDS: Final = (
    "SELECT id FROM waiting_view WHERE id >= :low AND id < :high ORDER BY id LIMIT 3"
)
WRITTEN: Final = "PRAGMA data_version"
NEWEST: Final = """
SELECT max((SELECT coalesce(max(created_at), 0) FROM (SELECT created_at FROM outbox_view ORDER BY seq DESC LIMIT 1)),
           (SELECT coalesce(max(received_at), 0) FROM (SELECT received_at FROM inbox_view ORDER BY seq DESC LIMIT 1))) AS at
"""
IDLE: Final = """
SELECT recipient, count(*) AS messages, min(created_at) AS oldest_at
  FROM outbox_view WHERE state IN ('pending', 'sending') AND coalesce(due_at, 0) <= :now
 GROUP BY recipient ORDER BY recipient
"""
BREAKERS: Final = """
SELECT name, breaker, failures, last_error FROM peer_view WHERE breaker <> 'closed' OR failures >= :failures ORDER BY name
"""
# Lanes with an expired lease count; sessions with runs have session_queue_view.
UNHANDLED: Final = """
SELECT count(*) AS lanes, min(b.received_at) AS oldest_at,
       (SELECT count(*) FROM lane_view WHERE state = 'leased' AND due_at > :now) AS leased
  FROM lane_view AS l JOIN inbox_view AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE (l.state = 'ready' OR l.due_at <= :now) AND l.session NOT IN (SELECT session FROM session_queue_view)
"""
FAILING: Final = """
SELECT l.head_id, l.attempts, b.reason, count(*) OVER () AS lanes
  FROM lane_view AS l JOIN inbox_view AS b ON b.id = l.head_id AND b.sender = l.sender
 WHERE l.attempts > 1 AND b.reason IS NOT NULL
 ORDER BY l.attempts DESC, b.seq LIMIT 1
"""
