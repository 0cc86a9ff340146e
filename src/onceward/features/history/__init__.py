"""
Find past messages: pages, threads, full text.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Feature, Late
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)
SWITCHES: Final = {"transitions": late("upkeep.switch"), "search": late("full_text.switch")}
"""By setting: what applies it to the file, where the caller gave that setting."""


def _prepare(opening: Opening) -> None:
    """Record transitions and index bodies as the settings say; let other features find messages."""
    opening.offers["prune_archived_transitions"] = late("upkeep.prune_archived")
    opening.offers["find"] = partial(late("history.find"), opening.deps.db)
    settings = opening.deps.settings
    for name, switch in SWITCHES.items():
        if name in settings.model_fields_set:
            switch(opening.deps.db, on=getattr(settings, name))


FEATURE: Final = Feature(
    name="history",
    upkeep=Upkeep(keep=late("upkeep.index"), prune=late("upkeep.prune")),
    opens=_prepare,
)
