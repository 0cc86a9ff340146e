-- The view over messages that several features explain: a line with a [feature] is there with that feature only.
-- A message whose handler has a rate waits until the handler's next call; each call moves that moment on. One of a
-- paused type waits until the type is resumed.
CREATE VIEW onceward_inbox AS
  WITH rated AS NOT MATERIALIZED (
       SELECT h.seq, 'rate' AS why, filled_at + CAST(1000 * (1 - tokens) / per_second AS INTEGER) AS next_at
         FROM _onceward_rate_limits AS r JOIN _onceward_inbox AS h
           ON '.' || type || '.' GLOB replace('.' || substr(name, 9) || '.', '.#.', '.*')
           OR '.' || topic || '.' GLOB replace('.' || substr(name, 9) || '.', '.#.', '.*')
        WHERE r.name >= 'handler:' AND r.name < 'handler;'
        UNION ALL
       SELECT h.seq, 'resume', paused_at + 3155760000000
         FROM _onceward_handler_limits AS p JOIN _onceward_inbox AS h
           ON '.' || type || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')
           OR '.' || topic || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')
        WHERE p.paused_at IS NOT NULL)
SELECT seq, id, b.sender, agent AS recipient, b.session, name AS lane, type, topic,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN state = 'pending'
             AND seq IN (SELECT value FROM _onceward_lanes, json_each(leased_seqs) WHERE leased_seqs IS NOT NULL AND due_at < 9000000000000000)
            THEN 'processing' ELSE state END AS state,
       attempts, expires_at, correlation_id, causation_id, received_at, ended_at, reason, frame,
       CASE WHEN json_valid(frame)
            THEN CAST(coalesce(json_extract(frame, '$.data'), json_extract(frame, '$.data_base64')) AS TEXT) END AS body,
       channel, kind, mailbox, mailbox_key, replays,
       CASE
            WHEN state = 'processed' AND EXISTS (SELECT 1 FROM _onceward_awaited_messages AS k  -- [steps]
                                                  WHERE k.message_id = b.id AND k.sender = b.sender) THEN 'wait'  -- [steps]
            WHEN state <> 'pending' OR l.owner IS NOT NULL THEN NULL
            WHEN i.paused_at IS NOT NULL THEN 'resume'
            WHEN q.paused_at IS NOT NULL THEN 'resume'  -- [runs]
            WHEN l.due_at IS NULL THEN (SELECT max(iif(rated.seq = b.seq, why, 'lane')) FROM rated WHERE rated.seq IN (b.seq, l.head_seq))
            WHEN seq <> l.head_seq THEN 'lane'
            WHEN l.due_at = 9000000000000000 AND EXISTS (SELECT 1 FROM rated WHERE rated.seq = b.seq AND why = 'resume') THEN 'resume'  -- [handler_limits]
            WHEN l.due_at = 9000000000000000 THEN iif(t.due_at IS NULL, 'turn', 'rate')  -- [handler_limits]
            WHEN l.sender = '' AND attempts = 0 THEN 'quiet'  -- [handler_limits]
            ELSE coalesce(
                 (SELECT 'reply from ' || recipient FROM _onceward_pending_replies AS r
                   WHERE asker_seq = b.seq AND r.state = 'open' ORDER BY asker_index LIMIT 1),
                 (SELECT CASE WHEN s.state = 'retrying' THEN 'retry' WHEN awaits IS NULL THEN 'sleep' ELSE 'message ' || awaits END  -- [steps]
                    FROM _onceward_steps AS s  -- [steps]
                   WHERE s.message_id = b.id AND s.sender = b.sender AND s.state IN ('waiting', 'retrying') ORDER BY s.seq DESC LIMIT 1),  -- [steps]
                 CASE WHEN q.waiting_since_at IS NOT NULL AND q.retry_at IS NULL THEN 'run' END,  -- [runs]
                 'retry')
            END AS waits_for,
       CASE WHEN state <> 'pending' OR l.owner IS NOT NULL THEN NULL  -- a pause lasts a century at most
            WHEN q.paused_at >= coalesce(i.paused_at, 0) THEN q.paused_at + 3155760000000  -- [runs]
            WHEN i.paused_at IS NOT NULL THEN i.paused_at + 3155760000000
            WHEN l.due_at = 9000000000000000 THEN t.due_at  -- [handler_limits]
            ELSE coalesce(l.due_at, (SELECT max(next_at) FROM rated WHERE rated.seq IN (b.seq, l.head_seq))) END AS waits_until_at
  FROM _onceward_inbox AS b JOIN _onceward_file_info AS i
  LEFT JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
  LEFT JOIN _onceward_session_queues AS q ON l.sender IS NULL AND q.session = l.name  -- [runs]
  LEFT JOIN _onceward_turns AS t ON t.group_name = l.group_name AND t.rank = l.rank  -- [handler_limits]
;
