"""How many transactions were committed in the SQLite files of a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

STEPS: Final = 20

COUNT: Final = """
import pathlib, sys
total = 0
for path in pathlib.Path(sys.argv[1]).rglob("*"):
    if path.name.endswith("-shm"):
        total += int.from_bytes(path.read_bytes()[8:12], sys.byteorder)
    elif path.is_file() and path.open("rb").read(16) == b"SQLite format 3\\0":
        total += int.from_bytes(path.read_bytes()[24:28], "big")
print(total)
"""
"""
The counter of commits in the index of each write-ahead log, or else in the header of the file.

A process of its own reads them: closing a file releases the locks that the same process has on it.
"""


def commits(folder: Path) -> int:
    """Return a number that grows by one with each commit in a file of *folder* that is open."""
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", COUNT, str(folder)],
        capture_output=True,
        check=True,
        text=True,
    )
    return int(found.stdout)


def commits_of(step: Callable[[], object], folder: Path) -> float | None:
    """Return how many commits *step* makes in *folder*; None where a server keeps the messages."""
    before = commits(folder)
    for _ in range(STEPS):
        step()
    return (commits(folder) - before) / STEPS or None
