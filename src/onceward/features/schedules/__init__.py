"""
Send messages repeatedly, at dates.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Feature, Late, Part
from onceward.core.deliver.dispatcher import DueWork

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)
DUE: Final = """EXISTS (SELECT 1 FROM _onceward_schedules WHERE due_at <= :wall)
       OR EXISTS (SELECT 1 FROM _onceward_schedules WHERE due_at IS NOT NULL AND seen_at > :wall)"""
NEXT: Final = "(SELECT min(due_at) - :wall + :now FROM _onceward_schedules WHERE due_at > :wall)"


def _declare(opening: Opening) -> None:
    """Note the schedules that an agent with handlers declares."""
    agent = opening.agent
    if agent is not None and (agent.handlers or agent.sessions):
        late("declarations.declare")(opening)


FEATURE: Final = Feature(
    name="schedules",
    due=DueWork(now=DUE, run=late("api.send_due"), at=NEXT),
    opens=_declare,
    parts={"schedules": Part(late("api.schedules_of"), late("aio.AsyncSchedules"))},
)
