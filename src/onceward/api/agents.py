"""The agents of a home: their registry, and subscriptions to what they publish."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.errors import InvalidArgument
from onceward.file.directory import DirectoryCache, find_agents
from onceward.message.names import AgentInfo, agent_profile
from onceward.message.topics import check_pattern


class Agents:
    """The agents of the home, and their subscriptions."""

    def __init__(self, directory: DirectoryCache) -> None:
        self._directory = directory

    def register(
        self, *, description: str | None = None, capabilities: Iterable[str] | None = None
    ) -> bool:
        """
        Register this agent; say whether it was not registered before.

        Opening a file under its agent's name does the same, with the words of the
        ``Agent``. Registered agents get everything that is sent to all. An argument
        that is not given changes nothing.

        Raises:
            InvalidArgument: the description or the list of capabilities is too long.
            InvalidMessage: a capability is not 1 to 256 printable characters.

        """
        return self._directory.register(agent_profile(description, capabilities))

    def remove(self) -> bool:
        """
        Remove this agent from the registry before it is retired; say whether it was there.

        Nothing that is sent to all or published reaches it. Channels are left by
        their own ``leave``. The next opening under its name registers it again.
        """
        return self._directory.leave()

    def list(
        self, *, search: str = "", limit: int | None = None, after: str = ""
    ) -> list[AgentInfo]:
        """
        Return the other registered agents by name: the recipients of what is sent to all.

        With *search* only those in whose name, description, capabilities or accepted types
        each of its words occurs; case does not matter, and a part of a word is enough. With
        *limit* at most so many; *after* is the last name of the page before.

        Raises:
            InvalidArgument: the limit is below 1.

        """
        if limit is not None and (isinstance(limit, bool) or limit < 1):
            msg = f"limit={limit}: a page has room for at least one agent"
            raise InvalidArgument(msg)
        directory, me = self._directory.database, self._directory.agent
        return find_agents(directory, search=search, without=me, limit=limit, after=after)

    def subscribe(self, pattern: str) -> bool:
        """
        Subscribe to what the other agents of the home publish under *pattern*.

        Returns whether the subscription is new.

        Raises:
            TopicError: the pattern breaks its rule.

        """
        return self._directory.subscribe(self._directory.agent, check_pattern(pattern))

    def unsubscribe(self, pattern: str) -> bool:
        """End a subscription; say whether there was one."""
        return self._directory.unsubscribe(self._directory.agent, pattern)
