"""Define the contract of transports, which carry parcels to peers, and of listeners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from onceward.message.clock import Clock, Millis
from onceward.message.parcel import Answer, Parcel
from onceward.message.settings import Settings

Accept = Callable[[Parcel], Answer]
"""
Function of a receiving agent: stores a parcel once, and answers after the commit.

Any thread may call it, several at once, and other processes may accept for the same
agent at the same time: the file is the judge. It has no time limit of its own besides
``busy_timeout``.

Raises:
    Refused: the parcel is for another agent, or its names are none: never.
    Unreachable: a frame was damaged on the way: the same parcel may come again.
    StoreError: the file cannot take it now, such as Busy, StoreCapacity or StoreClosed:
        nothing was stored, and the same parcel may come again.

"""


def _ignore(_: str) -> None:
    """Do nothing, as what is made outside of a postbox has no peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """The agent for which a transport or listener is made, and what it may need of it."""

    agent: str
    folder: Path
    """Folder of the agent's file, its home."""
    settings: Settings
    """The agent's settings; ``deliver_timeout`` is the longest exchange."""
    clock: Clock
    heard: Callable[[str], None] = _ignore
    """Ends the backoff of a peer; a listener calls it when a peer shows that was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The promises of an implementation; they select its conformance tests."""

    schemes: frozenset[str]
    """Url schemes it serves, such as ``file``."""
    streams: bool = True
    """The other end is an inbox of ours that checks parcel numbers; False for a plain function."""
    max_bytes: int = 16 << 20
    """Largest parcel with its receipts and its envelope; the dispatcher packs smaller ones."""
    network: bool = False
    """The other end may be another machine, whose agents are not trusted like those beside us."""


@runtime_checkable
class Transport(Protocol):
    """
    Carries parcels to peers.

    A transport whose urls have a form also has ``check(url)``, see ``ChecksUrls``.
    """

    features: Features

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Deliver *parcel* to the agent at *url* and return its answer.

        It ends after ``deliver_timeout`` seconds, counted over the whole exchange: the
        dispatcher gives up what takes longer. Frames without a receipt in the answer are
        pushed again. A transport that can fail at a single frame hands over nothing of
        its lane behind that frame.

        Raises:
            Unreachable: no answer, or not in time; the same parcel is pushed again.
            Refused: the peer will never take this parcel; its frames become dead letters.
            ParcelTooLarge: the way takes no parcel of this size; its messages leave in
                smaller ones. The limit is kept with the peer.

        """
        ...

    def close(self) -> None:
        """Release all resources, end pushes that are under way; safe to call twice."""
        ...


@runtime_checkable
class ChecksUrls(Protocol):
    """A transport that knows which urls are of its form."""

    def check(self, url: str) -> None:
        """
        Check a url that is to be registered; reach nothing.

        Raises:
            InvalidArgument: it cannot be the url of an agent; says what is wrong.

        """
        ...


@runtime_checkable
class Pings(Protocol):
    """A transport that can ask a peer for a word, without a parcel."""

    def ping(self, url: str, peer: str) -> Millis:
        """
        Ask the agent *peer* at *url* for a word, and return the time of its clock.

        Raises:
            Unreachable: says what is wrong, as far as that can be told from here.

        """
        ...


@runtime_checkable
class ServedHere(Protocol):
    """A transport whose peers are reached from some processes of a home only."""

    def here(self) -> bool:
        """
        Return whether this process is one of them; it may change.

        Messages for such peers are left to the processes that are.
        """
        ...


@runtime_checkable
class Listener(Protocol):
    """Takes parcels in for agents, from a network or from this process."""

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for the agent *name* to *accept* and return its answers."""
        ...

    def close(self) -> None:
        """Take no more; wait for calls of *accept* under way. Safe to call twice."""
        ...


MakeTransport = Callable[[TransportContext], Transport]
"""Factory of a transport; it runs outside every transaction, once, when it is first needed."""
MakeListener = Callable[[TransportContext], Listener]
"""Factory of a listener."""


class NotMade(Exception):
    """The transport of a peer is still to be made, which no transaction may wait for."""


class Elsewhere(Exception):
    """Another process of the home delivers to the peer; this one leaves its messages alone."""


class Routes(Protocol):
    """The ways to the peers of one agent, as its dispatcher asks for them."""

    def features(self, name: str, url: str | None) -> Features:
        """
        Return what the way to a peer promises, by its name and registered url.

        Raises:
            NotMade: its transport is still to be made: call ``route`` outside the transaction.
            Elsewhere: it is reached from another process.
            Unreachable: there is none, or it could not be made.

        """
        ...

    def elsewhere(self) -> list[str]:
        """Return the schemes whose peers other processes of the home reach just now."""
        ...

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url; make it if need be. Raises Unreachable."""
        ...
