"""Write parcels straight into the recipient's file; the recipient need not be running."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from onceward.core.deliver.transport import Features
from onceward.errors import (
    InvalidArgument,
    OncewardError,
    OutOfDescriptors,
    Refused,
    Unreachable,
    WrongAgent,
)
from onceward.file import open_files
from onceward.file.file_checks import descriptors_left, file_key
from onceward.message.names import error_text
from onceward.message.parcel import Answer, Parcel
from onceward.transports.file_slots import Opened, slots

SCHEME: Final = "file:"


class FileTransport:
    """
    Commits each parcel in one transaction of the recipient's file, which stays open.

    The peer's file is opened with the peer's own durability and open barrier,
    so a receipt means the same whichever process wrote it.
    """

    features = Features(schemes=frozenset({"file"}))

    def __init__(self, open_file: Callable[[Path, str], Opened]) -> None:
        self._open_file = open_file

    def check(self, url: str) -> None:
        """Raise InvalidArgument for a url without an absolute path."""
        path = url.removeprefix(SCHEME)
        if not Path(path).is_absolute() or "\0" in path:
            msg = f"{url!r} has no absolute path: write file:/folder/agent.db"
            raise InvalidArgument(msg)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Commit the parcel into the file at *url*.

        Raises:
            Unreachable: there is no such file yet, or other processes hold it.
            Refused: the file belongs to another agent or cannot be used.
            OutOfDescriptors: this process has too many files open; the peer is well.

        """
        path = Path(url.removeprefix(SCHEME))
        if file_key(path) is None:
            slots.forget((self, path))
            msg = f"no file {path}: its agent has not been created yet"
            raise Unreachable(msg)
        try:
            slot = slots.lend((self, path), partial(self._opened, path, parcel.recipient))
            try:
                return slot.opened.accept(parcel)
            finally:
                slots.give_back(slot)
        except (Refused, Unreachable, OutOfDescriptors):
            raise
        except WrongAgent as error:
            raise Refused(str(error)) from error
        except OncewardError as error:
            slots.forget((self, path))
            if not descriptors_left():
                slots.shed()
                raise OutOfDescriptors(str(error)) from error
            msg = error_text(error)
            raise Unreachable(msg) from error

    def _opened(self, path: Path, agent: str) -> Opened:
        if open_files.finds(path):
            self._forget_moved()
        return self._open_file(path, agent)

    def _forget_moved(self) -> None:
        """Close files whose names are gone: one of them is the file under its new name."""
        for path in slots.paths(self):
            if file_key(path) is None:
                slots.forget((self, path))

    def close(self) -> None:
        """Close every file that was opened to deliver."""
        for path in slots.paths(self):
            slots.forget((self, path))
