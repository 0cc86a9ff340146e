-- Groups of messages. The commit that ends the last message of a group makes the group due, and another one ends the group
-- with the message that says so.
CREATE TABLE _onceward_groups (
    id         TEXT    PRIMARY KEY,
    session    TEXT    NOT NULL,
    recipient  TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    data       TEXT    NOT NULL CHECK (json_valid(data)),
    sent       INTEGER NOT NULL,
    open       INTEGER NOT NULL CHECK (open >= 0),
    failed     INTEGER NOT NULL,
    due_at     INTEGER,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    message_id TEXT,
    last_error TEXT,
    CHECK (due_at IS NULL OR (open = 0 AND ended_at IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_groups_due ON _onceward_groups (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX _onceward_groups_ended ON _onceward_groups (ended_at) WHERE ended_at IS NOT NULL;

-- The messages of groups: each is a request whose ticket ends it. What became of it is noted once.
CREATE TABLE _onceward_group_messages (
    message_id TEXT    PRIMARY KEY,
    group_id   TEXT    NOT NULL,
    reason     TEXT,
    ended_at   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_group_messages_group ON _onceward_group_messages (group_id, message_id);

CREATE TRIGGER _onceward_group_message_ended AFTER UPDATE OF state ON _onceward_pending_replies
WHEN OLD.state = 'open' AND NEW.state <> 'open'
 AND EXISTS (SELECT 1 FROM _onceward_group_messages WHERE message_id = NEW.id AND ended_at IS NULL)
BEGIN
    UPDATE _onceward_group_messages
       SET ended_at = NEW.ended_at,
           reason = CASE WHEN NEW.state = 'failed' AND coalesce(NEW.reason, '') NOT GLOB 'processed without a reply*'
                         THEN coalesce(NEW.reason, 'failed') END
     WHERE message_id = NEW.id;
END;

-- A ticket that retention deletes although it is open: its group ends all the same.
CREATE TRIGGER _onceward_group_message_gone AFTER DELETE ON _onceward_pending_replies
WHEN OLD.state = 'open'
 AND EXISTS (SELECT 1 FROM _onceward_group_messages WHERE message_id = OLD.id AND ended_at IS NULL)
BEGIN
    UPDATE _onceward_group_messages
       SET ended_at = OLD.asked_at, reason = 'pruned'
     WHERE message_id = OLD.id;
END;

CREATE TRIGGER _onceward_group_counts AFTER UPDATE OF ended_at ON _onceward_group_messages
WHEN OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL
BEGIN
    UPDATE _onceward_groups
       SET open = open - 1, failed = failed + (NEW.reason IS NOT NULL),
           due_at = CASE WHEN open = 1 THEN NEW.ended_at END
     WHERE id = NEW.group_id;
END;

CREATE VIEW onceward_groups AS
SELECT id, session, agent AS sender, recipient, type, CAST(data AS TEXT) AS body, sent, open, failed, g.created_at, ended_at, message_id,
       last_error
  FROM _onceward_groups AS g, _onceward_file_info;

CREATE VIEW onceward_group_messages AS
SELECT message_id, group_id, reason, ended_at FROM _onceward_group_messages;
