"""Threads that deliver to peers, shared so that peers which do not answer delay no others."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread, get_ident
from typing import Final, Literal

from onceward.core.deliver.parcels import InFlight

Share = Literal["known", "new", "failing"]
"""Peers that answered last, peers that never answered, and peers whose last push failed."""
FAILING_MAX: Final = 8
"""Most carriers that peers share whose last push failed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A peer to push to; *first* is its parcel, where a commit has packed and leased it."""

    name: str
    share: Share
    first: InFlight | None = None


class Carriers:
    """
    At most *size* daemon threads that run deliveries; each starts when it is needed.

    Peers that never answered get half of them, peers whose last push failed a
    quarter and at most FAILING_MAX, so that some are left for peers that answer.
    A thread whose delivery hangs is given up: it ends when the delivery returns.
    As many as *size* of them are replaced; those beyond that count against the
    shares, and one carrier at least is left for peers that answered last.
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
        self._threads = self._idle = 0
        self._stopped = False
        self._changed = Condition()

    def submit(self, delivery: Delivery) -> bool:
        """
        Run a delivery when its share has a free carrier.

        Returns False once stopped, and where the system gives this process no thread.
        """
        with self._changed:
            if self._stopped:
                return False
            if self._idle:
                self._wake()
            else:
                self._start()
            if self._threads:
                self._waiting[delivery.share].append(delivery)
            return self._threads > 0

    def _start(self) -> None:
        """Start one more thread, if there may be one and the system has one."""
        if self._threads < self._size:
            with suppress(RuntimeError):
                Thread(target=self._work, name="onceward-carrier", daemon=True).start()
                self._threads += 1

    def give_up(self, thread: int) -> None:
        """Replace a thread whose delivery hangs."""
        with self._changed:
            if self._running.pop(thread, None) is not None:
                self._hanging.add(thread)
                self._threads -= 1
                if self._idle:  # its share has a free carrier again
                    self._wake()
                elif any(self._waiting.values()):
                    self._start()

    def stop(self) -> list[Delivery]:
        """Begin no further delivery, wait for none; return those that had not begun."""
        with self._changed:
            self._stopped = True
            left = [delivery for queue in self._waiting.values() for delivery in queue]
            for queue in self._waiting.values():
                queue.clear()
            self._idle = 0
            self._changed.notify_all()
        return left

    def _work(self) -> None:
        while (delivery := self._next()) is not None:
            try:
                self._run(delivery)
            finally:
                going_on = self._end()
            if not going_on:
                return

    def _next(self) -> Delivery | None:
        """Wait for a delivery whose share has a free carrier; None once stopped."""
        with self._changed:
            while not self._stopped:
                found = self._take()
                if found is not None:
                    self._running[get_ident()] = found
                    return found
                self._idle += 1
                self._changed.wait()
            self._threads -= 1
        return None

    def _wake(self) -> None:
        self._idle -= 1  # here, for the thread that is woken counts itself only later
        self._changed.notify()

    def _take(self) -> Delivery | None:
        busy = Counter(delivery.share for delivery in self._running.values())
        beyond = max(0, len(self._hanging) - self._size)
        for share, queue in self._waiting.items():
            most = max(share == "known", self._most[share] - beyond)
            if queue and busy[share] < most:
                return queue.popleft()
        return None

    def _end(self) -> bool:
        """End the delivery of this thread; return False where the thread was given up."""
        with self._changed:
            if self._idle:  # its share has a free carrier again
                self._wake()
            if get_ident() in self._hanging:
                self._hanging.discard(get_ident())
                return False
            del self._running[get_ident()]
            return True
