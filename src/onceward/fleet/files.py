"""Which files a fleet has, by name and size alone: nothing in here opens a database file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic, iglob
from pathlib import Path
from typing import Final

from onceward.model.names import DIRECTORY

SIDES: Final = ("-wal", "-shm", "-journal")
"""Ends of the names that SQLite gives to its own files beside a database."""


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A file as the file system tells it, together with its WAL."""

    path: str
    size: int
    """Bytes of the file and of its WAL: what a reader reads at most."""
    mark: tuple[int, int, int, int, int]
    """Inode, size and change time of file and WAL: if they are the same, nothing was committed."""


def find(patterns: Iterable[str]) -> list[Found]:
    """
    Return the files of the glob *patterns*, once each, by path; a folder means all its ``*.db``.

    ``**`` is any depth. The directory of a home is no agent's file.

    A file that vanishes meanwhile is left out. Links are followed to the file they
    mean, so that no file is read twice under two names.
    """
    paths = {os.path.realpath(path) for pattern in patterns for path in _named(pattern)}
    return [found for path in sorted(paths) if (found := stat(path)) is not None]


def stat(path: str) -> Found | None:
    """Return what the file system tells of one file now; None where there is none."""
    try:
        main = os.stat(path)
    except OSError:
        return None
    size, changed = 0, 0
    with suppress(OSError):
        wal = os.stat(f"{path}-wal")
        if wal.st_size:  # a reader creates an empty one
            size, changed = wal.st_size, wal.st_mtime_ns
    return Found(
        path, main.st_size + size, (main.st_ino, main.st_size, main.st_mtime_ns, size, changed)
    )


def _named(pattern: str) -> Iterator[str]:
    plain = (
        pattern.removeprefix("file://")
        if pattern.startswith("file:///")
        else pattern.removeprefix("file:")
    )
    if not has_magic(plain) and Path(plain).is_dir():
        plain = os.path.join(plain, "**", "*.db")
    elif not has_magic(plain):
        yield plain
        return
    for path in iglob(plain, recursive=True, include_hidden=False):
        if (
            not path.endswith(SIDES)
            and os.path.basename(path) != DIRECTORY
            and os.path.isfile(path)
        ):
            yield path
