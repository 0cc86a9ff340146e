"""
Collect the messages of a session into runs, in five modes.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Claims, Feature, Late, Part
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.contract import Engine, Opening
    from onceward.core.handle.call import HandlerDeps
    from onceward.core.handle.invoke import Loop
    from onceward.core.handle.signatures import Handlers

late = partial(Late, __name__)


def _workers(deps: HandlerDeps, agent: Handlers, loop: Loop) -> Sequence[Engine]:
    if not agent.sessions:
        return ()
    from onceward.features.runs.worker import RunWorker  # noqa: PLC0415 - rarely needed

    return [RunWorker(deps, agent.sessions, loop, beside_workers=bool(agent.handlers))]


def _offer(opening: Opening) -> None:
    """Offer the first message of a run, with which its output is stored, and the calls left."""
    opening.offers["first_of_run"] = late("runs.first_message")
    opening.offers["calls_left"] = late("runs.calls_left")


FEATURE: Final = Feature(
    name="runs",
    arrives=Arrives(ends=late("runs.abort_bound")),
    upkeep=Upkeep(prune=late("runs.prune")),
    claims=Claims(engines=_workers),
    opens=_offer,
    rules=late("rules.rules"),
    parts={"runs": Part(late("api.runs_of"), late("aio.AsyncRuns"))},
)
