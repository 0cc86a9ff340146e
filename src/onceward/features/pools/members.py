"""Store the members of pools in the file of a sender: told by hand, or by its home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.file.transaction import Rows, StoreTransaction

ADD: Final = """
INSERT INTO _onceward_pool_members (pool, agent, credits, home, works) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (pool, agent) DO UPDATE
   SET credits = excluded.credits, home = excluded.home, works = excluded.works
"""
REMOVE: Final = "DELETE FROM _onceward_pool_members WHERE pool = ? AND agent = ?"
OF_HOME: Final = """
SELECT agent, credits, works FROM _onceward_pool_members WHERE pool = ? AND home = 1
"""
BY_HAND: Final = "SELECT 1 FROM _onceward_pool_members WHERE pool = ? AND agent = ? AND home = 0"
SERVED: Final = """
SELECT pool, credits FROM _onceward_pool_members WHERE agent = ? AND home = 1
"""
# A member that does not answer gets no message, and one once its backoff is over and nothing is in
# flight: no other push would find it again.
MEMBERS: Final = """
SELECT m.agent,
       CASE WHEN NOT m.works OR coalesce(p.due_at, 0) > :now THEN 0
            WHEN coalesce(p.failures, 0) = 0 THEN max(1, coalesce(p.room, m.credits))
            WHEN p.in_flight_seqs IS NULL THEN 1
            ELSE 0 END,
       m.works AND coalesce(p.failures, 0) = 0
  FROM _onceward_pool_members AS m LEFT JOIN _onceward_peers AS p ON p.name = m.agent
 WHERE m.pool = :pool
"""


class HomeMember(NamedTuple):
    """A member of a pool, as the directory of a home has it."""

    credits: int
    works: bool
    """Whether a process handles its messages now."""


class Capacity(NamedTuple):
    """The capacity of a pool's member, as its sender sees it."""

    credits: int
    """Maximum messages that it may have, and that have not ended."""
    answers: int
    """Whether it works, and the last push to it succeeded."""


def members_of(read: Rows, pool: str, now: int) -> dict[str, Capacity]:
    """Return the members of a pool by name."""
    return {name: Capacity(*row) for name, *row in read(MEMBERS, {"pool": pool, "now": now})}


def add(tx: StoreTransaction, pool: str, agent: str, credits: int) -> None:
    """Add a member that the user names."""
    tx.run(ADD, (pool, agent, credits, 0, 1))


def remove(tx: StoreTransaction, pool: str, agent: str) -> bool:
    """Remove a member; return whether there was one."""
    return tx.run(REMOVE, (pool, agent)) > 0


def told(tx: StoreTransaction, pool: str, found: Mapping[str, HomeMember]) -> None:
    """Store the members that the home tells; those named by hand stay."""
    known = {agent: HomeMember(*row) for agent, *row in tx.rows(OF_HOME, (pool,))}
    for agent in known.keys() - found.keys():
        remove(tx, pool, agent)
    for agent, member in found.items():
        if known.get(agent) != member and not tx.rows(BY_HAND, (pool, agent)):
            tx.run(ADD, (pool, agent, member.credits, 1, member.works))


def served(read: Rows, agent: str) -> dict[str, int]:
    """Return the pools that the agent of the file serves, with its credits."""
    return dict(read(SERVED, (agent,)))


def serve(tx: StoreTransaction, pool: str, agent: str, credits: int) -> None:
    """Note in its own file that an agent serves a pool."""
    tx.run(ADD, (pool, agent, credits, 1, 1))
