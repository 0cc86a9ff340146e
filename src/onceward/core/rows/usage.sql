-- Triggers of the limits: created with the first limit and dropped with the last, so that files without limits pay nothing.
-- A row counts while it is pending or sent; a held row does not count yet.
-- Python makes room according to a policy; other writers are refused, because a trigger never drops a message.

CREATE INDEX _onceward_limits_session ON _onceward_outbox (session, seq)         WHERE state = 'pending';
CREATE INDEX _onceward_limits_lane    ON _onceward_outbox (recipient, lane, seq) WHERE state = 'pending';
CREATE INDEX _onceward_limits_channel ON _onceward_outbox (channel, seq)         WHERE state = 'pending' AND channel IS NOT NULL;
CREATE INDEX _onceward_limits_waiting ON _onceward_outbox (seq)                  WHERE state = 'pending';
CREATE INDEX _onceward_limits_held    ON _onceward_outbox (held_by, seq)         WHERE held_by IS NOT NULL;

CREATE VIEW _onceward_limits_of AS
SELECT o.seq, s.scope, CASE s.scope WHEN 'session' THEN o.session WHEN 'lane' THEN o.recipient || '/' || o.lane
                                    WHEN 'channel' THEN o.channel ELSE '' END AS name,
       length(CAST(o.frame AS BLOB)) AS bytes
  FROM _onceward_outbox AS o, (SELECT 'outbox' AS scope UNION ALL SELECT 'session' UNION ALL SELECT 'lane' UNION ALL SELECT 'channel'
                     UNION ALL SELECT 'store') AS s
 WHERE s.scope <> 'channel' OR o.channel IS NOT NULL;

CREATE TRIGGER _onceward_limits_insert AFTER INSERT ON _onceward_outbox
WHEN NEW.state IN ('pending', 'sent') AND NEW.held_by IS NULL
BEGIN
    INSERT INTO _onceward_limit_usage (scope, name, messages, bytes)
    SELECT f.scope, f.name, 1, f.bytes FROM _onceward_limits_of AS f
     WHERE f.seq = NEW.seq AND EXISTS (SELECT 1 FROM _onceward_limits AS l WHERE l.scope = f.scope AND l.name IN (f.name, '*'))
    ON CONFLICT (scope, name) DO UPDATE SET messages = messages + 1, bytes = bytes + excluded.bytes;
    SELECT CASE l.scope WHEN 'store' THEN RAISE(ABORT, 'onceward:store_full')
                        WHEN 'outbox' THEN RAISE(ABORT, 'onceward:outbox_full')
                        WHEN 'session' THEN RAISE(ABORT, 'onceward:session_full')
                        WHEN 'lane' THEN RAISE(ABORT, 'onceward:lane_full')
                        ELSE RAISE(ABORT, 'onceward:channel_full') END
      FROM _onceward_limits_of AS o
      JOIN _onceward_limit_usage AS f ON f.scope = o.scope AND f.name = o.name
      JOIN _onceward_limits AS l ON l.scope = f.scope
       AND l.name = CASE WHEN EXISTS (SELECT 1 FROM _onceward_limits AS x WHERE x.scope = f.scope AND x.name = f.name) THEN f.name ELSE '*' END
     WHERE o.seq = NEW.seq
       AND (f.messages + CASE l.scope WHEN 'store' THEN 
            (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0) - (SELECT value FROM _onceward_counters WHERE name = 'ended')) ELSE 0 END > l.max_messages
            OR f.bytes > l.max_bytes)
       AND NOT (l.scope <> 'store' AND (NEW.rank = 0 OR NEW.type IN ('worker_result', 'onceward.summary')
                OR json_extract(CASE WHEN NEW.body_id IS NULL THEN NEW.frame ELSE NEW.frame || 'null}' END, '$.inreplyto') IS NOT NULL
                OR coalesce(json_extract(CASE WHEN NEW.body_id IS NULL THEN NEW.frame ELSE NEW.frame || 'null}' END, '$.protected'), 0)));
END;

-- The oldest message held by a limit that has room again.
CREATE VIEW _onceward_limits_next AS
SELECT o.seq FROM _onceward_outbox AS o
 WHERE o.held_by IS NOT NULL
   AND EXISTS (SELECT 1 FROM _onceward_limit_usage AS f
                 JOIN _onceward_limits AS l ON l.scope = f.scope
                  AND l.name = CASE WHEN EXISTS (SELECT 1 FROM _onceward_limits AS x WHERE x.scope = f.scope AND x.name = f.name) THEN f.name ELSE '*' END
                WHERE o.held_by = 'limit:' || f.scope || ':' || f.name
                  AND f.messages < coalesce(l.max_messages, f.messages + 1)
                  AND f.bytes + length(CAST(o.frame AS BLOB)) <= coalesce(l.max_bytes, f.bytes + length(CAST(o.frame AS BLOB))))
 ORDER BY o.seq LIMIT 1;

-- A free place goes to the oldest message that waits for it. A trigger does not fire itself, so that message is counted here.
CREATE TRIGGER _onceward_limits_update AFTER UPDATE OF state, held_by ON _onceward_outbox
WHEN (OLD.state IN ('pending', 'sent') AND OLD.held_by IS NULL)
  <> (NEW.state IN ('pending', 'sent') AND NEW.held_by IS NULL)
BEGIN
    UPDATE _onceward_limit_usage
       SET messages = messages + CASE WHEN NEW.state IN ('pending', 'sent') AND NEW.held_by IS NULL THEN 1 ELSE -1 END,
           bytes = bytes + length(CAST(NEW.frame AS BLOB))
                 * CASE WHEN NEW.state IN ('pending', 'sent') AND NEW.held_by IS NULL THEN 1 ELSE -1 END
     WHERE (scope, name) IN (SELECT f.scope, f.name FROM _onceward_limits_of AS f WHERE f.seq = NEW.seq);
    UPDATE _onceward_outbox SET held_by = 'released' WHERE NOT (NEW.state IN ('pending', 'sent')) AND seq = (SELECT seq FROM _onceward_limits_next);
    UPDATE _onceward_limit_usage
       SET messages = messages + 1,
           bytes = bytes + (SELECT length(CAST(o.frame AS BLOB)) FROM _onceward_outbox AS o WHERE o.held_by = 'released')
     WHERE (scope, name) IN (SELECT f.scope, f.name FROM _onceward_limits_of AS f JOIN _onceward_outbox AS o ON o.seq = f.seq
                              WHERE o.held_by = 'released');
    UPDATE _onceward_outbox SET held_by = NULL WHERE held_by = 'released';
END;

CREATE TRIGGER _onceward_limits_delete BEFORE DELETE ON _onceward_outbox
WHEN OLD.state IN ('pending', 'sent') AND OLD.held_by IS NULL
BEGIN
    UPDATE _onceward_limit_usage SET messages = messages - 1, bytes = bytes - length(CAST(OLD.frame AS BLOB))
     WHERE (scope, name) IN (SELECT f.scope, f.name FROM _onceward_limits_of AS f WHERE f.seq = OLD.seq);
    UPDATE _onceward_outbox SET held_by = NULL WHERE seq = (SELECT seq FROM _onceward_limits_next);
END;
