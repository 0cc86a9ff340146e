-- Bodies that a handler with unique_for handled recently; an equal one is dropped until then. A row with a seq
-- belongs to a message that is not handled yet, and applies while that message is pending.
CREATE TABLE _onceward_unique_bodies (
    handler  TEXT    NOT NULL,
    digest   BLOB    NOT NULL,
    until_at INTEGER NOT NULL,
    seq      INTEGER,
    PRIMARY KEY (handler, digest)
) STRICT, WITHOUT ROWID;

-- Groups of messages that take turns, by the key of their handler: those with a lane that waits. The lowest turn is next.
-- A group that has reached its rate rests until its next call.
CREATE TABLE _onceward_turns (
    turn       INTEGER PRIMARY KEY AUTOINCREMENT,
    group_name TEXT    NOT NULL,
    rank       INTEGER NOT NULL,
    due_at     INTEGER,
    rests_since_at INTEGER,
    UNIQUE (group_name, rank),
    CHECK ((due_at IS NULL) = (rests_since_at IS NULL))
) STRICT;

CREATE INDEX _onceward_turns_next  ON _onceward_turns (rank, turn)      WHERE due_at IS NULL;
CREATE INDEX _onceward_turns_due   ON _onceward_turns (due_at)          WHERE due_at IS NOT NULL;
CREATE INDEX _onceward_turns_since ON _onceward_turns (rests_since_at)  WHERE rests_since_at IS NOT NULL;

-- Rests and buckets of earlier limits end when a limit is set, removed or paused: a claim begins them again.
CREATE TRIGGER _onceward_handler_limits_set AFTER INSERT ON _onceward_handler_limits BEGIN
    UPDATE _onceward_turns SET due_at = NULL, rests_since_at = NULL WHERE due_at IS NOT NULL;
END;

CREATE TRIGGER _onceward_handler_limits_changed AFTER UPDATE OF per_second, concurrency, paused_at ON _onceward_handler_limits BEGIN
    UPDATE _onceward_turns SET due_at = NULL, rests_since_at = NULL WHERE due_at IS NOT NULL;
    DELETE FROM _onceward_rate_limits
     WHERE OLD.per_second > 0 AND NEW.per_second IS NULL
       AND (name = 'handler:' || NEW.name OR (name >= 'group:' || NEW.name || char(9) AND name < 'group:' || NEW.name || char(10)));
END;

CREATE TRIGGER _onceward_handler_limits_removed AFTER DELETE ON _onceward_handler_limits BEGIN
    UPDATE _onceward_turns SET due_at = NULL, rests_since_at = NULL WHERE due_at IS NOT NULL;
    DELETE FROM _onceward_rate_limits
     WHERE OLD.per_second > 0
       AND (name = 'handler:' || OLD.name OR (name >= 'group:' || OLD.name || char(9) AND name < 'group:' || OLD.name || char(10)));
END;

CREATE INDEX _onceward_unique_bodies_until ON _onceward_unique_bodies (until_at);
