"""
Store large bodies outside their messages, which refer to them: the claim check.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Feature, Late
from onceward.core.maintenance import Upkeep
from onceward.message import frame

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)


def _prepare(opening: Opening) -> None:
    """Read the bodies of received messages, and store those of sent ones if a setting says so."""
    frame.load_body = late("reading.load")
    deps = opening.deps
    store = deps.settings.large_body_store
    if store is not None:
        late("stores.use")(opening)
    if deps.settings.large_body is not None and (deps.db.vfs is None or store is not None):
        deps.outbox.composer.bodies = opening.once(late("storing.bodies_of"))


FEATURE: Final = Feature(
    name="large_bodies", upkeep=Upkeep(home=late("sweeping.sweep")), opens=_prepare
)
