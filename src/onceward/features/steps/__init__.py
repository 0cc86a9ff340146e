"""
Keep the results of a handler's steps, so that its next call continues after them.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Calls, Feature, Late, Verbs
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)
declare = late("awaited.declare")


def _declare(opening: Opening) -> None:
    """Store which types the agent's handlers wait for, if it has handlers."""
    agent = opening.agent
    if agent and (agent.handlers or agent._awaited):
        declare(opening.deps.db, agent._awaited)


FEATURE: Final = Feature(
    name="steps",
    arrives=Arrives(takes={None: late("awaited.keep")}),
    upkeep=Upkeep(prune=late("stored.prune")),
    calls=Calls(
        parts={"steps": late("steps.MessageSteps")},
        verbs=Verbs(late("verbs.WithSteps"), late("verbs.AsyncWithSteps")),
    ),
    opens=_declare,
)
