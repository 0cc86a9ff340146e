"""
Count the connections of a server, and choose which one goes when there are too many.

A connection is a stranger's until the head of a request on it was proved. Afterwards it works
for a peer, holds the peer's question, or rests. A new connection beyond the most that there may
be ends the one that has rested longest, else the stranger that has proved nothing for longest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from onceward.file.file_checks import files_limit

CONNECTIONS_MAX: Final = 4096
"""Most connections by default, however many files the process may open."""
LEAST: Final = 16
HELD_AT_LEAST: Final = 3.0
"""Seconds for which a question is held before it makes room for another peer's."""
REFUSALS: Final = 64
"""Most connections that are being told to come again; beyond them one is closed without a word."""


class CountedConnection(Protocol):
    """One connection, as it is counted."""

    @property
    def place(self) -> str:
        """Return the address of the client."""

    def refuse(self) -> None:
        """Tell the client to come again, and close."""

    def leave(self) -> None:
        """Close."""


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """The connections of a listener, now and since it was started."""

    most: int
    """Connections that there may be, without those that hold a question."""
    most_held: int
    """Questions that may be held."""
    strangers: int
    """Connections on which nothing is proved yet."""
    peers: int
    """Connections of peers that work or rest."""
    held: int
    """Connections that hold a question for parcels."""
    refused: int
    """Connections and questions that were told to come again, since the start."""
    displaced: int
    """Connections that were closed, and questions that were let go, for a newer one."""

    @property
    def full(self) -> bool:
        """Return whether no further connection or question is taken without closing another."""
        return self.strangers + self.peers >= self.most or self.held >= self.most_held


class _Question(NamedTuple):
    """A question that is held."""

    since: float
    release: Callable[[], object]
    """Answers it that no parcel waits."""


class Connections:
    """The connections of one server; all calls come from the thread of its event loop."""

    def __init__(
        self, most: int | None = None, held: int | None = None, place: int | None = None
    ) -> None:
        files = files_limit()
        self.most = most or max(LEAST, min(CONNECTIONS_MAX, files // 4))
        self.most_held = held or max(LEAST, min(2 * CONNECTIONS_MAX, files // 4))
        self.most_of_a_place = place or max(1, self.most // 2)
        self._strangers: dict[CountedConnection, None] = {}
        self._resting: dict[CountedConnection, None] = {}
        self._working = set[CountedConnection]()
        self._held: dict[CountedConnection, _Question] = {}
        self._refusing = set[CountedConnection]()
        self._places: dict[str, dict[CountedConnection, None]] = {}
        """The strangers of each address, the one of longest standing first."""
        self._refused = self._displaced = 0

    def stats(self) -> ConnectionStats:
        """Return the present numbers."""
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
        """Count a new connection; where there are too many, end one."""
        self._strangers[made] = None
        beside = self._places.setdefault(made.place, {})
        beside[made] = None
        if len(beside) > self.most_of_a_place:
            self._refuse(next(iter(beside)))
        elif len(self._strangers) + len(self._resting) + len(self._working) > self.most:
            self._make_room()

    def works(self, found: CountedConnection) -> None:
        """Count a connection as a peer's, whose request is being answered."""
        self._forget(found)
        self._working.add(found)

    def hears(self, found: CountedConnection) -> None:
        """Note that bytes came: a peer's connection that rested works again."""
        if found in self._resting:
            self.works(found)

    def rests(self, found: CountedConnection) -> None:
        """Note that a request was answered."""
        if found in self._working or found in self._held:
            self._forget(found)
            self._resting[found] = None

    def hold(self, found: CountedConnection, release: Callable[[], object], now: float) -> bool:
        """
        Count a connection as one that holds a question since *now*; return whether there is room.

        Where there is none, the question that was held longest is let go, if that was long enough:
        each peer has its turn, however many there are.
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
        """Count a connection that was closed no longer."""
        self._forget(found)
        self._refusing.discard(found)

    def _make_room(self) -> None:
        """End the connection that has rested longest, else the stranger of longest standing."""
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
