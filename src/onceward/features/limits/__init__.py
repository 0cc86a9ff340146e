"""
Set, list and remove the limits of a file.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.contract import Feature, Late, Part

late = partial(Late, __name__)
FEATURE: Final = Feature(
    name="limits", parts={"limits": Part(late("api.limits_of"), late("aio.AsyncLimits"))}
)
