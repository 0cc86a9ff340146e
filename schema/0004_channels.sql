-- Channels: what this agent's file knows of them. Who takes part in which channel stands in the home's directory.

-- What sticky channels retain, one row for each message whoever it went to; late ones are given it under new ids.
CREATE TABLE posts (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,
    channel        TEXT    NOT NULL,
    session        TEXT    NOT NULL,
    lane           TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    kind           TEXT,
    rank           INTEGER NOT NULL,
    expires_at     INTEGER,
    correlation_id TEXT,
    head           TEXT    NOT NULL,
    tail           TEXT    NOT NULL,
    body_id        INTEGER NOT NULL,
    size           INTEGER NOT NULL,
    created_at     INTEGER NOT NULL
) STRICT;

CREATE INDEX posts_channel ON posts (channel, number);
CREATE INDEX posts_body    ON posts (body_id);

-- What this agent has still to do when the directory or its own file moves on, and how far it has come.
CREATE TABLE errands (
    kind     TEXT    NOT NULL CHECK (kind IN ('channel', 'notices', 'dead_letters')),
    name     TEXT    NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    held     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- How far each recipient of a message of ours has come with it; a status only ever moves forward.
CREATE TABLE acknowledgments (
    message_id  TEXT    NOT NULL,
    participant TEXT    NOT NULL,
    stage       INTEGER NOT NULL CHECK (stage BETWEEN 1 AND 4),
    detail      TEXT,
    first_at    INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (message_id, participant)
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_channel_open ON outbox (channel, seq) WHERE channel IS NOT NULL AND ended_at IS NULL;
CREATE INDEX inbox_channel_next ON inbox (channel, rank, seq) WHERE channel IS NOT NULL AND state = 'pending';

-- A body goes with the last row that refers to it.
CREATE TRIGGER outbox_body_gone AFTER DELETE ON outbox
WHEN OLD.body_id IS NOT NULL
BEGIN
    DELETE FROM bodies
     WHERE body_id = OLD.body_id
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE body_id = OLD.body_id)
       AND NOT EXISTS (SELECT 1 FROM posts WHERE body_id = OLD.body_id);
END;

CREATE TRIGGER posts_body_gone AFTER DELETE ON posts
BEGIN
    DELETE FROM bodies
     WHERE body_id = OLD.body_id
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE body_id = OLD.body_id)
       AND NOT EXISTS (SELECT 1 FROM posts WHERE body_id = OLD.body_id);
END;

-- Reserved topics hold for writers of plain SQL too.
CREATE TRIGGER send_reserved INSTEAD OF INSERT ON send
WHEN NEW.topic = '_system' OR NEW.topic GLOB '_system.*'
BEGIN
    SELECT RAISE(ABORT, 'onceward:topic _system is reserved for notifications');
END;

CREATE VIEW acknowledgment_view AS
SELECT a.message_id, o.correlation_id, o.channel, a.participant,
       CASE a.stage WHEN 1 THEN 'received' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'failed' ELSE 'completed' END AS status,
       a.detail, a.first_at, a.at
  FROM acknowledgments AS a LEFT JOIN outbox AS o ON o.id = a.message_id;

DROP VIEW outbox_view;
CREATE VIEW outbox_view AS
SELECT o.seq, o.id, i.agent AS sender, o.recipient, o.session, o.lane, o.type, o.topic,
       CASE o.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN o.state = 'pending'
             AND o.seq IN (SELECT j.value FROM peers AS p, json_each(p.parcel) AS j WHERE p.parcel IS NOT NULL)
            THEN 'sending' ELSE o.state END AS state,
       o.attempts, o.key, o.due_at, o.expires_at, o.created_at, o.sent_at, o.ended_at, o.reason,
       CASE WHEN o.body_id IS NULL THEN o.frame
            ELSE o.frame || coalesce((SELECT b.text FROM bodies AS b WHERE b.body_id = o.body_id), 'null,"bodyerror":"missing"') || '}'
        END AS frame,
       o.channel, o.kind, o.correlation_id
  FROM outbox AS o, identity AS i;
