-- One agent's file. Times are integer milliseconds since 1970, UTC; NULL in due_at means "now".
-- Only SQL that SQLite 3.37 understands: other programs open this file too.
-- Hot CHECKs use OR instead of IN: for a list of three or more, SQLite builds a temporary index per row (15 % of an insert).

CREATE TABLE _onceward_file_info (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    agent TEXT NOT NULL,
    file_id TEXT NOT NULL,
    durability TEXT NOT NULL CHECK (durability IN ('safe', 'fast')),
    max_pending INTEGER NOT NULL,
    max_inbox INTEGER NOT NULL,
    max_body INTEGER NOT NULL,
    max_file_bytes INTEGER CHECK (max_file_bytes > 0),
    foreign_keys INTEGER NOT NULL DEFAULT 0 CHECK (foreign_keys IN (0, 1)),
    clock_at INTEGER NOT NULL,
    paused_at INTEGER,
    opened INTEGER NOT NULL DEFAULT 0,
    opened_at INTEGER NOT NULL,
    boot_id TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    outbox_pruned_at INTEGER,
    wal_lost_at INTEGER,
    backed_up_at INTEGER,
    takeover       TEXT,
    superseded_by  TEXT
) STRICT;

CREATE TABLE _onceward_counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE _onceward_peers (
    name                 TEXT    PRIMARY KEY,
    url                  TEXT,
    epoch                TEXT    NOT NULL,
    generation           INTEGER NOT NULL DEFAULT 1,
    number               INTEGER NOT NULL DEFAULT 0,
    last_id              TEXT    NOT NULL DEFAULT '',
    redelivered_upto_seq INTEGER NOT NULL DEFAULT 0,
    in_flight_seqs       TEXT    CHECK (in_flight_seqs IS NULL OR json_valid(in_flight_seqs)),
    unsettled_ids        TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(unsettled_ids)),
    token                INTEGER NOT NULL DEFAULT 0,
    owner                TEXT,
    lease_at             INTEGER,
    due_at               INTEGER,
    failures             INTEGER NOT NULL DEFAULT 0,
    breaker              TEXT    NOT NULL DEFAULT 'closed' CHECK (breaker IN ('closed', 'open', 'half_open')),
    successes            INTEGER NOT NULL DEFAULT 0,
    last_error           TEXT,
    seen_at              INTEGER,
    base_epoch           TEXT    NOT NULL DEFAULT '',
    base_parcel          INTEGER NOT NULL DEFAULT 0,
    own_forks            INTEGER NOT NULL DEFAULT 0,
    max_bytes            INTEGER,
    inbound_rule         TEXT    CHECK (inbound_rule IS NULL OR json_valid(inbound_rule)),
    greeting             TEXT,
    takeover             TEXT,
    lost_after           TEXT,
    room                 INTEGER,
    CHECK ((owner IS NULL) = (lease_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Bodies that several messages share. The frame of a message that refers to one ends before its data.
CREATE TABLE _onceward_bodies (
    body_id INTEGER PRIMARY KEY AUTOINCREMENT,
    text    TEXT    NOT NULL,
    digest  BLOB    NOT NULL
) STRICT;

CREATE TABLE _onceward_outbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    recipient      TEXT    NOT NULL,
    session        TEXT    NOT NULL,
    lane           TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    rank           INTEGER NOT NULL DEFAULT 2 CHECK (rank BETWEEN 0 AND 4),
    state          TEXT    NOT NULL DEFAULT 'pending'
        CHECK (state = 'pending' OR state = 'sent' OR state = 'acked' OR state = 'failed' OR state = 'cancelled'
               OR state = 'dropped'),
    due_at         INTEGER,
    held_by        TEXT,
    expires_at     INTEGER,
    attempts       INTEGER NOT NULL DEFAULT 0,
    free_attempts  INTEGER NOT NULL DEFAULT 0,
    pushed         INTEGER NOT NULL DEFAULT 0,
    parcel_ordinal INTEGER,
    key            TEXT,
    channel        TEXT,
    kind           TEXT,
    correlation_id TEXT,
    in_reply_to    TEXT,
    body_id        INTEGER,
    replays        INTEGER NOT NULL DEFAULT 0,
    frame          TEXT    NOT NULL,
    digest         BLOB,
    created_at     INTEGER NOT NULL,
    sent_at        INTEGER,
    ended_at       INTEGER,
    reason         TEXT,
    pool           TEXT,
    found_again    INTEGER CHECK (found_again = 1),
    addressed_to   TEXT    AS (coalesce(pool, recipient)) VIRTUAL,
    CHECK ((ended_at IS NULL) = (state = 'pending' OR state = 'sent')),
    CHECK (state = 'pending' OR state = 'sent' OR due_at IS NULL),
    CHECK (state = 'pending' OR held_by IS NULL),
    CHECK (state <> 'sent' OR sent_at IS NOT NULL)
) STRICT;

-- Rows that may be packed now, in the order of packing. Rows that are held or not due are not in it.
CREATE INDEX _onceward_outbox_ready ON _onceward_outbox (recipient, rank, seq) WHERE state = 'pending' AND due_at IS NULL AND held_by IS NULL;
CREATE INDEX _onceward_outbox_due   ON _onceward_outbox (due_at, seq)          WHERE due_at IS NOT NULL;
CREATE INDEX _onceward_outbox_expiry ON _onceward_outbox (expires_at, seq)    WHERE expires_at IS NOT NULL AND state = 'pending' AND sent_at IS NULL;
-- A key belongs to the name to which its message was sent: a pool, or else the recipient.
CREATE UNIQUE INDEX _onceward_outbox_key ON _onceward_outbox (addressed_to, key) WHERE key IS NOT NULL;
-- Messages of pools that a member has and that have not ended.
CREATE INDEX _onceward_outbox_pool ON _onceward_outbox (pool, recipient) WHERE pool IS NOT NULL AND ended_at IS NULL;
CREATE INDEX _onceward_outbox_body        ON _onceward_outbox (body_id)          WHERE body_id IS NOT NULL;
CREATE INDEX _onceward_outbox_correlation ON _onceward_outbox (correlation_id)   WHERE correlation_id IS NOT NULL;
CREATE INDEX _onceward_outbox_reply       ON _onceward_outbox (in_reply_to)      WHERE in_reply_to IS NOT NULL;

-- Outgoing lanes that wait behind a failed head; their rows are not due until it is retried.
CREATE TABLE _onceward_blocked_lanes (
    recipient TEXT    NOT NULL,
    lane      TEXT    NOT NULL,
    rank      INTEGER NOT NULL,
    head_seq  INTEGER NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (recipient, lane, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE _onceward_pending_replies (
    id          TEXT    PRIMARY KEY,
    session     TEXT    NOT NULL,
    recipient   TEXT    NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'answered', 'late', 'failed')),
    asked_at    INTEGER NOT NULL,
    deadline_at INTEGER,
    reply_id    TEXT,
    reason      TEXT,
    ended_at    INTEGER,
    asker_seq   INTEGER,
    asker_index INTEGER,
    asker_digest BLOB,
    kept        INTEGER NOT NULL DEFAULT 0 CHECK (kept IN (0, 1)),
    gathered    INTEGER NOT NULL DEFAULT 0 CHECK (gathered IN (0, 1)),
    progress    TEXT,
    progress_at INTEGER,
    CHECK ((state = 'open') = (ended_at IS NULL)),
    CHECK ((asker_seq IS NULL) = (asker_index IS NULL))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX _onceward_pending_replies_asker ON _onceward_pending_replies (asker_seq, asker_index) WHERE asker_seq IS NOT NULL;
CREATE INDEX _onceward_pending_replies_asked ON _onceward_pending_replies (asked_at);

-- One row per incoming stream of parcels. Deduplication needs nothing else, without a time limit.
CREATE TABLE _onceward_sender_streams (
    sender      TEXT    PRIMARY KEY,
    epoch       TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    last_id     TEXT    NOT NULL,
    horizon_id  TEXT    NOT NULL DEFAULT '',
    base_epoch  TEXT    NOT NULL DEFAULT '',
    base_number INTEGER NOT NULL DEFAULT 0,
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Incoming lanes: the units of order and of leasing. A lane that sessions share through an ordering key has no session.
CREATE TABLE _onceward_lanes (
    lane_id          INTEGER PRIMARY KEY AUTOINCREMENT,
    sender           TEXT,
    name             TEXT    NOT NULL,
    rank             INTEGER NOT NULL,
    session          TEXT,
    head_seq         INTEGER,
    due_at           INTEGER,
    token            INTEGER NOT NULL DEFAULT 0,
    owner            TEXT,
    leased_seqs      TEXT    CHECK (leased_seqs IS NULL OR json_valid(leased_seqs)),
    isolate_upto_seq INTEGER NOT NULL DEFAULT 0,
    suspect          INTEGER NOT NULL DEFAULT 0,
    late_at          INTEGER,
    called_id        TEXT,
    called           INTEGER NOT NULL DEFAULT 0,
    group_name       TEXT,
    UNIQUE (sender, name, rank),
    CHECK ((owner IS NULL) = (leased_seqs IS NULL)),
    CHECK (owner IS NULL OR due_at IS NOT NULL)
) STRICT;

-- A session with runs has one lane for all senders.
CREATE UNIQUE INDEX _onceward_lanes_session ON _onceward_lanes (name, rank) WHERE sender IS NULL;
CREATE INDEX _onceward_lanes_suspects ON _onceward_lanes (rank, head_seq) WHERE suspect = 1;
-- Lanes with work: ready ones in order, then leased or backed-off ones by time. In one index, so that a lease writes one page.
CREATE INDEX _onceward_lanes_work ON _onceward_lanes (due_at, rank, head_seq) WHERE head_seq IS NOT NULL OR due_at IS NOT NULL;

-- Lanes by the group of their head: those that wait for its turn, in order, and leased ones, which are its running calls.
CREATE INDEX _onceward_lanes_groups ON _onceward_lanes (group_name, due_at, rank, head_seq) WHERE group_name IS NOT NULL;

-- Workers that may be handling messages whose claim is not committed yet. A row that remains after its process
-- died shows that it may have had such a claim: then claims are committed before their handlers run.
CREATE TABLE _onceward_workers (
    owner TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Its padding makes room for the state and the time of its end: SQLite overwrites a row in place if its size stays
-- the same, and so does not write a long frame again.
CREATE TABLE _onceward_inbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    sender         TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    lane_id        INTEGER,
    session        TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    rank           INTEGER NOT NULL,
    state          TEXT    NOT NULL DEFAULT 'pending'
        CHECK (state = 'pending' OR state = 'processed' OR state = 'dropped' OR state = 'expired' OR state = 'cancelled'),
    attempts       INTEGER NOT NULL DEFAULT 0,
    expires_at     INTEGER,
    correlation_id TEXT,
    causation_id   TEXT,
    channel        TEXT,
    kind           TEXT,
    mailbox        TEXT,
    mailbox_key    TEXT,
    position       INTEGER,
    run_seq        INTEGER,
    ephemeral      INTEGER,
    replays        INTEGER NOT NULL DEFAULT 0,
    frame          TEXT    NOT NULL,
    digest         BLOB    NOT NULL,
    received_at    INTEGER NOT NULL,
    ended_at       INTEGER,
    reason         TEXT,
    padding        BLOB    DEFAULT x'0000000000000000',
    UNIQUE (sender, id),
    CHECK ((ended_at IS NULL) = (state = 'pending'))
) STRICT;

CREATE INDEX _onceward_inbox_pending     ON _onceward_inbox (lane_id, seq)    WHERE state = 'pending';
CREATE INDEX _onceward_inbox_expiry      ON _onceward_inbox (expires_at, seq) WHERE expires_at IS NOT NULL AND state = 'pending';
CREATE INDEX _onceward_inbox_correlation ON _onceward_inbox (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX _onceward_inbox_ephemeral ON _onceward_inbox (seq) WHERE ephemeral IS NOT NULL AND state = 'pending';

CREATE TABLE _onceward_processed_messages (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    sender       TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL DEFAULT '',
    session      TEXT    NOT NULL,
    outcome      TEXT    NOT NULL
        CHECK (outcome = 'processed' OR outcome = 'dropped' OR outcome = 'expired' OR outcome = 'dead' OR outcome = 'cancelled'),
    processed_at INTEGER NOT NULL,
    UNIQUE (sender, message_id, consumer)
) STRICT;

-- The last failed handler calls with their tracebacks: a few per message, and a limited number per file.
CREATE TABLE _onceward_failed_attempts (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sender     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    worker     TEXT    NOT NULL,
    error      TEXT    NOT NULL,
    trace      TEXT    NOT NULL,
    took       REAL,
    failed_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX _onceward_failed_attempts_message ON _onceward_failed_attempts (message_id, sender, seq);

-- Values that handlers returned for messages that asked for no reply, and the last progress that they reported: for a
-- limited time, and a limited number per file.
CREATE TABLE _onceward_results (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sender     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    stored_at  INTEGER NOT NULL,
    until_at   INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    media      TEXT,
    result     TEXT,
    progress   TEXT,
    UNIQUE (message_id, sender),
    CHECK ((media IS NULL) = (result IS NULL))
) STRICT;

-- Types that handlers wait for. Their messages are kept for the steps of their session, and no handler gets them.
CREATE TABLE _onceward_awaited_types (
    type TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Message ids that a sender chose itself although they look like generated ones; their dedup records are never pruned.
CREATE TABLE _onceward_chosen_ids (
    sender TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (sender, id)
) STRICT, WITHOUT ROWID;

-- Messages that came a second time under their id with other contents, in the files of both sides; the first one stayed.
CREATE TABLE _onceward_differing_messages (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    box        TEXT    NOT NULL CHECK (box IN ('outbox', 'inbox')),
    peer       TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    noticed_at INTEGER NOT NULL,
    UNIQUE (box, peer, id)
) STRICT;

-- Outcomes on their way back to senders: one row per commit and sender, deleted once delivered.
CREATE TABLE _onceward_receipts (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    peer       TEXT    NOT NULL,
    receipts   TEXT    NOT NULL CHECK (json_valid(receipts)),
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX _onceward_receipts_peer ON _onceward_receipts (peer, seq);

CREATE TABLE _onceward_dead_letters (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    origin         TEXT    NOT NULL CHECK (origin IN ('outbox', 'inbox')),
    id             TEXT    NOT NULL,
    peer           TEXT    NOT NULL,
    session        TEXT    NOT NULL,
    lane           TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    rank           INTEGER NOT NULL,
    reason         TEXT    NOT NULL,
    last_error     TEXT,
    attempts       INTEGER NOT NULL,
    expires_at     INTEGER,
    key            TEXT,
    channel        TEXT,
    kind           TEXT,
    correlation_id TEXT,
    mailbox        TEXT,
    queue          TEXT,
    replays        INTEGER NOT NULL DEFAULT 0,
    pushed         INTEGER NOT NULL DEFAULT 1,
    inbox_seq      INTEGER,
    frame          TEXT    NOT NULL,
    digest         BLOB,
    created_at     INTEGER NOT NULL,
    dead_at        INTEGER NOT NULL,
    late_outcome   TEXT,
    late_at        INTEGER,
    UNIQUE (origin, peer, id)
) STRICT;

CREATE INDEX _onceward_dead_letters_id  ON _onceward_dead_letters (id);
CREATE INDEX _onceward_dead_letters_key ON _onceward_dead_letters (peer, key) WHERE key IS NOT NULL;
CREATE INDEX _onceward_dead_letters_created ON _onceward_dead_letters (created_at);

-- Sessions that are served by runs, as declared in the agent's code, with home and defaults filled in.
CREATE TABLE _onceward_session_handlers (
    pattern             TEXT    PRIMARY KEY,
    mode                TEXT    NOT NULL CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    debounce_for        INTEGER NOT NULL CHECK (debounce_for >= 0),
    cap                 INTEGER CHECK (cap >= 1),
    overflow            TEXT    NOT NULL CHECK (overflow IN ('reject', 'drop_old', 'summarize')),
    aborted             TEXT    NOT NULL CHECK (aborted IN ('deliver', 'return')),
    inject              INTEGER NOT NULL CHECK (inject IN (0, 1)),
    allow_override_from TEXT    NOT NULL CHECK (json_valid(allow_override_from))
) STRICT, WITHOUT ROWID;

-- Limits for sent messages that are not settled, by scope. The name '*' applies to each name of its scope separately.
CREATE TABLE _onceward_limits (
    scope        TEXT    NOT NULL CHECK (scope IN ('outbox', 'session', 'lane', 'channel', 'store')),
    name         TEXT    NOT NULL,
    max_messages INTEGER,
    max_bytes    INTEGER,
    overflow     TEXT    NOT NULL CHECK (overflow IN ('reject', 'hold', 'drop_old', 'drop_new', 'summarize')),
    PRIMARY KEY (scope, name),
    CHECK (scope NOT IN ('outbox', 'store') OR name = ''),
    CHECK (scope <> 'store' OR overflow = 'reject'),
    CHECK (max_messages IS NOT NULL OR max_bytes IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- The usage of each limited scope, maintained by triggers that exist only while there are limits.
CREATE TABLE _onceward_limit_usage (
    scope    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

-- Token buckets: the number of messages that may be sent, accepted or handled at present.
CREATE TABLE _onceward_rate_limits (
    name       TEXT    PRIMARY KEY,
    per_second REAL    NOT NULL CHECK (per_second > 0),
    burst      REAL    NOT NULL CHECK (burst >= 1),
    tokens     REAL    NOT NULL,
    filled_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Limits of handlers that were set while they run, by the handler's type, topic or pattern, and types that are paused.
-- A worker that has applied a row notes when, and what its code declares.
CREATE TABLE _onceward_handler_limits (
    name                 TEXT    PRIMARY KEY,
    per_second           REAL    CHECK (per_second > 0),
    burst                REAL    CHECK (burst >= 1),
    concurrency          INTEGER CHECK (concurrency >= 1),
    paused_at            INTEGER,
    changed_at           INTEGER NOT NULL,
    applied_at           INTEGER,
    declared_per_second  REAL,
    declared_burst       REAL,
    declared_concurrency INTEGER,
    CHECK ((per_second IS NULL) = (burst IS NULL)),
    CHECK (per_second IS NOT NULL OR concurrency IS NOT NULL OR paused_at IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- Every message that a policy of this file dropped. In the scope 'queue' the peer is its sender, otherwise its recipient.
-- A message to the recipient, or a run of the session, reports the summary; both columns are NULL until then.
CREATE TABLE _onceward_drops (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL,
    peer       TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    line       TEXT,
    summary_id TEXT,
    run_seq    INTEGER,
    dropped_at INTEGER NOT NULL
) STRICT;

CREATE INDEX _onceward_drops_unsummarized ON _onceward_drops (peer, session, seq) WHERE policy = 'summarize' AND scope <> 'queue';
CREATE INDEX _onceward_drops_queue  ON _onceward_drops (session, run_seq, seq) WHERE policy = 'summarize' AND scope = 'queue';
CREATE INDEX _onceward_drops_run    ON _onceward_drops (run_seq, seq) WHERE run_seq IS NOT NULL;
CREATE INDEX _onceward_drops_at     ON _onceward_drops (dropped_at);

-- Rows that changed after they had ended, and deleted records: a reader that returns for new rows would miss them.
CREATE TABLE _onceward_late_changes (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    box     TEXT    NOT NULL CHECK (box IN ('outbox', 'inbox', 'processed', 'dead_letters')),
    row_seq INTEGER NOT NULL,
    row_at  INTEGER NOT NULL,
    peer    TEXT    NOT NULL,
    id      TEXT    NOT NULL
) STRICT;

INSERT INTO _onceward_counters (name) VALUES
    ('ended_pending'), ('sent'), ('acked'), ('failed'), ('cancelled'), ('retries'), ('dead'), ('replayed'),
    ('ended'), ('processed'), ('dropped'), ('expired'), ('duplicates'), ('refused'), ('forks'),
    ('dropped_by_policy'), ('outbox_dropped'), ('ephemeral_dropped'), ('inbox_cancelled');

CREATE TRIGGER _onceward_outbox_late AFTER UPDATE OF state ON _onceward_outbox
WHEN OLD.ended_at IS NOT NULL
BEGIN
    INSERT INTO _onceward_late_changes (box, row_seq, row_at, peer, id)
    VALUES ('outbox', OLD.seq, OLD.created_at, OLD.recipient, OLD.id);
END;

CREATE TRIGGER _onceward_dead_letters_late AFTER UPDATE ON _onceward_dead_letters
BEGIN
    INSERT INTO _onceward_late_changes (box, row_seq, row_at, peer, id)
    VALUES ('dead_letters', OLD.seq, OLD.dead_at, OLD.peer, OLD.id);
END;

CREATE TRIGGER _onceward_dead_letters_gone AFTER DELETE ON _onceward_dead_letters
BEGIN
    INSERT INTO _onceward_late_changes (box, row_seq, row_at, peer, id)
    VALUES ('dead_letters', OLD.seq, OLD.dead_at, OLD.peer, OLD.id);
END;

CREATE TRIGGER _onceward_processed_messages_gone AFTER DELETE ON _onceward_processed_messages
WHEN OLD.outcome = 'dead'
BEGIN
    INSERT INTO _onceward_late_changes (box, row_seq, row_at, peer, id)
    VALUES ('processed', OLD.seq, OLD.processed_at, OLD.sender, OLD.message_id);
END;

-- Admission: the pause and the limit apply to every writer in any language.
CREATE TRIGGER _onceward_outbox_admit AFTER INSERT ON _onceward_outbox
BEGIN
    SELECT CASE
        WHEN i.superseded_by IS NOT NULL THEN RAISE(ABORT, 'onceward:taken_over')
        WHEN i.paused_at IS NOT NULL THEN RAISE(ABORT, 'onceward:paused')
        WHEN NEW.seq > i.max_pending  -- or nothing need be read
         AND NEW.seq - (SELECT value FROM _onceward_counters WHERE name = 'ended_pending') > i.max_pending
            THEN RAISE(ABORT, 'onceward:queue_full')
        END
      FROM _onceward_file_info AS i;
END;

-- Guards: a transition that the state machine does not know fails, even from a SQLite shell.
CREATE TRIGGER _onceward_outbox_guard AFTER UPDATE OF state ON _onceward_outbox
WHEN NOT (   OLD.state = NEW.state
          OR (OLD.state = 'pending' AND NEW.state <> 'pending')
          OR OLD.state = 'sent'
          OR (OLD.state = 'acked'   AND (NEW.state = 'pending' OR NEW.state = 'dropped' OR NEW.state = 'cancelled'))
          OR (OLD.state = 'failed'  AND (NEW.state = 'pending' OR NEW.state = 'acked')))
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

-- Only a message that no peer can know is given to a member of its pool, or taken back; its address stays.
CREATE TRIGGER _onceward_outbox_frame_guard BEFORE UPDATE OF seq, rowid, oid, _rowid_, id, recipient, frame ON _onceward_outbox
WHEN NEW.pool IS OLD.pool OR NEW.seq <> OLD.seq OR NEW.id <> OLD.id OR OLD.state <> 'pending' OR OLD.pushed
  OR coalesce(NEW.pool, NEW.recipient) <> coalesce(OLD.pool, OLD.recipient)
  OR OLD.seq IN (SELECT value FROM _onceward_peers, json_each(in_flight_seqs) WHERE in_flight_seqs IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'onceward:frame_is_immutable');
END;

CREATE TRIGGER _onceward_outbox_delete_guard BEFORE DELETE ON _onceward_outbox
WHEN OLD.state IN ('pending', 'sent')
 AND NOT EXISTS (SELECT 1 FROM _onceward_dead_letters WHERE origin = 'outbox' AND peer = OLD.recipient AND id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

-- A body is deleted with the last row that refers to it.
CREATE TRIGGER _onceward_outbox_body_gone AFTER DELETE ON _onceward_outbox
WHEN OLD.body_id IS NOT NULL
BEGIN
    DELETE FROM _onceward_bodies
     WHERE body_id = OLD.body_id
       AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = OLD.body_id);
END;

CREATE TRIGGER _onceward_inbox_guard AFTER UPDATE OF state ON _onceward_inbox
WHEN OLD.state <> 'pending' AND OLD.state <> NEW.state
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER _onceward_inbox_frame_guard BEFORE UPDATE OF seq, rowid, oid, _rowid_, id, sender, frame ON _onceward_inbox
BEGIN
    SELECT RAISE(ABORT, 'onceward:frame_is_immutable');
END;

CREATE TRIGGER _onceward_inbox_delete_guard BEFORE DELETE ON _onceward_inbox
WHEN OLD.state = 'pending'
 AND NOT EXISTS (SELECT 1 FROM _onceward_dead_letters WHERE origin = 'inbox' AND peer = OLD.sender AND id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

-- A handler that waits for a reply becomes due in the commit that stores the reply, or that records that none will come;
-- one that waits for several together becomes due in the commit that ends the last of them.
CREATE TRIGGER _onceward_pending_replies_ended AFTER UPDATE OF state ON _onceward_pending_replies
WHEN OLD.state = 'open' AND NEW.state <> 'open' AND NEW.asker_seq IS NOT NULL
 AND NOT EXISTS (SELECT 1 FROM _onceward_pending_replies
                  WHERE asker_seq = NEW.asker_seq AND gathered = 1 AND state = 'open'
                    AND coalesce(deadline_at, NEW.ended_at) >= NEW.ended_at)
BEGIN
    UPDATE _onceward_lanes
       SET due_at = NULL
     WHERE lane_id = (SELECT lane_id FROM _onceward_inbox WHERE seq = NEW.asker_seq AND state = 'pending')
       AND owner IS NULL;
END;

-- The public contract: views only ever gain columns. To send from any language: INSERT INTO onceward_send.
-- A body is shown as a plain value, as JSON text if it is an object or a list, or as base64 if it was sent as bytes.
-- Every connection parses all of this, so a column is qualified only if its name is in two tables.

CREATE VIEW onceward_outbox AS
SELECT seq, id, agent AS sender, recipient, session, lane, type, topic,
       CASE rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN state = 'pending'
             AND seq IN (SELECT value FROM _onceward_peers, json_each(in_flight_seqs) WHERE in_flight_seqs IS NOT NULL)
            THEN 'sending' ELSE state END AS state,
       attempts, key, due_at, expires_at, o.created_at, sent_at, ended_at, reason,
       CASE WHEN o.body_id IS NULL THEN frame ELSE frame || coalesce(text, 'null,"bodyerror":"missing"') || '}' END AS frame,
       CAST(CASE WHEN o.body_id IS NOT NULL THEN CASE WHEN json_valid(text) THEN json_extract(text, '$') END
                 WHEN json_valid(frame) THEN coalesce(json_extract(frame, '$.data'), json_extract(frame, '$.data_base64'))
             END AS TEXT) AS body,
       channel, kind, correlation_id, held_by, replays, pool
  FROM _onceward_outbox AS o JOIN _onceward_file_info LEFT JOIN _onceward_bodies AS b ON b.body_id = o.body_id;

CREATE VIEW onceward_processed_messages AS
SELECT seq, message_id AS id, sender, agent AS recipient, consumer, session, outcome, processed_at
  FROM _onceward_processed_messages, _onceward_file_info;

CREATE VIEW onceward_dead_letters AS
SELECT seq, id, CASE WHEN queue IS NULL THEN origin ELSE 'queue' END AS origin,
       CASE origin WHEN 'outbox' THEN agent ELSE peer END AS sender, CASE origin WHEN 'outbox' THEN peer ELSE agent END AS recipient,
       session, lane, type, topic,
       CASE rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       reason, last_error, attempts, d.created_at, dead_at, late_outcome, late_at, frame,
       CASE WHEN json_valid(frame)
            THEN CAST(coalesce(json_extract(frame, '$.data'), json_extract(frame, '$.data_base64')) AS TEXT) END AS body,
       channel, kind, correlation_id, mailbox, queue, replays
  FROM _onceward_dead_letters AS d, _onceward_file_info;

CREATE VIEW onceward_peers AS
SELECT name, url, p.epoch, generation, p.number, coalesce(json_array_length(in_flight_seqs), 0) AS in_flight,
       breaker, failures, due_at, lease_at, last_error, seen_at,
       s.epoch AS stream_epoch, s.number AS stream_number, updated_at AS stream_at, max_bytes, inbound_rule, owner
  FROM _onceward_peers AS p LEFT JOIN _onceward_sender_streams AS s ON sender = name;

-- A comparison of files needs this to tell pruned from lost: the id up to which a sender's dedup records may have been pruned.
CREATE VIEW onceward_differing_messages AS
SELECT d.seq, d.id, CASE box WHEN 'inbox' THEN peer ELSE agent END AS sender, CASE box WHEN 'inbox' THEN agent ELSE peer END AS recipient,
       box, noticed_at
  FROM _onceward_differing_messages AS d, _onceward_file_info;

CREATE VIEW onceward_streams AS
SELECT sender, agent AS recipient, epoch, number, horizon_id, updated_at FROM _onceward_sender_streams, _onceward_file_info;

CREATE VIEW onceward_lanes AS
SELECT l.sender, name AS lane, coalesce(l.session, b.session) AS session,
       CASE l.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN owner IS NOT NULL THEN 'leased' WHEN head_seq IS NULL THEN 'empty' WHEN due_at IS NULL THEN 'ready' ELSE 'waiting' END AS state,
       b.id AS head_id, coalesce(attempts, 0) AS attempts, due_at, coalesce(json_array_length(leased_seqs), 0) AS leased, owner,
       recipient AS awaits, r.id AS request_id, asked_at, head_seq, group_name
  FROM _onceward_lanes AS l
  LEFT JOIN _onceward_inbox AS b ON seq = head_seq
  LEFT JOIN _onceward_pending_replies AS r ON r.id = (
       SELECT id FROM _onceward_pending_replies WHERE asker_seq = head_seq AND state = 'open' ORDER BY asker_index LIMIT 1);

CREATE VIEW onceward_file AS
SELECT agent, durability, max_pending, max_inbox, max_body, max_file_bytes, paused_at, opened_at, created_at, file_id, outbox_pruned_at,
       wal_lost_at, backed_up_at, takeover, superseded_by
  FROM _onceward_file_info;

CREATE VIEW onceward_stats AS
SELECT max(0, enqueued - json_extract(counted, '$.ended_pending')) AS pending, sending, json_extract(counted, '$.sent') AS sent,
       json_extract(counted, '$.acked') AS acked, json_extract(counted, '$.failed') AS failed, json_extract(counted, '$.cancelled') AS cancelled,
       json_extract(counted, '$.retries') AS total_retries, enqueued, received,
       max(0, received - json_extract(counted, '$.ended') - processing) AS inbox_pending, processing AS inbox_processing,
       json_extract(counted, '$.processed') AS processed, json_extract(counted, '$.dropped') AS dropped, json_extract(counted, '$.expired') AS expired,
       json_extract(counted, '$.duplicates') AS duplicates, json_extract(counted, '$.refused') AS refused, json_extract(counted, '$.forks') AS forks,
       json_extract(counted, '$.dead') AS dead_total,
       (SELECT count(*) FROM _onceward_dead_letters) AS dead_letters,
       (SELECT count(*) FROM _onceward_pending_replies WHERE state = 'open') AS tickets_open,
       json_extract(counted, '$.ephemeral_dropped') AS ephemeral_dropped, json_extract(counted, '$.dropped_by_policy') AS dropped_by_policy,
       json_extract(counted, '$.outbox_dropped') AS outbox_dropped, json_extract(counted, '$.inbox_cancelled') AS inbox_cancelled
  FROM (SELECT json_group_object(name, value) AS counted,
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0) AS enqueued,
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0) AS received,
               (SELECT coalesce(sum(json_array_length(in_flight_seqs)), 0) FROM _onceward_peers WHERE in_flight_seqs IS NOT NULL) AS sending,
               (SELECT coalesce(sum(json_array_length(leased_seqs)), 0) FROM _onceward_lanes WHERE leased_seqs IS NOT NULL AND due_at < 9000000000000000)
                   AS processing
          FROM _onceward_counters);

-- The oldest waiting messages: a row for each peer with messages that may be pushed now, and a row for the inbox. Each is read
-- from the end of an index, so the cost grows with the number of peers, not of messages.
CREATE VIEW onceward_backlog AS
WITH RECURSIVE waiting (peer) AS (
    SELECT ''
     UNION ALL
    SELECT (SELECT min(recipient) FROM _onceward_outbox WHERE recipient > peer AND state = 'pending' AND due_at IS NULL AND held_by IS NULL)
      FROM waiting WHERE peer IS NOT NULL)
SELECT 'inbox' AS box, NULL AS peer,
       (SELECT min(received_at) FROM _onceward_inbox
         WHERE seq IN (SELECT (SELECT min(head_seq) FROM _onceward_lanes WHERE rank = value AND head_seq IS NOT NULL AND due_at IS NULL)
                         FROM json_each('[0,1,2,3,4]')
                        UNION ALL
                       SELECT (SELECT min(head_seq) FROM _onceward_lanes WHERE rank = value AND head_seq IS NOT NULL AND due_at = 9000000000000000)
                         FROM json_each('[0,1,2,3,4]')
                        UNION ALL
                       SELECT head_seq FROM _onceward_lanes WHERE due_at < 9000000000000000)) AS oldest_at
 UNION ALL
SELECT 'outbox', peer,
       (SELECT min(created_at) FROM _onceward_outbox
         WHERE seq IN (SELECT (SELECT min(seq) FROM _onceward_outbox
                                WHERE recipient = peer AND rank = value AND state = 'pending' AND due_at IS NULL AND held_by IS NULL)
                         FROM json_each('[0,1,2,3,4]')))
  FROM waiting WHERE peer > '';

CREATE VIEW onceward_failed_attempts AS
SELECT f.seq, f.message_id, f.sender, i.agent AS recipient, f.attempt, f.worker, f.error, f.trace, f.took, f.failed_at
  FROM _onceward_failed_attempts AS f, _onceward_file_info AS i;

CREATE VIEW onceward_results AS
SELECT seq, message_id, sender, agent AS recipient, CAST(json_extract(result, '$') AS TEXT) AS body, bytes, stored_at, until_at
  FROM _onceward_results, _onceward_file_info
 WHERE result IS NOT NULL;

CREATE VIEW onceward_ephemeral_messages AS
SELECT seq, id, sender, session, mailbox, state, reason, received_at, ended_at FROM _onceward_inbox WHERE ephemeral IS NOT NULL;

CREATE VIEW onceward_drops AS
SELECT seq, id, CASE scope WHEN 'queue' THEN peer ELSE agent END AS sender, CASE scope WHEN 'queue' THEN agent ELSE peer END AS recipient,
       session, scope, name, policy, line, summary_id, dropped_at
  FROM _onceward_drops, _onceward_file_info;

-- A limit with the name '*' has a row for each name of its scope that has messages.
CREATE VIEW onceward_limits AS
SELECT l.scope, l.name, max_messages, max_bytes, overflow, u.name AS used_by, coalesce(messages, 0) AS messages, coalesce(bytes, 0) AS bytes
  FROM _onceward_limits AS l
  LEFT JOIN _onceward_limit_usage AS u ON u.scope = l.scope
   AND (u.name = l.name
        OR (l.name = '*' AND NOT EXISTS (SELECT 1 FROM _onceward_limits WHERE scope = u.scope AND name = u.name)));

CREATE VIEW onceward_handler_limits AS
SELECT name, per_second, burst, concurrency, paused_at, changed_at, applied_at, declared_per_second, declared_burst, declared_concurrency
  FROM _onceward_handler_limits;

CREATE VIEW onceward_send AS
SELECT recipient, type, NULL AS body, session, topic, key, NULL AS priority, NULL AS ttl, NULL AS delay,
       NULL AS ordering_key, NULL AS correlation_id, id
  FROM _onceward_outbox WHERE 0;

-- ttl and delay are seconds, body is JSON text. Values that a reader of frames would refuse are refused here.
-- Walking through a body's levels costs its size per level, so only a text with many brackets is walked.
-- Bytes that are not UTF-8 are read as char(65533).
CREATE TRIGGER _onceward_send_insert INSTEAD OF INSERT ON onceward_send
BEGIN
    SELECT RAISE(ABORT, 'onceward:recipient and type are needed; these, session, topic, key, ordering_key, correlation_id and id are 1 to 256 printable characters')
      FROM (VALUES (coalesce(NEW.recipient, '')), (coalesce(NEW.type, '')), (NEW.session), (NEW.topic), (NEW.key), (NEW.ordering_key),
                   (NEW.correlation_id), (NEW.id))
     WHERE typeof(column1) = 'blob' OR length(column1) NOT BETWEEN 1 AND 256 OR instr(column1, char(0)) OR column1 GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
        OR replace(column1, char(65533), '') GLOB '*' || char(65533) || '*';
    SELECT CASE
        WHEN instr(body, char(0)) THEN RAISE(ABORT, 'onceward:body holds a NUL')
        WHEN NOT json_valid(body) THEN RAISE(ABORT, 'onceward:body is not JSON')
        WHEN length(CAST(body AS BLOB)) > 1048576 THEN RAISE(ABORT, 'onceward:body is too large')
        WHEN replace(body, char(65533), '') GLOB '*' || char(65533) || '*'
          OR body GLOB '*\u[dD][89a-fA-F]*'
         AND EXISTS (SELECT 1 FROM json_tree(body)
                      WHERE replace(coalesce(atom, '') || coalesce(key, ''), char(65533), '') GLOB '*' || char(65533) || '*')
            THEN RAISE(ABORT, 'onceward:body holds half a surrogate pair')
        WHEN body GLOB '*"*:*"*:*'
         AND EXISTS (SELECT 1 FROM json_tree(body) WHERE typeof(key) = 'text' GROUP BY parent, key HAVING count(*) > 1)
            THEN RAISE(ABORT, 'onceward:body names a key twice')
        WHEN (length(body) > 308 OR body GLOB '*[0-9][eE]*')
         AND EXISTS (SELECT 1 FROM json_tree(body) WHERE type IN ('integer', 'real') AND abs(value) > 1.7976931348623157e308)
            THEN RAISE(ABORT, 'onceward:body holds a number that no float can be')
        WHEN length(body) - length(replace(replace(body, '[', ''), '{', '')) > 200
         AND EXISTS (WITH RECURSIVE level (depth, part) AS (
                         SELECT 1, body
                          UNION ALL
                         SELECT depth + 1, value FROM level, json_each(part) WHERE type IN ('array', 'object') AND depth <= 200)
                     SELECT 1 FROM level WHERE depth > 200)
            THEN RAISE(ABORT, 'onceward:body is nested more than 200 deep')
        END
      FROM (SELECT NEW.body AS body) WHERE body IS NOT NULL;
    SELECT CASE
        WHEN NOT recipient GLOB '[A-Za-z0-9]*' OR recipient GLOB '*[^A-Za-z0-9._-]*' OR length(recipient) > 128
          OR lower(recipient) IN ('all', 'broadcast', 'directory')
            THEN RAISE(ABORT, 'onceward:recipient is not an agent name')
        WHEN topic || '.' GLOB '_system.*' THEN RAISE(ABORT, 'onceward:topic _system is reserved for notifications')
        WHEN topic GLOB '*[*#]*' OR '.' || topic || '.' GLOB '*..*'
            THEN RAISE(ABORT, 'onceward:topic must be dotted, without empty segments or wildcards')
        WHEN NEW.priority NOT IN ('critical', 'urgent', 'high', 'normal', 'low', 'background') THEN RAISE(ABORT, 'onceward:priority is unknown')
        WHEN length(id) > 128 OR id GLOB '*[^A-Za-z0-9._:-]*' THEN RAISE(ABORT, 'onceward:id is malformed')
        WHEN NEW.ttl NOT BETWEEN 0 AND 1e10 OR NEW.delay NOT BETWEEN 0 AND 1e10  -- text is greater than any number
            THEN RAISE(ABORT, 'onceward:ttl and delay are seconds, not negative')
        -- A conflict clause of the outer INSERT must not reach the inner one.
        WHEN EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = NEW.id) THEN RAISE(ABORT, 'onceward:id is known')
        WHEN EXISTS (SELECT 1 FROM _onceward_outbox WHERE addressed_to = NEW.recipient AND key = NEW.key) THEN RAISE(ABORT, 'onceward:key is known')
        END
      FROM (SELECT NEW.recipient AS recipient, NEW.topic AS topic, NEW.id AS id);
    INSERT INTO _onceward_peers (name, epoch)
    SELECT NEW.recipient, '00000001' || lower(hex(randomblob(12)))
     WHERE NOT EXISTS (SELECT 1 FROM _onceward_peers WHERE name = NEW.recipient);
    INSERT INTO _onceward_outbox (id, recipient, session, lane, type, topic, rank, key, due_at, expires_at, created_at, frame)
    SELECT id, recipient, session, coalesce(ordering_key, session), type, topic, rank, key,
           CASE WHEN NEW.delay > 0 THEN at + CAST(NEW.delay * 1000 AS INTEGER) END, expires_at, at,
           json_set(
               json_patch('{}', json_object(
                   'specversion', '1.0', 'id', id, 'source', 'urn:onceward:' || agent, 'type', type,
                   'time', strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch'), 'recipient', recipient,
                   'session', session, 'priority', rank, 'topic', topic, 'partitionkey', ordering_key,
                   'correlationid', CAST(NEW.correlation_id AS TEXT), 'idempotencykey', key,
                   'chosenid', CASE WHEN NEW.id IS NOT NULL THEN json('true') END,
                   'expirytime', strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch'),
                   'datacontenttype', 'application/json')),
               '$.data', json(coalesce(NEW.body, 'null')))
      FROM _onceward_file_info,
           (SELECT CAST(coalesce(NEW.id, printf('%08x-%04x-7%.3s-%x%.3s-%s', at >> 16, at & 65535, dice, 8 + (die & 3), substr(dice, 4), substr(dice, 7)))
                        AS TEXT) AS id,
                   at, at + CAST(NEW.ttl * 1000 AS INTEGER) AS expires_at,
                   CAST(NEW.recipient AS TEXT) AS recipient, CAST(NEW.type AS TEXT) AS type, CAST(coalesce(NEW.session, 'default') AS TEXT) AS session,
                   CAST(NEW.topic AS TEXT) AS topic, CAST(NEW.key AS TEXT) AS key, CAST(NEW.ordering_key AS TEXT) AS ordering_key,
                   CASE NEW.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'high' THEN 1 WHEN 'low' THEN 3 WHEN 'background' THEN 4 ELSE 2 END AS rank
                   -- each is computed once, inside an aggregate
              FROM (SELECT max(CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)) AS at,
                           max(lower(hex(randomblob(9)))) AS dice, max(random()) AS die));
END;
