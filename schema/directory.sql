-- A home's directory: agents, channels, members, subscriptions and mailboxes. It never contains messages.
-- The first agent that opens creates it. Times are integer milliseconds since 1970, UTC.

CREATE TABLE meta (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    version   INTEGER NOT NULL,
    clock_at  INTEGER NOT NULL,
    opened    INTEGER NOT NULL DEFAULT 0,
    revision  INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE agents (
    name         TEXT PRIMARY KEY,
    joined_at    INTEGER NOT NULL,
    description  TEXT    NOT NULL DEFAULT '',
    capabilities TEXT    NOT NULL DEFAULT '[]' CHECK (json_type(capabilities) IS 'array'),
    accepts      TEXT    NOT NULL DEFAULT '[]' CHECK (json_type(accepts) IS 'array'),
    last_seen_at INTEGER NOT NULL,
    search_text  TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE channels (
    name        TEXT PRIMARY KEY,
    type        TEXT    NOT NULL CHECK (type IN ('direct', 'group', 'broadcast', 'pubsub')),
    state       TEXT    NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'draining', 'closed')),
    mode        TEXT    CHECK (mode IN ('hold', 'reject')),
    config      TEXT    NOT NULL CHECK (json_valid(config)),
    description TEXT    NOT NULL DEFAULT '',
    created_by  TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    CHECK ((state = 'paused') = (mode IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- The number of a member shows the order of joining: later members get the retained messages of sticky channels.
CREATE TABLE members (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    channel   TEXT    NOT NULL,
    agent     TEXT    NOT NULL,
    role      TEXT    NOT NULL CHECK (role IN ('owner', 'member', 'observer')),
    joined_at INTEGER NOT NULL,
    UNIQUE (channel, agent)
) STRICT;

-- Topic subscriptions: within one channel, to one publisher, or, with neither, to all agents in the home.
CREATE TABLE subscriptions (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    subscriber TEXT    NOT NULL,
    pattern    TEXT    NOT NULL,
    channel    TEXT    NOT NULL DEFAULT '',
    publisher  TEXT    NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    UNIQUE (channel, publisher, subscriber, pattern),
    CHECK (channel = '' OR publisher = '')
) STRICT;

-- A public mailbox is stored with its name, a private one only with the SHA-256 of its id, in hexadecimal.
CREATE TABLE mailboxes (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    public      INTEGER NOT NULL CHECK (public IN (0, 1)),
    name        TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    ttl         INTEGER,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    description TEXT    NOT NULL DEFAULT '',
    newest_per_key INTEGER NOT NULL DEFAULT 0 CHECK (newest_per_key IN (0, 1)),
    UNIQUE (public, name)
) STRICT;

-- Agents that serve a pool: a message to its name goes to one of them. The owner is the process that handles its messages.
-- The row of one that has left stays: a process that still has its file open does not make it join again.
CREATE TABLE pool_members (
    pool      TEXT    NOT NULL,
    agent     TEXT    NOT NULL,
    credits   INTEGER NOT NULL CHECK (credits > 0),
    owner     TEXT,
    joined_at INTEGER NOT NULL,
    left_at   INTEGER,
    PRIMARY KEY (pool, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX mailboxes_expiry ON mailboxes (expires_at) WHERE expires_at IS NOT NULL;

-- Other homes that this one exchanges messages with. Their keys are pinned by fingerprint; a rotation moves it.
CREATE TABLE homes (
    name        TEXT PRIMARY KEY,
    url         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL UNIQUE,
    previous    TEXT,
    rotated_at  INTEGER,
    added_at    INTEGER NOT NULL,
    told_at     INTEGER,
    CHECK ((previous IS NULL) = (rotated_at IS NULL))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX homes_url ON homes (url) WHERE url <> 'poll:';

-- The agents of other homes, as these have told. Of two homes with the same name the one that told it first may use it.
CREATE TABLE home_agents (
    home        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    accepts     TEXT    NOT NULL CHECK (json_type(accepts) IS 'array'),
    told_at     INTEGER NOT NULL,
    PRIMARY KEY (home, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX home_agents_name ON home_agents (name, told_at, home);

-- The agents of other homes that serve pools, as these have told; with 0 credits no process handles their messages now.
CREATE TABLE home_pool_members (
    pool    TEXT    NOT NULL,
    agent   TEXT    NOT NULL,
    home    TEXT    NOT NULL,
    credits INTEGER NOT NULL CHECK (credits >= 0),
    PRIMARY KEY (pool, agent, home)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER homes_gone AFTER DELETE ON homes
BEGIN
    DELETE FROM home_agents WHERE home = OLD.name;
    DELETE FROM home_pool_members WHERE home = OLD.name;
END;

-- Changes still to be published under a reserved topic: written with the change, sent by the agent that made it.
CREATE TABLE system_notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    agent  TEXT    NOT NULL,
    topic  TEXT    NOT NULL,
    body   TEXT    NOT NULL CHECK (json_valid(body)),
    at     INTEGER NOT NULL
) STRICT;

CREATE INDEX system_notices_agent ON system_notices (agent, number);

-- Guards: a transition that the state machine does not know fails, even from a SQLite shell.
CREATE TRIGGER channels_guard BEFORE UPDATE OF state ON channels
WHEN NOT (   OLD.state = NEW.state
          OR (OLD.state = 'active'   AND NEW.state IN ('paused', 'draining'))
          OR (OLD.state = 'paused'   AND NEW.state = 'active')
          OR (OLD.state = 'draining' AND NEW.state = 'closed'))
BEGIN
    SELECT RAISE(ABORT, 'onceward:illegal_transition');
END;

CREATE TRIGGER channels_delete_guard BEFORE DELETE ON channels
WHEN OLD.state <> 'closed'
BEGIN
    SELECT RAISE(ABORT, 'onceward:channel_is_not_closed');
END;

-- A process that caches channels, members and subscriptions reads one number to see whether its cache is current.
CREATE TRIGGER channels_new   AFTER INSERT ON channels      BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER channels_move  AFTER UPDATE ON channels      BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER channels_gone  AFTER DELETE ON channels      BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER members_new    AFTER INSERT ON members       BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER members_move   AFTER UPDATE ON members       BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER members_gone   AFTER DELETE ON members       BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER subscriptions_new  AFTER INSERT ON subscriptions BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER subscriptions_gone AFTER DELETE ON subscriptions BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER agents_new     AFTER INSERT ON agents        BEGIN UPDATE meta SET revision = revision + 1; END;
CREATE TRIGGER agents_gone    AFTER DELETE ON agents        BEGIN UPDATE meta SET revision = revision + 1; END;
