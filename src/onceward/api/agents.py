"""The agents of a home: registration, and subscriptions to what they publish."""

from __future__ import annotations

from onceward.model.topics import check_pattern
from onceward.store.directory.cache import DirectoryCache


class Agents:
    """The agents of the home, and their subscriptions."""

    def __init__(self, directory: DirectoryCache) -> None:
        self._directory = directory

    def register(self) -> bool:
        """
        Register this agent; say whether it was not registered before.

        Opening a file under its agent's name does the same. Registered agents get
        everything that is sent to all.
        """
        return self._directory.register()

    def leave(self) -> bool:
        """
        Unregister this agent before it is retired; say whether it was registered.

        Nothing that is sent to all or published reaches it. Channels are left by
        their own ``leave``. The next opening under its name registers it again.
        """
        return self._directory.leave()

    def list(self) -> list[str]:
        """Return all other registered agents by name: the recipients of what is sent to all."""
        return self._directory.other_agents()

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
