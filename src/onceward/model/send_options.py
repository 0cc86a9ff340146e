"""What a send may say besides recipient and body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedOptions:
    """Everything of a send besides recipient and body; spans in seconds."""

    type: str | None = None
    topic: str | None = None
    key: str | None = None
    priority: str = "normal"
    ttl: float | None = None
    delay: float | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    in_reply_to: str | None = None
    headers: Mapping[str, str | int | bool] | None = None
    ordering_key: str | None = None
    message_id: str | None = None
    channel: str | None = None
    kind: str | None = None
    mailbox: str | None = None
    ends_at: int | None = None
    """When the mailbox that it is for expires, in milliseconds: the message does not outlive it."""
    ephemeral: bool = False
    system: bool = False
    """Whether a reserved topic may be published: only the library itself says so."""


PLAIN: Final = ParsedOptions()


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every ``publish``; spans are seconds, all may be left out."""

    type: str | None
    """Wire name of the message type; by default the one its class declares."""
    key: str | None
    """The same key with the same body returns the id of the first; with another body it raises Conflict."""
    priority: str
    """critical, urgent (high), normal, low or background."""
    ttl: float | None
    """Seconds after which nobody wants it: it then expires instead of being handled."""
    delay: float | None
    """Seconds before it may leave."""
    reply_to: str | None
    """Agent that the reply goes to; by default the sender."""
    correlation_id: str | None
    """Id of the conversation's first message; replies carry it on."""
    causation_id: str | None
    """Id of the message that this one answers or follows from."""
    in_reply_to: str | None
    """Id of the request that this message answers."""
    headers: Mapping[str, str | int | bool] | None
    """Extension attributes of the frame: 1 to 20 lower-case letters and digits."""
    ordering_key: str | None
    """The unit of order; by default the session."""
    ephemeral: bool
    """Whether a restart of the recipient may drop it, if nobody has taken it by then; otherwise nothing is ever dropped so."""
    message_id: str | None
    """An id of the caller's own, under which sending again is safe."""


class SendOptions(PublishOptions, total=False):
    """The keyword arguments of every ``send``."""

    topic: str | None
    """What it is published under; handlers may be chosen by it."""


def parse_options(given: SendOptions) -> ParsedOptions:
    """Return keyword arguments as one value; the common empty ones cost nothing."""
    try:
        return ParsedOptions(**given) if given else PLAIN
    except TypeError:
        unknown = ", ".join(sorted(given.keys() - SendOptions.__annotations__.keys()))
        msg = f"a send has no option {unknown}: there are {', '.join(SendOptions.__annotations__)}; a session has a send of its own"
        raise TypeError(msg) from None
