"""The message that completes a group."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onceward.message.body import Msg


class GroupDone(Msg, type="onceward.group_done"):
    """All messages of a group have ended; it is sent once, to the agent that the group names."""

    id: str
    """Id of the group."""
    sent: int
    """Messages of the group."""
    failed: int
    """Those that were not handled: dead letters, expired, cancelled or dropped ones."""
    data: Any = None
    """The data that the group was opened with."""
    messages: list[str] = Field(default_factory=list)
    """Their ids, in their order, the first 1,000, for ``result``."""
    failures: dict[str, str] = Field(default_factory=dict)
    """By id: why messages failed, the first 100."""
