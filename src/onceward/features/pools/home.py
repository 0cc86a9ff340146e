"""Keep the members of pools in the directory of a home: which agents serve, and which work."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.features.pools.members import HomeMember
from onceward.file import known_homes
from onceward.file.directory import DirectoryDatabase
from onceward.file.file_checks import is_dead
from onceward.file.transaction import StoreTransaction

MEMBERS: Final = """
SELECT agent, credits, owner FROM pool_members
 WHERE pool = ? AND left_at IS NULL ORDER BY agent
"""
ENTRY: Final = "SELECT credits, owner, left_at FROM pool_members WHERE pool = ? AND agent = ?"
SERVE: Final = """
INSERT INTO pool_members (pool, agent, credits, owner, joined_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (pool, agent) DO UPDATE
   SET credits = excluded.credits, owner = excluded.owner, left_at = NULL
"""
LEAVE: Final = """
UPDATE pool_members SET left_at = ? WHERE pool = ? AND agent = ? AND left_at IS NULL
"""
SERVED: Final = """
SELECT pool, credits FROM pool_members WHERE agent = ? AND left_at IS NULL ORDER BY pool
"""
REST: Final = "UPDATE pool_members SET owner = NULL WHERE agent = ? AND owner = ?"


def members(directory: DirectoryDatabase, pool: str) -> dict[str, HomeMember]:
    """Return the members of a pool by name; one whose process has ended does not work."""
    return {
        agent: HomeMember(count, owner is not None and not is_dead(owner))
        for agent, count, owner in directory.read(MEMBERS, (pool,))
    }


def far_members(directory: DirectoryDatabase, pool: str) -> dict[str, HomeMember]:
    """Return the members of a pool in other homes, as these have told."""
    return {
        agent: HomeMember(max(1, count), count > 0)
        for agent, count in known_homes.pool_members(directory.read, pool).items()
    }


class ServedPool(NamedTuple):
    """An agent of the home in a pool, and the process that handles its messages."""

    pool: str
    agent: str
    credits: int
    owner: str


def serve(directory: DirectoryDatabase, member: ServedPool, *, again: bool) -> bool:
    """
    Record that a process handles the messages of a member, unless another one does.

    A member that has left stays outside, unless it joins *again*. Return whether that is news.
    """
    pool, agent, count, owner = member
    for known, by, left_at in directory.read(ENTRY, (pool, agent)):
        if left_at is not None and not again:
            return False
        if left_at is None and known == count and by is not None and not is_dead(by):
            return False
    directory.write(lambda tx: tx.run(SERVE, (pool, agent, count, owner, tx.now)))
    return True


def served(directory: DirectoryDatabase, agent: str) -> list[tuple[str, int]]:
    """Return the pools that an agent serves, with its credits."""
    return [(pool, count) for pool, count in directory.read(SERVED, (agent,))]


def leave(directory: DirectoryDatabase, pool: str, agent: str) -> bool:
    """Record that a member has left; return whether there was one."""
    return directory.write(lambda tx: tx.run(LEAVE, (tx.now, pool, agent))) > 0


def rest(directory: DirectoryDatabase, agent: str, owner: str) -> None:
    """Record that a process no longer handles the messages of an agent."""

    def work(tx: StoreTransaction) -> None:
        tx.run(REST, (agent, owner))

    directory.write(work)
