"""Tell how many files this process may open, and whether one more database can be opened."""

from __future__ import annotations

import os
from typing import Final

DESCRIPTORS: Final = 3
"""Descriptors of an open database: file, WAL and shared memory."""
UNLIMITED: Final = 65_536
"""The limit of a process that has none, or a higher one, as far as it is used."""


def files_limit() -> int:
    """Return the number of files that this process may have open."""
    return _limits()[0]


def raise_files_limit() -> int:
    """Raise this process's limit of open files as far as it may, and return it."""
    soft, hard = _limits()
    if soft < hard:
        import resource  # noqa: PLC0415 - not on all platforms

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, most))
    return files_limit()


def _limits() -> tuple[int, int]:
    """Return the limit that holds, and the one up to which this process may raise it."""
    try:
        import resource  # noqa: PLC0415 - not on all platforms
    except ImportError:
        return UNLIMITED, UNLIMITED
    soft, hard = (
        UNLIMITED if each == resource.RLIM_INFINITY else min(each, UNLIMITED)
        for each in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def descriptors_left(number: int = DESCRIPTORS + 1) -> bool:
    """Return whether this process can open *number* more files; default: those of a database."""
    taken: list[int] = []
    try:
        for _ in range(number):
            taken.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before an error count
    except OSError:
        return False
    finally:
        for each in taken:
            os.close(each)
    return True
