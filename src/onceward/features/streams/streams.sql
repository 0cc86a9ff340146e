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
