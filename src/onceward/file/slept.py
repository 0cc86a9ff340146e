"""Tell whether a file has changed while this process had no connection to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

Left = tuple[tuple[int, int, int] | None, ...]
"""Inode, time and size of a database and of its WAL; None for one that is not there."""


class Slept(NamedTuple):
    """A file as it was left when its connection was closed."""

    path: Path
    version: int
    """The number that its last connection had counted."""
    left: Left

    @classmethod
    def at(cls, path: Path, version: int) -> Self:
        """Return how a file is left now."""
        return cls(path, version, _look(path))

    @property
    def version_now(self) -> int:
        """Return the same number while no process changes the file, and others afterwards."""
        now = _look(self.path)
        return self.version if now == self.left else -2 - abs(hash(now))


def _look(path: Path) -> Left:
    return _stat(path), _stat(f"{path}-wal")


def _stat(path: Path | str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
