"""Define what a dispatcher asks of the ways to its peers."""

from __future__ import annotations

from typing import Protocol

from onceward.core.deliver.transport import Features, ServedHere, Transport


class NotMade(Exception):
    """The transport of a peer is still to be made, which no transaction may wait for."""


class Elsewhere(Exception):
    """Another process of the home delivers to the peer; this one leaves its messages alone."""


class Routes(Protocol):
    """The ways to the peers of one agent."""

    def features(self, name: str, url: str | None) -> Features:
        """
        Return what the way to a peer promises, by its name and registered url.

        Raises:
            NotMade: its transport is still to be made: call ``route`` outside the transaction.
            Elsewhere: it is reached from another process.
            Unreachable: there is none, or it could not be made.

        """
        ...

    placed: dict[str, ServedHere]
    """By scheme: the transports whose peers some processes of the home reach."""

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url; make it if need be. Raises Unreachable."""
        ...
