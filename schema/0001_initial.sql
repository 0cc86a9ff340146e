-- Put together from core.sql, inbox.sql and X/X.sql of each feature: change those.
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

CREATE INDEX _onceward_outbox_channel     ON _onceward_outbox (channel, seq)     WHERE channel IS NOT NULL;
CREATE INDEX _onceward_outbox_channel_unsent ON _onceward_outbox (channel, seq) WHERE channel IS NOT NULL AND state = 'pending' AND sent_at IS NULL;
CREATE INDEX _onceward_outbox_channel_open ON _onceward_outbox (channel, seq) WHERE channel IS NOT NULL AND ended_at IS NULL;

-- Messages that sticky channels retain, one row for all recipients; agents that join later get them under new ids.
CREATE TABLE _onceward_retained_posts (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,
    channel        TEXT    NOT NULL,
    session        TEXT    NOT NULL,
    lane           TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    topic          TEXT,
    kind           TEXT,
    rank           INTEGER NOT NULL,
    expires_at     INTEGER,
    correlation_id TEXT,
    head           TEXT    NOT NULL,
    tail           TEXT    NOT NULL,
    body_id        INTEGER NOT NULL,
    size           INTEGER NOT NULL,
    created_at     INTEGER NOT NULL
) STRICT;

CREATE INDEX _onceward_retained_posts_channel ON _onceward_retained_posts (channel, number);
CREATE INDEX _onceward_retained_posts_body    ON _onceward_retained_posts (body_id);

-- Work that this agent does after changes to the directory or its own file, and the position of each task.
CREATE TABLE _onceward_background_tasks (
    kind     TEXT    NOT NULL CHECK (kind IN ('channel', 'notices', 'dead_letters')),
    name     TEXT    NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    held     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The progress of each recipient with a message that we sent; a stage never moves backwards.
CREATE TABLE _onceward_acknowledgments (
    message_id  TEXT    NOT NULL,
    participant TEXT    NOT NULL,
    stage       INTEGER NOT NULL CHECK (stage BETWEEN 1 AND 4),
    detail      TEXT,
    first_at    INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (message_id, participant)
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_acknowledgments_at ON _onceward_acknowledgments (at);
CREATE INDEX _onceward_inbox_channel      ON _onceward_inbox (channel, seq)      WHERE channel IS NOT NULL;
-- Messages that wait in a channel, in reading order. Handled messages leave the index; a skipped one costs one look.
CREATE INDEX _onceward_inbox_channel_pending ON _onceward_inbox (channel, rank, seq) WHERE channel IS NOT NULL AND state = 'pending';

-- Each dead letter is reported to the home, except dead notices: two listeners without handlers would report to each other endlessly.
CREATE TRIGGER _onceward_dead_letters_notice AFTER INSERT ON _onceward_dead_letters
WHEN NEW.topic IS NULL OR NEW.topic NOT GLOB '_system.*'
BEGIN
    INSERT INTO _onceward_background_tasks (kind, name, position) VALUES ('dead_letters', '', NEW.seq - 1)
    ON CONFLICT DO NOTHING;
END;

-- A retained post keeps its body when other rows that use it are deleted; its own deletion deletes the body with the last reference.
CREATE TRIGGER _onceward_bodies_retained BEFORE DELETE ON _onceward_bodies
WHEN EXISTS (SELECT 1 FROM _onceward_retained_posts WHERE body_id = OLD.body_id)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER _onceward_retained_posts_body_gone AFTER DELETE ON _onceward_retained_posts
BEGIN
    DELETE FROM _onceward_bodies
     WHERE body_id = OLD.body_id
       AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = OLD.body_id);
END;

CREATE VIEW onceward_acknowledgments AS
SELECT message_id, correlation_id, channel, participant,
       CASE stage WHEN 1 THEN 'received' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'failed' ELSE 'completed' END AS status, detail, first_at, at
  FROM _onceward_acknowledgments LEFT JOIN _onceward_outbox ON id = message_id;

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

-- The time range of each thousand rows of outbox and inbox, written later by maintenance or by a query over time.
-- Searches by time use these ranges, so sending and accepting need not maintain an index of times.
CREATE TABLE _onceward_time_index (
    box       TEXT    NOT NULL CHECK (box IN ('inbox', 'outbox')),
    last_seq  INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    min_at    INTEGER NOT NULL,
    max_at    INTEGER NOT NULL,
    PRIMARY KEY (box, last_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE _onceward_transitions (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    box        TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    peer       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    reason     TEXT
) STRICT;

CREATE VIEW onceward_transitions AS
SELECT seq, at, agent, box, id, peer, from_state, to_state, reason FROM _onceward_transitions, _onceward_file_info;

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

-- The position of a polling agent in a session.
CREATE TABLE _onceward_poll_cursors (
    session TEXT    PRIMARY KEY,
    seq     INTEGER NOT NULL,
    read_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Members of pools: named by hand, and those of the home, as the directory has told them last.
CREATE TABLE _onceward_pool_members (
    pool    TEXT    NOT NULL,
    agent   TEXT    NOT NULL,
    credits INTEGER NOT NULL CHECK (credits > 0),
    home    INTEGER NOT NULL CHECK (home IN (0, 1)),
    works   INTEGER NOT NULL DEFAULT 1 CHECK (works IN (0, 1)),
    PRIMARY KEY (pool, agent)
) STRICT, WITHOUT ROWID;

-- The pools to which this agent sends are peers with the url pool:.
CREATE INDEX _onceward_peers_pools ON _onceward_peers (name) WHERE url = 'pool:';

CREATE VIEW onceward_pools AS
SELECT p.name AS pool,
       (SELECT count(*) FROM _onceward_outbox AS o WHERE o.recipient = p.name AND o.state = 'pending' AND o.due_at IS NULL AND o.held_by IS NULL) AS waiting,
       (SELECT min(o.created_at) FROM _onceward_outbox AS o WHERE o.recipient = p.name AND o.state = 'pending' AND o.due_at IS NULL AND o.held_by IS NULL) AS waiting_since_at,
       (SELECT count(*) FROM _onceward_outbox AS o WHERE o.pool = p.name AND o.ended_at IS NULL) AS in_flight,
       (SELECT count(*) FROM _onceward_pool_members AS m WHERE m.pool = p.name) AS members,
       (SELECT count(*) FROM _onceward_outbox AS o WHERE o.recipient = p.name AND o.state = 'pending' AND o.seq <= p.redelivered_upto_seq) AS in_doubt
  FROM _onceward_peers AS p
 WHERE p.url = 'pool:';

CREATE VIEW onceward_pool_members AS
SELECT m.pool, m.agent, m.credits, m.home, m.works, coalesce(p.failures, 0) AS failures,
       (SELECT count(*) FROM _onceward_outbox AS o WHERE o.pool = m.pool AND o.recipient = m.agent AND o.ended_at IS NULL) AS in_flight,
       max(1, coalesce(p.room, m.credits)) AS takes
  FROM _onceward_pool_members AS m LEFT JOIN _onceward_peers AS p ON p.name = m.agent;

-- One row per session with runs; NULL in a setting means the handler's setting.
CREATE TABLE _onceward_session_queues (
    session          TEXT    PRIMARY KEY,
    mode             TEXT    CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    debounce_for     INTEGER CHECK (debounce_for >= 0),
    cap              INTEGER CHECK (cap >= 1),
    overflow         TEXT    CHECK (overflow IN ('reject', 'drop_old', 'summarize')),
    aborted          TEXT    CHECK (aborted IN ('deliver', 'return')),
    inject           INTEGER CHECK (inject IN (0, 1)),
    waiting_since_at INTEGER,
    arrived_at       INTEGER,
    retry_at         INTEGER,
    goes_on_with     TEXT    CHECK (goes_on_with IS NULL OR json_valid(goes_on_with)),
    paused_at        INTEGER,
    reordered        INTEGER NOT NULL DEFAULT 0 CHECK (reordered IN (0, 1)),
    next_mode        TEXT    CHECK (next_mode IN ('steer', 'interrupt'))
) STRICT, WITHOUT ROWID;

CREATE TABLE _onceward_runs (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    session       TEXT    NOT NULL,
    mode          TEXT    NOT NULL CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    state         TEXT    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'waiting', 'aborted', 'failed')),
    lane_id       INTEGER NOT NULL,
    token         INTEGER NOT NULL,
    owner         TEXT    NOT NULL,
    bound         TEXT    NOT NULL CHECK (json_valid(bound)),
    event_ids     TEXT    NOT NULL CHECK (json_valid(event_ids)),
    began_with    INTEGER NOT NULL CHECK (began_with >= 1),
    consumed      INTEGER NOT NULL DEFAULT 0 CHECK (consumed IN (0, 1)),
    partial       TEXT,
    result        TEXT,
    cause         TEXT,
    started_at    INTEGER NOT NULL,
    checkpoint_at INTEGER,
    ended_at      INTEGER,
    left_at       INTEGER,
    returned_at   INTEGER,
    CHECK ((ended_at IS NULL) = (state = 'open')),
    CHECK (left_at IS NULL OR state = 'aborted'),
    CHECK (returned_at IS NULL OR left_at IS NOT NULL),
    CHECK ((checkpoint_at IS NULL) = (partial IS NULL)),
    CHECK (state <> 'done' OR consumed = 1)
) STRICT;

-- A session has at most one open run, by constraint.
CREATE UNIQUE INDEX _onceward_runs_open    ON _onceward_runs (session)      WHERE state = 'open';
CREATE INDEX        _onceward_runs_session ON _onceward_runs (session, seq);
CREATE INDEX        _onceward_runs_ended   ON _onceward_runs (ended_at, seq) WHERE ended_at IS NOT NULL;
-- Aborted calls that were still running after abort_grace.
CREATE INDEX        _onceward_runs_left    ON _onceward_runs (seq)          WHERE left_at IS NOT NULL AND returned_at IS NULL;

CREATE TRIGGER _onceward_runs_guard BEFORE UPDATE OF state ON _onceward_runs
WHEN OLD.state <> 'open' AND OLD.state <> NEW.state
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER _onceward_runs_bound_guard BEFORE UPDATE OF seq, id, session, token ON _onceward_runs
WHEN NOT (OLD.seq = NEW.seq AND OLD.id = NEW.id AND OLD.session = NEW.session AND OLD.token = NEW.token)
BEGIN
    SELECT RAISE(ABORT, 'onceward:a run keeps its name and its token');
END;

CREATE TRIGGER _onceward_runs_delete_guard BEFORE DELETE ON _onceward_runs
WHEN OLD.state = 'open'
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

CREATE VIEW onceward_runs AS
SELECT seq, id, r.session, mode, state, json_array_length(event_ids) AS messages, event_ids, consumed, partial, result, cause, r.token, r.owner,
       CASE WHEN state = 'open' AND l.token = r.token THEN due_at END AS lease_at,
       started_at, checkpoint_at, ended_at, left_at, returned_at
  FROM _onceward_runs AS r LEFT JOIN _onceward_lanes AS l ON l.lane_id = r.lane_id;

CREATE VIEW onceward_session_queues AS
SELECT q.session,
       coalesce(q.mode, h.mode) AS mode, coalesce(q.debounce_for, h.debounce_for) AS debounce_for, coalesce(q.cap, h.cap) AS cap,
       coalesce(q.overflow, h.overflow) AS overflow, coalesce(q.aborted, h.aborted) AS aborted, coalesce(q.inject, h.inject) AS inject,
       (SELECT count(*) FROM _onceward_inbox WHERE lane_id = l.lane_id AND state = 'pending' AND run_seq IS NULL) AS waiting,
       id AS run, coalesce(json_array_length(bound), 0) AS bound,
       (SELECT count(*) FROM _onceward_drops
         WHERE policy = 'summarize' AND scope = 'queue' AND session = q.session AND (run_seq IS NULL OR run_seq = r.seq)) AS dropped,
       CASE WHEN paused_at IS NOT NULL THEN 'paused' WHEN id IS NOT NULL THEN 'running' WHEN head_seq IS NULL THEN 'empty'
            WHEN due_at IS NULL THEN 'ready' ELSE 'waiting' END AS state,
       CASE WHEN id IS NULL THEN due_at END AS due_at, arrived_at, paused_at
  FROM _onceward_session_queues AS q
  LEFT JOIN _onceward_session_handlers AS h ON h.pattern = coalesce(
       (SELECT pattern FROM _onceward_session_handlers WHERE pattern = q.session),
       (SELECT pattern FROM _onceward_session_handlers WHERE q.session GLOB pattern ORDER BY length(pattern) DESC, pattern LIMIT 1))
  LEFT JOIN _onceward_lanes AS l ON l.sender IS NULL AND l.name = q.session AND l.rank = 2
  LEFT JOIN _onceward_runs AS r ON r.session = q.session AND r.state = 'open';

CREATE VIEW onceward_session_queue_messages AS
SELECT name AS session, row_number() OVER (PARTITION BY name ORDER BY coalesce(position, seq), seq) AS position, id, b.sender, type,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       attempts, received_at, expires_at
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.lane_id = l.lane_id AND state = 'pending' AND run_seq IS NULL
 WHERE l.sender IS NULL;

-- Schedules. A date and its message are one commit; due_at is NULL while paused.
CREATE TABLE _onceward_schedules (
    name       TEXT    PRIMARY KEY,
    every      INTEGER CHECK (every > 0),
    cron       TEXT,
    timezone   TEXT,
    missed     TEXT    NOT NULL CHECK (missed IN ('one', 'all', 'skip')),
    overlap    TEXT    NOT NULL CHECK (overlap IN ('queue', 'skip')),
    recipient  TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    media      TEXT,
    body       TEXT,
    options    TEXT    NOT NULL,
    origin     TEXT    NOT NULL CHECK (origin IN ('added', 'declared', 'withdrawn')),
    declared_by TEXT   NOT NULL DEFAULT '[]' CHECK (json_valid(declared_by)),
    next_at    INTEGER NOT NULL,
    unsent     TEXT,
    seen_at    INTEGER NOT NULL,
    due_at     INTEGER,
    paused_at  INTEGER,
    created_at INTEGER NOT NULL,
    sent       INTEGER NOT NULL DEFAULT 0,
    last_at    INTEGER,
    last_id    TEXT,
    last_error TEXT,
    skipped    INTEGER NOT NULL DEFAULT 0,
    skipped_at INTEGER,
    CHECK ((every IS NULL) <> (cron IS NULL)),
    CHECK ((cron IS NULL) = (timezone IS NULL)),
    CHECK ((media IS NULL) = (body IS NULL)),
    CHECK ((due_at IS NULL) = (paused_at IS NOT NULL)),
    CHECK (origin <> 'withdrawn' OR paused_at IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE INDEX _onceward_schedules_due  ON _onceward_schedules (due_at)  WHERE due_at IS NOT NULL;
CREATE INDEX _onceward_schedules_seen ON _onceward_schedules (seen_at) WHERE due_at IS NOT NULL;

CREATE VIEW onceward_schedules AS
SELECT name, every, cron, timezone, missed, overlap, recipient, session, body, options, origin, next_at, paused_at, created_at, sent, last_at, last_id, last_error,
       skipped, skipped_at
  FROM _onceward_schedules;

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

-- Output that handlers stream while they run, in batches of chunks: one order for all streams of a message.
CREATE TABLE _onceward_output_batches (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sender     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    first      INTEGER NOT NULL CHECK (first >= 1),
    last       INTEGER NOT NULL CHECK (last >= first),
    kinds      TEXT    NOT NULL,
    chunks     TEXT    NOT NULL,
    bytes      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    stored_at  INTEGER NOT NULL,
    UNIQUE (message_id, sender, first)
) STRICT;

CREATE INDEX _onceward_output_batches_stored ON _onceward_output_batches (stored_at);

CREATE VIEW onceward_output_streams AS
SELECT message_id, sender, agent AS recipient, name, sum(length(replace(kinds, 'r', ''))) AS chunks,
       sum(bytes) AS bytes, max(last) AS last, max(attempt) AS attempt, min(stored_at) AS begun_at, max(stored_at) AS stored_at
  FROM _onceward_output_batches, _onceward_file_info
 GROUP BY message_id, sender, name;

CREATE VIEW onceward_output_chunks AS
SELECT message_id, sender, agent AS recipient, name, first + key AS position,
       CASE substr(kinds, key + 1, 1) WHEN 'r' THEN 'restarted' ELSE 'chunk' END AS kind,
       CASE WHEN substr(kinds, key + 1, 1) <> 'r' THEN CAST(value AS TEXT) END AS body, attempt, stored_at
  FROM _onceward_output_batches, json_each(chunks), _onceward_file_info;

-- The view over messages that several features explain: a line with a [feature] is there with that feature only.
-- A message whose handler has a rate waits until the handler's next call; each call moves that moment on. One of a
-- paused type waits until the type is resumed.
CREATE VIEW onceward_inbox AS
  WITH rated AS NOT MATERIALIZED (
       SELECT h.seq, 'rate' AS why, filled_at + CAST(1000 * (1 - tokens) / per_second AS INTEGER) AS next_at
         FROM _onceward_rate_limits AS r JOIN _onceward_inbox AS h
           ON '.' || type || '.' GLOB replace('.' || substr(name, 9) || '.', '.#.', '.*')
           OR '.' || topic || '.' GLOB replace('.' || substr(name, 9) || '.', '.#.', '.*')
        WHERE r.name >= 'handler:' AND r.name < 'handler;'
        UNION ALL
       SELECT h.seq, 'resume', paused_at + 3155760000000
         FROM _onceward_handler_limits AS p JOIN _onceward_inbox AS h
           ON '.' || type || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')
           OR '.' || topic || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')
        WHERE p.paused_at IS NOT NULL)
SELECT seq, id, b.sender, agent AS recipient, b.session, name AS lane, type, topic,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       CASE WHEN state = 'pending'
             AND seq IN (SELECT value FROM _onceward_lanes, json_each(leased_seqs) WHERE leased_seqs IS NOT NULL AND due_at < 9000000000000000)
            THEN 'processing' ELSE state END AS state,
       attempts, expires_at, correlation_id, causation_id, received_at, ended_at, reason, frame,
       CASE WHEN json_valid(frame)
            THEN CAST(coalesce(json_extract(frame, '$.data'), json_extract(frame, '$.data_base64')) AS TEXT) END AS body,
       channel, kind, mailbox, mailbox_key, replays,
       CASE
            WHEN state = 'processed' AND EXISTS (SELECT 1 FROM _onceward_awaited_messages AS k
                                                  WHERE k.message_id = b.id AND k.sender = b.sender) THEN 'wait'
            WHEN state <> 'pending' OR l.owner IS NOT NULL THEN NULL
            WHEN i.paused_at IS NOT NULL THEN 'resume'
            WHEN q.paused_at IS NOT NULL THEN 'resume'
            WHEN l.due_at IS NULL THEN (SELECT max(iif(rated.seq = b.seq, why, 'lane')) FROM rated WHERE rated.seq IN (b.seq, l.head_seq))
            WHEN seq <> l.head_seq THEN 'lane'
            WHEN l.due_at = 9000000000000000 AND EXISTS (SELECT 1 FROM rated WHERE rated.seq = b.seq AND why = 'resume') THEN 'resume'
            WHEN l.due_at = 9000000000000000 THEN iif(t.due_at IS NULL, 'turn', 'rate')
            WHEN l.sender = '' AND attempts = 0 THEN 'quiet'
            ELSE coalesce(
                 (SELECT 'reply from ' || recipient FROM _onceward_pending_replies AS r
                   WHERE asker_seq = b.seq AND r.state = 'open' ORDER BY asker_index LIMIT 1),
                 (SELECT CASE WHEN s.state = 'retrying' THEN 'retry' WHEN awaits IS NULL THEN 'sleep' ELSE 'message ' || awaits END
                    FROM _onceward_steps AS s
                   WHERE s.message_id = b.id AND s.sender = b.sender AND s.state IN ('waiting', 'retrying') ORDER BY s.seq DESC LIMIT 1),
                 CASE WHEN q.waiting_since_at IS NOT NULL AND q.retry_at IS NULL THEN 'run' END,
                 'retry')
            END AS waits_for,
       CASE WHEN state <> 'pending' OR l.owner IS NOT NULL THEN NULL  -- a pause lasts a century at most
            WHEN q.paused_at >= coalesce(i.paused_at, 0) THEN q.paused_at + 3155760000000
            WHEN i.paused_at IS NOT NULL THEN i.paused_at + 3155760000000
            WHEN l.due_at = 9000000000000000 THEN t.due_at
            ELSE coalesce(l.due_at, (SELECT max(next_at) FROM rated WHERE rated.seq IN (b.seq, l.head_seq))) END AS waits_until_at
  FROM _onceward_inbox AS b JOIN _onceward_file_info AS i
  LEFT JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
  LEFT JOIN _onceward_session_queues AS q ON l.sender IS NULL AND q.session = l.name
  LEFT JOIN _onceward_turns AS t ON t.group_name = l.group_name AND t.rank = l.rank
;
