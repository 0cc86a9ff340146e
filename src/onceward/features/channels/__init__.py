"""
Keep the channels of a home: members, posts, their order and history.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Feature, Late, Part
from onceward.core.deliver.dispatcher import DueWork
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)
DUE: Final = """EXISTS (SELECT 1 FROM _onceward_background_tasks)
       OR EXISTS (SELECT 1 FROM _onceward_outbox
                   WHERE channel IS NOT NULL AND state = 'pending' AND sent_at IS NULL)
       OR EXISTS (SELECT 1 FROM _onceward_inbox WHERE channel IS NOT NULL AND state = 'pending')"""


def _offer(opening: Opening) -> None:
    """Let other features announce what they change in the directory."""
    opening.offers["announcer"] = partial(late("channel_tasks.of"), opening)


FEATURE: Final = Feature(
    name="channels",
    arrives=Arrives(
        judge=late("closed.refuse"),
        takes={"acknowledgment": late("channel_posts.acknowledged")},
    ),
    due=DueWork(now=DUE, run=late("channel_tasks.run")),
    upkeep=Upkeep(
        prune=late("channel_posts.prune_acknowledgments"), home=late("channel_tasks.maintain")
    ),
    opens=_offer,
    rules=late("rules.rules"),
    parts={"channels": Part(late("api.channels_of"), late("aio.AsyncChannels"))},
)
