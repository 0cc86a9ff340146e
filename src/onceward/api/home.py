"""What a postbox offers beside sending and receiving: its peers."""

from __future__ import annotations

from collections.abc import Callable

from onceward.db.database import Database
from onceward.errors import InvalidArgument
from onceward.model.names import agent_name
from onceward.model.topics import check_pattern
from onceward.store import peers, queries
from onceward.store.directory.cache import DirectoryCache
from onceward.transports.base import Features


class Peers:
    """Who is reached where. Peers come from here, from the home folder and from transports, never from messages."""

    def __init__(
        self, db: Database, schemes: Callable[[], dict[str, Features]], roster: DirectoryCache
    ) -> None:
        self._db, self._schemes, self._directory = db, schemes, roster

    def register(self, name: str, url: str) -> None:
        """
        Reach *name* at *url* from now on; its breaker closes.

        Raises:
            InvalidArgument: no transport serves the url's scheme.

        """
        agent_name(name)
        scheme = url.partition(":")[0]
        if scheme not in self._schemes():
            msg = f"no transport for {url!r}: there are {', '.join(sorted(self._schemes()))}"
            raise InvalidArgument(msg)
        self._db.write(lambda tx: tx.run(peers.REGISTER, (name, url)))
        self._db.notifier.notify("out")

    def forget(self, name: str) -> None:
        """Drop a registered url; mail for the peer waits, and its stream is kept."""
        self._db.write(lambda tx: tx.run(peers.FORGET, (name,)))

    def list(self) -> list[queries.PeerInfo]:
        """Return all peers by name."""
        return queries.peers(self._db)

    def get(self, name: str) -> queries.PeerInfo | None:
        """Return one peer, None where it is unknown."""
        return next((peer for peer in self.list() if peer.name == name), None)

    def reset(self, name: str) -> None:
        """Try the peer again at once."""
        self._db.write(lambda tx: tx.run(peers.RESET_BREAKER, (name,)))
        self._db.notifier.notify("out")

    def subscribe(self, name: str, pattern: str) -> None:
        """Let *name* have what is published here under *pattern*."""
        agent_name(name)
        check_pattern(pattern)
        self._directory.subscribe(name, pattern, publisher=self._db.agent)

    def unsubscribe(self, name: str, pattern: str) -> None:
        """End a subscription; nothing happens where there is none."""
        self._directory.unsubscribe(name, pattern, publisher=self._db.agent)


class Agents:
    """The agents of the home, and what they publish."""

    def __init__(self, roster: DirectoryCache) -> None:
        self._directory = roster

    def register(self) -> bool:
        """Take part: from now on what is sent to all reaches this agent too; say whether it did not before."""
        return self._directory.register()

    def leave(self) -> bool:
        """
        Take part no more, before the agent is retired: nothing that is sent to all or published reaches it; say whether it did.

        Channels are left by their own ``leave``. While its file lies in the home, or whenever it asks the directory for something
        in a later opening, it takes part again.
        """
        return self._directory.leave()

    def list(self) -> list[str]:
        """Return all other registered agents by name: who is reached by what is sent to all."""
        return self._directory.other_agents()

    def subscribe(self, pattern: str) -> bool:
        """Have what anybody else in the home publishes under *pattern*; say whether that is new; raises TopicError."""
        return self._directory.subscribe(self._directory.agent, check_pattern(pattern))

    def unsubscribe(self, pattern: str) -> bool:
        """End a subscription; say whether there was one."""
        return self._directory.unsubscribe(self._directory.agent, pattern)
