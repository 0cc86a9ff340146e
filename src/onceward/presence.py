"""Who has a postbox open, as a lock beside its file that the system takes back when a process ends, however it ends."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final

from onceward.errors import Busy

LOOK_EVERY: Final = 0.005


class Presence:
    """
    One opener of a postbox.

    Whoever finds nobody else is ``alone`` and has the lock to itself until it
    says ``share``: others who open meanwhile wait. Closing the file, and the
    death of the process, end it. A database file is never touched: only the
    empty file beside it, whose name ends in ``-run``. Where the system has no
    such lock, nobody is ever alone.
    """

    def __init__(self, path: Path, *, patience: float) -> None:
        self._handle, self.alone = -1, False
        if sys.platform == "win32":
            return
        import fcntl  # noqa: PLC0415 - not everywhere

        self._handle = os.open(f"{path}-run", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + patience
        with suppress(BlockingIOError):
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.alone = True
        while not self.alone:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self.close()
                    msg = f"{path} is being opened by another process that does not come to an end: try again"
                    raise Busy(msg) from None
                Event().wait(LOOK_EVERY)
            else:
                return

    def share(self) -> None:
        """Let others open the postbox too, and go on being there."""
        if sys.platform != "win32" and self._handle >= 0:
            import fcntl  # noqa: PLC0415

            # What is let go for a moment may go to one who opens: it then is alone, as we have handed nothing out yet.
            fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        """Be there no longer."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
