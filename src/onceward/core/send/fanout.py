"""A message to many: its body is stored once, with one outbox row for each recipient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from onceward.core.send.outbox import OutgoingMessage
from onceward.message.clock import Millis
from onceward.message.frame import FrameHeaders

EVERY_AGENT: Final = (None, "all", "broadcast")
"""Recipients that stand for every registered agent of the home but the sender."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message to many: ``id`` is the correlation id of all copies (recipient, message id)."""

    id: str
    copies: tuple[tuple[str, str], ...]

    @property
    def recipients(self) -> tuple[str, ...]:
        """The agents that the copies go to."""
        return tuple(recipient for recipient, _ in self.copies)


class Fanout(NamedTuple):
    """A message to many that only needs to be stored."""

    id: str
    body: str
    size: int
    headers: FrameHeaders
    messages: tuple[OutgoingMessage, ...]
    created_at: Millis

    @property
    def result(self) -> SendResult:
        """Return what the caller is given once all copies are committed."""
        return SendResult(self.id, tuple((each.recipient, each.id) for each in self.messages))
