"""Reach the peers of an agent: urls, circuit breakers and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from onceward.core.deliver.transport import Features, Pings, Speaking, Transport
from onceward.core.rows import peers
from onceward.errors import InvalidArgument
from onceward.file.database import Database
from onceward.file.directory import DirectoryCache
from onceward.file.sql_parts import columns
from onceward.message.arguments import checks_arguments
from onceward.message.clock import Millis, monotonic
from onceward.message.names import agent_name
from onceward.message.parcel import InboundRule
from onceward.message.topics import check_pattern
from onceward.message.vocabulary import BreakerState


class Ways(Protocol):
    """The ways to peers, as a postbox has them."""

    def check(self, url: str) -> Features:
        """Return the features of the transport that takes *url*; raises InvalidArgument."""
        ...

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url of a peer; raises Unreachable."""
        ...


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The state of a peer."""

    name: str
    url: str | None
    epoch: str
    number: int
    in_flight: int
    breaker: BreakerState
    failures: int
    due_at: Millis | None
    last_error: str | None
    seen_at: Millis | None
    stream_number: int | None
    max_bytes: int | None
    """Largest parcel that the transport to the peer accepts, if one was too large."""
    inbound_rule: InboundRule | None
    """Names that its messages may use; None for all, or for the network's rule if it uses one."""


PEERS: Final = f"SELECT {columns(PeerInfo)} FROM onceward_peers ORDER BY name"  # noqa: S608 - names of fields


@dataclass(frozen=True, slots=True)
class Ping:
    """The signed answer of a peer on another machine."""

    name: str
    url: str
    took: float
    """Seconds from the question to the answer."""
    clock_ahead: Millis
    """Milliseconds by which its clock is ahead of ours; negative if it is behind."""
    release: str | None = None
    """Its release of onceward; None if it did not say."""
    wire_version: int | None = None
    """Newest wire version that both sides speak; None if it did not say."""


@checks_arguments()
class Peers:
    """The peers of an agent: registered here or found in the home, never created by messages."""

    def __init__(self, db: Database, routes: Ways, directory: DirectoryCache) -> None:
        self._db, self._routes, self._directory = db, routes, directory

    def add(self, name: str | Mapping[str, str], url: str = "") -> None:
        """
        Reach *name* at *url*; its circuit breaker closes.

        Many at once, by one commit, whole or not at all: give a mapping of names to urls.

        Raises:
            InvalidArgument: no transport serves the scheme of a url, the transport cannot be made,
                or the url has another form.

        """
        given = {name: url} if isinstance(name, str) else dict(name)
        for each in given:
            agent_name(each)
        for each in dict.fromkeys(given.values()):
            self._routes.check(each)
        self._db.write(lambda tx: peers.register(tx, given))
        self._db.notifier.notify("out")

    def remove(self, name: str) -> None:
        """Remove the url of a peer; messages for the peer wait, and its stream is kept."""
        self._db.write(lambda tx: peers.forget(tx, name))

    def allow(
        self,
        name: str,
        *,
        types: Iterable[str] | None = None,
        channels: Iterable[str] = (),
        mailboxes: Iterable[str] = (),
    ) -> None:
        """
        Accept from *name* only messages that these patterns match; refuse others.

        A peer on a network without a rule has the rule of a call without patterns: all types except
        those under ``_system``, no channel, no mailbox; agents of the home may name everything.
        ``#`` matches all.

        Raises:
            InvalidArgument: a pattern or the name is invalid.

        """
        agent_name(name)
        rule = InboundRule.of(types, channels, mailboxes).text()
        self._db.write(lambda tx: peers.allow(tx, name, rule))

    def list(self) -> list[PeerInfo]:
        """Return all peers by name."""
        return [PeerInfo(*[*known, _rule(text)]) for *known, text in self._db.ask(PEERS)]

    def get(self, name: str) -> PeerInfo | None:
        """Return one peer; None if it is unknown."""
        return next((peer for peer in self.list() if peer.name == name), None)

    def reset(self, name: str) -> None:
        """Close the peer's circuit breaker: it is tried again at once."""
        self._db.write(lambda tx: peers.reset_breaker(tx, name))
        self._db.notifier.notify("out")

    def ping(self, name: str) -> Ping:
        """
        Ask a peer for a signed answer, outside its stream: nothing is stored on either side.

        Raises:
            Unreachable: it did not answer; the message says what is wrong as far as this side can
                tell.
            UnsupportedVersion: it answered, and there is no wire version that both sides speak.
            InvalidArgument: its transport cannot ask.

        """
        transport, url = self._routes.route(name, peers.url_of(self._db.read, name))
        if not isinstance(transport, Pings):
            msg = f"{name} is reached at {url}, which needs no ping: see onceward peers ls"
            raise InvalidArgument(msg)
        began = monotonic()
        ahead = transport.ping(url, name)
        took = monotonic() - began
        said = transport.speaks(name) if isinstance(transport, Speaking) else None
        if said is None:
            return Ping(name, url, took, ahead)
        from onceward.message.protocol import common_version  # noqa: PLC0415 - rare

        return Ping(name, url, took, ahead, said.release, common_version(said, name))

    def subscribe(self, name: str, pattern: str) -> None:
        """Subscribe the peer *name* to the topics published here that match *pattern*."""
        agent_name(name)
        check_pattern(pattern)
        self._directory.subscribe(name, pattern, publisher=self._db.agent)

    def unsubscribe(self, name: str, pattern: str) -> None:
        """End a subscription of the peer, if there is one."""
        self._directory.unsubscribe(name, pattern, publisher=self._db.agent)


def _rule(text: str | None) -> InboundRule | None:
    return None if text is None else InboundRule.parse(text)
