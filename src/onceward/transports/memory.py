"""Deliver parcels to agents of the same process; nothing leaves the interpreter."""

from __future__ import annotations

from threading import Lock
from typing import Final

from onceward.errors import Unreachable
from onceward.model.parcel import Answer, Parcel
from onceward.transports.base import Accept, Features

SCHEME: Final = "memory:"
_here: dict[str, Accept] = {}
_lock = Lock()


class MemoryTransport:
    """Delivers to the agent that listens under the name in this process."""

    features = Features(schemes=frozenset({"memory"}))

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Call the recipient's ``accept``; raise Unreachable where no such agent listens."""
        found = _here.get(url.removeprefix(SCHEME))
        if found is None:
            msg = f"no agent listens at {url} in this process: open its postbox"
            raise Unreachable(msg)
        return found(parcel)

    def close(self) -> None:
        """Release nothing, as nothing is held."""


class MemoryListener:
    """Makes agents reachable inside this process."""

    def __init__(self) -> None:
        self._mine: dict[str, Accept] = {}

    def listen(self, name: str, accept: Accept) -> None:
        """Take parcels for *name* from now on; the latest listener of a name replaces others."""
        with _lock:
            _here[name] = self._mine[name] = accept

    def close(self) -> None:
        """Take nothing more."""
        with _lock:
            for name, accept in self._mine.items():
                if _here.get(name) is accept:
                    del _here[name]
            self._mine.clear()
