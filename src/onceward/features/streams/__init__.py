"""
Store the output of running handlers for readers to follow.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.contract import Calls, Feature, Late
from onceward.core.maintenance import Upkeep

late = partial(Late, __name__)
FEATURE: Final = Feature(
    name="streams",
    calls=Calls(parts={"streams": late("output.MessageStreams")}),
    upkeep=Upkeep(prune=late("stored.prune")),
)
