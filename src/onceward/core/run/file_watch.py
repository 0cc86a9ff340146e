"""Watch the open files of this process: poll their sockets, and check their versions."""

from __future__ import annotations

import math
import os
import selectors
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final, Protocol

from onceward.errors import OutOfDescriptors
from onceward.file.notify import Direction, Notifier
from onceward.file.waiter import ONE, wakeup_descriptors
from onceward.message.log import log

TOGETHER: Final = 0.05
"""Seconds by which a file's version is checked early, to check several files in one wake-up."""
Found = list[tuple[selectors.SelectorKey, int]]
"""The descriptors that are readable."""


class Readable(Protocol):
    """A descriptor that the waiting thread polls."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` is due."""

    def hear(self) -> bool:
        """Read what has arrived, without waiting; return whether notices may have been lost."""


class _File:
    """A file that the waiting thread listens for, and when to check its version."""

    def __init__(self, notifier: Notifier, version: Callable[[], int], poll: float) -> None:
        self.notifier, self.version, self.poll = notifier, version, poll
        self.users = 0
        self.look_at = notifier.next_poll(poll) if poll > 0 else math.inf


class FileWatch:
    """
    The sockets and checks of files that one thread waits for, and the pipe that ends its wait.

    *lock* is that of the threads. Callers hold it for ``add``, ``poll``, ``clear`` and ``due``.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._files: dict[Notifier, _File] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup = _wakeup()
        self._selector.register(self._wakeup[0], selectors.EVENT_READ)

    def add(
        self, notifier: Notifier, side: Direction, version: Callable[[], int], poll: float
    ) -> None:
        """Watch a file; one ``remove`` undoes each call."""
        file = self._files.get(notifier)
        if file is None:
            file = self._files[notifier] = _File(notifier, version, poll)
        file.users += 1
        shared = notifier.share(side)
        if shared is not None:
            self.poll(shared)

    def remove(self, notifier: Notifier) -> None:
        """Stop watching a file that no other engine watches."""
        with self._lock:
            file = self._files[notifier]
            file.users -= 1
            if not file.users:
                del self._files[notifier]

    def poll(self, source: Readable) -> None:
        """Poll a descriptor, unless it is polled."""
        known = self._selector.get_map().get(source.fileno())
        if known is None:
            self._selector.register(source.fileno(), selectors.EVENT_READ, source)

    def unpoll(self, source: Readable) -> None:
        """Undo ``poll``; called before the descriptor is closed."""
        with self._lock, suppress(KeyError, ValueError):
            self._selector.unregister(source.fileno())

    def end_wait(self) -> None:
        """End the present wait, or the next one."""
        os.write(self._wakeup[1], ONE)

    def wait(self, seconds: float) -> Found:
        """Wait until a descriptor is readable, or for *seconds*."""
        try:
            return self._selector.select(seconds)
        except (OSError, ValueError) as error:  # a descriptor was just closed
            log.failure("warning", "engines look again", error)
        return []

    def clear(self, found: Found, *, woken: bool) -> None:
        """Forget the calls of ``end_wait`` that the last wait has seen, or has missed."""
        if woken or any(key.data is None for key, _ in found):
            with suppress(BlockingIOError):  # another thread that waits needs its own byte
                os.read(self._wakeup[0], 1024)

    @property
    def next_look(self) -> float:
        """When the first version must be checked, by the monotonic clock."""
        return min((file.look_at for file in self._files.values()), default=math.inf)

    def due(self, now: float) -> list[_File]:
        """Return the files whose version must be checked now or soon."""
        return [file for file in self._files.values() if file.look_at <= now + TOGETHER]

    def look(self, found: Found, due: Sequence[_File]) -> None:
        """Read the notices, check the versions of files, and notify their engines."""
        try:
            if self._hear(found):
                with self._lock:
                    files = list(self._files.values())
                for file in files:
                    file.notifier.look(file.version)
            for file in due:
                file.look_at = file.notifier.next_poll(file.poll)
                if file.notifier.is_due(file.poll):
                    file.notifier.look(file.version)
        except Exception as error:  # noqa: BLE001 - without this thread no engine would get notices
            log.failure("warning", "engines look again", error)

    def _hear(self, found: Found) -> bool:
        """Read the notices and notify their files; return whether some may be lost."""
        lost = False
        for key, _ in found:
            if key.data is not None:
                lost |= key.data.hear()
        return lost


def _wakeup() -> tuple[int, int]:
    found = wakeup_descriptors()
    if found is None:
        raise OutOfDescriptors(
            "no engine can start: this process has reached its limit of open files: raise ulimit -n"
        )
    return found
