"""List what features do with what is accepted and in maintenance, in its order."""

from __future__ import annotations

from typing import Final

from onceward.core.accept.accept import Storing
from onceward.core.upkeep.maintenance import Upkeep
from onceward.features.channels import acknowledgments
from onceward.features.history import upkeep as history
from onceward.features.mailboxes import keys, mailboxes
from onceward.features.runs import runs

STORING: Final = (
    Storing(takes={acknowledgments.KIND: acknowledgments.note}),
    Storing(keyed=keys.supersede, returned=keys.readmit),
)
UPKEEP: Final = (
    Upkeep(expire=mailboxes.expire),
    Upkeep(prune=acknowledgments.prune),
    Upkeep(prune=runs.prune),
    Upkeep(keep=history.index),
)
