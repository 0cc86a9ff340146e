"""Free the memory of open files that nothing uses, and return it to the system."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from onceward.file import open_files

PERIOD: Final = 5.0
"""Seconds between two looks: a file rests after one to two of them without a use."""
TRIMMED: Final = 20
"""Number of files that have rested before the allocator is asked to return their memory."""


class Rests:
    """Counts the files that have rested since their memory was last returned to the system."""

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim, self._rested = trim, 0

    def rest_quiet_files(self) -> float:
        """Let each file rest that was not used since the last look; return the seconds to wait."""
        self._rested += sum(each.rest_if_quiet() for each in list(open_files.files.values()))
        if self._rested >= TRIMMED:
            self._rested = 0
            self._trim()
        return PERIOD

    def rest_again(self, database: Any) -> None:
        """Let a file rest that rested until a short use."""
        database.rest()
        self._rested += 1


def trim() -> None:
    """
    Ask glibc to return free pages to the system; do nothing with another allocator.

    By itself it returns only pages at the end of its heap, and those of 200 files lie in between.
    It takes 10 to 30 ms of another thread's time.
    """
    with suppress(ImportError, OSError, TypeError, AttributeError):
        import ctypes  # noqa: PLC0415 - loaded once much was freed

        ctypes.CDLL(None).malloc_trim(0)
