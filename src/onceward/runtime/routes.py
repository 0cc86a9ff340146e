"""Define what a dispatcher asks of the ways to its peers."""

from __future__ import annotations

from typing import Protocol

from onceward.transports.base import Features, Transport


class NotMade(Exception):
    """The transport of a peer is still to be made, which no transaction may wait for."""


class Routes(Protocol):
    """The ways to the peers of one agent."""

    def features(self, name: str, url: str | None) -> Features:
        """
        Return what the way to a peer promises, by its name and registered url.

        Raises:
            NotMade: its transport is still to be made: call ``route`` outside the transaction.
            Unreachable: there is none, or it could not be made.

        """
        ...

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url; make it if need be. Raises Unreachable."""
        ...
