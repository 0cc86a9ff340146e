"""List what features have done in the maintenance of a file, in its order."""

from __future__ import annotations

from typing import Final

from onceward.core.upkeep.maintenance import Upkeep
from onceward.features.history import upkeep as history
from onceward.features.mailboxes import mailboxes
from onceward.features.runs import runs

UPKEEP: Final = (
    Upkeep(expire=mailboxes.expire),
    Upkeep(prune=runs.prune),
    Upkeep(keep=history.index),
)
