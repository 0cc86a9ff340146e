-- One agent's file. Times are integer milliseconds since 1970, UTC; NULL in due_at means "now".
-- Only SQL that SQLite 3.37 understands: other programs open this file too.
-- Hot CHECKs spell OR instead of IN: a list of three or more builds a temporary index for every row (15 % of an insert).

CREATE TABLE identity (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    agent       TEXT    NOT NULL,
    file_id     TEXT    NOT NULL,
    durability  TEXT    NOT NULL CHECK (durability IN ('safe', 'fast')),
    max_pending INTEGER NOT NULL,
    max_inbox   INTEGER NOT NULL,
    max_body    INTEGER NOT NULL,
    clock_at    INTEGER NOT NULL,
    paused_at   INTEGER,
    opened      INTEGER NOT NULL DEFAULT 0,
    opened_at   INTEGER NOT NULL,
    boot_id     TEXT    NOT NULL DEFAULT '',
    created_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE peers (
    name       TEXT PRIMARY KEY,
    url        TEXT,
    epoch      TEXT    NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1,
    number     INTEGER NOT NULL DEFAULT 0,
    last_id    TEXT    NOT NULL DEFAULT '',
    again_seq  INTEGER NOT NULL DEFAULT 0,
    parcel     TEXT    CHECK (parcel IS NULL OR json_valid(parcel)),
    token      INTEGER NOT NULL DEFAULT 0,
    owner      TEXT,
    lease_at   INTEGER,
    due_at     INTEGER,
    failures   INTEGER NOT NULL DEFAULT 0,
    breaker    TEXT    NOT NULL DEFAULT 'closed' CHECK (breaker IN ('closed', 'open', 'half_open')),
    successes  INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    seen_at    INTEGER,
    CHECK ((owner IS NULL) = (lease_at IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE subscriptions (
    peer    TEXT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (peer, pattern)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    recipient  TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    lane       TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    topic      TEXT,
    rank       INTEGER NOT NULL DEFAULT 2 CHECK (rank BETWEEN 0 AND 4),
    state      TEXT    NOT NULL DEFAULT 'pending' 
        CHECK (state = 'pending' OR state = 'sent' OR state = 'acked' OR state = 'failed' OR state = 'cancelled'),
    due_at     INTEGER,
    expires_at INTEGER,
    attempts   INTEGER NOT NULL DEFAULT 0,
    parcel     INTEGER,
    key        TEXT,
    frame      TEXT    NOT NULL,
    digest     BLOB,
    created_at INTEGER NOT NULL,
    sent_at    INTEGER,
    ended_at   INTEGER,
    reason     TEXT,
    CHECK ((ended_at IS NULL) = (state = 'pending' OR state = 'sent')),
    CHECK (state = 'pending' OR state = 'sent' OR due_at IS NULL),
    CHECK (state <> 'sent' OR sent_at IS NOT NULL)
) STRICT;

-- What may be packed now, in the order of packing. Rows that are not due stay out of it.
CREATE INDEX outbox_ready ON outbox (recipient, rank, seq) WHERE state = 'pending' AND due_at IS NULL;
CREATE INDEX outbox_due   ON outbox (due_at, seq)          WHERE due_at IS NOT NULL;
CREATE INDEX outbox_expiry ON outbox (expires_at, seq)    WHERE expires_at IS NOT NULL AND state = 'pending' AND sent_at IS NULL;
CREATE UNIQUE INDEX outbox_key ON outbox (recipient, key) WHERE key IS NOT NULL;

-- Outgoing lanes that wait behind a head that failed alone; their rows are parked until then.
CREATE TABLE held_lanes (
    recipient TEXT    NOT NULL,
    lane      TEXT    NOT NULL,
    rank      INTEGER NOT NULL,
    head      INTEGER NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (recipient, lane, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE tickets (
    id          TEXT PRIMARY KEY,
    session     TEXT    NOT NULL,
    recipient   TEXT    NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'answered', 'late', 'failed')),
    asked_at    INTEGER NOT NULL,
    deadline_at INTEGER,
    reply_id    TEXT,
    reason      TEXT,
    ended_at    INTEGER,
    CHECK ((state = 'open') = (ended_at IS NULL))
) STRICT, WITHOUT ROWID;

-- One row per stream of parcels that comes in: all that deduplication needs, for ever.
CREATE TABLE streams (
    sender     TEXT PRIMARY KEY,
    epoch      TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    last_id    TEXT    NOT NULL,
    horizon_id TEXT    NOT NULL DEFAULT '',
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The unit of order and of leasing on the way in.
CREATE TABLE lanes (
    lane_id    INTEGER PRIMARY KEY AUTOINCREMENT,
    sender     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    rank       INTEGER NOT NULL,
    session    TEXT    NOT NULL,
    head       INTEGER,
    due_at     INTEGER,
    token      INTEGER NOT NULL DEFAULT 0,
    owner      TEXT,
    claimed    TEXT    CHECK (claimed IS NULL OR json_valid(claimed)),
    careful_to INTEGER NOT NULL DEFAULT 0,
    UNIQUE (sender, name, rank),
    CHECK ((owner IS NULL) = (claimed IS NULL)),
    CHECK (owner IS NULL OR due_at IS NOT NULL)
) STRICT;

CREATE INDEX lanes_ready ON lanes (rank, head) WHERE head IS NOT NULL AND due_at IS NULL;
CREATE INDEX lanes_due   ON lanes (due_at)     WHERE due_at IS NOT NULL;

CREATE TABLE inbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    sender         TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    lane_id        INTEGER NOT NULL,
    session        TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    rank           INTEGER NOT NULL,
    state          TEXT    NOT NULL DEFAULT 'pending' 
        CHECK (state = 'pending' OR state = 'processed' OR state = 'dropped' OR state = 'expired'),
    attempts       INTEGER NOT NULL DEFAULT 0,
    expires_at     INTEGER,
    correlation_id TEXT,
    causation_id   TEXT,
    frame          TEXT    NOT NULL,
    digest         BLOB    NOT NULL,
    received_at    INTEGER NOT NULL,
    ended_at       INTEGER,
    reason         TEXT,
    UNIQUE (sender, id),
    CHECK ((ended_at IS NULL) = (state = 'pending'))
) STRICT;

CREATE INDEX inbox_pending     ON inbox (lane_id, seq)    WHERE state = 'pending';
CREATE INDEX inbox_expiry      ON inbox (expires_at, seq) WHERE expires_at IS NOT NULL AND state = 'pending';
CREATE INDEX inbox_correlation ON inbox (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE TABLE processed_messages (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    sender       TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL DEFAULT '',
    session      TEXT    NOT NULL,
    outcome      TEXT    NOT NULL 
        CHECK (outcome = 'processed' OR outcome = 'dropped' OR outcome = 'expired' OR outcome = 'dead'),
    processed_at INTEGER NOT NULL,
    UNIQUE (sender, message_id, consumer)
) STRICT;

-- Outcomes on their way back to the senders: one row per commit and sender, gone once delivered.
CREATE TABLE receipts (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    peer       TEXT    NOT NULL,
    receipts   TEXT    NOT NULL CHECK (json_valid(receipts)),
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX receipts_peer ON receipts (peer, seq);

CREATE TABLE dead_letters (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    origin     TEXT    NOT NULL CHECK (origin IN ('outbox', 'inbox')),
    id         TEXT    NOT NULL,
    peer       TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    lane       TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    topic      TEXT,
    rank       INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    last_error TEXT,
    attempts   INTEGER NOT NULL,
    expires_at INTEGER,
    key        TEXT,
    frame      TEXT    NOT NULL,
    digest     BLOB,
    created_at INTEGER NOT NULL,
    dead_at    INTEGER NOT NULL,
    late       TEXT,
    late_at    INTEGER,
    UNIQUE (origin, peer, id)
) STRICT;

CREATE TABLE trail (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    box        TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    peer       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    reason     TEXT
) STRICT;

-- Admission: the kill-switch and the limit hold for every writer, whatever its language.
CREATE TRIGGER outbox_admit AFTER INSERT ON outbox
BEGIN
    SELECT CASE
        WHEN i.paused_at IS NOT NULL THEN RAISE(ABORT, 'onceward:paused')
        WHEN NEW.seq - (SELECT value FROM counters WHERE name = 'left') > i.max_pending
            THEN RAISE(ABORT, 'onceward:queue_full')
        END
      FROM identity AS i;
END;

-- Guards: a move that the state machine does not know fails, even from a SQLite shell.
CREATE TRIGGER outbox_guard BEFORE UPDATE OF state ON outbox
WHEN NOT (   OLD.state = NEW.state
          OR (OLD.state = 'pending' AND NEW.state <> 'pending')
          OR (OLD.state = 'sent'    AND NEW.state <> 'cancelled')
          OR (OLD.state = 'acked'   AND NEW.state = 'pending')
          OR (OLD.state = 'failed'  AND (NEW.state = 'pending' OR NEW.state = 'acked')))
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER outbox_frame_guard BEFORE UPDATE OF seq, rowid, oid, _rowid_, id, recipient, frame ON outbox
BEGIN
    SELECT RAISE(ABORT, 'onceward:frame_is_immutable');
END;

CREATE TRIGGER outbox_delete_guard BEFORE DELETE ON outbox
WHEN OLD.state IN ('pending', 'sent')
 AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE origin = 'outbox' AND peer = OLD.recipient AND id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

CREATE TRIGGER inbox_guard BEFORE UPDATE OF state ON inbox
WHEN OLD.state <> 'pending' AND OLD.state <> NEW.state
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER inbox_frame_guard BEFORE UPDATE OF seq, rowid, oid, _rowid_, id, sender, frame ON inbox
BEGIN
    SELECT RAISE(ABORT, 'onceward:frame_is_immutable');
END;

CREATE TRIGGER inbox_delete_guard BEFORE DELETE ON inbox
WHEN OLD.state = 'pending'
 AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE origin = 'inbox' AND peer = OLD.sender AND id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

INSERT INTO counters (name) VALUES
    ('left'), ('sent'), ('acked'), ('failed'), ('cancelled'), ('retries'), ('dead'), ('replayed'),
    ('ended'), ('processed'), ('dropped'), ('expired'), ('duplicates'), ('refused'), ('forks');
