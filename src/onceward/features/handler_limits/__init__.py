"""
Limit handlers: concurrent calls, rate of calls, repeated bodies.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Calls, Claims, Feature, Late
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.handle.signatures import Handlers
    from onceward.core.handle.worker import CallGuard

late = partial(Late, __name__)


def _unique(agent: Handlers) -> CallGuard | None:
    """Return the check that drops equal bodies of an agent's handlers; None if all are called."""
    rules = [each.rules for each in agent.handlers]
    if all(each.unique_for is None and each.throttle is None for each in rules):
        return None
    from onceward.features.handler_limits.unique_bodies import UniqueBodies  # noqa: PLC0415 - rarely needed

    return UniqueBodies()


FEATURE: Final = Feature(
    name="handler_limits",
    upkeep=Upkeep(prune=late("upkeep.prune")),
    claims=Claims(gates=late("gates.gates")),
    calls=Calls(guard=_unique),
    rules=late("rules.rules"),
)
