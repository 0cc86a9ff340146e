-- What bounds a file and what looks back: limits, dead letters that were replayed, and what the view `send` lets through.

-- A second look at what plain SQL sends: what no reader of frames takes is refused before it is a frame.
-- The walk through a body's levels costs its size for each level, so only a text with many brackets is walked.
CREATE TRIGGER send_check INSTEAD OF INSERT ON send
BEGIN
    SELECT CASE
        WHEN instr(NEW.type, char(0)) OR instr(NEW.session, char(0)) OR instr(NEW.topic, char(0)) OR instr(NEW.key, char(0))
          OR instr(NEW.ordering_key, char(0)) OR instr(NEW.correlation_id, char(0)) OR instr(NEW.id, char(0))
          OR coalesce(NEW.type, '') || coalesce(NEW.session, '') || coalesce(NEW.topic, '') || coalesce(NEW.key, '')
             || coalesce(NEW.ordering_key, '') || coalesce(NEW.correlation_id, '') GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
            THEN RAISE(ABORT, 'onceward:names must be printable')
        WHEN instr(NEW.body, char(0)) THEN RAISE(ABORT, 'onceward:body holds a NUL')
        WHEN NOT json_valid(NEW.body) THEN NULL  -- the other trigger says so
        WHEN (length(NEW.body) > 308 OR NEW.body GLOB '*[0-9][eE]*')
         AND EXISTS (SELECT 1 FROM json_tree(NEW.body) AS j WHERE j.type IN ('integer', 'real') AND abs(j.value) > 1.7976931348623157e308)
            THEN RAISE(ABORT, 'onceward:body holds a number that no float can be')
        WHEN length(NEW.body) - length(replace(replace(NEW.body, '[', ''), '{', '')) > 200
         AND EXISTS (WITH RECURSIVE level (depth, part) AS (
                         SELECT 1, NEW.body
                          UNION ALL
                         SELECT level.depth + 1, j.value FROM level, json_each(level.part) AS j
                          WHERE j.type IN ('array', 'object') AND level.depth <= 200)
                     SELECT 1 FROM level WHERE depth > 200)
            THEN RAISE(ABORT, 'onceward:body is nested more than 200 deep')
        END;
END;

-- How often a message that lives again was replayed: its next death remembers.
CREATE TABLE replayed (
    origin TEXT    NOT NULL,
    peer   TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    times  INTEGER NOT NULL,
    PRIMARY KEY (origin, peer, id)
) STRICT, WITHOUT ROWID;

-- Whether an outgoing one may have reached its peer, which then knows it: only such a one is worth asking about once it expired.
ALTER TABLE dead_letters ADD COLUMN carried INTEGER NOT NULL DEFAULT 1;

CREATE INDEX dead_letters_id  ON dead_letters (id);
CREATE INDEX dead_letters_key ON dead_letters (peer, key) WHERE key IS NOT NULL;
CREATE INDEX dead_letters_created ON dead_letters (created_at);

-- Which rows of a box are from when: one line for each thousand rows, written after the fact by whoever tidies or looks back.
-- A time is found by its chapters, so that sending and accepting keep no index of times.
CREATE TABLE chapters (
    box       TEXT    NOT NULL CHECK (box IN ('inbox', 'outbox')),
    last_seq  INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    min_at    INTEGER NOT NULL,
    max_at    INTEGER NOT NULL,
    PRIMARY KEY (box, last_seq)
) STRICT, WITHOUT ROWID;

-- What the user bounds: messages that are promised and not settled, by scope. A name of '*' is for each one of its scope by itself.
CREATE TABLE limits (
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

-- How full each bounded scope is: kept by triggers that exist while there are limits.
CREATE TABLE fullness (
    scope    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

-- A token bucket: how many messages may be sent at once from now on.
CREATE TABLE buckets (
    name       TEXT PRIMARY KEY,
    per_second REAL    NOT NULL CHECK (per_second > 0),
    burst      REAL    NOT NULL CHECK (burst >= 1),
    tokens     REAL    NOT NULL,
    filled_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The size that the file may grow to.
CREATE TABLE file_limit (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    max_bytes INTEGER NOT NULL CHECK (max_bytes > 0)
) STRICT;

-- Every message that a policy dropped.
CREATE TABLE drops (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL,
    recipient  TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    line       TEXT,
    summary_id TEXT,
    dropped_at INTEGER NOT NULL
) STRICT;

CREATE INDEX drops_untold ON drops (recipient, session, seq) WHERE policy = 'summarize';
CREATE INDEX drops_at     ON drops (dropped_at);

CREATE VIEW drop_view AS
SELECT d.seq, d.id, i.agent AS sender, d.recipient, d.session, d.scope, d.name, d.policy, d.line, d.summary_id, d.dropped_at
  FROM drops AS d, identity AS i;

INSERT INTO counters (name) VALUES ('overflowed');
