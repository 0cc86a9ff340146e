"""
Note beside a database how it was left, to find out later that it was restored, moved or copied.

The note is in the file whose name ends in ``-run``, which is not a part of a backup. Each opening
writes it, and each closing that leaves no WAL: then no other process has the database open. It is
not synced: an old note is right, too, because a file that was not restored never goes back.

A database was restored if there is no note (it came from elsewhere), if the note is about another
one, or if it has not come as far as the note says. After a closing it must not have changed. After
a kill it has a WAL, which a restore removes. Where another program has written a closed database,
or removed the WAL of a killed process by opening and closing it, peers are greeted in vain.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from onceward.file.identity import Identity, Reach
from onceward.file.in_flight import HEADERS, KEPT
from onceward.message.clock import monotonic

NOTE: Final = struct.Struct("<4s32sB3xQqqqqq")
MARK: Final = b"owl1"
CLOSES_WITHIN: Final = 0.1
"""Seconds in which a process that has closed the database has noted it."""
LOOK_EVERY: Final = 0.01


class Note(NamedTuple):
    """How the last process left a database."""

    file_id: str
    closed: bool
    """Whether its last connection was closed; else it has a WAL."""
    inode: int
    changed_at: int
    """When the database, without a WAL, was written last, in nanoseconds."""
    size: int
    reach: Reach
    """How far it had come when it was opened."""


def _packed(note: Note) -> bytes:
    *known, reach = note[1:]
    named = note.file_id.encode().ljust(32, b"\0")[:32]
    return NOTE.pack(MARK, named, *known, *reach).ljust(KEPT, b"\0")


def _unpacked(text: bytes) -> Note | None:
    """Return the note; None if there is none."""
    if len(text) < NOTE.size or not text.startswith(MARK):
        return None
    _, named, closed, inode, changed_at, size, *reach = NOTE.unpack_from(text)
    file_id = named.rstrip(b"\0").decode("ascii", "replace")
    return Note(file_id, bool(closed), inode, changed_at, size, Reach(*reach))


class LastSeen:
    """Compares a database with the note beside it, and notes how it is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted = self._text()
        self._left, self._had_wal = self._look()
        self._file_id = ""
        self._reach: Reach | None = None

    def _look(self) -> tuple[tuple[int, int, int], bool]:
        """Return inode, time and size of the database, and whether it has a WAL."""
        has_wal = Path(f"{self._path}-wal").exists()
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0), has_wal
        return (found.st_ino, found.st_mtime_ns, found.st_size), has_wal

    def is_restored(self, found: Identity) -> bool:
        """
        Return whether the database was restored, moved or copied since the last opening.

        *found* is what this opening read. Where no file can be written beside the database, nothing
        is known, and False is returned.
        """
        self._file_id, self._reach = found.file_id, found.reach
        if found.reach.opened == 1:
            return False
        try:
            before = self._read()
        except OSError:
            return False
        return not (before and self._continues(before, found.reach)) and not self._was_in_use()

    def _was_in_use(self) -> bool:
        """
        Return whether another process has noted something since the first look.

        Then it has just opened or closed the database, which the two looks have seen halfway. One
        that closes it writes its note a moment later.
        """
        until = monotonic() + CLOSES_WITHIN
        while self._text() == self._noted:
            if monotonic() >= until:
                return False
            time.sleep(LOOK_EVERY)
        return True

    def _continues(self, before: Note, reach: Reach) -> bool:
        """Return whether the database was left as noted, and has come as far."""
        inode, *_ = self._left
        as_left = before[2:5] == self._left
        if not before.closed:
            as_left = self._had_wal and before.inode == inode
        reached = reach._replace(opened=reach.opened - 1).reaches(before.reach)
        return as_left and reached and before.file_id == self._file_id

    def note(self, *, closed: bool) -> None:
        """Note how the database is left, *closed*: if no process has it open any more."""
        left, has_wal = self._look()
        if self._reach is None or not left[0] or (closed and has_wal):
            return
        with suppress(OSError):
            self._write(Note(self._file_id, closed, *left, self._reach))

    def adopt(self, file_id: str) -> None:
        """Note the database as it is now, so that its next opening greets no peers."""
        self._file_id, self._reach = file_id, Reach(0, 0, 0)
        self.note(closed=not self._had_wal)

    def _read(self) -> Note | None:
        """Return the note; raise OSError if no file can be written beside the database."""
        return _unpacked(self._bytes(os.O_RDWR | os.O_CREAT))

    def _text(self) -> bytes:
        """Return what is noted; nothing if there is no file yet."""
        with suppress(OSError):
            return self._bytes(os.O_RDONLY)
        return b""

    def _bytes(self, flags: int) -> bytes:
        handle = os.open(f"{self._path}-run", flags, 0o600)
        try:
            return os.pread(handle, NOTE.size, HEADERS)
        finally:
            os.close(handle)

    def _write(self, note: Note) -> None:
        handle = os.open(f"{self._path}-run", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, _packed(note), HEADERS)
        finally:
            os.close(handle)
