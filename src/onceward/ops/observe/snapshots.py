"""
Take snapshots of agents' files: the numbers that top, metrics and the inspector show.

A file is read again only when it changed: size and time of the file and of its WAL are
looked at first. A snapshot holds moments, not ages, so that it stays true while nothing
changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Final, NamedTuple

from onceward.errors import OncewardError
from onceward.message.clock import Clock, Millis, SystemClock
from onceward.message.names import DIRECTORY
from onceward.ops.observe import queries
from onceward.ops.observe.reading import Rows, reading

SETTLED: Final = 2_000_000_000
"""Nanoseconds after which no second change can bear the same time of a file."""
PEERS: Final = 1000
"""Most peers of a file whose backlog is read."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
UNREAD: Final = "not read yet"
"""Problem of a file whose turn has not come."""

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot:
    """The numbers of one agent's file at one moment; all are empty where ``problem`` says why."""

    path: Path
    agent: str
    """Agent whose file it is; the name of the file where it cannot be read."""
    taken_at: Millis
    """When it was read; 0 where it never was."""
    problem: str | None = None
    """Why the file cannot be read, None where it can."""
    durability: str = ""
    paused_at: Millis | None = None
    stats: Mapping[str, int]
    """The columns of ``onceward_stats``."""
    file_bytes: int = 0
    wal_bytes: int = 0
    outbox: tuple[tuple[str, Millis], ...] = ()
    """Each peer with messages that may be pushed now, and since when the oldest waits."""
    inbox_oldest_at: Millis | None = None
    """Since when the oldest message of the inbox waits or is handled."""
    breakers_open: int = 0
    peers_failing: int = 0
    """Peers whose breaker is not closed, or that failed three times in a row."""
    lanes_leased: int = 0
    lanes_waiting: int = 0
    """Lanes that rest until a moment: after a failure, or for a debounce."""
    lanes_failing: int = 0
    """Leased or resting lanes whose oldest message was attempted more than once."""
    lease_ends_at: Millis | None = None
    """When the first of the leases ends; a moment in the past is one that no worker took over."""
    runs_open: int = 0
    calls_left: int = 0
    """Calls of aborted runs that have not returned."""
    run_queue: int = 0
    """Messages that wait for a run of their session."""

    @property
    def outbox_oldest_at(self) -> Millis | None:
        """Since when the oldest message of the outbox waits that may be pushed now."""
        return min((at for _, at in self.outbox), default=None)


class _Known(NamedTuple):
    """The last reading of a file, and whether the same stamp means the same content."""

    stamp: Stamp
    settled: bool
    snapshot: FileSnapshot


class Snapshots:
    """
    The snapshots of many files, each read again only when it changed.

    Safe to use from several threads: one reads, the others wait for it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[Path, _Known] = {}
        self._lock = Lock()
        self.reads = 0
        """How many times a file was opened so far."""

    def take(self, paths: Iterable[Path], within: float | None = None) -> list[FileSnapshot]:
        """
        Return a snapshot of each file, in the order of *paths*.

        After *within* seconds no further file is opened: the others keep the snapshot that
        they had and are read first the next time. At least one file is read.
        """
        files = list(paths)
        with self._lock:
            self._known = {path: self._known[path] for path in files if path in self._known}
            self._refresh(files, within)
            return [self._snapshot(path) for path in files]

    def _refresh(self, files: Sequence[Path], within: float | None) -> None:
        stamps = {path: _stamp(path) for path in files}
        changed = [path for path in files if not self._is_current(path, stamps[path])]
        changed.sort(key=lambda path: self._snapshot(path).taken_at)  # the longest unread first
        end = None if within is None else self._clock.monotonic() + within
        for path in changed:
            found = read_snapshot(path, self._clock.now())
            self.reads += 1
            settled = found.problem is None and _is_settled(stamps[path])
            self._known[path] = _Known(stamps[path], settled, found)
            if end is not None and self._clock.monotonic() >= end:
                return

    def _is_current(self, path: Path, stamp: Stamp) -> bool:
        known = self._known.get(path)
        return known is not None and known.settled and known.stamp == stamp

    def _snapshot(self, path: Path) -> FileSnapshot:
        known = self._known.get(path)
        return _unread(path, 0, UNREAD) if known is None else known.snapshot


def agent_files(places: Iterable[Path]) -> list[Path]:
    """Return the agents' files of folders and files: those of a folder by name, each once."""
    found: dict[Path, None] = {}
    for place in places:
        inside = sorted(place.glob("*.db")) if place.is_dir() else [place]
        found |= dict.fromkeys(path for path in inside if path.name != DIRECTORY)
    return list(found)


def read_snapshot(path: Path, now: Millis) -> FileSnapshot:
    """Return the snapshot of one file; an error is told in it and not raised."""
    try:
        with reading(path) as rows:
            return _read(path, now, rows)
    except (OncewardError, OSError) as error:
        return _unread(path, now, str(error))


def _read(path: Path, now: Millis, rows: Rows) -> FileSnapshot:
    [(agent, durability, paused_at)] = rows(queries.FILE)
    [breakers] = rows(queries.PEERS)
    [lanes] = rows(queries.LANES)
    [runs] = rows(queries.RUNS)
    names = [str(name) for (name,) in rows(queries.STATS_COLUMNS)]
    [numbers] = rows(queries.STATS)
    backlog = rows(queries.BACKLOG, (PEERS + 1,))  # the inbox has a row, too
    return FileSnapshot(
        path=path,
        agent=agent,
        taken_at=now,
        durability=durability,
        paused_at=paused_at,
        stats=MappingProxyType(dict(zip(names, numbers, strict=True))),
        file_bytes=_size(str(path)),
        wal_bytes=_size(f"{path}-wal"),
        outbox=tuple((peer, at) for box, peer, at in backlog if box == "outbox" and at is not None),
        inbox_oldest_at=next(at for box, _, at in backlog if box == "inbox"),
        breakers_open=breakers[0],
        peers_failing=breakers[1],
        lanes_leased=lanes[0],
        lanes_waiting=lanes[1],
        lanes_failing=lanes[2],
        lease_ends_at=lanes[3],
        runs_open=runs[0],
        calls_left=runs[1],
        run_queue=runs[2],
    )


def _unread(path: Path, now: Millis, problem: str) -> FileSnapshot:
    return FileSnapshot(path=path, agent=path.stem, taken_at=now, problem=problem, stats=NOTHING)


def _stamp(path: Path) -> Stamp:
    """Return what changes when a file is written: of the file and of its WAL."""
    return tuple(_stat(f"{path}{suffix}") for suffix in ("", "-wal"))


def _is_settled(stamp: Stamp) -> bool:
    """Return whether a later change would show in the stamp."""
    now = time.time_ns()
    return all(now - changed > SETTLED for _, _, changed in stamp)


def _stat(name: str) -> tuple[int, int, int]:
    try:
        found = os.stat(name)  # noqa: PTH116 - a thousand files are looked at every second
    except OSError:
        return (0, 0, 0)
    if not found.st_size:  # readers make an empty WAL, too
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _size(name: str) -> int:
    try:
        return os.stat(name).st_size  # noqa: PTH116 - as above
    except OSError:
        return 0
