"""Which files this process has open, and what becomes of them in a forked child."""

from __future__ import annotations

import os
from pathlib import Path
from threading import RLock
from typing import Any

from onceward.db.file_checks import FileKey, file_key

files: dict[tuple[FileKey, str], Any] = {}
"""Open databases by file and VFS: all their users share one writer, and so one commit."""
lock = RLock()
inherited: set[FileKey] = set()
"""Files that were open at the fork of this process: SQLite believes to hold locks on them."""


def finds(path: Path | str) -> bool:
    """Return whether this process has the file at *path* open."""
    key = file_key(path)
    return key is not None and any(key == known for known, _ in list(files))


def _leave_to_the_parent() -> None:
    # A forked child must not close the parent's handles, not even when its interpreter ends.
    import ctypes  # noqa: PLC0415 - paid by forks only

    global lock  # noqa: PLW0603 - a thread that the child does not have may hold the old one
    lock = RLock()
    inherited.update(key for key, _ in files)
    for database in files.values():
        for handle in database.connections():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
