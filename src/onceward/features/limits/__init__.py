"""
Set, list and remove the limits of a file.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from typing import Final

from onceward.core.contract import Feature, Late

FEATURE: Final = Feature(name="limits", parts={"limits": Late(__name__, "api.limits_of")})
