"""Cache channels, members and subscriptions of the home while the directory is unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, NamedTuple

from onceward.core.home import agents
from onceward.core.home.database import DirectoryDatabase, DirectoryHandle
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.agent_profile import AgentProfile
from onceward.message.topics import TopicIndex
from onceward.message.vocabulary import ChannelRole

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


class Member(NamedTuple):
    """An agent in a channel; numbers grow in the order of joining."""

    agent: str
    role: ChannelRole
    number: int


@dataclass(slots=True)
class _Snapshot:
    """The directory's content at one count of changes."""

    routes: int = -1
    agents: tuple[str, ...] = ()
    channels: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    members: dict[str, tuple[Member, ...]] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], TopicIndex[str]] = field(default_factory=dict)
    patterns: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)


class DirectoryCache:
    """
    Finds the recipients of a message in memory, read again when the directory changed.

    A send that begins after a change was committed, by any process, sees it; the
    cache is loaded again only when ``data_version`` moved.
    """

    def __init__(self, home: DirectoryHandle, db: Database) -> None:
        self.home, self._db = home, db
        self._lock = Lock()
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
        """Return the row of a channel, None where there is none."""
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
        """Return the number of a channel's latest member or subscription; 0 without any."""
        seen = self._now()
        row, wishes, members = (
            seen.channels.get(channel),
            seen.patterns.get(channel, []),
            seen.members.get(channel, ()),
        )
        if row is not None and row[1] == "pubsub":
            return wishes[-1][0] if wishes else 0
        return members[-1].number if members else 0

    def subscribers(self, topic: str, *, channel: str = "") -> list[str]:
        """Return the subscribers to *topic* of a channel, or of this agent; each of them once."""
        wishes, me = self._now().subscriptions, self._db.agent
        if channel:
            return sorted(_find(wishes, (channel, ""), topic))
        everybodys = _find(wishes, ("", ""), topic) - {me}
        return sorted(everybodys | _find(wishes, ("", me), topic))

    def other_agents(self) -> list[str]:
        """Return all other agents that are registered in the home, by name."""
        return [name for name in self._now().agents if name != self._db.agent]

    @property
    def agent(self) -> str:
        """The agent whose cache it is."""
        return self._db.agent

    def register(self, profile: AgentProfile | None = None) -> bool:
        """Register this agent in the home; return whether it was new."""
        return agents.register(self.database, self._db.agent, profile)

    def heartbeat(self) -> None:
        """Note that this agent runs, where the home has a directory."""
        if self.home.known:
            agents.heartbeat(self.database, self._db.agent)

    def leave(self) -> bool:
        """Remove this agent and its subscriptions outside channels; return whether it was there."""

        def work(tx: StoreTransaction) -> bool:
            tx.run(END_SUBSCRIPTIONS, (self._db.agent,))
            return tx.run(LEAVE, (self._db.agent,)) > 0

        return self.database.write(work)

    def subscribe(
        self, subscriber: str, pattern: str, *, channel: str = "", publisher: str = ""
    ) -> bool:
        """Store a subscription; return whether it was new."""
        return (
            self.database.write(
                lambda tx: tx.run(SUBSCRIBE, (subscriber, pattern, channel, publisher, tx.now))
            )
            > 0
        )

    def unsubscribe(
        self, subscriber: str, pattern: str, *, channel: str = "", publisher: str = ""
    ) -> bool:
        """Delete a subscription; return whether it existed."""
        return (
            self.database.write(
                lambda tx: tx.run(UNSUBSCRIBE, (subscriber, pattern, channel, publisher))
            )
            > 0
        )


def _find(
    wishes: dict[tuple[str, str], TopicIndex[str]], scope: tuple[str, str], topic: str
) -> set[str]:
    index = wishes.get(scope)
    return set() if index is None else set(index.find(topic))


def _load(opened: DirectoryDatabase, routes: int) -> _Snapshot:
    """Read all tables on one snapshot, so that members and subscriptions are of one moment."""

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
