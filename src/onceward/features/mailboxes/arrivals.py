"""Refuse arrivals for mailboxes that are not there."""

from __future__ import annotations

from typing import Final

from onceward.core.accept.accept import ParsedFrame
from onceward.core.home.database import DirectoryHandle
from onceward.features.mailboxes import directory
from onceward.message.reasons import reason_text

NO_MAILBOX: Final = reason_text("no_mailbox", "the recipient has no such mailbox, or not any more")


class Arrivals:
    """Judges what arrives for the mailboxes of one agent."""

    def __init__(self, home: DirectoryHandle, agent: str) -> None:
        self._home, self._agent = home, agent

    def inspect(self, frames: list[ParsedFrame]) -> list[ParsedFrame]:
        """Return the frames; those for a mailbox that this agent does not have are refused."""
        keys = {each.frame.mailbox for each in frames if each.frame and each.frame.mailbox}
        if self._home.known:
            keys = directory.unknown(self._home.directory, keys, self._agent)
        return [
            each._replace(problem=NO_MAILBOX)
            if each.frame is not None and each.frame.mailbox in keys
            else each
            for each in frames
        ]
