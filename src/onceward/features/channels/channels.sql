CREATE INDEX _onceward_outbox_channel     ON _onceward_outbox (channel, seq)     WHERE channel IS NOT NULL;
CREATE INDEX _onceward_outbox_channel_unsent ON _onceward_outbox (channel, seq) WHERE channel IS NOT NULL AND state = 'pending' AND sent_at IS NULL;
CREATE INDEX _onceward_outbox_channel_open ON _onceward_outbox (channel, seq) WHERE channel IS NOT NULL AND ended_at IS NULL;

-- Messages that sticky channels retain, one row for all recipients; agents that join later get them under new ids.
CREATE TABLE _onceward_retained_posts (
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

CREATE INDEX _onceward_retained_posts_channel ON _onceward_retained_posts (channel, number);
CREATE INDEX _onceward_retained_posts_body    ON _onceward_retained_posts (body_id);

-- Work that this agent does after changes to the directory or its own file, and the position of each task.
CREATE TABLE _onceward_background_tasks (
    kind     TEXT    NOT NULL CHECK (kind IN ('channel', 'notices', 'dead_letters')),
    name     TEXT    NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    held     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The progress of each recipient with a message that we sent; a stage never moves backwards.
CREATE TABLE _onceward_acknowledgments (
    message_id  TEXT    NOT NULL,
    participant TEXT    NOT NULL,
    stage       INTEGER NOT NULL CHECK (stage BETWEEN 1 AND 4),
    detail      TEXT,
    first_at    INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (message_id, participant)
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_acknowledgments_at ON _onceward_acknowledgments (at);
CREATE INDEX _onceward_inbox_channel      ON _onceward_inbox (channel, seq)      WHERE channel IS NOT NULL;
-- Messages that wait in a channel, in reading order. Handled messages leave the index; a skipped one costs one look.
CREATE INDEX _onceward_inbox_channel_pending ON _onceward_inbox (channel, rank, seq) WHERE channel IS NOT NULL AND state = 'pending';

-- Each dead letter is reported to the home, except dead notices: two listeners without handlers would report to each other endlessly.
CREATE TRIGGER _onceward_dead_letters_notice AFTER INSERT ON _onceward_dead_letters
WHEN NEW.topic IS NULL OR NEW.topic NOT GLOB '_system.*'
BEGIN
    INSERT INTO _onceward_background_tasks (kind, name, position) VALUES ('dead_letters', '', NEW.seq - 1)
    ON CONFLICT DO NOTHING;
END;

-- A retained post keeps its body when other rows that use it are deleted; its own deletion deletes the body with the last reference.
CREATE TRIGGER _onceward_bodies_retained BEFORE DELETE ON _onceward_bodies
WHEN EXISTS (SELECT 1 FROM _onceward_retained_posts WHERE body_id = OLD.body_id)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER _onceward_retained_posts_body_gone AFTER DELETE ON _onceward_retained_posts
BEGIN
    DELETE FROM _onceward_bodies
     WHERE body_id = OLD.body_id
       AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = OLD.body_id);
END;

CREATE VIEW onceward_acknowledgments AS
SELECT message_id, correlation_id, channel, participant,
       CASE stage WHEN 1 THEN 'received' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'failed' ELSE 'completed' END AS status, detail, first_at, at
  FROM _onceward_acknowledgments LEFT JOIN _onceward_outbox ON id = message_id;
