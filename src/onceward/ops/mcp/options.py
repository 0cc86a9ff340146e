"""Define what the clients of an MCP server may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.errors import InvalidArgument
from onceward.message.times import GivenRate, Span, read_rate, seconds

LEASE: Final = 300.0
"""Seconds that a claimed message is kept for the model, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """
    Rights and limits of the clients of a server.

    Raises:
        InvalidArgument: a limit that is not a rate, a lease of no time, or an empty list of peers.

    """

    read_only: bool = False
    """Whether only the tools that change nothing are offered."""
    peers: frozenset[str] | None = None
    """The agents that may be written to; None for all."""
    limit: GivenRate | None = None
    """Most messages that all clients of the server send together, such as ``30/m``."""
    lease: Span = LEASE
    """Span that a claimed message is kept, unless the call says otherwise."""

    def __post_init__(self) -> None:
        """Refuse values that allow nothing."""
        if self.limit is not None:
            read_rate("limit", self.limit)
        if not seconds("lease", self.lease):
            msg = f"a lease of {self.lease} is over at once: give more than 0"
            raise InvalidArgument(msg)
        if self.peers is not None and not self.peers:
            msg = "no peer is allowed: name one, or make the server read-only"
            raise InvalidArgument(msg)
