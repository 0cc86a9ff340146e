"""Put a copy in the place of an agent's file, so that a crash at any step loses neither."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Self

from onceward.errors import Busy, StoreUnusable
from onceward.file.file_checks import canonical, sync
from onceward.file.owner_lock import OwnerLock

PARTS: Final = ("", "-wal")
"""The parts of a file that hold messages; the -shm is made anew."""


class Replacement:
    """
    The sole right to the place of a file: no process can open it until the block ends.

    Raises:
        StoreUnusable: a process has the file open.

    """

    def __init__(self, path: Path) -> None:
        self.path = canonical(path)
        try:
            self._lock = OwnerLock(self.path, patience=0.0)
        except Busy as error:
            raise _in_use(path) from error
        if not self._lock.exclusive:
            self._lock.close()
            raise _in_use(path)

    def __enter__(self) -> Self:
        """Return the right itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let processes open the file again."""
        self._lock.close()

    def put(self, copy: Path, saved: Path) -> None:
        """
        Keep the old file, if there is one, as *saved* and put *copy* in its place.

        A WAL beside another file would be written into it. So both parts get their second
        names first, then the file goes, then its WAL, and the copy comes last.
        """
        for suffix in PARTS:
            old, new = Path(f"{self.path}{suffix}"), Path(f"{saved}{suffix}")
            if old.exists():
                _second_name(old, new)
        folder = self.path.parent
        sync(folder)
        for suffix in (*PARTS, "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            sync(folder)
        copy.replace(self.path)
        sync(folder)


def _second_name(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        shutil.copy2(old, new)
        sync(new)


def _in_use(path: Path) -> StoreUnusable:
    cure = "stop every process that has it open, which onceward doctor lists"
    msg = f"{path} is open, or its file system has no locks that tell: {cure}"
    return StoreUnusable(msg)
