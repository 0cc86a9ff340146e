"""
Give waiting messages of pools to members, by the file of their sender alone.

Invariants: a message is given to a member only while no peer can know it, and is an ordinary
message to that member afterwards; the guard of the outbox refuses anything else. It is taken back
only while it was in no parcel. A parcel without an answer stays with its member: nothing guesses
that it was lost. So two members never have one message.

The order: 1. the home tells its members; 2. members that do not answer lose what they cannot know;
3. waiting messages, in the order of sending, go to the member with the fewest in flight, and those
of a conversation to the member that has others of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from onceward.core.contract import Opening
from onceward.core.end import sent
from onceward.core.rows import outbox, tickets
from onceward.core.rows.outbox import OutboxRow
from onceward.core.run.engine_loop import MAX_IDLE_SECONDS, EngineLoop
from onceward.features.pools import waiting
from onceward.features.pools.finding import known_members
from onceward.features.pools.members import Capacity, HomeMember, members_of, told
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import monotonic
from onceward.message.names import DEFAULT_SESSION

SCAN: Final = 1000
"""Waiting messages of a pool that one commit reads; it gives away as many as members take."""
ASK: Final = 10.0
"""Seconds after which other homes are asked again for members, while messages wait."""
NONE: Final = Capacity(0, 0)
Told = Mapping[str, Mapping[str, HomeMember] | None]
"""The members of pools in the home, by pool and name; None if the home cannot tell them now."""


class Assignment:
    """The members of one pool in a transaction, and what they have in flight."""

    def __init__(self, tx: StoreTransaction, pool: str) -> None:
        self._tx, self._pool = tx, pool
        self._members = members_of(tx.rows, pool, tx.now)
        given = outbox.of_pools(tx.rows)
        if self._take_back({agent for of, agent, _, _ in given if of == pool}):
            given = outbox.of_pools(tx.rows)
        self._in_flight = Counter[str]()
        """By member, of all pools: it has one room for them."""
        self._lanes: dict[str, str] = {}
        """The member that has messages of a conversation; the default one is spread."""
        for of, agent, lane, count in given:
            self._in_flight[agent] += count
            if of == pool and lane != DEFAULT_SESSION:
                self._lanes[lane] = agent

    def _take_back(self, agents: set[str]) -> int:
        """Take back what members that do not answer cannot know; return how many messages."""
        taken = 0
        for agent in agents:
            if not self._members.get(agent, NONE).answers:
                for row in outbox.unknown_to_member(self._tx, self._pool, agent):
                    if outbox.take_back(self._tx, row, self._pool, agent):
                        tickets.redirect(self._tx, row.id, self._pool)
                        taken += 1
        return taken

    def assign(self) -> None:
        """Give waiting messages to members with credits left."""
        waits = set[str]()
        for row in outbox.ready(self._tx, self._pool, SCAN):
            if not any(map(self._left, self._members)):
                return
            agent = None if row.lane in waits else self._member(row.lane)
            given = agent is not None and self._give(row, agent)
            if not given and row.lane != DEFAULT_SESSION:
                waits.add(row.lane)

    def _left(self, agent: str) -> int:
        """Return how many more messages a member may have."""
        return max(0, self._members.get(agent, NONE).credits - self._in_flight[agent])

    def _member(self, lane: str) -> str | None:
        """Return the member that gets the next message of a conversation; None: it waits."""
        if lane in self._lanes:
            return self._lanes[lane] if self._left(self._lanes[lane]) else None
        free = [agent for agent in self._members if self._left(agent)]
        return min(free, key=lambda agent: (self._in_flight[agent], agent), default=None)

    def _give(self, row: OutboxRow, agent: str) -> bool:
        if not row.intact:
            sent.bury(self._tx, [row.seq], reason="corrupt")
            return True
        if not outbox.assign(self._tx, row, self._pool, agent):
            return False
        tickets.redirect(self._tx, row.id, agent)
        self._in_flight[agent] += 1
        if row.lane != DEFAULT_SESSION:
            self._lanes[row.lane] = agent
        self._tx.outgoing[agent] = None
        return True


class Assigner:
    """Assigns the messages of one file, after each commit that may free a credit."""

    def __init__(self, opening: Opening) -> None:
        self._opening, self._db = opening, opening.deps.db
        self._loop = EngineLoop(self._db, "pools", self.look)
        self._started, self._asked_at = False, -ASK
        self._ask = opening.offers["tell_homes"]

    def look(self) -> float | None:
        """Assign what can be assigned; return the seconds until the next look."""
        if self._db.writer.held or not (due := waiting(self._db.read)):
            return None
        known = {pool: known_members(self._opening, pool) for pool in due}
        self._db.write(partial(_assign, told_by_home=known))
        if not waiting(self._db.read):
            return None
        if monotonic() - self._asked_at >= ASK:
            self._asked_at = monotonic()
            self._ask()
        if self._opening.started() and not self._started:
            self._start()
        return MAX_IDLE_SECONDS

    def _start(self) -> None:
        """Look again after each outcome, which frees a credit."""
        self._started = True
        stop = self._opening.deps.settings.stop_timeout
        self._opening.closing.callback(self._loop.stop, stop)
        self._loop.start("in", poll=self._opening.deps.settings.tuning.poll_interval)


def _assign(tx: StoreTransaction, *, told_by_home: Told) -> None:
    for pool, found in told_by_home.items():
        if found is not None:
            told(tx, pool, found)
        Assignment(tx, pool).assign()


def run(opening: Opening) -> None:
    """Assign the waiting messages of an opening's pools."""
    opening.once(Assigner).look()
