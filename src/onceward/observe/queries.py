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
