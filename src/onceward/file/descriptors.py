"""Find the descriptors by which this process holds a file, without opening any file."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onceward.file.file_checks import FileKey, file_key

MANY: Final = 64
"""Number of descriptors above which one scan serves several openings: it costs a call for each."""
MOMENT: Final = 1.0
"""Seconds for which such a scan is used."""
SIDE_FILES: Final = ("", "-wal", "-shm")
Found = tuple[int, str]
"""A descriptor and the name of its file."""


class DescriptorTable:
    """
    The files behind the descriptors of this process at the last scan.

    With many descriptors, one scan serves all openings for a short time. A match is checked again,
    so a closed descriptor is never reported.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_at = clock, 0.0
        self._count = 0
        self._held: dict[FileKey, list[int]] = {}

    def holder(self, path: Path) -> Found | None:
        """Return a descriptor of the database at *path* or of its side files, or None."""
        now = self._clock()
        if self._count < MANY or now - self._looked_at >= MOMENT:
            self._look(now)
        for name in (f"{path}{suffix}" for suffix in SIDE_FILES):
            key = file_key(name)
            for number in self._held.get(key, ()) if key is not None else ():
                if _key(number) == key:
                    return number, name
        return None

    def forget(self) -> None:
        """Scan again at the next opening: another library is about to open a file."""
        self._count = 0

    def _look(self, now: float) -> None:
        held: defaultdict[FileKey, list[int]] = defaultdict(list)
        numbers = _numbers()
        for number in numbers:
            key = _key(number)
            if key is not None:
                held[key].append(number)
        self._held, self._count, self._looked_at = held, len(numbers), now


def _key(number: int) -> FileKey | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _numbers() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]
    except OSError:
        return []


table: Final = DescriptorTable()
"""The descriptors of this process."""
