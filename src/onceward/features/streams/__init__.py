"""
Store the output of running handlers for readers to follow.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from typing import Final

from onceward.core.contract import Feature, Late
from onceward.core.maintenance import Upkeep

FEATURE: Final = Feature(name="streams", upkeep=Upkeep(prune=Late(__name__, "stored.prune")))
