"""Write files that only their owner may read, completely or not at all."""

from __future__ import annotations

import os
import secrets as randomness
from contextlib import suppress
from pathlib import Path
from typing import Final

from onceward.errors import InvalidArgument
from onceward.file.file_checks import sync

OTHERS: Final = 0o077
"""Bits of a file's mode for other users."""
OTHERS_WRITE: Final = 0o022
FILE_MAX: Final = 4096
"""Maximum bytes of a file that are read."""
Stamp = tuple[int, ...]


def stamp(found: os.stat_result) -> Stamp:
    """Return what changes when a file is written or replaced."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def exposed(found: os.stat_result, folder: Path) -> bool:
    """Return whether other users may read a file or replace it in its folder."""
    return open_to_others(found) or bool(folder.stat().st_mode & OTHERS_WRITE)


def open_to_others(found: os.stat_result) -> bool:
    """Return whether other users may read or write a file; always False on Windows."""
    return os.name != "nt" and bool(found.st_mode & OTHERS)


def write_private(path: Path, text: str, *, replace: bool) -> None:
    """
    Write a file of mode 0600 in one durable step; a crash leaves the new or the old content.

    Its folder is created if missing, but not the home around it.

    Raises:
        FileExistsError: there is such a file, and it must not be replaced.
        InvalidArgument: there is no such home.

    """
    _make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{randomness.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:  # a rename would replace another process's file
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def _make_folder(folder: Path) -> None:
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            sync(folder.parent)
    except FileNotFoundError as error:
        msg = f"there is no folder {folder.parent}: create the home, or correct its name"
        raise InvalidArgument(msg) from error
