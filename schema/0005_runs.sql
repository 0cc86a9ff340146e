-- Sessions with runs: their queues, their runs, and what a full queue dropped.

-- Where a waiting message was moved to by hand, and the run it is bound to, or that ended it.
ALTER TABLE inbox ADD COLUMN place INTEGER;
ALTER TABLE inbox ADD COLUMN run_id INTEGER;

-- Which sessions are served by runs, as the agent's code declares it, with home and defaults filled in.
CREATE TABLE run_handlers (
    pattern      TEXT PRIMARY KEY,
    mode         TEXT    NOT NULL CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    debounce_for INTEGER NOT NULL CHECK (debounce_for >= 0),
    cap          INTEGER NOT NULL CHECK (cap >= 1),
    overflow     TEXT    NOT NULL CHECK (overflow IN ('old', 'new', 'summarize')),
    aborted      TEXT    NOT NULL CHECK (aborted IN ('deliver', 'return')),
    inject       INTEGER NOT NULL CHECK (inject IN (0, 1)),
    obey         TEXT    NOT NULL CHECK (json_valid(obey))
) STRICT, WITHOUT ROWID;

-- One row per session with runs; NULL in a setting means: as the handler says.
CREATE TABLE session_queues (
    session      TEXT PRIMARY KEY,
    mode         TEXT    CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    debounce_for INTEGER CHECK (debounce_for >= 0),
    cap          INTEGER CHECK (cap >= 1),
    overflow     TEXT    CHECK (overflow IN ('old', 'new', 'summarize')),
    aborted      TEXT    CHECK (aborted IN ('deliver', 'return')),
    inject       INTEGER CHECK (inject IN (0, 1)),
    since_at     INTEGER,
    arrived_at   INTEGER,
    rest_at      INTEGER,
    paused_at    INTEGER,
    reordered    INTEGER NOT NULL DEFAULT 0 CHECK (reordered IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    session       TEXT    NOT NULL,
    mode          TEXT    NOT NULL CHECK (mode IN ('steer', 'followup', 'collect', 'queue', 'interrupt')),
    state         TEXT    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'aborted', 'failed')),
    lane_id       INTEGER NOT NULL,
    token         INTEGER NOT NULL,
    owner         TEXT    NOT NULL,
    bound         TEXT    NOT NULL CHECK (json_valid(bound)),
    event_ids     TEXT    NOT NULL CHECK (json_valid(event_ids)),
    takes_more    INTEGER NOT NULL DEFAULT 0 CHECK (takes_more IN (0, 1)),
    consumed      INTEGER NOT NULL DEFAULT 0 CHECK (consumed IN (0, 1)),
    partial       TEXT,
    result        TEXT,
    cause         TEXT,
    started_at    INTEGER NOT NULL,
    checkpoint_at INTEGER,
    ended_at      INTEGER,
    CHECK ((ended_at IS NULL) = (state = 'open')),
    CHECK ((checkpoint_at IS NULL) = (partial IS NULL)),
    CHECK (state <> 'done' OR consumed = 1)
) STRICT;

-- A session has one run at a time, by constraint.
CREATE UNIQUE INDEX runs_open    ON runs (session)      WHERE state = 'open';
CREATE INDEX        runs_session ON runs (session, seq);
CREATE INDEX        runs_ended   ON runs (ended_at, seq) WHERE ended_at IS NOT NULL;

-- The lines of the summary that the next run is given; gone once a run that had them has ended well.
CREATE TABLE overflows (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    session    TEXT    NOT NULL,
    sender     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    line       TEXT    NOT NULL CHECK (length(line) <= 160),
    many       INTEGER NOT NULL DEFAULT 1 CHECK (many >= 1),
    run_id     INTEGER,
    dropped_at INTEGER NOT NULL
) STRICT;

CREATE INDEX overflows_session ON overflows (session, seq);
CREATE INDEX overflows_run     ON overflows (run_id) WHERE run_id IS NOT NULL;

CREATE TRIGGER runs_guard BEFORE UPDATE OF state ON runs
WHEN OLD.state <> 'open' AND OLD.state <> NEW.state
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER runs_bound_guard BEFORE UPDATE OF seq, id, session, token ON runs
WHEN NOT (OLD.seq = NEW.seq AND OLD.id = NEW.id AND OLD.session = NEW.session AND OLD.token = NEW.token)
BEGIN
    SELECT RAISE(ABORT, 'onceward:a run keeps its name and its token');
END;

CREATE TRIGGER runs_delete_guard BEFORE DELETE ON runs
WHEN OLD.state = 'open'
BEGIN
    SELECT RAISE(ABORT, 'onceward:unsettled_row');
END;

CREATE VIEW run_view AS
SELECT r.seq, r.id, r.session, r.mode, r.state, json_array_length(r.event_ids) AS messages, r.event_ids, r.consumed, r.takes_more,
       r.partial, r.result, r.cause, r.token, r.owner,
       CASE WHEN r.state = 'open' AND l.token = r.token THEN l.due_at END AS lease_at,
       r.started_at, r.checkpoint_at, r.ended_at
  FROM runs AS r LEFT JOIN lanes AS l ON l.lane_id = r.lane_id;

CREATE VIEW session_queue_view AS
SELECT q.session,
       coalesce(q.mode, h.mode) AS mode, coalesce(q.debounce_for, h.debounce_for) AS debounce_for, coalesce(q.cap, h.cap) AS cap,
       coalesce(q.overflow, h.overflow) AS overflow, coalesce(q.aborted, h.aborted) AS aborted, coalesce(q.inject, h.inject) AS inject,
       (SELECT count(*) FROM inbox AS b WHERE b.lane_id = l.lane_id AND b.state = 'pending' AND b.run_id IS NULL) AS waiting,
       r.id AS run, coalesce(json_array_length(r.bound), 0) AS bound,
       (SELECT coalesce(sum(o.many), 0) FROM overflows AS o WHERE o.session = q.session) AS dropped,
       CASE WHEN q.paused_at IS NOT NULL THEN 'paused' WHEN r.id IS NOT NULL THEN 'running' WHEN l.head IS NULL THEN 'empty'
            WHEN l.due_at IS NULL THEN 'ready' ELSE 'waiting' END AS state,
       CASE WHEN r.id IS NULL THEN l.due_at END AS due_at, q.arrived_at, q.paused_at
  FROM session_queues AS q
  LEFT JOIN run_handlers AS h ON h.pattern = coalesce(
       (SELECT e.pattern FROM run_handlers AS e WHERE e.pattern = q.session),
       (SELECT m.pattern FROM run_handlers AS m WHERE q.session GLOB m.pattern ORDER BY length(m.pattern) DESC, m.pattern LIMIT 1))
  LEFT JOIN lanes AS l ON l.sender = '' AND l.name = q.session AND l.rank = 2
  LEFT JOIN runs AS r ON r.session = q.session AND r.state = 'open';

CREATE VIEW waiting_view AS
SELECT l.name AS session, row_number() OVER (PARTITION BY l.lane_id ORDER BY coalesce(b.place, b.seq), b.seq) AS place,
       b.id, b.sender, b.type,
       CASE b.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low' ELSE 'background' END AS priority,
       b.attempts, b.received_at, b.expires_at
  FROM lanes AS l JOIN inbox AS b ON b.lane_id = l.lane_id AND b.state = 'pending' AND b.run_id IS NULL
 WHERE l.sender = '';
