-- Bodies that a handler with unique_for handled recently; an equal one is dropped until then. A row with a seq
-- belongs to a message that is not handled yet, and applies while that message is pending.
CREATE TABLE _onceward_unique_bodies (
    handler  TEXT    NOT NULL,
    digest   BLOB    NOT NULL,
    until_at INTEGER NOT NULL,
    seq      INTEGER,
    PRIMARY KEY (handler, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_unique_bodies_until ON _onceward_unique_bodies (until_at);
