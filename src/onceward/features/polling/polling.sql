-- The position of a polling agent in a session.
CREATE TABLE _onceward_poll_cursors (
    session TEXT    PRIMARY KEY,
    seq     INTEGER NOT NULL,
    read_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
