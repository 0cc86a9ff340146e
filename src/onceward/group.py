"""
Commit sharing: quick handlers end together, slow ones hold no lock.

The first handler that touches the database opens a transaction; those that
follow within a few milliseconds join it by savepoint, and all of them commit
together with their processed marks. While a handler runs that has not touched
the database, the transaction belongs to nobody, and the heartbeat may commit it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Final

from onceward import inbox
from onceward.db import Database
from onceward.errors import LeaseLost, OncewardError
from onceward.events import Event
from onceward.inbox import Ended, Leased
from onceward.lifecycle import Settlement
from onceward.tx import Tx

FULL: Final = 256


class Group:
    """The open commit of one worker."""

    def __init__(self, db: Database, *, share_for: float, told: Callable[[list[Event]], None]) -> None:
        self._db, self._share_for, self._told = db, share_for, told
        self._lock = RLock()
        self._tx: Tx | None = None
        self._inside = False
        self._since = 0.0
        self._ended: list[Ended] = []
        self._events: list[Event] = []
        self._rest: dict[int, tuple[list[Leased], int]] = {}
        self.lost = False
        """Whether the last commit failed, so that everything it held will be handled again."""

    def enter(self) -> Tx:
        """Return the transaction for the handler that runs now, inside a savepoint of its own."""
        with self._lock:
            if self._tx is None:
                self._tx = self._db.turn.begin()
                self._since = self._since or time.monotonic()
            self._db.turn.adopt()
            if not self._inside:
                self._tx.savepoint()
                self._inside = True
            return self._tx

    def undo(self) -> None:
        """Undo what the handler that ran wrote; its neighbours keep theirs."""
        with self._lock:
            if self._inside and self._tx is not None:
                self._tx.undo()
            self._outside()

    def end(self, leased: Leased, settlement: Settlement, *, rest: tuple[list[Leased], int], events: list[Event]) -> None:
        """
        Note how a message ended; its effects stay with the group's commit.

        *rest* is the lane's claim and the index from which on it stays leased.
        """
        with self._lock:
            if self._inside and self._tx is not None:
                self._tx.keep()
            self._outside()
            self._since = self._since or time.monotonic()
            self._ended.append(Ended(leased, settlement))
            self._events += events
            self._rest[leased.lane.lane_id] = rest

    def _outside(self) -> None:
        self._inside = False
        if self._tx is not None:
            self._db.turn.park()

    @property
    def due(self) -> bool:
        """Whether it is time to commit."""
        return bool(self._ended) and (len(self._ended) >= FULL or time.monotonic() - self._since >= self._share_for)

    def upkeep(self, work: Callable[[Tx], object] | None = None) -> None:
        """
        Commit what is due, and run *work* (prolonging leases); called by the heartbeat.

        Does nothing while a handler is inside the transaction: it holds the
        file's lock then, and nobody can take its lanes away.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._inside:
                return
            if (work is not None and self._tx is not None) or self.due:
                self.commit()
            if work is not None:
                self._db.write(work)
        finally:
            self._lock.release()

    def commit(self) -> None:
        """Settle all that ended and commit; a lost lease or a failing disk undoes the whole group, to be handled again."""
        with self._lock:
            ended, events = self._ended, self._events
            rest = {lane: [m.seq for m in messages[start:]] for lane, (messages, start) in self._rest.items()}
            self._ended, self._events, self._rest = [], [], {}
            tx, self._tx, self._since = self._tx, None, 0.0
            if not ended:
                if tx is not None:
                    self._db.turn.rollback()
                return
            try:
                self._settle(tx, ended, rest)
            except (OncewardError, LeaseLost):
                self.lost = True
                self._release(ended)
                return
        if events:
            self._told(events)
        self._db.bell.ring("out")

    def _settle(self, tx: Tx | None, ended: list[Ended], rest: dict[int, list[int]]) -> None:
        if tx is None:
            self._db.write(lambda own: inbox.settle(own, ended, rest))
            return
        self._db.turn.adopt()
        try:
            inbox.settle(tx, ended, rest)
        except BaseException as error:
            self._db.turn.rollback()
            raise self._db.mapped(error) from error
        self._db.turn.commit()

    def _release(self, ended: list[Ended]) -> None:
        # Handlers ran and were undone: the attempt counts, so that a message which breaks commits is found.
        leases = {e.leased.lane.lane_id: (e.leased.lane, e.leased.lane.attempts) for e in ended}
        try:
            self._db.write(lambda tx: inbox.release(tx, leases))
        except OncewardError:
            return  # the leases run out by themselves
