"""Lend connections that read for callers, so that no engine waits for a caller's statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Final
from weakref import WeakSet

import apsw

from onceward.errors import Busy, StoreClosed
from onceward.file import forks
from onceward.file.connection import BusyHandler, close, close_without_checkpoint
from onceward.file.group_commit import CLOSED
from onceward.message.clock import monotonic

MOST: Final = 4
"""Maximum callers that read one file at once; another one waits."""
IDLE: Final = 60.0
"""Seconds without a read after which maintenance closes a connection."""
LOOK: Final = 0.1
"""Seconds between two checks for a connection that an interrupted caller has not returned."""

Connect = Callable[[BusyHandler], apsw.Connection]


class LentReader:
    """One connection, open or yet to be opened, and its busy handler."""

    __slots__ = ("__weakref__", "busy_handler", "con", "generation", "used_at")

    def __init__(self, generation: int) -> None:
        self.busy_handler = BusyHandler()
        self.con: apsw.Connection | None = None
        self.generation, self.used_at = generation, 0.0


class ReaderPool:
    """A few connections that only read; each serves one caller at a time."""

    def __init__(self, connect: Connect, clock: Callable[[], float] = monotonic) -> None:
        self._connect, self._clock = connect, clock
        self._changed = Condition(forks.new_rlock())
        self._free: list[LentReader] = []
        self._lent = WeakSet[LentReader]()
        self._generation = 0
        self._closed = False

    @contextmanager
    def lend(self, within: float) -> Iterator[apsw.Connection]:
        """
        Lend a connection for a block.

        Raises:
            Busy: none became free *within* some seconds.
            StoreClosed: the file is closed, or was closed while the block read.

        """
        if forks.forking:
            forks.pause()
        deadline = monotonic() + within
        reader = self._take(deadline)
        try:
            reader.busy_handler.deadline = deadline
            yield reader.con or self._open(reader)
        except apsw.InterruptError as error:
            if self._closed:
                raise StoreClosed(CLOSED) from error
            raise
        except BaseException:
            if reader.con is not None and reader.con.txn_state():
                reader.generation = -1  # a statement is open: the next would read its snapshot
            raise
        finally:
            self._give_back(reader)

    def _open(self, reader: LentReader) -> apsw.Connection:
        reader.con = self._connect(reader.busy_handler)
        return reader.con

    def _take(self, deadline: float) -> LentReader:
        with self._changed:
            while not self._free and len(self._lent) >= MOST and not self._closed:
                left = deadline - monotonic()
                if left <= 0:
                    raise Busy(f"{MOST} other statements read the file until the deadline")
                self._changed.wait(min(left, LOOK))
            if self._closed:
                raise StoreClosed(CLOSED)
            reader = self._free.pop() if self._free else LentReader(self._generation)
            self._lent.add(reader)
            return reader

    def _give_back(self, reader: LentReader) -> None:
        with self._changed:
            self._lent.discard(reader)
            self._changed.notify()
            if reader.con is not None and reader.generation == self._generation:
                reader.used_at = self._clock()
                self._free.append(reader)
                return
        close_without_checkpoint(reader.con)

    def replace(self, let_go: Callable[[apsw.Connection | None], None]) -> None:
        """Close all connections; a lent one is closed when it is returned."""
        with self._changed:
            self._generation += 1
            free, self._free = self._free, []
        for reader in free:
            let_go(reader.con)

    def close(self) -> None:
        """Stop lending, and end the running statements."""
        self._closed = True
        self.replace(close)
        for reader in list(self._lent):
            with suppress(apsw.Error):
                if reader.con is not None:
                    reader.con.interrupt()

    def close_idle(self, seconds: float = IDLE) -> None:
        """Close the connections that were not used for so many seconds."""
        with self._changed:
            idle = [each for each in self._free if self._clock() - each.used_at >= seconds]
            self._free = [each for each in self._free if each not in idle]
        for reader in idle:
            close(reader.con)

    def connections(self) -> list[apsw.Connection]:
        """Return all handles, including lent ones."""
        return [each.con for each in (*self._free, *self._lent) if each.con is not None]

    @property
    def are_lent(self) -> bool:
        """Whether a caller has one, or waits for it to be opened."""
        return bool(self._lent)

    def leave_to_the_parent(self) -> None:
        """Forget all connections, in a forked child."""
        self._free.clear()
        self._closed = True
