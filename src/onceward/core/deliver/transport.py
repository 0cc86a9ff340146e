"""Define the contract of transports, which carry parcels to peers, and of listeners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onceward.message.clock import Clock, Millis
from onceward.message.parcel import Answer, Parcel
from onceward.message.settings import Settings

if TYPE_CHECKING:
    from onceward.message.protocol import Speaks

Accept = Callable[[Parcel], Answer]
"""
Function of a receiving agent: stores a parcel once, and answers after the commit.

Several threads may call it at once, and other processes may accept for the same agent at the same
time: the file decides. Its only time limit is ``busy_timeout``.

Raises:
    Refused: the parcel is for another agent, or its names are invalid: it is never accepted.
    Unreachable: a frame was damaged on the way: the same parcel may come again.
    StoreError: the file cannot take it now, such as Busy, DiskFull or StoreClosed:
        nothing was stored, and the same parcel may come again.

"""


def _ignore(_: str) -> None:
    """Do nothing: outside a postbox there are no peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """The agent for which a transport or listener is created, and what it may use."""

    agent: str
    folder: Path
    """Folder of the agent's file, its home."""
    settings: Settings
    """The agent's settings; ``deliver_timeout`` is the longest exchange."""
    clock: Clock
    heard: Callable[[str], None] = _ignore
    """Ends the backoff of a peer; a listener calls it when an absent peer returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The promises of an implementation; they select its conformance tests."""

    schemes: frozenset[str]
    """Url schemes that it serves, such as ``file``."""
    streams: bool = True
    """The other end is an onceward inbox that checks parcel numbers, not a plain function."""
    max_bytes: int = 16 << 20
    """Largest parcel with its receipts and envelope; the dispatcher packs no larger ones."""
    network: bool = False
    """The other end may be another machine, whose agents are trusted less than local ones."""


@runtime_checkable
class Transport(Protocol):
    """
    Carries parcels to peers.

    A transport that can check the form of urls also has ``check(url)``, see ``ChecksUrls``.
    """

    features: Features

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Deliver *parcel* to the agent at *url* and return its answer.

        It must end within ``deliver_timeout`` seconds for the whole exchange: the dispatcher gives
        up a longer one. Frames without a receipt in the answer are pushed again. A transport that
        can fail at a single frame delivers no later frame of that lane.

        Raises:
            Unreachable: no answer, or not in time; the same parcel is pushed again.
            Refused: the peer will never take this parcel; its frames become dead letters.
            ParcelTooLarge: the parcel is too large for the way; its messages leave in smaller ones.
            The limit is stored with the peer.

        """
        ...

    def close(self) -> None:
        """Release all resources and end running pushes; safe to call twice."""
        ...


@runtime_checkable
class ChecksUrls(Protocol):
    """A transport that can check the form of a url."""

    def check(self, url: str) -> None:
        """
        Check a url before it is registered, without connecting.

        Raises:
            InvalidArgument: it cannot be the url of an agent; the error says why.

        """
        ...


@runtime_checkable
class Pings(Protocol):
    """A transport that can check a peer without a parcel."""

    def ping(self, url: str, peer: str) -> Millis:
        """
        Ping the agent *peer* at *url*; return the milliseconds by which its clock is ahead.

        Both clocks are read at one moment: halfway between a question and its answer.

        Raises:
            Unreachable: says what is wrong, as far as the sender can find out.

        """
        ...


@runtime_checkable
class Speaking(Protocol):
    """A transport that remembers what each peer said about its versions."""

    def speaks(self, peer: str) -> Speaks | None:
        """Return the last statement of a peer to this process; None if it made none."""
        ...


@runtime_checkable
class ServedHere(Protocol):
    """A transport whose peers only some processes of a home can reach."""

    def here(self) -> bool:
        """
        Return whether this process can reach them; that may change.

        If not, messages for such peers are left to the processes that can.
        """
        ...


@runtime_checkable
class Listener(Protocol):
    """Accepts parcels for agents, from a network or from this process."""

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for the agent *name* to *accept* and return its answers."""
        ...

    def close(self) -> None:
        """Accept no more parcels; wait for running calls of *accept*. Safe to call twice."""
        ...


MakeTransport = Callable[[TransportContext], Transport]
"""Factory of a transport; called outside any transaction, once, on first use."""
MakeListener = Callable[[TransportContext], Listener]
"""Factory of a listener."""


class NotMade(Exception):
    """The transport of a peer is not created yet, and no transaction may wait for that."""


class Elsewhere(Exception):
    """Another process of the home delivers to the peer; this one does not push its messages."""


class Routes(Protocol):
    """The transports to the peers of one agent, for its dispatcher."""

    def features(self, name: str, url: str | None) -> Features:
        """
        Return the promises of the transport to a peer, by its name and registered url.

        Raises:
            NotMade: its transport is not created yet: call ``route`` outside the transaction.
            Elsewhere: another process reaches it.
            Unreachable: there is none, or it could not be created.

        """
        ...

    def elsewhere(self) -> list[str]:
        """
        Return the schemes whose peers currently only other processes of the home reach.

        An agent without a url of its own, but with such a way, is named after a colon.
        """
        ...

    def left(self, name: str) -> Path | None:
        """Return the file of a peer that another library uses in this process; else None."""
        ...

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport, created if necessary, and the url; raise Unreachable."""
        ...
