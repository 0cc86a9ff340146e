"""Tell what keeps an agent from working outside of its file: the disk, or a file in its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onceward.file.file_checks import canonical
from onceward.ops.views.handles import replaced

FULL: Final = 1 << 20
"""Free bytes of a disk below which commits fail, or soon will."""


class Cause(NamedTuple):
    """One thing that keeps an agent from working."""

    reason: str
    text: str
    cure: str


def causes(path: Path) -> tuple[Cause, ...]:
    """Return what keeps the agent of a file from working; the worst first."""
    return tuple(each for each in (taken_place(path), full_disk(path)) if each is not None)


def taken_place(path: Path) -> Cause | None:
    """Return that processes work on the file that had this name before; None if none does."""
    found = replaced()
    pids = found.get(str(canonical(path))) if found else None
    return Cause("replaced", *of_replaced([str(pid) for pid in pids])) if pids else None


def of_replaced(pids: Sequence[str]) -> tuple[str, str]:
    """Return the sentence about processes whose file has lost its name, and the cure."""
    named = f"process{'es' * (len(pids) > 1)} {', '.join(pids)}"
    text = f"{named} work{'s' * (len(pids) == 1)} on a file that was moved, deleted or replaced"
    return text, f"end {named} first: commits there go to the other file, or are lost with it"


def full_disk(path: Path) -> Cause | None:
    """Return that the disk of a file is full; None if it is not, or is not known."""
    try:
        free = free_bytes(path)
    except OSError:
        return None
    if free >= FULL:
        return None
    text = f"the disk of {path.name} is full: {free // 1024} KiB are free, and commits fail"
    return Cause("disk full", text, f"free disk space: df {path}; nothing that was stored is lost")


def free_bytes(path: Path) -> int:
    """Return how many bytes this user can still write to the disk of a file."""
    if os.name == "nt":
        return shutil.disk_usage(path).free
    found = os.statvfs(path)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
