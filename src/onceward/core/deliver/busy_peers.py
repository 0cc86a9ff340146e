"""Know which peers have a carrier: each has at most one at a time."""

from __future__ import annotations

import time
from threading import Event, Lock

from onceward.core.deliver.carriers import Delivery
from onceward.core.deliver.parcels import InFlight

Packed = dict[str, InFlight | None]
"""By peer: the parcel that the open commit packs; None for a reserved peer without one."""


class BusyPeers:
    """
    The peers that are reserved for a carrier, or for the parcel of an open commit.

    Python raises an interrupt after any call, so what belongs together is written
    before the next call, or may be written again.
    """

    def __init__(self, stopping: Event) -> None:
        self.stopping = stopping
        """Set once no peer is reserved any more."""
        self.lock = Lock()
        """Held while a peer is reserved, left, or marked as hanging."""
        self.names: set[str] = set()
        """The peers that are reserved."""
        self.hanging: set[str] = set()
        """Those whose push was given up and has not returned: they are busy until it does."""
        self.released: set[str] = set()
        """Those that a carrier has released in the file and is about to leave."""
        self.following: dict[str, InFlight] = {}
        """Parcels that were packed for such peers; the same carrier goes on with them."""
        self.left: set[str] = set()
        """Peers that may still be leased to us although no carrier pushes to them."""
        self.changed = Event()
        """Set whenever a peer was left."""

    def reserve(self, name: str, packed: Packed | None = None) -> bool:
        """
        Reserve a peer for one carrier; False where it has one, or the dispatcher stops.

        *packed* gets its name first, for an interrupt may come after any call.
        """
        with self.lock:
            if name in self.names or self.stopping.is_set():
                return False
            self.released.discard(name)
            if packed is not None:
                packed[name] = None
            self.names.add(name)
        return True

    def pass_on(self, name: str, first: InFlight, passed: set[str]) -> bool:
        """
        Leave a parcel to the carrier that is about to end.

        Where it has ended, reserve the peer, take it out of *passed* and return False.
        """
        with self.lock:
            if name in self.names:
                self.following[name] = first
                return True
            passed.discard(name)  # first: after an interrupt the next call must submit it
            self.names.add(name)
        return False

    def end(self, name: str) -> InFlight | None:
        """Return the parcel that was packed for the peer meanwhile; leave the peer if none."""
        with self.lock:
            self.released.discard(name)
            following = self.following.pop(name, None)
            if following is None:
                self.names.discard(name)
                self.hanging.discard(name)
        return following

    def forget(self, delivery: Delivery) -> None:
        """Leave a peer whose delivery has not begun; its lease is given back later."""
        if delivery.first is not None:
            self.left.add(delivery.name)
        self.names.discard(delivery.name)
        self.changed.set()

    @property
    def idle_left(self) -> list[str]:
        """The left peers that no carrier has."""
        return sorted(self.left - (self.names - self.hanging))

    def wait_for_a_change(self) -> None:
        """Wait a moment until a peer was left."""
        self.changed.clear()
        self.changed.wait(0.01)

    def wait_until_settled(self, deadline: float) -> None:
        """Wait until every carrier has ended or hangs, by the monotonic clock."""
        while self.names - self.hanging and time.monotonic() < deadline:
            self.wait_for_a_change()
