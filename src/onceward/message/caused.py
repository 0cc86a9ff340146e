"""Describe the messages that a message has caused, and draw them as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from onceward.message.clock import Millis

Way = Literal["send", "request", "group", "reply"]


@dataclass(frozen=True, slots=True)
class CausedMessage:
    """A message that was sent while another one was handled, as the files of the home show it."""

    id: str
    sender: str
    recipient: str
    type: str
    way: Way
    """How it was sent: as a plain message, a request, a message of a group, or a reply."""
    state: str
    """Its state at its recipient, or at its sender if it is not in a file of the home there."""
    sent_at: Millis
    waits_for: str | None = None
    """A reply, a message …: see the view ``onceward_inbox``."""
    reason: str | None = None
    """Why it failed, or why its last attempt did."""
    group: str | None = None
    """Id of its group."""
    children: tuple[CausedMessage, ...] = ()
    """The messages that its handler has sent, in their order."""

    def __str__(self) -> str:
        """Return one line: what it is, from where to where, and how far it is."""
        way = "" if self.way == "send" else f" ({self.way})"
        waits = f", waits for {self.waits_for}" if self.waits_for else ""
        reason = f": {self.reason}" if self.reason else ""
        return (
            f"{self.type} {self.id}{way}, {self.sender} to {self.recipient},"
            f" {self.state}{waits}{reason}"
        )


def drawn(children: Sequence[CausedMessage], before: str = "") -> Iterator[str]:
    """Yield a line for each message, with those that it caused below it."""
    for number, each in enumerate(children, 1):
        last = number == len(children)
        yield f"{before}{'└─' if last else '├─'} {each}"
        yield from drawn(each.children, before + ("   " if last else "│  "))
