"""Find the processes that hold a file open, without opening any database file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from onceward.file.file_checks import canonical
from onceward.message.clock import monotonic

PROC: Final = Path("/proc")
GONE: Final = " (deleted)"
SIDES: Final = ("-wal", "-shm")
LOOK_AGAIN, SHARE = 5.0, 50
"""Seconds after which all processes are looked at again, and the least multiple of one look."""
OURS, OTHER = "apsw", ("_sqlite3", "libsqlite3")
STOPPED: Final = frozenset("Tt")
WRITE_LOCK: Final = "120"
"""Byte of the WAL's index that a writer locks; the file format of SQLite fixes it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file, its WAL or its WAL index open."""

    pid: int
    deleted: bool
    """Whether its file is not the one at this path: that was moved, deleted or replaced."""
    mixed: bool
    """Whether two SQLite libraries are loaded, which drop each other's locks on one file."""
    wal_deleted: bool = False
    """Whether only the WAL, or its index, was deleted: the process can still save its commits."""
    stopped: bool = False
    """Whether a signal or a debugger has stopped it; it keeps its locks."""


def holders(path: Path) -> list[Holder]:
    """Return the other processes that hold *path*; none if the system does not report them."""
    own = str(canonical(path))
    names = (own, f"{own}-wal", f"{own}-shm")
    found = []
    for pid in _processes():
        held = {link for link in _links(pid) if link.removesuffix(GONE) in names}
        if held:
            gone, side = _has_lost(pid, own, held), any(link.endswith(GONE) for link in held)
            found.append(Holder(pid, gone, _mixed(pid), side and not gone, _stopped(pid)))
    return found


class _Look(NamedTuple):
    """The files of which processes hold another file, and when to look again."""

    found: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    until: float = 0.0


_last = [_Look()]


def replaced() -> Mapping[str, tuple[int, ...]]:
    """
    Return processes by the path of a file that they have open, and that has lost that path.

    A look takes long where many processes run, so it is repeated after some seconds only.
    """
    began = monotonic()
    if began >= _last[0].until:
        found: dict[str, tuple[int, ...]] = {}
        for pid in _processes():
            held = {*_links(pid)}
            sides = {link.removesuffix(GONE) for link in held}
            names = {side[:-4] for side in sides if side.endswith(SIDES)}
            for name in names:
                if _has_lost(pid, name, held):
                    found[name] = (*found.get(name, ()), pid)
        now = monotonic()
        _last[0] = _Look(found, now + max(LOOK_AGAIN, SHARE * (now - began)))
    return _last[0].found


def _has_lost(pid: int, name: str, held: Collection[str]) -> bool:
    """Return whether a process that has side files of *name* open has another file by now."""
    return name not in held and name not in {*_links(pid)}  # it may just have opened the file


def writer(path: Path) -> int | None:
    """Return the process that holds the write lock of *path*; None if none does, or unknown."""
    with suppress(OSError):
        held = {holder.pid for holder in holders(path)}
        index = str(Path(f"{canonical(path)}-shm").stat().st_ino)
        for line in (PROC / "locks").read_text(encoding="ascii").splitlines():
            kind, pid, where, first = (line.split()[at] for at in (-5, -4, -3, -2))
            lock = (kind, where.rpartition(":")[2], first)
            if lock == ("WRITE", index, WRITE_LOCK) and int(pid) in held:
                return int(pid)
    return None


def _processes() -> list[int]:
    with suppress(OSError):
        names = {entry.name for entry in PROC.iterdir() if entry.name.isdigit()}
        return sorted({int(name) for name in names} - {os.getpid()})
    return []


def _links(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended, or belongs to another user
        for entry in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                yield str(entry.readlink())


def _mixed(pid: int) -> bool:
    with suppress(OSError):
        text = (PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
        return f"/{OURS}/" in text and any(name in text for name in OTHER)
    return False


def _stopped(pid: int) -> bool:
    with suppress(OSError):
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[0] in STOPPED
    return False
