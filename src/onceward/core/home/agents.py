"""Register the agents of a home with their words and heartbeats, and find them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw

from onceward.core.home.database import DirectoryDatabase, DirectoryHandle
from onceward.errors import OncewardError, StoreCorrupt, StoreError
from onceward.file import open_files
from onceward.file.connection import close, connect
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.agent_profile import AgentProfile
from onceward.message.clock import Millis
from onceward.message.log import log

HEARTBEAT_INTERVAL: Final = 30_000
"""Milliseconds after which a running agent is noted as seen again."""

ENTRY: Final = "SELECT description, capabilities, last_seen_at FROM agents WHERE name = ?"
REGISTER: Final = """
INSERT INTO agents (name, joined_at, last_seen_at, search_text)
VALUES (:name, :now, :now, :search_text)
ON CONFLICT DO NOTHING
"""
DESCRIBE: Final = """
UPDATE agents
   SET description = :description, capabilities = :capabilities, search_text = :search_text
 WHERE name = :name
"""
SEEN: Final = "UPDATE agents SET last_seen_at = ? WHERE name = ? AND last_seen_at <= ?"
NAMES: Final = "SELECT name FROM agents ORDER BY name"
FIND: Final = """
SELECT name, description, capabilities, joined_at, last_seen_at FROM agents
 WHERE name > :after AND name <> :without
   AND NOT EXISTS (
           SELECT 1 FROM json_each(:words) AS w WHERE instr(agents.search_text, w.value) = 0)
 ORDER BY name
 LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as the registry of its home knows it."""

    name: str
    description: str
    capabilities: tuple[str, ...]
    joined_at: Millis
    last_seen_at: Millis
    """When a process last ran the agent's engines or maintenance, to within their interval."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The stored words of an agent, and when it was last seen."""

    description: str
    capabilities: str
    last_seen_at: Millis

    def with_profile(self, profile: AgentProfile) -> tuple[str, str]:
        """Return description and capabilities, as JSON, once *profile* is stored."""
        described, able = profile.description, profile.capabilities
        return (
            self.description if described is None else described,
            self.capabilities if able is None else json.dumps(able, ensure_ascii=False),
        )

    def needs(self, profile: AgentProfile, seen_by: Millis | None) -> bool:
        """Return whether the profile is news, or the agent was last seen at *seen_by* or before."""
        return self.with_profile(profile) != (self.description, self.capabilities) or (
            seen_by is not None and self.last_seen_at <= seen_by
        )


def names(directory: DirectoryDatabase) -> list[str]:
    """Return all agents of the home by name."""
    return [str(name) for (name,) in directory.read(NAMES)]


def find(
    directory: DirectoryDatabase,
    *,
    search: str = "",
    without: str = "",
    limit: int | None = None,
    after: str = "",
) -> list[AgentInfo]:
    """Return the agents whose words hold each word of *search*, by name, from after a name."""
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
        AgentInfo(name, description, tuple(json.loads(capabilities)), joined_at, seen_at)
        for name, description, capabilities, joined_at, seen_at in rows
    ]


def register(directory: DirectoryDatabase, name: str, profile: AgentProfile | None = None) -> bool:
    """
    Register an agent in the home with its profile; return whether it was new.

    The usual case is an agent that is known as it is, which commits nothing.
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
    entry = _Entry(*tx.rows(ENTRY, (name,))[0])
    description, capabilities = entry.with_profile(profile)
    words = "\n".join((name, description, *json.loads(capabilities))).casefold()
    tx.run(
        DESCRIBE,
        {
            "name": name,
            "description": description,
            "capabilities": capabilities,
            "search_text": words,
        },
    )


def heartbeat(directory: DirectoryDatabase, name: str) -> None:
    """Note that an agent runs, unless that was noted a short while ago or the agent left."""
    seen_by = directory.now() - HEARTBEAT_INTERVAL
    entry = _entry(directory.read(ENTRY, (name,)))
    if entry is not None and entry.last_seen_at <= seen_by:
        directory.write(lambda tx: tx.run(SEEN, (tx.now, name, seen_by)))


def register_at_opening(
    home: DirectoryHandle, db: Database, profile: AgentProfile, *, engines: bool
) -> None:
    """
    Register the agent of a file that is opened under its name, with what it says of itself.

    Where *engines* are to start, the agent is seen, too. A directory that has all
    this is read only. One that cannot be used is told in the log: no message needs it.
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


def _read_alone(home: DirectoryHandle, name: str) -> _Entry | None:
    """Read an agent's entry without a commit and without keeping the directory open."""
    if not home.path.exists() or open_files.finds(home.path):
        return None  # one that is open here is asked for nothing
    con = None
    try:
        con = connect(home.path, readonly=True)
        return _entry(con.execute(ENTRY, (name,)).fetchall())
    except (apsw.Error, StoreError, StoreCorrupt):  # opening it in full says what is wrong
        return None
    finally:
        close(con)
