-- Mailboxes: rows of the inbox that many may read; who reads them, and how far. A mailbox row waits in no lane (lane_id 0).

-- One row per named position: how far it has come among the messages of each priority.
CREATE TABLE readers (
    reader_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    mailbox    TEXT    NOT NULL,
    mode       TEXT    NOT NULL CHECK (mode = 'cursor' OR mode = 'lease'),
    name       TEXT    NOT NULL,
    critical   INTEGER NOT NULL,
    urgent     INTEGER NOT NULL,
    normal     INTEGER NOT NULL,
    low        INTEGER NOT NULL,
    background INTEGER NOT NULL,
    token      INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER,
    read_at    INTEGER NOT NULL,
    UNIQUE (mailbox, mode, name)
) STRICT;

-- What a position has passed but is not done with: leased, put back, or kept because a filter skipped it.
CREATE TABLE handouts (
    reader_id INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    rank      INTEGER NOT NULL,
    token     INTEGER NOT NULL DEFAULT 0,
    owner     TEXT,
    due_at    INTEGER,
    attempts  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (reader_id, seq),
    CHECK (owner IS NULL OR due_at IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE INDEX handouts_ready ON handouts (reader_id, rank, seq) WHERE due_at IS NULL;
CREATE INDEX handouts_due   ON handouts (reader_id, due_at)    WHERE due_at IS NOT NULL;

-- How far an agent that polls has come in a session.
CREATE TABLE cursors (
    session TEXT PRIMARY KEY,
    seq     INTEGER NOT NULL,
    read_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The order of handing over within a mailbox; what was deleted or has expired leaves it at once.
DROP INDEX inbox_mailbox;
CREATE INDEX inbox_mailbox    ON inbox (mailbox, rank, seq) WHERE mailbox IS NOT NULL AND state = 'pending';
CREATE INDEX inbox_mailbox_id ON inbox (id)                 WHERE mailbox IS NOT NULL AND state = 'pending';

CREATE VIEW reader_view AS
SELECT r.mailbox, r.mode, r.name, r.critical, r.urgent, r.normal, r.low, r.background,
       (SELECT count(*) FROM handouts AS h WHERE h.reader_id = r.reader_id AND h.owner IS NOT NULL) AS leased,
       (SELECT count(*) FROM handouts AS h WHERE h.reader_id = r.reader_id AND h.owner IS NULL) AS kept,
       r.expires_at, r.read_at
  FROM readers AS r;
