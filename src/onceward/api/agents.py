"""The agents of a home: their registry, and subscriptions to what they publish."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.errors import InvalidArgument
from onceward.file.directory import DirectoryCache, find_agents
from onceward.message.arguments import checks_arguments
from onceward.message.names import AgentInfo, agent_profile
from onceward.message.topics import check_pattern


@checks_arguments()
class Agents:
    """The agents of the home, and their subscriptions."""

    def __init__(self, directory: DirectoryCache) -> None:
        self._directory = directory

    def register(
        self, *, description: str | None = None, capabilities: Iterable[str] | None = None
    ) -> bool:
        """
        Register this agent; return whether it is new there.

        Opening a file under its agent's name does the same, with the words of the
        ``Agent``. Registered agents get all messages that are sent to all. An argument
        that is not given changes nothing.

        Raises:
            InvalidArgument: the description or the list of capabilities is too long.
            InvalidMessage: a capability is not 1 to 256 printable characters.

        """
        return self._directory.register(agent_profile(description, capabilities))

    def remove(self) -> bool:
        """
        Remove this agent from the registry before it is retired; return whether it was there.

        Messages that are sent to all or published no longer reach it. It stays a member of its
        channels until ``leave``. The next opening under its name registers it again.
        """
        return self._directory.leave()

    def list(
        self, *, search: str = "", limit: int | None = None, after: str = ""
    ) -> list[AgentInfo]:
        """
        Return the other registered agents by name: the recipients of what is sent to all.

        With *search* only agents whose name, description, capabilities or accepted types contain
        each of its words; case is ignored, and parts of words match. *limit* is the maximum number;
        *after* is the last name of the previous page.

        Raises:
            InvalidArgument: the limit is below 1.

        """
        if limit is not None and (isinstance(limit, bool) or limit < 1):
            raise InvalidArgument(f"limit={limit}: the limit must be at least 1")
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
        """End a subscription; return whether there was one."""
        return self._directory.unsubscribe(self._directory.agent, pattern)
