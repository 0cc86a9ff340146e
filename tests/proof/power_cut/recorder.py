"""Record what is asked of the disk by an SQLite VFS that passes everything on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from threading import RLock
from typing import Any, Final

import apsw
from tests.proof.power_cut.disk import Disk, Op

MADE: Final = count(1)
SIDE: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
MAIN: Final = apsw.SQLITE_OPEN_MAIN_DB


class Recorder(apsw.VFS):
    """
    Writes what SQLite asks of the disk to ``log``, in order, once it has been done.

    The files are real ones in the folder in which *disk* has been laid out.
    Shared memory passes by unseen: no power cut leaves any of it.
    """

    def __init__(self, disk: Disk, seed: int) -> None:
        self.name = f"onceward-recorder-{next(MADE)}"
        self.log: list[Op] = []
        self._names = disk.present()
        self._inodes = count(max(disk.inodes, default=0) + 1)
        self._rng = Random(seed)
        # The default file system is where SQLite takes its randomness from.
        self.base = apsw.vfs_names()[0]
        self.lock = RLock()
        """Held from an operation until it is in the log: that is its order, for all threads."""
        super().__init__(self.name, self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> RecordedFile:  # noqa: N802 - SQLite's name
        """Open a file whose operations are kept."""
        with self.lock:
            return RecordedFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name and order
        """Delete a file; its name is gone for good once its folder has been synced."""
        name = Path(filename).name
        with self.lock:
            super().xDelete(filename, syncdir)
            if self._names.pop(name, None) is not None:
                self.log.append(Op("unlink", name=name))
            if syncdir:
                self.log.append(Op("sync-folder", name=name))

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802 - SQLite's name
        """Return the same salts in every run."""
        return self._rng.randbytes(numbytes)

    def inode(self, name: str, flags: int) -> int:
        """Return the inode of a file that was just opened, new or not."""
        if name not in self._names:
            self._names[name] = next(self._inodes)
            self.log.append(Op("link", self._names[name], name))
            if flags & MAIN:  # it was made, and its name synced, before SQLite saw it
                self.log.append(Op("sync-folder", name=name))
        return self._names[name]

    def rename(self, old: str, new: str) -> int:
        """Give a file another name; return its inode."""
        self._names[new] = self._names.pop(old)
        return self._names[new]

    def forget(self, name: str) -> None:
        """Forget the name of a file."""
        self._names.pop(name, None)


class RecordedFile(apsw.VFSFile):
    """An open file, whose name may be gone or be another file's by now."""

    def __init__(self, recorder: Recorder, name: Any, flags: list[int]) -> None:
        super().__init__(recorder.base, name, flags)
        self._log, self._lock = recorder.log, recorder.lock
        self._name = Path(
            name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        ).name
        self._inode = (
            recorder.inode(self._name, flags[0])
            if self._name and not flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE
            else 0
        )
        # SQLite syncs the folder with the first sync of a journal or WAL that it opened.
        self._folder_unsynced = bool(flags[0] & SIDE)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        """Write, and keep what was written."""
        with self._lock:
            super().xWrite(data, offset)
            if self._inode:
                self._log.append(Op("write", self._inode, at=offset, data=bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        """Truncate, and keep to what size."""
        with self._lock:
            super().xTruncate(newsize)
            if self._inode:
                self._log.append(Op("truncate", self._inode, at=newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Sync, and keep that everything so far is durable."""
        with self._lock:
            super().xSync(flags)
            if self._inode:
                self._log.append(Op("sync", self._inode))
                if self._folder_unsynced:
                    self._folder_unsynced = False
                    self._log.append(Op("sync-folder", name=self._name))


@contextmanager
def recording(disk: Disk, seed: int) -> Iterator[Recorder]:
    """Remember what happens to *disk* through the file system that is handed out."""
    recorder = Recorder(disk, seed)
    apsw.randomness(0)
    try:
        yield recorder
    finally:
        recorder.unregister()
