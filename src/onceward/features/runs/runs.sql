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
