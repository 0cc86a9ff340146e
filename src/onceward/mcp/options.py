"""Define what the clients of an MCP server may do."""

from __future__ import annotations

from typing import Final

from onceward.errors import InvalidArgument
from onceward.model.values import dataclass

LEASE: Final = 300.0
"""Seconds that a claimed message is kept for the model, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """
    Rights and limits of the clients of a server.

    Raises:
        InvalidArgument: a limit below 1, a lease of no seconds, or an empty list of peers.

    """

    read_only: bool = False
    """Whether only the tools that change nothing are offered."""
    peers: frozenset[str] | None = None
    """The agents that may be written to; None for all."""
    per_minute: int | None = None
    """Most messages that are sent in a minute, by all clients of the server together."""
    lease: float = LEASE
    """Seconds that a claimed message is kept, unless the call says otherwise."""

    def __post_init__(self) -> None:
        """Refuse values that allow nothing."""
        if self.per_minute is not None and self.per_minute < 1:
            msg = f"a limit of {self.per_minute} a minute sends nothing: give 1 or more"
            raise InvalidArgument(msg)
        if self.lease <= 0:
            msg = f"a lease of {self.lease} s is over at once: give more than 0"
            raise InvalidArgument(msg)
        if self.peers is not None and not self.peers:
            msg = "no peer is allowed: name one, or make the server read-only"
            raise InvalidArgument(msg)
