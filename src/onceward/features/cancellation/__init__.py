"""
Cancel messages here, on their way, or at their recipient.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Feature, Late
from onceward.message.vocabulary import CANCEL

late = partial(Late, __name__)
FEATURE: Final = Feature(
    name="cancellation",
    arrives=Arrives(
        takes={CANCEL: late("arrived.heard")},
        stored={CANCEL: late("arrived.decide")},
    ),
)
