"""
Share a queue among agents of many machines: each message to a pool goes to one member.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Feature, Late, Part
from onceward.core.deliver.dispatcher import DueWork
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.contract import Opening
    from onceward.file.transaction import Rows

late = partial(Late, __name__)
SERVED: Final = "SELECT 1 FROM _onceward_pool_members WHERE agent = ? AND home = 1 LIMIT 1"
# Pools whose messages wait for a member, or of which a member has messages that it does not take.
WAITING: Final = """
SELECT p.name
  FROM _onceward_peers AS p
 WHERE p.url = 'pool:'
   AND (EXISTS (SELECT 1
                  FROM _onceward_outbox AS o
                 WHERE o.recipient = p.name AND o.state = 'pending' AND o.due_at IS NULL
                   AND o.held_by IS NULL)
        OR EXISTS (SELECT 1
                     FROM _onceward_outbox AS o
                     LEFT JOIN _onceward_pool_members AS m
                       ON m.pool = o.pool AND m.agent = o.recipient
                     LEFT JOIN _onceward_peers AS a ON a.name = o.recipient
                    WHERE o.pool = p.name AND o.ended_at IS NULL AND o.state = 'pending'
                      AND o.pushed = 0 AND (a.failures > 0 OR m.works IS NOT 1)))
"""


def waiting(read: Rows) -> list[str]:
    """Return the pools whose messages wait, or are with a member that does not take them."""
    return [name for (name,) in read(WAITING, ())]


def _serve(opening: Opening, *, again: bool = True) -> None:
    """Serve the pools of an agent whose file is open, if it has any: few agents do."""
    agent, db = opening.agent, opening.deps.db
    if agent is not None and db.vfs is None and (agent.serves or db.read(SERVED, (agent.name,))):
        late("serving.serve")(opening, again=again)


def _serve_again(opening: Opening, _limit: int) -> int:
    """Serve them still: the process that did may have ended."""
    _serve(opening, again=False)
    return 0


def _offer(opening: Opening) -> None:
    """Find pools of the home by name, and serve those of the agent."""
    opening.offers["find_peer"] = partial(late("finding.find"), opening)
    opening.offers["pool_transport"] = late("finding.transport")
    opening.joined.append(partial(_serve, opening))


FEATURE: Final = Feature(
    name="pools",
    due=DueWork(now=f"EXISTS ({WAITING})", run=late("assigner.run")),
    upkeep=Upkeep(home=_serve_again),
    opens=_offer,
    parts={"pools": Part(late("api.pools_of"), late("aio.AsyncPools"))},
)
