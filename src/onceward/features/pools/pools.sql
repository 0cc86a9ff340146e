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
