"""Repair findings of ``onceward doctor`` that leave no choice."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onceward.errors import OncewardError
from onceward.ops.cli.findings import exposed
from onceward.ops.cli.target import open_box


@dataclass(frozen=True, slots=True)
class Change:
    """One change that was or would be made."""

    check: str
    change: str


def mend(path: Path, *, dry_run: bool) -> list[Change]:
    """
    Repair a file, and return each change; with *dry_run* change nothing.

    A file that cannot be opened keeps its leases and positions: the findings say why.
    """
    changes = list(_modes(path, dry_run=dry_run))
    try:
        with open_box(path) as box:
            mended = box.file.repair(dry_run=dry_run)
    except OncewardError:
        return changes
    return changes + [Change(f"{each.kind}s", f"{each.found}: {each.change}") for each in mended]


def _modes(path: Path, *, dry_run: bool) -> Iterator[Change]:
    """Remove file modes that let other users read the messages."""
    for found in exposed(path):
        mode = stat.S_IMODE(found.stat().st_mode)
        kept = mode & stat.S_IRWXU
        if not dry_run:
            found.chmod(kept)
        yield Change("permissions", f"{found.name} {mode:04o}: set to {kept:04o}")
