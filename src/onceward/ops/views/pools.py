"""Ask one file for the pools to which its agent sends: what waits, and what members have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.ops.views.asking import Source, values


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool, and why its messages wait."""

    pool: str
    waiting: int
    waiting_since_at: Millis | None
    in_flight: int
    in_doubt: int
    members: int
    working: int
    """Members that work and answer."""
    free: int
    """Those of them that may have more messages."""

    @property
    def lacks(self) -> tuple[str, str]:
        """One word for what the waiting messages lack, and a sentence; empty if nothing."""
        if not self.members:
            return "no member", f"no agent serves the pool {self.pool}"
        if not self.working:
            return "no member", f"none of the {self.members} members of {self.pool} works"
        if not self.free:
            said = f"each member of {self.pool} has as many messages as it takes"
            return "members busy", f"{said}: {self.in_flight} in flight"
        return "", ""


@dataclass(frozen=True, slots=True)
class PoolMemberRow:
    """A member of a pool, and the messages that it has."""

    pool: str
    agent: str
    works: int
    failures: int
    in_flight: int
    credits: int
    takes: int


MEMBERS: Final = f"""
SELECT {columns(PoolMemberRow)} FROM onceward_pool_members
 WHERE pool IN (SELECT pool FROM onceward_pools)
 ORDER BY works, failures DESC, in_flight DESC, pool, agent LIMIT :limit
"""
WORKING: Final = """
(SELECT count(*) FROM onceward_pool_members AS m
  WHERE m.pool = p.pool AND m.works = 1 AND m.failures = 0{free})
"""
# A member has one room for all its pools.
FREE: Final = """
   AND (SELECT sum(each.in_flight) FROM onceward_pool_members AS each
         WHERE each.agent = m.agent) < m.takes"""
WAITING: Final = f"""
SELECT {columns(PoolRow, working=WORKING.format(free=""), free=WORKING.format(free=FREE))}
  FROM onceward_pools AS p WHERE waiting > 0 AND (:pool IS NULL OR pool = :pool) ORDER BY pool
"""
STOPPED: Final = f"""
SELECT {columns(PoolMemberRow)} FROM onceward_pool_members
 WHERE works = 0 AND in_flight > 0 ORDER BY pool, agent
"""
# A restore leaves the oldest ones in doubt.
BEFORE: Final = """
SELECT count(*) FROM onceward_outbox
 WHERE recipient = :pool AND state = 'pending' AND seq <= :seq
"""


def waiting(source: Source, pool: str | None = None) -> tuple[PoolRow, ...]:
    """Return the pools, or the one of a name, whose messages wait."""
    return values(source, PoolRow, WAITING, pool=pool)


def worst_members(source: Source, limit: int) -> tuple[PoolMemberRow, ...]:
    """Return members of pools: those that do not work or answer first, then the busiest."""
    return values(source, PoolMemberRow, MEMBERS, limit=limit)


def stopped(source: Source) -> tuple[PoolMemberRow, ...]:
    """Return the members that have messages, and of which no process handles any."""
    return values(source, PoolMemberRow, STOPPED)


def is_in_doubt(source: Source, found: PoolRow, seq: int) -> bool:
    """Return whether a waiting message may be with a member since before a restore."""
    if not found.in_doubt:
        return False
    [(count,)] = source.rows(BEFORE, {"pool": found.pool, "seq": seq})
    return bool(count <= found.in_doubt)
