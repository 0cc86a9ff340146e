"""Deliver parcels to agents of the same process; nothing leaves the interpreter."""

from __future__ import annotations

from threading import Condition, get_ident
from typing import Final

from onceward.core.deliver.transport import Accept, Features
from onceward.errors import Unreachable
from onceward.file import forks
from onceward.message.names import agent_name
from onceward.message.parcel import Answer, Parcel

SCHEME: Final = "memory:"
CLOSE_WITHIN: Final = 30.0
"""Maximum seconds to wait for running calls when a listener is closed."""
_here: dict[str, tuple[Accept, ...]] = {}
"""The functions of the listeners of each name; the latest one gets the parcels."""
_lock = forks.new_lock()
forks.in_child(_here.clear)


class MemoryTransport:
    """Delivers to the agent that listens under a name in this process."""

    features = Features(schemes=frozenset({"memory"}))

    def check(self, url: str) -> None:
        """Raise InvalidArgument for a url that names no agent."""
        agent_name(url.removeprefix(SCHEME))

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Call the recipient's ``accept``; raise Unreachable if no such agent listens."""
        listening = _here.get(url.removeprefix(SCHEME))
        if not listening:
            raise Unreachable(f"no agent listens at {url} in this process: open its postbox")
        return listening[-1](parcel)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class MemoryListener:
    """Makes agents reachable inside this process."""

    def __init__(self) -> None:
        self._mine: list[tuple[str, Accept]] = []
        self._under_way: list[int] = []
        """Threads that are calling an agent's function."""
        self._ended = Condition(forks.new_rlock())

    def listen(self, name: str, accept: Accept) -> None:
        """Accept parcels for *name*, before older listeners of that name."""

        def counted(parcel: Parcel) -> Answer:
            with self._ended:
                self._under_way.append(get_ident())
            try:
                return accept(parcel)
            finally:
                with self._ended:
                    self._under_way.remove(get_ident())
                    self._ended.notify_all()

        with _lock:
            _here[name] = (*_here.get(name, ()), counted)
            self._mine.append((name, counted))

    def close(self) -> None:
        """
        Stop accepting; an older listener of a name then gets its parcels.

        Wait for running calls on other threads.
        """
        with _lock:
            for name, accept in self._mine:
                _here[name] = tuple(each for each in _here[name] if each != accept)
                if not _here[name]:
                    del _here[name]
            self._mine.clear()
        with self._ended:
            self._ended.wait_for(lambda: set(self._under_way) <= {get_ident()}, CLOSE_WITHIN)
