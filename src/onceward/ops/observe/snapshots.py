"""
Take snapshots of agents' files: the numbers that top, metrics and the inspector show.

A file is read again only if it has changed: size and time of the file and its WAL are checked
first. A snapshot holds moments, not ages, so that it stays valid while nothing changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from onceward.errors import OncewardError
from onceward.file.read_only import opened
from onceward.message.clock import Clock, Millis, SystemClock
from onceward.message.names import DIRECTORY
from onceward.ops.views import waiting
from onceward.ops.views.overview import Overview, overview

SETTLED: Final = 2_000_000_000
"""Nanoseconds after which no second change can have the same time of a file."""
WAIT_FOR: Final = 0.25
"""Seconds to wait for a file that a process recovers or closes."""
UNREAD: Final = "not read yet"
"""Problem of a file that was not read yet."""

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of a file and of its WAL; zeros if missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot:
    """One agent's file at one moment; without numbers if there is a ``problem``."""

    path: Path
    agent: str
    """Agent of the file; the file's name if it cannot be read."""
    taken_at: Millis
    """When it was read; 0 if never."""
    stamp: Stamp = ()
    settled: bool = False
    """Whether a later change would show in the stamp."""
    overview: Overview | None = None
    idle: Callable[[Millis], tuple[str, ...]] = field(default=lambda _: (), compare=False)
    """Returns words for messages that no process handles or delivers at a moment."""
    problem: str | None = None
    """Why the file cannot be read; None if it can."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.stamp[0][1] if self.stamp else 0

    @property
    def wal_bytes(self) -> int:
        """Bytes of its WAL."""
        return self.stamp[1][1] if self.stamp else 0


class Snapshots:
    """
    The snapshots of many files, each read again only when it changed.

    Thread-safe: one thread reads, the others wait for it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[Path, FileSnapshot] = {}
        self._lock = Lock()
        self.reads = 0
        """How many times files have been opened."""

    def take(self, paths: Iterable[Path], within: float | None = None) -> list[FileSnapshot]:
        """
        Return a snapshot of each file, in the order of *paths*.

        After *within* seconds no more files are opened: the others keep their snapshot and are read
        first the next time. At least one file is read.
        """
        files = list(paths)
        with self._lock:
            self._known = {path: self._known[path] for path in files if path in self._known}
            self._refresh(files, within)
            return [self._snapshot(path) for path in files]

    def _refresh(self, files: Sequence[Path], within: float | None) -> None:
        changed = [path for path in files if not self._is_current(path)]
        changed.sort(key=lambda path: self._snapshot(path).taken_at)  # the longest unread first
        end = None if within is None else self._clock.monotonic() + within
        for path in changed:
            self._known[path] = read_snapshot(path, self._clock.now())
            self.reads += 1
            if end is not None and self._clock.monotonic() >= end:
                return

    def _is_current(self, path: Path) -> bool:
        known = self._known.get(path)
        return known is not None and known.settled and known.stamp == stamp_of(path)

    def _snapshot(self, path: Path) -> FileSnapshot:
        unread = FileSnapshot(path=path, agent=path.stem, taken_at=0, problem=UNREAD)
        return self._known.get(path, unread)


def agent_files(places: Iterable[Path]) -> list[Path]:
    """Return the agents' files of folders and files: those of a folder by name, each once."""
    found: dict[Path, None] = {}
    for place in places:
        inside = sorted(place.glob("*.db")) if place.is_dir() else [place]
        found |= dict.fromkeys(path for path in inside if path.name != DIRECTORY)
    return list(found)


def read_snapshot(path: Path, now: Millis) -> FileSnapshot:
    """Return the snapshot of one file; it contains an error instead of raising it."""
    stamp = stamp_of(path)
    settled = all(time.time_ns() - changed > SETTLED for _, _, changed in stamp)
    try:
        with opened(path, wait=WAIT_FOR) as reader:
            reader.hold()
            found = overview(reader)
            idle = partial(waiting.idle, found, *waiting.processes(reader, found, now))
    except (OncewardError, OSError) as error:
        return FileSnapshot(path=path, agent=path.stem, taken_at=now, problem=str(error))
    return FileSnapshot(
        path=path,
        agent=found.file.agent,
        taken_at=now,
        stamp=stamp,
        settled=settled,
        overview=found,
        idle=idle,
    )


def stamp_of(path: Path) -> Stamp:
    """Return the stamp that changes when a file or its WAL is written."""
    return tuple(_stat(f"{path}{suffix}") for suffix in ("", "-wal"))


def _stat(name: str) -> tuple[int, int, int]:
    try:
        found = os.stat(name)  # noqa: PTH116 - checks a thousand files every second
    except OSError:
        return (0, 0, 0)
    if not found.st_size:  # readers also create an empty WAL
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
