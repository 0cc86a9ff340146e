"""
Send messages as a group, whose completion is a message, too.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.contract import Calls, Feature, Late, Part, Verbs
from onceward.core.deliver.dispatcher import DueWork
from onceward.core.maintenance import Upkeep

late = partial(Late, __name__)
DUE: Final = "EXISTS (SELECT 1 FROM _onceward_groups WHERE due_at <= :now)"
NEXT: Final = "(SELECT min(due_at) FROM _onceward_groups WHERE due_at > :now)"
FEATURE: Final = Feature(
    name="groups",
    due=DueWork(now=DUE, run=late("api.complete_due"), at=NEXT),
    upkeep=Upkeep(prune=late("stored.prune")),
    calls=Calls(verbs=Verbs(late("verbs.WithGroups"), late("verbs.AsyncWithGroups"))),
    parts={"groups": Part(late("api.groups_of"), late("aio.AsyncGroups"))},
)
