"""
Keep the mailboxes of a home, and their readers.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceward.core.accept.policy import Arrives
from onceward.core.contract import Feature, Late, Part
from onceward.core.maintenance import Upkeep

late = partial(Late, __name__)
HELD: Final = """
SELECT seq FROM _onceward_mailbox_leases WHERE owner IS NOT NULL AND due_at > :now
"""
FEATURE: Final = Feature(
    name="mailboxes",
    arrives=Arrives(
        judge=late("directory.inspect"),
        stored={None: late("keys.supersede")},
    ),
    upkeep=Upkeep(expire=late("mailboxes.expire"), home=late("api.sweep"), held=HELD),
    rules=late("rules.rules"),
    repairs=late("mailbox_readers.repairs"),
    parts={"mailboxes": Part(late("api.mailboxes_of"), late("aio.AsyncMailboxes"))},
)
