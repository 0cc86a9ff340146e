"""
Give handlers several messages at once: one claim, one call, one commit.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Claims, Feature

if TYPE_CHECKING:
    from onceward.core.contract import Engine
    from onceward.core.handle.call import HandlerDeps
    from onceward.core.handle.invoke import Loop
    from onceward.core.handle.signatures import Handlers


def _workers(deps: HandlerDeps, agent: Handlers, loop: Loop) -> Sequence[Engine]:
    if all(each.rules.batch is None for each in agent.handlers):
        return ()
    from onceward.features.batches.worker import batch_workers  # noqa: PLC0415 - rarely needed

    return batch_workers(deps, agent, loop)


FEATURE: Final = Feature(name="batches", claims=Claims(engines=_workers))
