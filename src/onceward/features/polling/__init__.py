"""
Read each session by one cursor, which is the ack.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.contract import Feature, Late, Part

late = partial(Late, __name__)
FEATURE: Final = Feature(
    name="polling",
    repairs=late("polling.repairs"),
    parts={"sessions": Part(late("api.sessions_of"), late("aio.AsyncSessions"))},
)
