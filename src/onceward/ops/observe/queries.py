"""Hold the SQL of live views and metrics, on the public views only."""

from __future__ import annotations

from typing import Final

FILE: Final = "SELECT agent, durability, paused_at FROM onceward_file"
STATS: Final = "SELECT * FROM onceward_stats"
STATS_COLUMNS: Final = "SELECT name FROM pragma_table_info('onceward_stats')"
BACKLOG: Final = "SELECT box, peer, oldest_at FROM onceward_backlog LIMIT ?"
PEERS: Final = """
SELECT coalesce(sum(breaker <> 'closed'), 0), coalesce(sum(failures > 2 OR breaker <> 'closed'), 0)
  FROM onceward_peers
"""
# Lanes that are leased or rest; an index has them, however many others there are.
LANES: Final = """
SELECT coalesce(sum(state = 'leased'), 0), coalesce(sum(state = 'waiting'), 0),
       coalesce(sum(attempts > 1), 0), min(CASE state WHEN 'leased' THEN due_at END)
  FROM onceward_lanes WHERE due_at IS NOT NULL
"""
RUNS: Final = """
SELECT (SELECT count(*) FROM onceward_runs WHERE state = 'open'),
       (SELECT count(*) FROM onceward_runs WHERE left_at IS NOT NULL AND returned_at IS NULL),
       (SELECT coalesce(sum(waiting), 0) FROM onceward_session_queues WHERE state <> 'empty')
"""
PEERS_OF: Final = """
SELECT name, breaker, failures, in_flight, seen_at, last_error FROM onceward_peers
 ORDER BY breaker = 'closed', failures DESC, name LIMIT ?
"""
FAILING_OF: Final = """
SELECT l.session, l.head_id, l.attempts, l.due_at, b.reason
  FROM onceward_lanes AS l JOIN onceward_inbox AS b ON b.sender = l.sender AND b.id = l.head_id
 WHERE l.due_at IS NOT NULL AND l.attempts > 1
 ORDER BY l.attempts DESC, l.due_at LIMIT ?
"""
# The newest thousand: a file may keep a million.
DEAD_OF: Final = """
SELECT reason, count(*) AS messages, max(dead_at) AS newest_at
  FROM (SELECT reason, dead_at FROM onceward_dead_letters ORDER BY seq DESC LIMIT 1000)
 GROUP BY reason ORDER BY messages DESC, reason LIMIT ?
"""
SENT_OF: Final = """
SELECT id, recipient AS peer, type, state, attempts, created_at AS at
  FROM onceward_outbox ORDER BY seq DESC LIMIT ?
"""
RECEIVED_OF: Final = """
SELECT id, sender AS peer, type, state, attempts, received_at AS at
  FROM onceward_inbox ORDER BY seq DESC LIMIT ?
"""
