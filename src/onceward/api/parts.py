"""
Declare the attributes of a postbox that features make: an import and a line for each.

The features give the functions that make them; only type checkers read the declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from onceward.api.features import FEATURES
from onceward.core.contract import Part

if TYPE_CHECKING:
    from onceward.core.contract import Opening
    from onceward.core.handle.bridge import FileBridge
    from onceward.features.channels.aio import AsyncChannels
    from onceward.features.channels.api import Channels
    from onceward.features.groups.aio import AsyncGroups
    from onceward.features.groups.api import Groups
    from onceward.features.limits.aio import AsyncLimits
    from onceward.features.limits.api import Limits
    from onceward.features.mailboxes.aio import AsyncMailboxes
    from onceward.features.mailboxes.api import Mailboxes
    from onceward.features.polling.aio import AsyncSessions
    from onceward.features.polling.api import Sessions
    from onceward.features.pools.aio import AsyncPools
    from onceward.features.pools.api import Pools
    from onceward.features.runs.aio import AsyncRuns
    from onceward.features.runs.api import Runs
    from onceward.features.schedules.aio import AsyncSchedules
    from onceward.features.schedules.api import Schedules

PARTS: Final = {name: part for each in FEATURES for name, part in each.parts.items()}
"""All of them, by name."""


class PostboxParts:
    """The attributes of a postbox that features make, on first use."""

    _opening: Opening
    channels: Channels
    """The channels of the home."""
    groups: Groups
    """Groups of messages, whose completion is a message."""
    limits: Limits
    """Limits of the file: messages, bytes, rates."""
    mailboxes: Mailboxes
    """Mailboxes of the home."""
    pools: Pools
    """Pools of agents that share a queue."""
    schedules: Schedules
    """Messages that are sent repeatedly, at given times."""
    runs: Runs
    """The runs of sessions, and their queues."""
    sessions: Sessions
    """The sessions of the file, and their messages."""


class AsyncPostboxParts:
    """The same attributes of an async postbox, once it is open."""

    channels: AsyncChannels
    """The channels of the home."""
    groups: AsyncGroups
    """Groups of messages, whose completion is a message."""
    limits: AsyncLimits
    """Limits of the file: messages, bytes, rates."""
    mailboxes: AsyncMailboxes
    """Mailboxes of the home."""
    pools: AsyncPools
    """Pools of agents that share a queue."""
    schedules: AsyncSchedules
    """Messages that are sent repeatedly, at given times."""
    runs: AsyncRuns
    """The runs of sessions, and their queues."""
    sessions: AsyncSessions
    """The sessions of the file, and their messages."""

    @property
    def _plain(self) -> object:
        raise NotImplementedError

    @property
    def _bridge(self) -> FileBridge:
        raise NotImplementedError

    def _forget_parts(self) -> None:
        """Make all of them again: another file is open."""
        for name in PARTS:
            vars(self).pop(name, None)


def _add(owner: type, name: str, make: Callable[[Any], object]) -> None:
    """Give a class the attribute of that name, made on first use."""
    attribute = cached_property(make)
    attribute.__set_name__(owner, name)
    setattr(owner, name, attribute)


def _add_both(name: str, part: Part) -> None:
    def made(box: PostboxParts) -> object:
        return box._opening.once(part.make)

    def faced(box: AsyncPostboxParts) -> object:
        return part.face(getattr(box._plain, name), box._bridge)

    _add(PostboxParts, name, made)
    _add(AsyncPostboxParts, name, faced)


for _name, _part in PARTS.items():
    _add_both(_name, _part)
