"""Files of a simulated world: where they lie, and how they are copied and put back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import apsw

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


def folder() -> Path | None:
    """Return where folders in memory are made, or None; no simulated world loses power."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def copy(path: Path, to: Path) -> None:
    """Back a file up as SQLite does, while others may have it open."""
    to.unlink(missing_ok=True)
    source, target = apsw.Connection(str(path)), apsw.Connection(str(to))
    with target.backup("main", source, "main") as backup:
        backup.step()
    target.close()
    source.close()


def replace(path: Path, backup: Path) -> None:
    """Replace a file that no process has open by a backup."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(backup, path)
