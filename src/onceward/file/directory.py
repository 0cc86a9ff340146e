"""
Find the agents of a home, and the recipients of a message to many.

Agents are registered with their descriptions and heartbeats; channels, members and
subscriptions are kept in memory while the directory is unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import apsw

from onceward.errors import (
    InvalidArgument,
    OncewardError,
    SchemaMismatch,
    SchemaTooNew,
    StoreClosed,
    StoreCorrupt,
    StoreError,
)
from onceward.file import file_checks, forks, migrations, open_files
from onceward.file.connection import close, connect
from onceward.file.database import Database
from onceward.file.group_commit import ReplacedFileDetector
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Clock, Millis
from onceward.message.log import log
from onceward.message.names import (
    DIRECTORY,
    IDENTITY,
    AcceptedType,
    AgentInfo,
    AgentProfile,
    Member,
)
from onceward.message.settings import Settings
from onceward.message.topics import TopicIndex

T = TypeVar("T")
FileOf = Callable[[str], Path | None]
"""Map an agent's name to its file, or to None."""
AGENTS_FOLDER: Final = "agents"
FEW: Final = 8
"""
Number of open files up to which an opening reads the directory by a connection of its own.

A process with more keeps the directory open: it takes three descriptors, and saves each further
opening a connection.
"""
VERSION: Final = 1
APPLICATION_ID: Final = 0x6F6E6469  # "ondi"
MARK: Final = "PRAGMA application_id"
TABLES: Final = "SELECT count(*) FROM sqlite_schema"
OPENED: Final = "SELECT version FROM meta"
INSERT: Final = "INSERT INTO meta (one, version, clock_at) VALUES (1, ?, ?)"
# The open barrier, as for an agent's file: one durable commit before acting on what was read.
BARRIER: Final = (
    "UPDATE meta SET opened = opened + 1, clock_at = max(clock_at, ?) RETURNING clock_at"
)
TICK: Final = "UPDATE meta SET clock_at = ? WHERE clock_at < ?"
SERVED: Final = "SELECT agent FROM pool_members WHERE pool = ? AND left_at IS NULL LIMIT 1"
"""A member of a pool."""


def has_home_key(home: Path) -> bool:
    """Return whether a home has a key, without which it knows no other homes."""
    return (home / IDENTITY).exists()


def directory_path(file: Path) -> Path:
    """Return the path of a file's directory: in its home, or beside a file without a home."""
    return (
        file.parent.parent / DIRECTORY
        if file.parent.name == AGENTS_FOLDER
        else file.with_name(DIRECTORY)
    )


class DirectoryDatabase(Database):
    """
    The file that the agents of a home share, open in this process.

    Unlike an agent's file it has another schema, no owner and no settings, and a directory whose
    file was removed or replaced is created or opened again. Every change is one transaction, and
    constraints decide between processes. Submitted work changes only the directory, and may run
    again if the file was removed in between.
    """

    application_id = APPLICATION_ID

    def apply_settings(self, settings: Settings, clock: Clock | None) -> None:
        """Change nothing: the settings of the first user in the process apply."""

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        """Open the file that has the name now; create it if there is none."""
        open_files.create(self.path, allow_network=self._settings.network_filesystem)
        self.guard = ReplacedFileDetector(self.path)
        con = super()._open()
        if self._openings > 1:
            self._register_again()
        return con

    def _register_again(self) -> None:
        key = file_checks.file_key(self.path)
        assert key is not None  # noqa: S101 - it is open
        open_files.enter((key, ""), self)

    def _refuse_unfit(self, tx: StoreTransaction) -> None:
        if tx.rows(MARK)[0][0] not in {0, APPLICATION_ID}:
            self._refuse()
        if not tx.rows(TABLES)[0][0]:
            return
        try:
            [(version,)] = tx.rows(OPENED)
        except apsw.SQLError:
            self._refuse()
        if version > VERSION:
            raise SchemaTooNew(
                f"{self.path} has schema {version}, this version knows {VERSION}: upgrade onceward"
            )

    def _refuse(self) -> NoReturn:
        msg = f"{self.path} is not a home's directory: another file has its name; rename that file"
        raise SchemaMismatch(msg)

    @classmethod
    def _create(cls, tx: StoreTransaction) -> None:
        tx.rows(f"{MARK} = {APPLICATION_ID}")
        tx.rows((migrations.folder() / "directory.sql").read_text(encoding="utf-8"))
        tx.run(INSERT, (VERSION, tx.now))

    def _migrate(self, tx: StoreTransaction) -> None:
        if not tx.rows(TABLES)[0][0]:
            self._create(tx)

    def _identify(self, tx: StoreTransaction) -> None:
        self.durability = "safe"
        [(clock_at,)] = tx.rows(BARRIER, (tx.now,))
        self.time.observe(clock_at)

    @staticmethod
    def _refuse_left_wal(real: Path) -> None:
        """Refuse nothing: agents write what a lost directory lacks again."""

    def _store_loss(self) -> None:
        """Store nothing: agents write what a lost directory lacks again."""

    # -- using ------------------------------------------------------------------------------

    def on_begin(self, tx: StoreTransaction) -> None:
        """Store the time of the transaction, so that it never runs backwards."""
        tx.run(TICK, (tx.now, tx.now))

    def write(self, work: Callable[[StoreTransaction], T], *, synced: bool = True) -> T:
        """
        Run *work* in a transaction, commit it and notify; join an enclosing ``write``.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised; call again, every operation of the directory is
            idempotent.

        """
        found = super().write(work, synced=synced)
        if not self.writer.held:
            self.notifier.notify("out")
            self.notifier.notify("in")
        return found

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement; inside a ``write`` of this thread, on that transaction."""
        self._follow_name()
        return super().read(sql, bindings)

    def version(self) -> int:
        """Return a number that changes with each commit, and when another file gets the name."""
        self._follow_name()
        return super().version()

    def look(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run several reading statements on one snapshot."""
        self._follow_name()
        return self.snapshot(work)

    def _follow_name(self) -> None:
        if not self.writer.held and self.guard.replaced():
            # its commit detects that, and opens the file that has the name now
            self.write(lambda _: None)


class DirectoryHandle:
    """An agent's access to the directory of its home, which is opened on first use."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings = db, settings
        self._lock = forks.new_rlock()
        self._open: DirectoryDatabase | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """Path of the directory, which need not exist."""
        return directory_path(self._db.path)

    @property
    def known(self) -> bool:
        """Whether the directory exists; none is created."""
        return self._open is not None or self.path.exists()

    @property
    def directory(self) -> DirectoryDatabase:
        """The directory, opened or created on first use."""
        with self._lock:
            if self._closed:
                raise StoreClosed("the postbox was closed: open it again")
            if self._open is None:
                self._open = DirectoryDatabase.open(
                    self.path, settings=self._settings, clock=self._db.clock
                )
            return self._open

    def close(self) -> None:
        """Close the directory, if it was opened."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None:
            opened.close()


class OpenAgentFiles:
    """The files of other agents that one postbox has open."""

    def __init__(self, db: Database, settings: Settings, file_of: FileOf) -> None:
        self._db, self._settings, self._file_of = db, settings, file_of
        self._opened: dict[str, Database] = {}
        self._lock = forks.new_lock()

    def file(self, agent: str) -> Database | None:
        """Return the open file of an agent of the home, including our own, or None."""
        if agent == self._db.agent:
            return self._db
        with self._lock:
            if agent not in self._opened:
                path = self._file_of(agent)
                if path is None:
                    return None
                wanted = Settings._inherit(busy_timeout=self._settings.busy_timeout)
                self._opened[agent] = Database.open(
                    path, agent=agent, settings=wanted, clock=self._db.clock, mode="existing"
                )
            return self._opened[agent]

    def path(self, agent: str) -> Path | None:
        """Return the path of the file of an agent beside ours, or None."""
        return self._file_of(agent)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for db in opened.values():
            db.close()


HEARTBEAT_INTERVAL: Final = 30_000
"""Milliseconds after which a running agent is again recorded as seen."""

ENTRY: Final = "SELECT description, capabilities, accepts, last_seen_at FROM agents WHERE name = ?"
REGISTER: Final = """
INSERT INTO agents (name, joined_at, last_seen_at, search_text)
VALUES (:name, :now, :now, :search_text)
ON CONFLICT DO NOTHING
"""
DESCRIBE: Final = """
UPDATE agents
   SET description = :description,
       capabilities = :capabilities,
       accepts = :accepts,
       search_text = :search_text
 WHERE name = :name
"""
SEEN: Final = "UPDATE agents SET last_seen_at = ? WHERE name = ? AND last_seen_at <= ?"
FIND: Final = """
SELECT name, description, capabilities, accepts, joined_at, last_seen_at FROM agents
 WHERE name > :after AND name <> :without
   AND NOT EXISTS (
           SELECT 1 FROM json_each(:words) AS w WHERE instr(agents.search_text, w.value) = 0)
 ORDER BY name
 LIMIT :limit
"""
ROUTES: Final = "SELECT revision FROM meta"
SUBSCRIPTIONS: Final = (
    "SELECT channel, publisher, subscriber, pattern, number FROM subscriptions ORDER BY number"
)
MEMBERS: Final = "SELECT channel, agent, role, number FROM members ORDER BY number"
CHANNELS: Final = (
    "SELECT name, type, state, mode, config, description, created_by, created_at FROM channels"
)
AGENTS: Final = "SELECT name FROM agents ORDER BY name"
SUBSCRIBE: Final = """
INSERT INTO subscriptions (subscriber, pattern, channel, publisher, created_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
UNSUBSCRIBE: Final = """
DELETE FROM subscriptions WHERE subscriber = ? AND pattern = ? AND channel = ? AND publisher = ?
"""
# Channels are left by channels.leave, which also writes the notice.
LEAVE: Final = "DELETE FROM agents WHERE name = ?"
END_SUBSCRIPTIONS: Final = "DELETE FROM subscriptions WHERE subscriber = ? AND channel = ''"


@dataclass(frozen=True, slots=True)
class _Entry:
    """The stored description of an agent, and when it was last seen."""

    description: str
    capabilities: str
    accepts: str
    last_seen_at: Millis

    def with_profile(self, profile: AgentProfile) -> _Entry:
        """Return the entry once *profile* is stored."""
        described, able, accepts = profile.description, profile.capabilities, profile.accepts
        return _Entry(
            self.description if described is None else described,
            self.capabilities if able is None else json.dumps(able, ensure_ascii=False),
            self.accepts
            if accepts is None
            else json.dumps([asdict(each) for each in accepts], ensure_ascii=False),
            self.last_seen_at,
        )

    def needs(self, profile: AgentProfile, seen_by: Millis | None) -> bool:
        """Return whether the profile is new, or the agent was last seen at *seen_by* or earlier."""
        return self.with_profile(profile) != self or (
            seen_by is not None and self.last_seen_at <= seen_by
        )


def find_agents(
    directory: DirectoryDatabase,
    *,
    search: str = "",
    without: str = "",
    limit: int | None = None,
    after: str = "",
) -> list[AgentInfo]:
    """Return the agents, by name after a given one, whose profiles hold each word of *search*."""
    rows = directory.read(
        FIND,
        {
            "after": after,
            "without": without,
            "words": json.dumps(search.casefold().split(), ensure_ascii=False),
            "limit": -1 if limit is None else limit,
        },
    )
    return [
        AgentInfo(
            name,
            description,
            tuple(json.loads(capabilities)),
            joined_at,
            seen_at,
            tuple(AcceptedType(**each) for each in json.loads(accepts)),
        )
        for name, description, capabilities, accepts, joined_at, seen_at in rows
    ]


def register_agent(
    directory: DirectoryDatabase, name: str, profile: AgentProfile | None = None
) -> bool:
    """
    Register an agent in the home with its profile; return whether it was new.

    Usually the agent is known and unchanged, which commits nothing.
    """
    return _register(directory, name, profile or AgentProfile(), seen_by=None)


def _register(
    directory: DirectoryDatabase, name: str, profile: AgentProfile, seen_by: Millis | None
) -> bool:
    entry = _entry(directory.read(ENTRY, (name,)))
    if entry is not None and not entry.needs(profile, seen_by):
        return False

    def work(tx: StoreTransaction) -> bool:
        new = tx.run(REGISTER, {"name": name, "now": tx.now, "search_text": name.casefold()}) > 0
        if not profile.says_nothing:
            _describe(tx, name, profile)
        if seen_by is not None:
            tx.run(SEEN, (tx.now, name, seen_by))
        return new

    return directory.write(work)


def _entry(rows: Sequence[tuple[Any, ...]]) -> _Entry | None:
    return _Entry(*rows[0]) if rows else None


def _describe(tx: StoreTransaction, name: str, profile: AgentProfile) -> None:
    entry = _Entry(*tx.rows(ENTRY, (name,))[0]).with_profile(profile)
    types = [each["type"] for each in json.loads(entry.accepts)]
    words = (name, entry.description, *json.loads(entry.capabilities), *types)
    tx.run(DESCRIBE, asdict(entry) | {"name": name, "search_text": "\n".join(words).casefold()})


def heartbeat(directory: DirectoryDatabase, name: str) -> None:
    """Record that an agent runs, unless that was recorded recently or the agent left."""
    seen_by = directory.now() - HEARTBEAT_INTERVAL
    entry = _entry(directory.read(ENTRY, (name,)))
    if entry is not None and entry.last_seen_at <= seen_by:
        directory.write(lambda tx: tx.run(SEEN, (tx.now, name, seen_by)))


def register_at_opening(
    home: DirectoryHandle, db: Database, profile: AgentProfile, *, engines: bool
) -> None:
    """
    Register the agent of a file that is opened under its name, with its profile.

    If *engines* will start, the agent is also recorded as seen. A directory that already has all
    this is only read. One that cannot be used is logged: no message needs it.
    """
    if db.vfs is not None:
        return
    seen_by = db.now() - HEARTBEAT_INTERVAL if engines else None
    try:
        entry = _read_alone(home, db.agent)
        if entry is None or entry.needs(profile, seen_by):
            _register(home.directory, db.agent, profile, seen_by)
    except OncewardError as error:
        log.failure("warning", "not registered in its home", error, agent=db.agent)


def refuse_pool(file: Path, name: str) -> None:
    """
    Raise InvalidArgument if a new file would be that of an agent named as a pool of its home.

    The agent would get the messages of the pool.
    """
    home = directory_path(file)
    if file.exists() or not home.exists():
        return
    con = None
    try:
        con = connect(home, readonly=True)
        served = con.execute(SERVED, (name,)).fetchall()
    except (apsw.Error, StoreError, StoreCorrupt):  # opening it in full reports the error
        return
    finally:
        close(con)
    for (member,) in served:
        said = f"{name} is a pool of this home, which {member} serves"
        raise InvalidArgument(f"{said}: choose another name for the agent")


def _read_alone(home: DirectoryHandle, name: str) -> _Entry | None:
    """Read an agent's entry without a commit and without keeping the directory open."""
    if len(open_files.files) > FEW or not home.path.exists() or open_files.finds(home.path):
        return None  # one that is open here costs nothing to read
    con = None
    try:
        con = connect(home.path, readonly=True)
        return _entry(con.execute(ENTRY, (name,)).fetchall())
    except (apsw.Error, StoreError, StoreCorrupt):  # opening it in full reports the error
        return None
    finally:
        close(con)


@dataclass(slots=True)
class _Snapshot:
    """The directory's content at one version."""

    routes: int = -1
    agents: tuple[str, ...] = ()
    channels: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    members: dict[str, tuple[Member, ...]] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], TopicIndex[str]] = field(default_factory=dict)
    patterns: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)


class DirectoryCache:
    """
    Find the recipients of a message in memory; reload it when the directory has changed.

    A send that begins after a change was committed, by any process, sees it; the
    cache is loaded again only when ``data_version`` moved.
    """

    def __init__(self, home: DirectoryHandle, db: Database) -> None:
        self.home, self._db = home, db
        self._lock = forks.new_lock()
        self._version: int | None = None
        self._seen = _Snapshot()

    @property
    def database(self) -> DirectoryDatabase:
        """Return the directory of the home, opened on first use."""
        return self.home.directory

    def _now(self) -> _Snapshot:
        opened = self.database
        with self._lock:
            version = opened.version()
            if version != self._version:
                [(routes,)] = opened.read(ROUTES)
                if routes != self._seen.routes:
                    self._seen = _load(opened, routes)
                self._version = version
            return self._seen

    def channel(self, name: str) -> tuple[Any, ...] | None:
        """Return the row of a channel, or None."""
        return self._now().channels.get(name)

    def members(self, channel: str) -> tuple[Member, ...]:
        """Return the members of a channel, in the order of joining."""
        return self._now().members.get(channel, ())

    def channels(self) -> list[tuple[Any, ...]]:
        """Return the rows of all channels by name."""
        found = self._now().channels
        return [found[name] for name in sorted(found)]

    def subscriptions(self, channel: str) -> list[tuple[int, str, str]]:
        """Return (number, subscriber, pattern) of a channel's subscriptions, in their order."""
        return self._now().patterns.get(channel, [])

    def newest(self, channel: str) -> int:
        """Return the number of a channel's latest member or subscription; 0 if there is none."""
        seen = self._now()
        row, members = seen.channels.get(channel), seen.members.get(channel, ())
        wishes = seen.patterns.get(channel, [])
        if row is not None and row[1] == "pubsub":
            return wishes[-1][0] if wishes else 0
        return members[-1].number if members else 0

    def subscribers(self, topic: str, *, channel: str = "") -> list[str]:
        """Return the distinct subscribers to *topic* of a channel, or of this agent."""
        wishes, me = self._now().subscriptions, self._db.agent
        if channel:
            return sorted(_find(wishes, (channel, ""), topic))
        everybodys = _find(wishes, ("", ""), topic) - {me}
        return sorted(everybodys | _find(wishes, ("", me), topic))

    def other_agents(self) -> list[str]:
        """Return all other agents that are registered in the home, by name."""
        return [name for name in self._now().agents if name != self._db.agent]

    def known_agents(self) -> list[str]:
        """Return the same, without creating a directory."""
        return self.other_agents() if self.home.known else []

    @property
    def agent(self) -> str:
        """The agent whose cache it is."""
        return self._db.agent

    def register(self, profile: AgentProfile | None = None) -> bool:
        """Register this agent in the home; return whether it was new."""
        return register_agent(self.database, self._db.agent, profile)

    def heartbeat(self) -> None:
        """Record that this agent runs, if the home has a directory."""
        if self.home.known:
            heartbeat(self.database, self._db.agent)

    def leave(self) -> bool:
        """Remove this agent and its subscriptions outside channels; return whether it existed."""

        def work(tx: StoreTransaction) -> bool:
            tx.run(END_SUBSCRIPTIONS, (self._db.agent,))
            return tx.run(LEAVE, (self._db.agent,)) > 0

        return self.database.write(work)

    def subscribe(
        self, subscriber: str, pattern: str, *, channel: str = "", publisher: str = ""
    ) -> bool:
        """Store a subscription; return whether it was new."""
        named = (subscriber, pattern, channel, publisher)
        return self.database.write(lambda tx: tx.run(SUBSCRIBE, (*named, tx.now))) > 0

    def unsubscribe(
        self, subscriber: str, pattern: str, *, channel: str = "", publisher: str = ""
    ) -> bool:
        """Delete a subscription; return whether it existed."""
        named = (subscriber, pattern, channel, publisher)
        return self.database.write(lambda tx: tx.run(UNSUBSCRIBE, named)) > 0


def _find(
    wishes: dict[tuple[str, str], TopicIndex[str]], scope: tuple[str, str], topic: str
) -> set[str]:
    index = wishes.get(scope)
    return set() if index is None else set(index.find(topic))


def _load(opened: DirectoryDatabase, routes: int) -> _Snapshot:
    """Read all tables on one snapshot, so that members and subscriptions match."""

    def work(tx: StoreTransaction) -> _Snapshot:
        members: dict[str, list[Member]] = {}
        wishes = tx.rows(SUBSCRIPTIONS)
        for channel, agent, role, number in tx.rows(MEMBERS):
            members.setdefault(channel, []).append(Member(agent, role, number))
        return _Snapshot(
            routes=routes,
            agents=tuple(name for (name,) in tx.rows(AGENTS)),
            channels={row[0]: row for row in tx.rows(CHANNELS)},
            members={channel: tuple(found) for channel, found in members.items()},
            subscriptions=_indexed(wishes),
            patterns=_patterns(wishes),
        )

    return opened.look(work)


def _indexed(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], TopicIndex[str]]:
    found: dict[tuple[str, str], TopicIndex[str]] = {}
    for channel, publisher, subscriber, pattern, _ in rows:
        found.setdefault((channel, publisher), TopicIndex()).add(pattern, subscriber)
    return found


def _patterns(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[int, str, str]]]:
    found: dict[str, list[tuple[int, str, str]]] = {}
    for channel, _, subscriber, pattern, number in rows:
        if channel:
            found.setdefault(channel, []).append((number, subscriber, pattern))
    return found
