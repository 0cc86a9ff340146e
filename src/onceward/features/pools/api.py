"""Serve pools, name their members, and list them."""

from __future__ import annotations

from typing import Final

from onceward.core.contract import Opening
from onceward.core.rows import peers
from onceward.core.run.engine_loop import until_found
from onceward.errors import InvalidArgument
from onceward.features.pools import finding, members
from onceward.features.pools.serving import CREDITS, Serving, serving_of
from onceward.file.database import Database
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.names import agent_name
from onceward.message.record import PoolInfo, PoolMember
from onceward.message.times import Span

POOLS: Final = """
SELECT pool, waiting, waiting_since_at, in_flight, in_doubt FROM onceward_pools ORDER BY pool
"""
MEMBERS: Final = (
    f"SELECT pool, {columns(PoolMember)} FROM onceward_pool_members ORDER BY pool, agent"
)
ACCEPTED: Final = """
SELECT 1 FROM _onceward_inbox
 WHERE state = 'pending' AND lane_id IS NOT NULL AND json_extract(frame, '$.pool') = ? LIMIT 1
"""


@checks_arguments()
class Pools:
    """
    Pools of agents: a message to the name of a pool goes to one of its members.

    The file of the sender decides which one, and a message that a member may know is given to no
    other.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening, self._settings = opening, opening.deps.settings
        self._db: Database = opening.deps.db

    @property
    def _serving(self) -> Serving:
        return self._opening.once(serving_of)

    def join(self, pool: str, *, credits: int | None = None) -> None:
        """
        Serve a pool, now and whenever this file is opened with the agent's handlers.

        *credits* is the number of unhandled messages that this agent wants to have, by default
        twice the setting ``workers``, or 8. A sender gives it no more until it answers; the answers
        of a process with the agent's handlers tell how many it still takes, of all senders.

        Raises:
            InvalidArgument: an agent of this or a known home has that name, or *credits* is < 1.

        """
        count = self._serving.credits if credits is None else _positive(credits)
        self._refuse_agent(pool, self._db.agent)
        self._serving.join(pool, count)

    def _refuse_agent(self, pool: str, member: str) -> None:
        """Raise InvalidArgument if an agent of this home, or of a known one, has a pool's name."""
        if pool == member or self._opening.files.path(agent_name(pool)) is not None:
            raise InvalidArgument(f"{pool} is an agent of this home: choose another pool's name")
        for name, _ in finding.homes_with_agent(self._opening, pool):
            raise InvalidArgument(f"{pool} is an agent of the home {name}: choose another name")

    def leave(self, pool: str) -> bool:
        """
        Get no more messages of a pool; return whether this agent served it.

        It still handles the messages that it has accepted. An agent declared with ``serves`` joins
        again when its file is opened.
        """
        return self._serving.leave(pool)

    def drain(self, pool: str, timeout: Span | None = None) -> bool:
        """
        Leave a pool, and wait up to *timeout* seconds until nothing accepted of it is unhandled.

        Return whether that is so. A parcel that a sender had already packed may come later.
        """
        self.leave(pool)
        poll = self._settings.tuning.poll_interval
        found = until_found(
            self._db, lambda: self._is_done(pool) or None, timeout, poll=poll, due=lambda left: left
        )
        return found is True

    def _is_done(self, pool: str) -> bool:
        return not self._db.read(ACCEPTED, (pool,))

    def add(self, pool: str, agent: str, *, credits: int = CREDITS) -> None:
        """
        Name a member of a pool for what this agent sends, such as a peer on another machine.

        Agents of the home that serve the pool are members without it.

        Raises:
            InvalidArgument: an agent of this or a known home has that name, or *credits* is < 1.

        """
        self._refuse_agent(pool, agent)
        agent_name(agent)
        _positive(credits)

        def work(tx: StoreTransaction) -> None:
            if peers.url_of(tx.rows, pool) != finding.URL:
                peers.register(tx, {pool: finding.URL})
            members.add(tx, pool, agent, credits)

        self._db.write(work)
        self._db.notifier.notify("out")

    def remove(self, pool: str, agent: str) -> bool:
        """
        Remove a member that ``add`` has named; return whether there was one.

        Messages that it cannot know go to other members; those that it may know stay with it.
        """
        found = self._db.write(lambda tx: members.remove(tx, pool, agent))
        self._db.notifier.notify("out")
        return found

    def release(self, pool: str) -> int:
        """
        Assign messages that wait since this file was restored; return how many there are.

        A member may have handled them: the file that knew it is lost. They are handled twice then.
        """
        doubtful = sum(each.in_doubt for each in self.list() if each.pool == pool)
        self._db.write(lambda tx: peers.end_doubt(tx, pool))
        self._db.notifier.notify("out")
        return doubtful

    def list(self) -> list[PoolInfo]:
        """Return the pools to which this agent sends, with their members."""
        found: dict[str, list[PoolMember]] = {}
        for pool, *row in self._db.ask(MEMBERS):
            found.setdefault(pool, []).append(PoolMember(*row))
        return [
            PoolInfo(pool, waiting, since_at, in_flight, in_doubt, tuple(found.get(pool, ())))
            for pool, waiting, since_at, in_flight, in_doubt in self._db.ask(POOLS)
        ]


def _positive(count: int) -> int:
    if isinstance(count, bool) or count < 1:
        raise InvalidArgument(f"credits={count} must be at least 1")
    return count


def pools_of(opening: Opening) -> Pools:
    """Return the pools of an opening."""
    return Pools(opening)
