"""Ask one file for its groups of messages, and how many of them have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.ops.views.asking import Source, values


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of messages, and the message that says that all have ended."""

    id: str
    session: str
    recipient: str
    type: str
    sent: int
    open: int
    failed: int
    created_at: Millis
    ended_at: Millis | None
    message_id: str | None
    last_error: str | None

    @property
    def done(self) -> int:
        """The number of its messages that were handled."""
        return self.sent - self.open - self.failed

    @property
    def state(self) -> str:
        """``done`` once its completing message is sent."""
        return "waiting" if self.ended_at is None else "done"


@dataclass(frozen=True, slots=True)
class GroupMessage:
    """A message of a group."""

    message_id: str
    reason: str | None
    """Why it failed; None if it was handled, or has not ended."""
    ended_at: Millis | None

    @property
    def state(self) -> str:
        """State in one word: waiting, done or failed."""
        if self.ended_at is None:
            return "waiting"
        return "done" if self.reason is None else "failed"


GROUPS: Final = f"SELECT {columns(GroupRow)} FROM onceward_groups ORDER BY id DESC LIMIT :limit"
GROUP: Final = f"SELECT {columns(GroupRow)} FROM onceward_groups WHERE id = :id"
# Failed messages first, then those that have not ended.
MESSAGES: Final = f"""
SELECT {columns(GroupMessage)} FROM onceward_group_messages WHERE group_id = :id
 ORDER BY reason IS NULL, ended_at IS NOT NULL, message_id LIMIT :limit
"""


def groups(source: Source, limit: int) -> tuple[GroupRow, ...]:
    """Return the newest groups."""
    return values(source, GroupRow, GROUPS, limit=limit)


def group(source: Source, group_id: str) -> GroupRow | None:
    """Return one group."""
    return next(iter(values(source, GroupRow, GROUP, id=group_id)), None)


def group_messages(source: Source, group_id: str, limit: int) -> tuple[GroupMessage, ...]:
    """Return the messages of a group: those that failed first, then those that have not ended."""
    return values(source, GroupMessage, MESSAGES, id=group_id, limit=limit)
