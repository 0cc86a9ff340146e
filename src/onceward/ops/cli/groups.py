"""``onceward groups``: groups of messages."""

from __future__ import annotations

from dataclasses import asdict

from onceward import Postbox
from onceward.ops.cli.command import Found, command

COLUMNS = (
    "id", "recipient", "type", "sent", "open", "failed", "created_at", "ended_at", "message_id",
    "last_error",
)  # fmt: skip


@command(*COLUMNS)
def ls(box: Postbox, /, *, limit: int = 100) -> Found:
    """
    List the newest groups, and how many of their messages are open or have failed.

    Example: onceward groups ls --db jobs.db

    Args:
        limit: Maximum number of groups.

    """
    return map(asdict, box.groups.list(limit))
