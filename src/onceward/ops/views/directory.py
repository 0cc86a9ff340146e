"""Ask the directory of a home for its channels, their members, and its mailboxes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceward.errors import OncewardError
from onceward.file.directory import directory_path, has_home_key
from onceward.file.known_homes import serving
from onceward.file.read_only import opened_any
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.mailbox import MailboxInfo
from onceward.ops.views.asking import Source, values
from onceward.ops.views.overview import MANY


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """A channel of the home."""

    name: str
    type: str
    state: str
    mode: str | None
    """Policy of a pause: hold or reject."""
    description: str
    created_by: str
    created_at: Millis
    changed_at: Millis
    members: int
    """Their number, counted up to MANY."""
    subscriptions: int


@dataclass(frozen=True, slots=True)
class ChannelMember:
    """An agent that takes part in a channel."""

    agent: str
    role: str
    joined_at: Millis


@dataclass(frozen=True, slots=True)
class ChannelSubscription:
    """An agent's subscription to a pattern of a channel's topics."""

    subscriber: str
    pattern: str
    created_at: Millis


COUNTS: Final = {
    table: f"(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE channel = c.name LIMIT {MANY}))"
    for table in ("members", "subscriptions")
}
CHANNELS: Final = f"""
SELECT {columns(ListedChannel, "c.", **COUNTS)} FROM channels AS c
 WHERE c.name > :after ORDER BY c.name LIMIT :limit
"""
CHANNEL: Final = f"""
SELECT {columns(ListedChannel, "c.", **COUNTS)} FROM channels AS c WHERE c.name = :name
"""
MEMBERS: Final = f"""
SELECT {columns(ChannelMember)} FROM members
 WHERE channel = :channel AND agent > :after ORDER BY agent LIMIT :limit
"""
SUBSCRIPTIONS: Final = f"""
SELECT {columns(ChannelSubscription)} FROM subscriptions
 WHERE channel = :channel ORDER BY publisher, subscriber, pattern LIMIT :limit
"""
MAILBOXES: Final = f"""
SELECT {columns(MailboxInfo)} FROM mailboxes
 WHERE public = 1 AND name > :after ORDER BY name LIMIT :limit
"""


def is_elsewhere(file: Path, agent: str) -> bool:
    """Return whether a home that the home of *file* knows serves an agent, as it told."""
    if not has_home_key(file.parent):
        return False
    try:
        with opened_any(directory_path(file)) as found:
            return bool(serving(found.rows, agent))
    except OncewardError:  # it is being created, or cannot be read: other findings say why
        return False


def channels(source: Source, *, after: str = "", limit: int) -> tuple[ListedChannel, ...]:
    """Return the channels by name, starting after the name *after*."""
    return values(source, ListedChannel, CHANNELS, after=after, limit=limit)


def channel(source: Source, name: str) -> ListedChannel | None:
    """Return one channel, or None if there is no such channel."""
    return next(iter(values(source, ListedChannel, CHANNEL, name=name)), None)


def members(source: Source, name: str, *, after: str = "", limit: int) -> tuple[ChannelMember, ...]:
    """Return the members of a channel by name, starting after the name *after*."""
    return values(source, ChannelMember, MEMBERS, channel=name, after=after, limit=limit)


def subscriptions(source: Source, name: str, limit: int) -> tuple[ChannelSubscription, ...]:
    """Return the subscriptions to topics of a channel."""
    return values(source, ChannelSubscription, SUBSCRIPTIONS, channel=name, limit=limit)


def mailboxes(source: Source, *, after: str = "", limit: int) -> tuple[MailboxInfo, ...]:
    """Return the public mailboxes by name, starting after the name *after*."""
    return values(source, MailboxInfo, MAILBOXES, after=after, limit=limit)
