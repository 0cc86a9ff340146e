-- Results of handlers' steps, which the next call of the handler finds. They are deleted with the record of their message.
CREATE TABLE _onceward_steps (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sender     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    scope      TEXT    NOT NULL DEFAULT '',
    name       TEXT    NOT NULL,
    version    TEXT    NOT NULL DEFAULT '',
    ordinal    INTEGER NOT NULL CHECK (ordinal >= 1),
    state      TEXT    NOT NULL
        CHECK (state = 'done' OR state = 'waiting' OR state = 'retrying' OR state = 'given_up' OR state = 'failed'),
    attempts   INTEGER NOT NULL,
    arguments  TEXT    NOT NULL,
    media      TEXT,
    result     TEXT,
    error      TEXT,
    bytes      INTEGER NOT NULL DEFAULT 0,
    awaits     TEXT,
    due_at     INTEGER,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    UNIQUE (message_id, sender, scope, name, version, ordinal),
    CHECK ((state = 'done') = (result IS NOT NULL)),
    CHECK ((state = 'retrying' OR state = 'waiting') = (due_at IS NOT NULL))
) STRICT;

CREATE INDEX _onceward_steps_started ON _onceward_steps (started_at);
CREATE INDEX _onceward_steps_awaits  ON _onceward_steps (awaits) WHERE awaits IS NOT NULL AND state = 'waiting';

CREATE TABLE _onceward_awaited_messages (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    session    TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    sender     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    media      TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    came_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX _onceward_awaited_messages_session ON _onceward_awaited_messages (session, type, seq);
CREATE INDEX _onceward_awaited_messages_came    ON _onceward_awaited_messages (came_at);
CREATE INDEX _onceward_awaited_messages_id      ON _onceward_awaited_messages (message_id);

-- An awaited message ends on arrival; its row shows until then that no step has taken it.
CREATE TRIGGER _onceward_awaited_messages_taken AFTER DELETE ON _onceward_awaited_messages
BEGIN
    INSERT INTO _onceward_late_changes (box, row_seq, row_at, peer, id)
    SELECT 'inbox', seq, received_at, sender, id FROM _onceward_inbox WHERE sender = OLD.sender AND id = OLD.message_id;
END;

CREATE VIEW onceward_steps AS
SELECT seq, message_id, sender, agent AS recipient, scope, name, version, ordinal, state, attempts,
       CASE WHEN json_valid(result) THEN CAST(json_extract(result, '$') AS TEXT) END AS body,
       error, bytes, awaits, due_at, started_at, ended_at
  FROM _onceward_steps, _onceward_file_info;
