CREATE INDEX _onceward_inbox_mailbox    ON _onceward_inbox (mailbox, rank, seq) WHERE mailbox IS NOT NULL AND state = 'pending';
CREATE INDEX _onceward_inbox_mailbox_id ON _onceward_inbox (id)                 WHERE mailbox IS NOT NULL AND state = 'pending';
-- A mailbox that keeps the newest message of each key has one message per key, by constraint.
CREATE UNIQUE INDEX _onceward_inbox_mailbox_key ON _onceward_inbox (mailbox, mailbox_key) WHERE mailbox_key IS NOT NULL AND state = 'pending';

-- One row per named position: the last passed message of each priority.
CREATE TABLE _onceward_mailbox_readers (
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

-- Messages that a position has passed but that are not done: leased, put back, or kept because a filter skipped them.
CREATE TABLE _onceward_mailbox_leases (
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

CREATE INDEX _onceward_mailbox_leases_ready ON _onceward_mailbox_leases (reader_id, rank, seq) WHERE due_at IS NULL;
CREATE INDEX _onceward_mailbox_leases_due   ON _onceward_mailbox_leases (reader_id, due_at)    WHERE due_at IS NOT NULL;

CREATE VIEW onceward_mailbox_readers AS
SELECT mailbox, mode, name, critical, urgent, normal, low, background,
       (SELECT count(*) FROM _onceward_mailbox_leases WHERE reader_id = r.reader_id AND owner IS NOT NULL) AS leased,
       (SELECT count(*) FROM _onceward_mailbox_leases WHERE reader_id = r.reader_id AND owner IS NULL) AS kept,
       expires_at, read_at
  FROM _onceward_mailbox_readers AS r;
