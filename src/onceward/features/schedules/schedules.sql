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
