-- The public read contract: columns are only ever added. Enqueue from any language: INSERT INTO send.

CREATE VIEW outbox_view AS
SELECT o.seq, o.id, i.agent AS sender, o.recipient, o.session, o.lane, o.type, o.topic,
       CASE o.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN o.state = 'pending'
             AND o.seq IN (SELECT j.value FROM peers AS p, json_each(p.parcel) AS j WHERE p.parcel IS NOT NULL)
            THEN 'sending' ELSE o.state END AS state,
       o.attempts, o.key, o.due_at, o.expires_at, o.created_at, o.sent_at, o.ended_at, o.reason, o.frame
  FROM outbox AS o, identity AS i;

CREATE VIEW inbox_view AS
SELECT b.seq, b.id, b.sender, i.agent AS recipient, b.session, l.name AS lane, b.type, b.topic,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN b.state = 'pending'
             AND b.seq IN (SELECT j.value FROM lanes AS c, json_each(c.claimed) AS j WHERE c.claimed IS NOT NULL)
            THEN 'processing' ELSE b.state END AS state,
       b.attempts, b.expires_at, b.correlation_id, b.causation_id, b.received_at, b.ended_at, b.reason, b.frame
  FROM inbox AS b JOIN identity AS i LEFT JOIN lanes AS l ON l.lane_id = b.lane_id;

CREATE VIEW processed_view AS
SELECT p.seq, p.message_id AS id, p.sender, i.agent AS recipient, p.consumer, p.session, p.outcome, p.processed_at
  FROM processed_messages AS p, identity AS i;

CREATE VIEW dead_letter_view AS
SELECT d.seq, d.id, d.origin,
       CASE d.origin WHEN 'outbox' THEN i.agent ELSE d.peer END AS sender,
       CASE d.origin WHEN 'outbox' THEN d.peer ELSE i.agent END AS recipient,
       d.session, d.lane, d.type, d.topic,
       CASE d.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       d.reason, d.last_error, d.attempts, d.created_at, d.dead_at, d.late, d.late_at, d.frame
  FROM dead_letters AS d, identity AS i;

CREATE VIEW peer_view AS
SELECT p.name, p.url, p.epoch, p.generation, p.number, coalesce(json_array_length(p.parcel), 0) AS in_flight,
       p.breaker, p.failures, p.due_at, p.lease_at, p.last_error, p.seen_at,
       s.epoch AS stream_epoch, s.number AS stream_number, s.updated_at AS stream_at
  FROM peers AS p LEFT JOIN streams AS s ON s.sender = p.name;

CREATE VIEW lane_view AS
SELECT l.sender, l.name AS lane, l.session,
       CASE l.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN l.owner IS NOT NULL THEN 'leased' WHEN l.head IS NULL THEN 'empty' WHEN l.due_at IS NULL THEN 'ready' ELSE 'waiting' END AS state,
       b.id AS head_id, coalesce(b.attempts, 0) AS attempts, l.due_at, coalesce(json_array_length(l.claimed), 0) AS claimed
  FROM lanes AS l LEFT JOIN inbox AS b ON b.seq = l.head;

CREATE VIEW stats_view AS
SELECT max(0, t.enqueued - t.gone - t.sending) AS pending, t.sending, t.sent, t.acked, t.failed, t.cancelled,
       t.retries AS total_retries, t.enqueued, t.received, max(0, t.received - t.ended - t.processing) AS inbox_pending,
       t.processing AS inbox_processing, t.processed, t.dropped, t.expired, t.duplicates, t.refused, t.forks, t.dead AS dead_total,
       (SELECT count(*) FROM dead_letters) AS dead_letters,
       (SELECT count(*) FROM tickets WHERE state = 'open') AS tickets_open
  FROM (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0) AS enqueued,
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'inbox'), 0) AS received,
               (SELECT coalesce(sum(json_array_length(parcel)), 0) FROM peers WHERE parcel IS NOT NULL) AS sending,
               (SELECT coalesce(sum(json_array_length(claimed)), 0) FROM lanes WHERE claimed IS NOT NULL) AS processing,
               (SELECT value FROM counters WHERE name = 'left') AS gone,
               (SELECT value FROM counters WHERE name = 'sent') AS sent,
               (SELECT value FROM counters WHERE name = 'acked') AS acked,
               (SELECT value FROM counters WHERE name = 'failed') AS failed,
               (SELECT value FROM counters WHERE name = 'cancelled') AS cancelled,
               (SELECT value FROM counters WHERE name = 'retries') AS retries,
               (SELECT value FROM counters WHERE name = 'dead') AS dead,
               (SELECT value FROM counters WHERE name = 'ended') AS ended,
               (SELECT value FROM counters WHERE name = 'processed') AS processed,
               (SELECT value FROM counters WHERE name = 'dropped') AS dropped,
               (SELECT value FROM counters WHERE name = 'expired') AS expired,
               (SELECT value FROM counters WHERE name = 'duplicates') AS duplicates,
               (SELECT value FROM counters WHERE name = 'refused') AS refused,
               (SELECT value FROM counters WHERE name = 'forks') AS forks) AS t;

CREATE VIEW trail_view AS
SELECT t.seq, t.at, i.agent, t.box, t.id, t.peer, t.from_state, t.to_state, t.reason
  FROM trail AS t, identity AS i;

CREATE VIEW send AS
SELECT o.recipient, o.type, NULL AS body, o.session, o.topic, o.key, NULL AS priority, NULL AS ttl, NULL AS delay,
       NULL AS ordering_key, NULL AS correlation_id, o.id
  FROM outbox AS o WHERE 0;

-- ttl and delay are seconds, body is JSON text. Non-deterministic values are computed once, inside an aggregate.
CREATE TRIGGER send_insert INSTEAD OF INSERT ON send
BEGIN
    SELECT CASE
        WHEN NEW.recipient IS NULL OR NOT (NEW.recipient GLOB '[A-Za-z0-9]*') OR NEW.recipient GLOB '*[^A-Za-z0-9._-]*'
          OR length(NEW.recipient) > 128 OR instr(NEW.recipient, char(0)) OR lower(NEW.recipient) IN ('all', 'broadcast')
            THEN RAISE(ABORT, 'onceward:recipient is no agent name')
        WHEN NEW.type IS NULL OR length(NEW.type) NOT BETWEEN 1 AND 256 OR NEW.type GLOB '*[' || char(1) || '-' || char(31) || ']*'
            THEN RAISE(ABORT, 'onceward:type must be 1 to 256 printable characters')
        WHEN length(NEW.session) NOT BETWEEN 1 AND 256 THEN RAISE(ABORT, 'onceward:session must be 1 to 256 characters')
        WHEN length(NEW.topic) NOT BETWEEN 1 AND 256 OR NEW.topic GLOB '*[*#]*' OR NEW.topic GLOB '.*' OR NEW.topic GLOB '*.' OR NEW.topic GLOB '*..*'
            THEN RAISE(ABORT, 'onceward:topic must be dotted, without empty segments or wildcards')
        WHEN length(NEW.key) NOT BETWEEN 1 AND 256 THEN RAISE(ABORT, 'onceward:key must be 1 to 256 characters')
        WHEN length(NEW.ordering_key) NOT BETWEEN 1 AND 256 THEN RAISE(ABORT, 'onceward:ordering_key must be 1 to 256 characters')
        WHEN length(NEW.correlation_id) NOT BETWEEN 1 AND 256 THEN RAISE(ABORT, 'onceward:correlation_id must be 1 to 256 characters')
        WHEN NEW.body IS NOT NULL AND NOT json_valid(NEW.body) THEN RAISE(ABORT, 'onceward:body is not JSON')
        WHEN length(CAST(NEW.body AS BLOB)) > 1048576 THEN RAISE(ABORT, 'onceward:body is too large')
        WHEN NEW.priority IS NOT NULL AND NEW.priority NOT IN ('critical', 'urgent', 'high', 'normal', 'low', 'background')
            THEN RAISE(ABORT, 'onceward:priority is unknown')
        WHEN NEW.id IS NOT NULL AND (length(NEW.id) NOT BETWEEN 1 AND 128 OR NEW.id GLOB '*[^A-Za-z0-9._:-]*')
            THEN RAISE(ABORT, 'onceward:id is malformed')
        WHEN NEW.ttl IS NOT NULL AND (typeof(NEW.ttl) NOT IN ('integer', 'real') OR NEW.ttl NOT BETWEEN 0 AND 1e10)
          OR NEW.delay IS NOT NULL AND (typeof(NEW.delay) NOT IN ('integer', 'real') OR NEW.delay NOT BETWEEN 0 AND 1e10)
            THEN RAISE(ABORT, 'onceward:ttl and delay are seconds, not negative')
        WHEN EXISTS (SELECT 1 FROM outbox WHERE id = NEW.id OR (recipient = NEW.recipient AND key = NEW.key))
            THEN RAISE(ABORT, 'onceward:id or key is known')  -- a conflict clause of the outer INSERT must not reach the inner one
        END;
    INSERT INTO peers (name, epoch)
    SELECT NEW.recipient, lower(hex(randomblob(16)))
     WHERE NOT EXISTS (SELECT 1 FROM peers WHERE name = NEW.recipient);
    INSERT INTO outbox (id, recipient, session, lane, type, topic, rank, key, parcel, due_at, expires_at, created_at, frame)
    SELECT v.id, NEW.recipient, coalesce(NEW.session, 'default'), coalesce(NEW.ordering_key, NEW.session, 'default'), NEW.type, NEW.topic, v.rank, NEW.key, CASE WHEN NEW.id IS NOT NULL THEN 0 END,
           CASE WHEN NEW.delay > 0 THEN v.at + CAST(NEW.delay * 1000 AS INTEGER) END,
           CASE WHEN NEW.ttl IS NOT NULL THEN v.at + CAST(NEW.ttl * 1000 AS INTEGER) END,
           v.at,
           json_set(
               json_patch('{}', json_object(
                   'specversion', '1.0', 'id', v.id, 'source', 'urn:onceward:' || i.agent, 'type', CAST(NEW.type AS TEXT),
                   'time', strftime('%Y-%m-%dT%H:%M:%fZ', v.at / 1000.0, 'unixepoch'), 'recipient', CAST(NEW.recipient AS TEXT),
                   'session', CAST(coalesce(NEW.session, 'default') AS TEXT), 'priority', v.rank, 'topic', CAST(NEW.topic AS TEXT),
                   'partitionkey', CAST(NEW.ordering_key AS TEXT), 'correlationid', CAST(NEW.correlation_id AS TEXT), 'idempotencykey', CAST(NEW.key AS TEXT),
                   'expirytime', CASE WHEN NEW.ttl IS NOT NULL
                       THEN strftime('%Y-%m-%dT%H:%M:%fZ', (v.at + CAST(NEW.ttl * 1000 AS INTEGER)) / 1000.0, 'unixepoch') END,
                   'datacontenttype', 'application/json')),
               '$.data', json(coalesce(NEW.body, 'null')))
      FROM identity AS i,
           (SELECT max(CAST(coalesce(NEW.id, m.id) AS TEXT)) AS id, max(m.at) AS at,
                   max(CASE NEW.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'high' THEN 1 WHEN 'low' THEN 3 WHEN 'background' THEN 4 ELSE 2 END) AS rank
              FROM (SELECT max(substr(n.ms, 1, 8) || '-' || substr(n.ms, 9, 4) || '-7' || substr(n.dice, 1, 3) || '-'
                               || substr('89ab', 1 + (n.die & 3), 1) || substr(n.dice, 4, 3) || '-' || substr(n.dice, 7, 12)) AS id,
                           max(n.at) AS at
                      FROM (SELECT max(printf('%012x', s.at)) AS ms, max(s.at) AS at, max(lower(hex(randomblob(9)))) AS dice, max(random()) AS die
                              FROM (SELECT max(CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)) AS at) AS s) AS n) AS m) AS v;
END;
