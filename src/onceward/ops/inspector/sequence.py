"""Lay out a conversation as a sequence diagram: agents side by side, time downwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

from onceward.message.clock import Millis
from onceward.message.record import after_causes
from onceward.ops.views.conversation import Part, Spoken

LEFT: Final = 96
"""Width in pixels of the times at the left."""
COLUMN: Final = 190
ROW: Final = 38
HEAD: Final = 44
LABEL: Final = 24
"""Maximum characters of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One message of a conversation, combined from its files."""

    id: str
    sender: str
    recipient: str
    type: str
    session: str
    sent_at: Millis | None
    received_at: Millis | None
    state: str
    cause: str | None
    reason: str | None

    @property
    def at(self) -> Millis:
        """When it first appears in a file."""
        found = self.sent_at if self.sent_at is not None else self.received_at
        return 0 if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """One message in the diagram."""

    exchange: Exchange
    y: int
    x1: int
    x2: int
    label: str
    tone: str

    @property
    def to_itself(self) -> bool:
        """Whether the agent sent it to itself."""
        return self.x1 == self.x2

    @property
    def head(self) -> int:
        """The x at which the tip of the arrow begins."""
        return self.x2 - 8 if self.x2 > self.x1 else self.x2 + 8

    @property
    def middle(self) -> int:
        """The position of the label."""
        return self.x1 + 14 if self.to_itself else (self.x1 + self.x2) // 2


@dataclass(frozen=True, slots=True)
class Diagram:
    """A sequence diagram, in pixels."""

    width: int
    height: int
    agents: tuple[tuple[str, int], ...]
    """Names, each with the x of its line."""
    arrows: tuple[Arrow, ...]


TONES: Final = {
    "acked": "good", "processed": "good", "failed": "bad", "dead": "bad", "expired": "plain",
    "dropped": "plain", "cancelled": "plain",
}  # fmt: skip


def exchanges(parts: Iterable[Part]) -> list[Exchange]:
    """
    Return a conversation's messages, each once, by time but never before their cause.

    Messages of one millisecond stand in the order in which their sender sent them.
    """
    found: dict[tuple[str, str, str], dict[str, Spoken]] = {}
    read = list(parts)
    for name in ("sent", "received", "dead"):
        for row in chain.from_iterable(getattr(part, name) for part in read):
            found.setdefault((row.sender, row.id, row.recipient), {})[name] = row
    made = sorted(map(_exchange, found.values()), key=attrgetter("at"))
    return list(after_causes(made, attrgetter("id"), lambda each: filter(None, [each.cause])))


def _exchange(copies: dict[str, Spoken]) -> Exchange:
    """Return one message; the recipient's outcome takes precedence over the sender's."""
    one = next(iter(copies.values()))
    sent, received, dead = (copies.get(name) for name in ("sent", "received", "dead"))
    last = dead or received or one
    return Exchange(
        id=one.id,
        sender=one.sender,
        recipient=one.recipient,
        type=one.type,
        session=one.session,
        sent_at=sent.at if sent else dead.at if dead else None,
        received_at=received.at if received else None,
        state=last.state,
        cause=one.cause,
        reason=last.reason,
    )


def diagram(messages: list[Exchange]) -> Diagram:
    """Return the positions of all lines of a diagram."""
    names = dict.fromkeys(name for each in messages for name in (each.sender, each.recipient))
    places = {name: LEFT + COLUMN // 2 + at * COLUMN for at, name in enumerate(names)}
    arrows = tuple(
        Arrow(
            exchange=each,
            y=HEAD + 28 + at * ROW,
            x1=places[each.sender],
            x2=places[each.recipient],
            label=each.type if len(each.type) <= LABEL else f"{each.type[: LABEL - 1]}…",
            tone=TONES.get(each.state, "wait"),
        )
        for at, each in enumerate(messages)
    )
    width = LEFT + COLUMN * max(1, len(names))
    return Diagram(width, HEAD + 24 + ROW * max(1, len(messages)), (*places.items(),), arrows)
