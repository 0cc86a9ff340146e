"""
Store the other homes that a home exchanges messages with, and the agents that they serve.

They are in the directory of the home: one row for each home, with the fingerprint of its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from onceward.errors import InvalidArgument
from onceward.file.connection import ConstraintError
from onceward.file.directory import DirectoryDatabase
from onceward.file.file_checks import is_dead
from onceward.file.sql_parts import columns
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.names import is_agent_name

ROTATION_WINDOW: Final = 86_400_000
"""Milliseconds for which the previous key of a home stays valid after a rotation."""
# With the process that handles the messages of each.
OWN_POOLS: Final = "SELECT agent, pool, credits, owner FROM pool_members WHERE left_at IS NULL"
LEAVE_POOLS: Final = """
DELETE FROM home_pool_members
 WHERE home = :home
   AND (pool, agent) NOT IN (SELECT p.key, a.value ->> 'name'
                               FROM json_each(:told) AS a, json_each(a.value -> 'pools') AS p)
"""
KEEP_POOLS: Final = """
INSERT INTO home_pool_members (pool, agent, home, credits)
SELECT p.key, a.value ->> 'name', :home, p.value
  FROM json_each(:told) AS a, json_each(a.value -> 'pools') AS p WHERE true
ON CONFLICT DO UPDATE SET credits = excluded.credits WHERE credits <> excluded.credits
"""
# An agent of which two homes tell cannot be reached by its name.
MEMBERS: Final = """
SELECT m.agent, m.credits FROM home_pool_members AS m
 WHERE m.pool = ? AND NOT EXISTS (SELECT 1 FROM home_agents AS a
                                   WHERE a.name = m.agent AND a.home <> m.home)
"""
OWN_FILES: Final = "SELECT name, description, accepts FROM agents"


@dataclass(frozen=True, slots=True)
class KnownHome:
    """Another home that this one exchanges messages with."""

    name: str
    """Its name here."""
    url: str
    """The URL of its listener, or ``poll:`` if it polls this home."""
    fingerprint: str
    """The fingerprint of its key."""
    previous: str | None
    """The fingerprint before its last rotation, valid for a day after it."""
    rotated_at: Millis | None
    """When the rotation was learned."""
    added_at: Millis
    told_at: Millis | None
    """When it last told its agents; None if it never did."""
    agents: int
    """Number of agents that it serves, by its last list."""


@dataclass(frozen=True, slots=True)
class HomeAgent:
    """An agent that a home serves."""

    name: str
    home: str
    """The name of the home here."""
    description: str
    accepts: tuple[str, ...]
    """The types, or patterns of types, that it has handlers for."""


COUNT: Final = "(SELECT count(*) FROM home_agents AS a WHERE a.home = h.name)"
HOMES: Final = f"SELECT {columns(KnownHome, 'h.', agents=COUNT)} FROM homes AS h"  # noqa: S608 - names of fields
ALL: Final = f"{HOMES} ORDER BY h.name"
NAMED: Final = f"{HOMES} WHERE h.name = ?"
AT: Final = f"{HOMES} WHERE h.url = ?"
PROVED: Final = f"""
{HOMES} WHERE h.fingerprint = :fingerprint
           OR (h.previous = :fingerprint AND h.rotated_at > :now - {ROTATION_WINDOW})
 ORDER BY h.fingerprint = :fingerprint DESC LIMIT 1
"""
ADD: Final = "INSERT INTO homes (name, url, fingerprint, added_at) VALUES (?, ?, ?, ?)"
REMOVE: Final = "DELETE FROM homes WHERE name = ?"
ROTATE: Final = """
UPDATE homes SET previous = fingerprint, fingerprint = :new, rotated_at = :now
 WHERE fingerprint = :old
"""
TELL: Final = "UPDATE homes SET told_at = :now WHERE name = :home AND fingerprint = :fingerprint"
AGENTS: Final = "SELECT name, home, description, accepts FROM home_agents ORDER BY name, home"
FORGET: Final = """
DELETE FROM home_agents
 WHERE home = :home AND name NOT IN (SELECT value ->> 'name' FROM json_each(:told))
"""
KEEP: Final = """
INSERT INTO home_agents (home, name, description, accepts, told_at)
SELECT :home, value ->> 'name', value ->> 'description', value -> 'accepts', :now
  FROM json_each(:told) WHERE true
ON CONFLICT DO UPDATE SET description = excluded.description, accepts = excluded.accepts
 WHERE (description, accepts) <> (excluded.description, excluded.accepts)
"""
WHERE_SERVED: Final = """
SELECT h.name, h.url FROM home_agents AS a JOIN homes AS h ON h.name = a.home
 WHERE a.name = ? ORDER BY a.told_at, a.home
"""


def all_homes(read: Rows) -> list[KnownHome]:
    """Return the known homes by name."""
    return [KnownHome(*row) for row in read(ALL, ())]


def named(read: Rows, name: str) -> KnownHome | None:
    """Return the home of that name, or None."""
    return _first(read(NAMED, (name,)))


def at_url(read: Rows, url: str) -> KnownHome | None:
    """Return the home that is reached at a url, or None."""
    return _first(read(AT, (url.rstrip("/"),)))


def proved(read: Rows, fingerprint: str, now: Millis) -> KnownHome | None:
    """Return the home that may sign with the key of that fingerprint, or None."""
    return _first(read(PROVED, {"fingerprint": fingerprint, "now": now}))


def serving(read: Rows, agent: str) -> list[tuple[str, str]]:
    """Return name and url of the homes that serve an agent, the one that told it first first."""
    return [(name, url) for name, url in read(WHERE_SERVED, (agent,))]


def agents(read: Rows) -> list[HomeAgent]:
    """Return the agents of all homes by name."""
    return [
        HomeAgent(name, home, description, tuple(json.loads(accepts)))
        for name, home, description, accepts in read(AGENTS, ())
    ]


def _first(rows: list[tuple[Any, ...]]) -> KnownHome | None:
    return KnownHome(*rows[0]) if rows else None


def add(directory: DirectoryDatabase, name: str, url: str, fingerprint: str) -> KnownHome:
    """
    Store a home; adding the same again changes nothing.

    Raises:
        InvalidArgument: another one has its name, url or key.

    """

    def work(tx: StoreTransaction) -> KnownHome:
        found = named(tx.rows, name)
        if found is None:
            tx.run(ADD, (name, url, fingerprint, tx.now))
            found = KnownHome(name, url, fingerprint, None, None, tx.now, None, 0)
        elif (found.url, found.fingerprint) != (url, fingerprint):
            cure = f"onceward homes remove {name}, or give another --name"
            raise InvalidArgument(f"the home {name} has another url or fingerprint: {cure}")
        return found

    try:
        return directory.write(work)
    except ConstraintError as error:
        msg = "a home with this url or fingerprint is known under another name: onceward homes ls"
        raise InvalidArgument(msg) from error


def remove(directory: DirectoryDatabase, name: str) -> bool:
    """Delete a home and its agents; return whether it was known."""
    return directory.write(lambda tx: tx.run(REMOVE, (name,))) > 0


def rotate(directory: DirectoryDatabase, old: str, new: str) -> bool:
    """Move the home with the key *old* to its new one; return False if no home has the old one."""
    try:
        return (
            directory.write(lambda tx: tx.run(ROTATE, {"old": old, "new": new, "now": tx.now})) > 0
        )
    except ConstraintError:  # another home has the new one
        return False


def tell(directory: DirectoryDatabase, home: KnownHome, told: Iterable[dict[str, Any]]) -> bool:
    """Store all agents that a home serves; return False if it was removed or rotated since."""
    given = json.dumps([*told], ensure_ascii=False)

    def work(tx: StoreTransaction) -> bool:
        bound = {"home": home.name, "fingerprint": home.fingerprint, "now": tx.now, "told": given}
        if not tx.run(TELL, bound):
            return False
        tx.run(FORGET, bound)
        tx.run(KEEP, bound)
        tx.run(LEAVE_POOLS, bound)
        tx.run(KEEP_POOLS, bound)
        return True

    return directory.write(work)


def own_agents(directory: DirectoryDatabase, files: Iterable[str]) -> list[dict[str, Any]]:
    """Return what this home tells of the agents that have these *files*."""
    known = {name: (about, accepts) for name, about, accepts in directory.read(OWN_FILES)}
    pools = own_pools(directory)
    told = list[dict[str, Any]]()
    for name in sorted(filter(is_agent_name, files)):
        about, accepts = known.get(name, ("", "[]"))
        types = [each["type"] for each in json.loads(accepts)]
        of = {"description": about, "accepts": types, "pools": pools.get(name, {})}
        told.append({"name": name, **of})
    return told


def own_pools(directory: DirectoryDatabase) -> dict[str, dict[str, int]]:
    """Return the pools that each agent serves, with its credits; 0 if no process handles them."""
    found: dict[str, dict[str, int]] = {}
    for agent, pool, count, owner in directory.read(OWN_POOLS):
        works = owner is not None and not is_dead(owner)
        found.setdefault(agent, {})[pool] = count if works else 0
    return found


def pool_members(read: Rows, pool: str) -> dict[str, int]:
    """Return the agents of other homes that serve a pool, with their credits."""
    return dict(read(MEMBERS, (pool,)))
