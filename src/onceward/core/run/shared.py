"""Start a shared object with its first user, and stop it with its last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from onceward.file import forks

T = TypeVar("T")


class Shared(Generic[T]):
    """
    One object of several users; *start* creates it, or raises, and *stop* ends it.

    A forked child starts one of its own: it has none of the threads that its parent's uses.
    """

    def __init__(self, start: Callable[[], T], stop: Callable[[T], None]) -> None:
        self._start, self._stop = start, stop
        self._lock, self._users = forks.new_lock(), 0
        self._made: T | None = None
        self._forks = forks.count

    def enter(self) -> T:
        """Return it for one more user."""
        with self._lock:
            if self._forks != forks.count:
                self._forks, self._users, self._made = forks.count, 0, None
            if self._made is None:
                self._made = self._start()
            self._users += 1
            return self._made

    def leave(self) -> None:
        """Stop using it."""
        with self._lock:
            self._users -= 1
            if self._made is not None and not self._users:
                made, self._made = self._made, None
                self._stop(made)
