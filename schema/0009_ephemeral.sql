-- Messages that their sender allows a restart to drop. A row that is not marked costs nothing: neither column nor index hold it.

ALTER TABLE inbox ADD COLUMN ephemeral INTEGER;

CREATE INDEX inbox_ephemeral ON inbox (seq) WHERE ephemeral IS NOT NULL AND state = 'pending';

-- What waits in a channel, in the order of reading: what was handled leaves it, and what a reader passes over costs its look only.
CREATE INDEX inbox_channel_waits ON inbox (channel, rank, seq) WHERE channel IS NOT NULL AND state = 'pending';

CREATE VIEW ephemeral_view AS
SELECT b.seq, b.id, b.sender, b.session, b.mailbox, b.state, b.reason, b.received_at, b.ended_at
  FROM inbox AS b WHERE b.ephemeral IS NOT NULL;

INSERT INTO counters (name) VALUES ('ephemeral_dropped');

DROP VIEW stats_view;
CREATE VIEW stats_view AS
SELECT max(0, t.enqueued - t.gone - t.sending) AS pending, t.sending, t.sent, t.acked, t.failed, t.cancelled,
       t.retries AS total_retries, t.enqueued, t.received, max(0, t.received - t.ended - t.processing) AS inbox_pending,
       t.processing AS inbox_processing, t.processed, t.dropped, t.expired, t.duplicates, t.refused, t.forks, t.dead AS dead_total,
       (SELECT count(*) FROM dead_letters) AS dead_letters,
       (SELECT count(*) FROM tickets WHERE state = 'open') AS tickets_open,
       t.ephemeral_dropped
  FROM (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0) AS enqueued,
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'inbox'), 0) AS received,
               (SELECT coalesce(sum(json_array_length(parcel)), 0) FROM peers WHERE parcel IS NOT NULL) AS sending,
               (SELECT coalesce(sum(json_array_length(claimed)), 0) FROM lanes WHERE claimed IS NOT NULL) AS processing,
               (SELECT value FROM counters WHERE name = 'left') AS gone,
               (SELECT value FROM counters WHERE name = 'sent') AS sent,
               (SELECT value FROM counters WHERE name = 'acked') AS acked,
               (SELECT value FROM counters WHERE name = 'failed') AS failed,
               (SELECT value FROM counters WHERE name = 'cancelled') AS cancelled,
               (SELECT value FROM counters WHERE name = 'retries') AS retries,
               (SELECT value FROM counters WHERE name = 'dead') AS dead,
               (SELECT value FROM counters WHERE name = 'ended') AS ended,
               (SELECT value FROM counters WHERE name = 'processed') AS processed,
               (SELECT value FROM counters WHERE name = 'dropped') AS dropped,
               (SELECT value FROM counters WHERE name = 'expired') AS expired,
               (SELECT value FROM counters WHERE name = 'duplicates') AS duplicates,
               (SELECT value FROM counters WHERE name = 'refused') AS refused,
               (SELECT value FROM counters WHERE name = 'forks') AS forks,
               (SELECT value FROM counters WHERE name = 'ephemeral_dropped') AS ephemeral_dropped) AS t;
