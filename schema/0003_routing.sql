-- What routing needs to know of a message: its channel, its kind, its mailbox, its conversation; bodies that many messages share.

-- The text of a body that is stored once. The frame of a message that refers to it ends before its data.
CREATE TABLE bodies (
    body_id INTEGER PRIMARY KEY AUTOINCREMENT,
    text    TEXT    NOT NULL,
    digest  BLOB    NOT NULL
) STRICT;

ALTER TABLE outbox ADD COLUMN channel TEXT;
ALTER TABLE outbox ADD COLUMN kind TEXT;
ALTER TABLE outbox ADD COLUMN correlation_id TEXT;
ALTER TABLE outbox ADD COLUMN body_id INTEGER;
ALTER TABLE inbox ADD COLUMN channel TEXT;
ALTER TABLE inbox ADD COLUMN kind TEXT;
ALTER TABLE inbox ADD COLUMN mailbox TEXT;
ALTER TABLE dead_letters ADD COLUMN channel TEXT;
ALTER TABLE dead_letters ADD COLUMN kind TEXT;
ALTER TABLE dead_letters ADD COLUMN correlation_id TEXT;
ALTER TABLE dead_letters ADD COLUMN mailbox TEXT;
ALTER TABLE dead_letters ADD COLUMN queue TEXT;
ALTER TABLE dead_letters ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;

CREATE INDEX outbox_body        ON outbox (body_id)          WHERE body_id IS NOT NULL;
CREATE INDEX outbox_correlation ON outbox (correlation_id)   WHERE correlation_id IS NOT NULL;
CREATE INDEX outbox_channel     ON outbox (channel, seq)     WHERE channel IS NOT NULL;
CREATE INDEX inbox_channel      ON inbox (channel, seq)      WHERE channel IS NOT NULL;
CREATE INDEX inbox_mailbox      ON inbox (mailbox, rank, seq) WHERE mailbox IS NOT NULL;

DROP VIEW outbox_view;
CREATE VIEW outbox_view AS
SELECT o.seq, o.id, i.agent AS sender, o.recipient, o.session, o.lane, o.type, o.topic,
       CASE o.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN o.state = 'pending'
             AND o.seq IN (SELECT j.value FROM peers AS p, json_each(p.parcel) AS j WHERE p.parcel IS NOT NULL)
            THEN 'sending' ELSE o.state END AS state,
       o.attempts, o.key, o.due_at, o.expires_at, o.created_at, o.sent_at, o.ended_at, o.reason,
       CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || (SELECT b.text FROM bodies AS b WHERE b.body_id = o.body_id) || '}' END AS frame,
       o.channel, o.kind, o.correlation_id
  FROM outbox AS o, identity AS i;

DROP VIEW inbox_view;
CREATE VIEW inbox_view AS
SELECT b.seq, b.id, b.sender, i.agent AS recipient, b.session, l.name AS lane, b.type, b.topic,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN b.state = 'pending'
             AND b.seq IN (SELECT j.value FROM lanes AS c, json_each(c.claimed) AS j WHERE c.claimed IS NOT NULL)
            THEN 'processing' ELSE b.state END AS state,
       b.attempts, b.expires_at, b.correlation_id, b.causation_id, b.received_at, b.ended_at, b.reason, b.frame,
       b.channel, b.kind, b.mailbox
  FROM inbox AS b JOIN identity AS i LEFT JOIN lanes AS l ON l.lane_id = b.lane_id;

DROP VIEW dead_letter_view;
CREATE VIEW dead_letter_view AS
SELECT d.seq, d.id, CASE WHEN d.queue IS NULL THEN d.origin ELSE 'queue' END AS origin,
       CASE d.origin WHEN 'outbox' THEN i.agent ELSE d.peer END AS sender,
       CASE d.origin WHEN 'outbox' THEN d.peer ELSE i.agent END AS recipient,
       d.session, d.lane, d.type, d.topic,
       CASE d.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       d.reason, d.last_error, d.attempts, d.created_at, d.dead_at, d.late, d.late_at, d.frame,
       d.channel, d.kind, d.correlation_id, d.mailbox, d.queue, d.replays
  FROM dead_letters AS d, identity AS i;
