"""Write parcels straight into the recipient's file; the recipient need not be running."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from onceward.db.file_checks import file_key
from onceward.errors import OncewardError, Refused, StoreError, Unreachable, WrongAgent
from onceward.model.parcel import Answer, Parcel
from onceward.transports.base import Accept, Features

SCHEME: Final = "file:"
OPEN_MAX: Final = 128

Opened = tuple[Accept, Callable[[], None]]
"""Functions that deliver a parcel to an open file, and that close it."""


class FileTransport:
    """
    Commits each parcel in one transaction of the recipient's file.

    The peer's file is opened with the peer's own durability and open barrier,
    so a receipt means the same whichever process wrote it.
    """

    features = Features(schemes=frozenset({"file"}))

    def __init__(self, open_file: Callable[[Path, str], Opened]) -> None:
        self._open_file = open_file
        self._open: OrderedDict[Path, Opened] = OrderedDict()
        self._lock = Lock()

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Commit the parcel into the file at *url*.

        Raises:
            Unreachable: there is no such file yet, or other processes hold it.
            Refused: the file belongs to another agent or cannot be used.

        """
        path = Path(url.removeprefix(SCHEME))
        try:
            return self._accept_of(path, parcel.recipient)(parcel)
        except (Refused, Unreachable):
            raise
        except WrongAgent as error:
            raise Refused(str(error)) from error
        except OncewardError as error:
            self._forget(path)
            msg = f"{type(error).__name__}: {error}"
            raise Unreachable(msg) from error

    def _accept_of(self, path: Path, agent: str) -> Accept:
        with self._lock:
            if path in self._open and file_key(path) is not None:
                self._open.move_to_end(path)
                return self._open[path][0]
        if file_key(path) is None:
            self._forget(path)
            msg = f"no file {path}: its agent has not been created yet"
            raise Unreachable(msg)
        self._forget_moved()
        opened = self._open_file(path, agent)
        with self._lock:
            twice, self._open[path] = self._open.get(path), opened
            idle = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - OPEN_MAX)]
        for stale in ([twice] if twice else []) + idle:
            stale[1]()
        return opened[0]

    def _forget_moved(self) -> None:
        """Close files whose names are gone: one of them may be the file under its new name."""
        with self._lock:
            moved = [path for path in self._open if file_key(path) is None]
        for path in moved:
            self._forget(path)

    def _forget(self, path: Path) -> None:
        with self._lock:
            opened = self._open.pop(path, None)
        if opened is not None:
            with suppress(StoreError):
                opened[1]()

    def close(self) -> None:
        """Close every file that was opened to deliver."""
        for path in list(self._open):
            self._forget(path)
