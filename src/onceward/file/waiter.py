"""Wait for the notifications of a file on the thread that acts on them."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

from onceward.message.clock import monotonic

if TYPE_CHECKING:
    from onceward.file.notify import Direction, Notifier

HAS_POLL: Final = hasattr(select, "poll")
ONE: Final = (1).to_bytes(8, sys.byteorder)
"""Bytes that end a wait: a number for an eventfd, any bytes for a pipe."""
LONGEST: Final = 86_400.0
"""Seconds after which a wait restarts: ``poll`` counts milliseconds in 31 bits."""


class Waiter:
    """
    A flag that notifications of one direction set; one thread waits for it and clears it.

    That thread itself reads the socket of the file and checks the file's version: no other thread
    has to wake it for a commit of another process.
    """

    def __init__(
        self, notifier: Notifier, side: Direction, *, version: Callable[[], int], poll: float
    ) -> None:
        self._notifier, self._side, self._version, self._every = notifier, side, version, poll
        self._flag, self._lock = Event(), Lock()
        self._wakeup = wakeup_descriptors()
        self._waits = self._woken = False
        self._stop_listening = notifier.listen(side, self.set)
        self._poll_at = notifier.next_poll(poll) if poll > 0 else 0.0

    def set(self) -> None:
        """Set the flag, and end the wait for it."""
        with self._lock:
            self._flag.set()
            if self._waits and not self._woken and self._wakeup is not None:
                self._woken = True
                os.write(self._wakeup[1], ONE)

    def clear(self) -> None:
        """Clear the flag; later commits set it again."""
        self._flag.clear()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set; return False if *seconds* pass before that."""
        end = None if seconds is None else monotonic() + seconds
        while not self._flag.is_set():
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                return False
            if self._hear(left):
                break
        return True

    def close(self) -> None:
        """Stop listening; called by the waiting thread."""
        self._stop_listening()
        with self._lock:
            fds, self._wakeup = self._wakeup, None
        for fd in set(fds or ()):
            os.close(fd)

    def _hear(self, seconds: float | None) -> bool:
        """
        Wait for a notification, or until the file's version must be checked, and check it.

        Return whether the wait was ended: another thread may have cleared the flag since.
        """
        if self._every > 0:
            due = max(0.0, self._poll_at - monotonic())
            seconds = due if seconds is None else min(seconds, due)
        if self._wakeup is None:
            ended = self._flag.wait(seconds)
        else:
            ended = self._select(self._wakeup[0], LONGEST if seconds is None else seconds)
        self._poll()
        return ended

    def _poll(self) -> None:
        """Check the file's version if that is due."""
        if self._every > 0 and monotonic() >= self._poll_at:
            self._poll_at = self._notifier.next_poll(self._every)
            if self._notifier.is_due(self._every):
                self._notifier.look(self._version)

    def _select(self, wakeup: int, seconds: float) -> bool:
        """Wait until the flag is set or the socket has data; return whether either happened."""
        with self._lock:
            if self._flag.is_set():
                return True
            self._waits = True
        sock = self._notifier.fileno(self._side)
        ready = select.poll()
        for fd in (wakeup, sock):
            if fd >= 0:
                ready.register(fd, select.POLLIN)
        found = ready.poll(1000 * min(seconds, LONGEST))
        with self._lock:
            self._waits = self._woken = False
            with suppress(BlockingIOError):
                if (wakeup, select.POLLIN) in found:  # ours, or that of a forked child
                    os.read(wakeup, 1024)
        if any(fd == sock for fd, _ in found):
            self._flag.set()  # before the others are notified
            self._notifier.hear(self._side)
        return bool(found)


def wakeup_descriptors() -> tuple[int, int] | None:
    """Return descriptors to wait on and to end the wait; None if the wait must poll."""
    if not HAS_POLL:
        return None
    with suppress(OSError):  # none is left
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return fd, fd
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        return reader, writer
    return None
