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

CREATE INDEX _onceward_unique_bodies_until ON _onceward_unique_bodies (until_at);
