"""
Cancel messages here, on their way, or at their recipient.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from typing import Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Feature, Late

FEATURE: Final = Feature(
    name="cancellation",
    arrives=Arrives(canceller=Late(__name__, "arrived.Canceller")),
)
