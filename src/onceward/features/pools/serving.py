"""Keep an agent in the pools that it serves, while a process handles its messages."""

from __future__ import annotations

from typing import Final

from onceward.core.contract import Opening
from onceward.errors import InvalidArgument, OncewardError
from onceward.features.pools import home, members
from onceward.features.pools.home import ServedPool
from onceward.file import file_checks
from onceward.message.log import log

CREDITS: Final = 8
"""Messages that a member may have at once, unless its number of workers is set."""


# Unhandled messages of any sender, those that are handled now included; at most as many as asked.
WAITING: Final = """
SELECT count(*)
  FROM (SELECT 1 FROM _onceward_inbox WHERE state = 'pending' AND lane_id IS NOT NULL LIMIT ?)
"""


class Serving:
    """The pools that one opening's agent serves."""

    def __init__(self, opening: Opening) -> None:
        self._opening, self._db = opening, opening.deps.db
        self._owner = file_checks.owner_name()
        workers = opening.deps.settings.workers
        self.credits = CREDITS if workers is None else 2 * workers
        """Messages that it may have at once, unless it joins with another number."""
        self._told: list[tuple[str, int]] | None = None
        """The pools of the agent that other homes have been told."""
        self._pools = members.served(self._db.read, self._db.agent)
        if opening.agent is not None:
            self._pools |= dict.fromkeys(opening.agent.serves, self.credits)
        if self._pools:
            self._tell_room()

    def __bool__(self) -> bool:
        """Return whether there are such pools."""
        return bool(self._pools)

    def tell(self, *, again: bool = False) -> None:
        """
        Record in the home that this process handles messages of the pools; tell other homes news.

        A pool that the agent has left, in whatever process, it joins *again* only if it is opened
        or told to.
        """
        directory, agent = self._opening.home.directory, self._db.agent
        for pool, count in self._pools.items():
            if self._opening.files.path(pool) is not None:
                raise InvalidArgument(f"{pool} is an agent of this home: rename it, or the pool")
            home.serve(directory, ServedPool(pool, agent, count, self._owner), again=again)
        if self._told != (told := home.served(directory, agent)):
            self._told = told
            self._tell_homes()

    def _tell_room(self) -> None:
        """Have the answers of this process tell how many more messages the agent takes."""
        self._opening.offers["answer_room"](self.room)

    def room(self) -> int:
        """Return how many more messages the agent takes before it has handled others."""
        most = max(self._pools.values(), default=0)
        return most - int(self._db.read(WAITING, (most,))[0][0])

    def _tell_homes(self) -> None:
        self._opening.offers["tell_homes"]()

    def join(self, pool: str, count: int) -> None:
        """Join a pool, also at later openings."""
        self._pools[pool] = count
        self._tell_room()
        self._db.write(lambda tx: members.serve(tx, pool, self._db.agent, count))
        self.tell(again=True)

    def leave(self, pool: str) -> bool:
        """Leave a pool; return whether the agent served it."""
        self._pools.pop(pool, None)
        self._db.write(lambda tx: members.remove(tx, pool, self._db.agent))
        left = home.leave(self._opening.home.directory, pool, self._db.agent)
        self._tell_homes()
        return left

    def rest(self) -> None:
        """Record that this process handles no more messages."""
        try:
            if self._pools:
                home.rest(self._opening.home.directory, self._db.agent, self._owner)
        except OncewardError as error:
            log.failure("debug", "its pools find out later", error, agent=self._db.agent)


def serving_of(opening: Opening) -> Serving:
    """Return the pools of an opening's agent."""
    found = Serving(opening)
    opening.closing.callback(found.rest)
    return found


def serve(opening: Opening, *, again: bool) -> None:
    """Serve the pools of an agent whose file is open; a directory that fails is asked later."""
    try:
        opening.once(serving_of).tell(again=again)
    except OncewardError as error:
        log.failure("warning", "its pools wait", error, agent=opening.deps.db.agent)
