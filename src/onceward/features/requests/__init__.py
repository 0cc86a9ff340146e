"""
Ask other agents, and wait for their replies: between calls of a handler, and outside of them.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Calls, Feature, Late, Verbs
from onceward.message.vocabulary import ANSWER, PROGRESS

late = partial(Late, __name__)
FEATURE: Final = Feature(
    name="requests",
    arrives=Arrives(
        takes={
            PROGRESS: late("replies.note_progress"),
            ANSWER: late("replies.keep_early"),
        },
        ends=late("replies.fail_of"),
    ),
    calls=Calls(
        parts={"requests": late("handler.HandlerRequests")},
        verbs=Verbs(late("verbs.WithReplies"), late("verbs.AsyncWithReplies")),
    ),
)
