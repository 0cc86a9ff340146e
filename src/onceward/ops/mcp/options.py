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
        InvalidArgument: an invalid rate, a lease of 0, or an empty list of peers.

    """

    read_only: bool = False
    """Whether only read-only tools are offered."""
    peers: frozenset[str] | None = None
    """The allowed recipients; None for all."""
    limit: GivenRate | None = None
    """Maximum rate of messages of all clients of the server together, such as ``30/m``."""
    lease: Span = LEASE
    """Default lease of a claimed message."""

    def __post_init__(self) -> None:
        """Refuse values that allow nothing."""
        if self.limit is not None:
            read_rate("limit", self.limit)
        if not seconds("lease", self.lease):
            raise InvalidArgument(f"a lease of {self.lease} ends at once: give more than 0")
        if self.peers is not None and not self.peers:
            raise InvalidArgument("no peer is allowed: name one, or make the server read-only")
