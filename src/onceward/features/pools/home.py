"""Keep the members of pools in the directory of a home: which agents serve, and which work."""

from __future__ import annotations

from typing import Final

from onceward.features.pools.members import HomeMember
from onceward.file.directory import DirectoryDatabase
from onceward.file.file_checks import is_dead
from onceward.file.transaction import StoreTransaction

MEMBERS: Final = "SELECT agent, credits, owner FROM pool_members WHERE pool = ? ORDER BY agent"
ENTRY: Final = "SELECT credits, owner FROM pool_members WHERE pool = ? AND agent = ?"
SERVE: Final = """
INSERT INTO pool_members (pool, agent, credits, owner, joined_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (pool, agent) DO UPDATE SET credits = excluded.credits, owner = excluded.owner
"""
LEAVE: Final = "DELETE FROM pool_members WHERE pool = ? AND agent = ?"
REST: Final = "UPDATE pool_members SET owner = NULL WHERE agent = ? AND owner = ?"


def members(directory: DirectoryDatabase, pool: str) -> dict[str, HomeMember]:
    """Return the members of a pool by name; one whose process has ended does not work."""
    return {
        agent: HomeMember(count, owner is not None and not is_dead(owner))
        for agent, count, owner in directory.read(MEMBERS, (pool,))
    }


def serve(directory: DirectoryDatabase, pool: str, agent: str, count: int, owner: str) -> None:
    """Record that a process handles the messages of a member, unless another one does."""
    for known, by in directory.read(ENTRY, (pool, agent)):
        if known == count and by is not None and not is_dead(by):
            return
    directory.write(lambda tx: tx.run(SERVE, (pool, agent, count, owner, tx.now)))


def leave(directory: DirectoryDatabase, pool: str, agent: str) -> bool:
    """Remove a member; return whether there was one."""
    return directory.write(lambda tx: tx.run(LEAVE, (pool, agent))) > 0


def rest(directory: DirectoryDatabase, agent: str, owner: str) -> None:
    """Record that a process no longer handles the messages of an agent."""

    def work(tx: StoreTransaction) -> None:
        tx.run(REST, (agent, owner))

    directory.write(work)
