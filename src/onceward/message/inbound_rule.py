"""Say what a peer may name in the messages that it sends here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from onceward.message.frame import Frame
from onceward.message.quoting import quoted
from onceward.message.topics import SYSTEM, check_pattern, matches


@dataclass(frozen=True, slots=True)
class InboundRule:
    """
    The types, channels and mailboxes, as patterns, that messages of a peer may name.

    Topics under ``_system`` are for none.
    """

    types: tuple[str, ...] | None = None
    """None for all types but those under ``_system``."""
    channels: tuple[str, ...] = ()
    mailboxes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, types: Iterable[str] | None, channels: Iterable[str], mailboxes: Iterable[str]
    ) -> Self:
        """Return the rule of these patterns; raise TopicError for one that is none."""
        return cls(
            None if types is None else tuple(map(check_pattern, types)),
            tuple(map(check_pattern, channels)),
            tuple(map(check_pattern, mailboxes)),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rule that a peer's row holds."""
        types, channels, mailboxes = json.loads(text)
        return cls(None if types is None else tuple(types), tuple(channels), tuple(mailboxes))

    def text(self) -> str:
        """Return the rule as it is stored."""
        return json.dumps([self.types, self.channels, self.mailboxes])

    def problem(self, frame: Frame) -> str:
        """Return what *frame* names against the rule, empty if nothing."""
        named = (
            ("type", frame.type, self.types),
            ("topic", frame.topic, None),
            ("channel", frame.channel, self.channels),
            ("mailbox", frame.mailbox, self.mailboxes),
        )
        for field, name, patterns in named:
            if name is not None and not _allowed(patterns, name):
                return f"{field} {quoted(name)}"
        return ""


NETWORK: Final = InboundRule()
"""Of peers that reach us over a network and have no rule of their own."""


def _allowed(patterns: Iterable[str] | None, name: str) -> bool:
    if patterns is None:
        return name.partition(".")[0] != SYSTEM
    return any(matches(pattern, name) for pattern in patterns)
