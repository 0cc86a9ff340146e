"""
Count the connections of a server, and choose one to close if there are too many.

A connection is unverified until the head of a request on it is verified. Afterwards it works for a
peer, holds the peer's poll, or is idle. A new connection above the maximum closes the one that has
been idle longest, otherwise the oldest unverified one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from onceward.file.file_checks import files_limit

CONNECTIONS_MAX: Final = 12_288
"""Maximum default number of connections, regardless of the limit of open files."""
LEAST: Final = 32
HELD_AT_LEAST: Final = 3.0
"""Seconds for which a poll is held before it may be ended for another peer's."""
REFUSALS: Final = 64
"""Maximum connections that get the answer to try again; others are closed without one."""


class CountedConnection(Protocol):
    """One counted connection."""

    @property
    def place(self) -> str:
        """Return the address of the client."""

    def refuse(self) -> None:
        """Tell the client to try again, and close."""

    def leave(self) -> None:
        """Close."""


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """The connections of a listener, now and since it was started."""

    most: int
    """Maximum connections."""
    most_held: int
    """Maximum connections of these that hold a poll."""
    strangers: int
    """Unverified connections."""
    peers: int
    """Working or idle connections of peers."""
    held: int
    """Connections that hold a poll for parcels."""
    refused: int
    """Connections and polls that were told to try again, since the start."""
    displaced: int
    """Connections that were closed, and polls that were ended, for a newer one."""

    @property
    def full(self) -> bool:
        """Return whether no more connections or polls are accepted without closing another."""
        taken = self.strangers + self.peers + self.held
        return taken >= self.most or self.held >= self.most_held


class _Question(NamedTuple):
    """A held poll."""

    since: float
    release: Callable[[], object]
    """Answers it with "no parcel waits"."""


class Connections:
    """The connections of one server; called only on the thread of its event loop."""

    def __init__(
        self, most: int | None = None, held: int | None = None, place: int | None = None
    ) -> None:
        self.most = most or max(LEAST, min(CONNECTIONS_MAX, files_limit() // 2))
        self.most_held = held or max(1, self.most * 2 // 3)
        self.most_of_a_place = place or max(1, self.most * 3 // 4)
        self._strangers: dict[CountedConnection, None] = {}
        self._resting: dict[CountedConnection, None] = {}
        self._working = set[CountedConnection]()
        self._held: dict[CountedConnection, _Question] = {}
        self._refusing = set[CountedConnection]()
        self._places: dict[str, dict[CountedConnection, None]] = {}
        """The unverified connections of each address, oldest first."""
        self._refused = self._displaced = 0

    def stats(self) -> ConnectionStats:
        """Return the current numbers."""
        return ConnectionStats(
            most=self.most,
            most_held=self.most_held,
            strangers=len(self._strangers),
            peers=len(self._resting) + len(self._working),
            held=len(self._held),
            refused=self._refused,
            displaced=self._displaced,
        )

    def add(self, made: CountedConnection) -> None:
        """Count a new connection; if there are too many, close one."""
        self._strangers[made] = None
        beside = self._places.setdefault(made.place, {})
        beside[made] = None
        if len(beside) > self.most_of_a_place:
            self._refuse(next(iter(beside)))
        elif self._number() > self.most:
            self._make_room()

    def works(self, found: CountedConnection) -> None:
        """Count a connection as a peer's while its request is being answered."""
        self._forget(found)
        self._working.add(found)

    def hears(self, found: CountedConnection) -> None:
        """Record that bytes came: an idle connection of a peer works again."""
        if found in self._resting:
            self.works(found)

    def rests(self, found: CountedConnection) -> None:
        """Record that a request was answered."""
        if found in self._working or found in self._held:
            self._forget(found)
            self._resting[found] = None

    def hold(self, found: CountedConnection, release: Callable[[], object], now: float) -> bool:
        """
        Count a connection as holding a poll since *now*; return whether there is capacity.

        If there is none, the longest held poll is ended, if it was held long enough, so that each
        peer gets its turn.
        """
        if len(self._held) >= self.most_held and not self._let_go(now):
            self._refused += 1
            return False
        self._forget(found)
        self._held[found] = _Question(now, release)
        return True

    def _let_go(self, now: float) -> bool:
        longest, question = next(iter(self._held.items()))
        if now - question.since < HELD_AT_LEAST:
            return False
        self._displaced += 1
        self.works(longest)
        question.release()
        return True

    def discard(self, found: CountedConnection) -> None:
        """Remove a closed connection."""
        self._forget(found)
        self._refusing.discard(found)

    def _number(self) -> int:
        verified = len(self._resting) + len(self._working) + len(self._held)
        return len(self._strangers) + verified

    def _make_room(self) -> None:
        """Close the longest idle connection, otherwise the oldest unverified one."""
        if self._resting:
            longest = next(iter(self._resting))
            self._displaced += 1
            self._forget(longest)
            longest.leave()
        else:
            self._refuse(next(iter(self._strangers)))

    def _refuse(self, found: CountedConnection) -> None:
        self._refused += 1
        self._forget(found)
        if len(self._refusing) >= REFUSALS:
            found.leave()
        else:
            self._refusing.add(found)
            found.refuse()

    def _forget(self, found: CountedConnection) -> None:
        if found in self._strangers:
            del self._strangers[found]
            beside = self._places[found.place]
            del beside[found]
            if not beside:
                del self._places[found.place]
        self._resting.pop(found, None)
        self._working.discard(found)
        self._held.pop(found, None)
