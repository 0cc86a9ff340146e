"""
Declare the attributes of a postbox that features make: one line and one import for each.

The features' own lists say what makes them, so a deleted feature leaves a declaration behind that
only a type checker reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from onceward.api.features import FEATURES

if TYPE_CHECKING:
    from onceward.core.contract import Opening
    from onceward.features.channels.api import Channels
    from onceward.features.limits.api import Limits
    from onceward.features.mailboxes.api import Mailboxes
    from onceward.features.schedules.api import Schedules


class PostboxParts:
    """The attributes of a postbox that features make, on first use."""

    _opening: Opening
    channels: Channels
    """The channels of the home."""
    limits: Limits
    """Limits of the file: messages, bytes, rates."""
    mailboxes: Mailboxes
    """Mailboxes of the home."""
    schedules: Schedules
    """Messages that are sent repeatedly, at given times."""


def _part(name: str, make: Callable[[Opening], object]) -> cached_property[object]:
    """Return the attribute of that name."""

    def made(box: PostboxParts) -> object:
        return box._opening.once(make)

    part = cached_property(made)
    part.__set_name__(PostboxParts, name)
    return part


for _feature in FEATURES:
    for _name, _make in _feature.parts.items():
        setattr(PostboxParts, _name, _part(_name, _make))
