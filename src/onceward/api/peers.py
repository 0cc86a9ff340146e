"""The peers of an agent: urls, circuit breakers and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onceward.db.database import Database
from onceward.model.inbound_rule import InboundRule
from onceward.model.names import agent_name
from onceward.model.topics import check_pattern
from onceward.store import peers, queries
from onceward.store.directory.cache import DirectoryCache
from onceward.transports.base import Features


class Peers:
    """The peers of an agent: registered here, found in the home, never made by messages."""

    def __init__(
        self, db: Database, check: Callable[[str], Features], directory: DirectoryCache
    ) -> None:
        self._db, self._check, self._directory = db, check, directory

    def register(self, name: str | Mapping[str, str], url: str = "") -> None:
        """
        Reach *name* at *url* from now on; its circuit breaker closes.

        Many at once, by one commit, whole or not at all: give a mapping of names to urls.

        Raises:
            InvalidArgument: no transport serves the scheme of a url, or it cannot be made,
                or the url is not of its form.

        """
        given = {name: url} if isinstance(name, str) else dict(name)
        for each in given:
            agent_name(each)
        for each in dict.fromkeys(given.values()):
            self._check(each)
        self._db.write(lambda tx: tx.many(peers.REGISTER, list(given.items())))
        self._db.notifier.notify("out")

    def forget(self, name: str) -> None:
        """Drop a registered url; messages for the peer wait, and its stream is kept."""
        self._db.write(lambda tx: tx.run(peers.FORGET, (name,)))

    def allow(
        self,
        name: str,
        *,
        types: Iterable[str] | None = None,
        channels: Iterable[str] = (),
        mailboxes: Iterable[str] = (),
    ) -> None:
        """
        Accept from *name* only messages that name what these patterns match; refuse others.

        Without a rule a peer that uses a network has the one of a call without patterns:
        all types but those under ``_system``, no channel, no mailbox; agents of
        the home may name everything. ``#`` matches all.

        Raises:
            InvalidArgument: a pattern or the name is none.

        """
        agent_name(name)
        rule = InboundRule.of(types, channels, mailboxes).text()
        self._db.write(lambda tx: tx.run(peers.ALLOW, (name, rule)))

    def list(self) -> list[queries.PeerInfo]:
        """Return all peers by name."""
        return queries.peers(self._db)

    def get(self, name: str) -> queries.PeerInfo | None:
        """Return one peer, None where it is unknown."""
        return next((peer for peer in self.list() if peer.name == name), None)

    def reset(self, name: str) -> None:
        """Close the peer's circuit breaker: it is tried again at once."""
        self._db.write(lambda tx: tx.run(peers.RESET_BREAKER, (name,)))
        self._db.notifier.notify("out")

    def subscribe(self, name: str, pattern: str) -> None:
        """Subscribe the peer *name* to the topics published here that match *pattern*."""
        agent_name(name)
        check_pattern(pattern)
        self._directory.subscribe(name, pattern, publisher=self._db.agent)

    def unsubscribe(self, name: str, pattern: str) -> None:
        """End a subscription of the peer; nothing happens where there is none."""
        self._directory.unsubscribe(name, pattern, publisher=self._db.agent)
