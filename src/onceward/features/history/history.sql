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
