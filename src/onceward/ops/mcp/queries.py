"""The statements by which an MCP server looks at an agent's file."""

from __future__ import annotations

from typing import Final

NEWEST: Final = "SELECT seq FROM onceward_inbox ORDER BY seq DESC LIMIT 1"
ARRIVED: Final = """
SELECT seq, id, correlation_id FROM onceward_inbox WHERE seq > :after ORDER BY seq LIMIT 500
"""
WAITING: Final = """
SELECT seq, id, sender, session, type, topic, state, attempts, received_at, correlation_id,
       substr(body, 1, :most) AS body, length(body) AS length
  FROM onceward_inbox
 WHERE seq >= :from_seq AND state IN ('pending', 'processing') AND mailbox IS NULL
   AND (:session IS NULL OR session = :session)
 ORDER BY seq LIMIT :limit
"""
BODY: Final = """
SELECT sender, substr(body, :from_char, :most), length(body) FROM (
    SELECT seq, sender, body FROM onceward_inbox WHERE id = :id
     UNION ALL
    SELECT seq, sender, body FROM onceward_outbox WHERE id = :id
     UNION ALL
    SELECT seq, sender, body FROM onceward_dead_letters WHERE id = :id)
 ORDER BY seq LIMIT 1
"""
ROOT: Final = """
SELECT correlation_id FROM onceward_inbox WHERE id = :id AND correlation_id IS NOT NULL
 UNION ALL
SELECT correlation_id FROM onceward_outbox WHERE id = :id AND correlation_id IS NOT NULL
 UNION ALL
SELECT correlation_id FROM onceward_dead_letters WHERE id = :id AND correlation_id IS NOT NULL
 LIMIT 1
"""
