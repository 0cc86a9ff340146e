"""Run the threads that deliver to peers: so many for each kind of peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Final, Literal

from onceward.core.deliver.parcels import InFlight
from onceward.core.run.threads import engine_threads
from onceward.file import forks
from onceward.message.parcel import Answer

Share = Literal["known", "new", "failing"]
"""Peers that answered last, peers that never answered, and peers whose last push failed."""
FAILING_MAX: Final = 8
"""Maximum carriers shared by the peers whose last push failed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A peer to push to; *first* is its parcel if a commit has packed and leased it."""

    name: str
    share: Share
    first: InFlight | None = None
    answer: Answer | None = None
    """The answer to that parcel, if another carrier has pushed it."""


class Carriers:
    """
    At most *size* threads of the process that run deliveries, as long as there are any.

    Peers that never answered get at most half of them, peers whose last push failed a quarter and
    at most FAILING_MAX, so that some are left for peers that answer. A thread whose delivery hangs
    is abandoned: it ends when the delivery returns. Up to *size* abandoned threads are replaced;
    more count against the shares, and at least one carrier is left for peers that answered last.
    """

    def __init__(self, size: int, run: Callable[[Delivery], None]) -> None:
        self._size, self._run = size, run
        self._most = {
            "known": size,
            "new": max(1, size // 2),
            "failing": max(1, min(FAILING_MAX, size // 4)),
        }
        self._waiting: dict[Share, deque[Delivery]] = {
            "known": deque(),
            "new": deque(),
            "failing": deque(),
        }
        self._running: dict[int, Delivery] = {}
        self._hanging: set[int] = set()
        self._threads = 0
        self._tickets = set[object]()
        """One ticket for each requested thread that has not begun."""
        self._stopped = False
        self._lock = forks.new_lock()
        self._engine = engine_threads()

    def submit(self, delivery: Delivery) -> bool:
        """
        Run a delivery when its share has a free carrier.

        Return False once stopped, and if the system cannot start a thread.
        """
        with self._lock:
            if self._stopped:
                return False
            self._start()
            if self._threads:
                self._waiting[delivery.share].append(delivery)
            return self._threads > 0

    def _start(self) -> None:
        """
        Use one more thread, if the limit and the system allow it.

        It is counted before it is requested: after an interrupt the call is repeated, and of two
        threads with one ticket the second leaves at once.
        """
        if self._threads < self._size:
            ticket = object()
            self._threads += 1
            try:
                self._ask_for_thread(ticket)
            except BaseException:
                self._ask_for_thread(ticket)
                raise

    def _ask_for_thread(self, ticket: object) -> None:
        self._tickets.add(ticket)
        try:
            self._engine.run("onceward-carrier", partial(self._work, ticket))
        except RuntimeError:
            self._tickets.discard(ticket)
            self._threads -= 1

    def give_up(self, thread: int) -> None:
        """Replace a thread whose delivery hangs."""
        with self._lock:
            if self._running.pop(thread, None) is not None:
                self._hanging.add(thread)
                self._threads -= 1
                if any(self._waiting.values()):
                    self._start()

    def stop(self) -> list[Delivery]:
        """Begin no further delivery and wait for none; return those that had not begun."""
        with self._lock:
            self._stopped = True
            left = [delivery for queue in self._waiting.values() for delivery in queue]
            for queue in self._waiting.values():
                queue.clear()
        return left

    def _work(self, ticket: object) -> None:
        with self._lock:
            if ticket not in self._tickets:
                return
            self._tickets.discard(ticket)
        while (delivery := self._next()) is not None:
            try:
                self._run(delivery)
            finally:
                going_on = self._end()
            if not going_on:
                return

    def _next(self) -> Delivery | None:
        """Return a delivery whose share has a free carrier; else leave the thread."""
        with self._lock:
            found = self._take() if any(self._waiting.values()) else None
            if found is None:
                self._threads -= 1
            else:
                self._running[get_ident()] = found
            return found

    def _take(self) -> Delivery | None:
        busy: dict[Share, int] = {"known": 0, "new": 0, "failing": 0}
        for delivery in self._running.values():
            busy[delivery.share] += 1
        beyond = max(0, len(self._hanging) - self._size)
        for share, queue in self._waiting.items():
            most = max(share == "known", self._most[share] - beyond)
            if queue and busy[share] < most:
                return queue.popleft()
        return None

    def _end(self) -> bool:
        """End the delivery of this thread; return False if the thread was abandoned."""
        with self._lock:
            if get_ident() not in self._hanging:
                del self._running[get_ident()]
                return True
            self._hanging.discard(get_ident())
            if any(self._waiting.values()):  # its share may again have a free carrier
                self._start()
            return False
