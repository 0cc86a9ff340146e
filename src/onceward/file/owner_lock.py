"""A lock beside a postbox's file that tells whether other processes have the postbox open."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from threading import Event
from typing import Final

from onceward.errors import Busy

LOOK_EVERY: Final = 0.005


class OwnerLock:
    """
    The share of one opening in the lock of a postbox.

    The first opening is ``exclusive`` until it calls ``share``; openings that
    come meanwhile wait. Closing the file, and the death of the process, end it.
    A database file is never touched: only the empty file beside it, whose name
    ends in ``-run``. Where the system has no such lock, no opening is exclusive.
    """

    def __init__(self, path: Path, *, patience: float) -> None:
        self._handle, self.exclusive = -1, False
        if sys.platform == "win32":
            return
        try:
            self._handle = os.open(f"{path}-run", os.O_RDWR | os.O_CREAT, 0o600)
            self.exclusive = self._locked(alone=True)
            deadline = time.monotonic() + patience
            while not (self.exclusive or self._locked(alone=False)):
                if time.monotonic() >= deadline:
                    self.close()
                    msg = (
                        f"{path} is being opened by another process "
                        "that does not come to an end: try again"
                    )
                    raise Busy(msg)
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

            # Another opening may get the lock in between and be exclusive: nothing was leased yet.
            fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give the lock back."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
