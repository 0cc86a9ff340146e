"""Lock a file beside a postbox's file to find out whether other processes have the postbox open."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Event
from typing import Final
from weakref import WeakSet

from onceward.errors import Busy
from onceward.file import descriptors, forks
from onceward.file.file_checks import FileKey
from onceward.message.clock import monotonic

LOOK_EVERY: Final = 0.005
_taken: Final = WeakSet["OwnerLock"]()


class OwnerLock:
    """
    One opening's hold on the lock of a postbox.

    The first opening is ``exclusive`` until it calls ``share``; other openings wait until then.
    Closing the file, or the death of the process, ends it. Only the file beside the database whose
    name ends in ``-run`` is locked, never the database; ``in_flight`` says what it holds. On a
    system without such locks, no opening is exclusive.
    """

    def __init__(self, path: Path, *, patience: float) -> None:
        self._handle, self.exclusive = -1, False
        self._known: tuple[FileKey, ...] = ()
        if sys.platform == "win32":
            return
        _taken.add(self)
        try:
            self._handle = os.open(f"{path}-run", os.O_RDWR | os.O_CREAT, 0o600)
            self._known = descriptors.table.keep(self._handle)
            self.exclusive = self._locked(alone=True)
            deadline = monotonic() + patience
            while not (self.exclusive or self._locked(alone=False)):
                if monotonic() >= deadline:
                    self.close()
                    raise Busy(f"another process is still opening {path}: try again")
                Event().wait(LOOK_EVERY)
        except OSError:  # a file system without such locks
            self.close()

    def _locked(self, *, alone: bool) -> bool:
        """Try to take the lock, *alone* or shared; return whether it was free."""
        import fcntl  # noqa: PLC0415 - not everywhere

        try:
            fcntl.flock(self._handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Share the lock with other openings."""
        if sys.platform != "win32" and self._handle >= 0:
            import fcntl  # noqa: PLC0415 - not everywhere

            # Another opening may get the lock in between and be exclusive: nothing is leased yet.
            fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        """Release the lock."""
        handle, self._handle = self._handle, -1
        descriptors.table.closing(self._known)
        if handle >= 0:
            os.close(handle)


def _leave_to_the_parent() -> None:
    """Close the locks in a forked child: they would outlive the parent, which keeps its own."""
    for each in list(_taken):
        each.close()


forks.in_child(_leave_to_the_parent)
