"""Find the descriptors by which this process holds a file, without opening any file."""

from __future__ import annotations

import os
import select
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from onceward.file import forks
from onceward.file.file_checks import FileKey, file_key
from onceward.message.clock import monotonic

MANY: Final = 64
"""Number of descriptors above which one scan serves several openings: it costs a call for each."""
MOMENT: Final = 1.0
"""Seconds for which such a scan is used."""
NEXT: Final = 8
"""Number of lowest free descriptors among which those of a connection that just opened are."""
COUNTED: Final = "/proc/self/fd"
"""The folder whose size is the number of open descriptors, on Linux from version 6.2 on."""
HIGHEST: Final = 4096
"""Descriptors from this number on are listed, not polled."""
SIDE_FILES: Final = ("", "-wal", "-shm")
CLOSED: Final = getattr(select, "POLLNVAL", 0)
"""The state of a polled number that is not an open descriptor."""
Found = tuple[int, str]
"""A descriptor and the name of its file."""


class _Scan(NamedTuple):
    """The files behind the descriptors of this process at one moment."""

    held: Mapping[FileKey, Sequence[int]]
    size: int
    """Number of descriptors."""
    at: float
    asked: int
    """Number of calls of ``forget`` before it began."""


class _OpenNumbers:
    """
    Tell which descriptors of this process are open.

    Listing them takes the system 0.4 µs for each, one poll of all numbers a sixth of that. The
    numbers polled are complete if as many are open as the system counts.
    """

    def __init__(self) -> None:
        self._polled, self._upto = select.poll() if hasattr(select, "poll") else None, 0

    def now(self) -> set[int]:
        """Return the open descriptors; an empty set if the system lists none."""
        return self._poll() or self._list()

    def _poll(self) -> set[int] | None:
        """Return all open descriptors; None if some may be missing."""
        if self._polled is None:
            return None
        try:
            count = os.stat(COUNTED).st_size
            self._watch(count + NEXT)
            upto = self._upto
            states = self._polled.poll(0) if count else ()
        except (OSError, RuntimeError):  # no such count, too many numbers; another thread polls
            return None
        found = set(range(upto)).difference(n for n, state in states if state & CLOSED)
        return found if len(found) == count else None

    def _list(self) -> set[int]:
        try:
            found = set(map(int, os.listdir("/dev/fd")))
        except (OSError, ValueError):
            return set()
        self._watch(max(found, default=0) + 1)
        return found

    def _watch(self, upto: int) -> None:
        """Poll all numbers below *upto*, in the next looks too."""
        if self._polled is not None:
            for number in range(self._upto, min(upto, HIGHEST)):
                self._polled.register(number, 0)
                self._upto = number + 1


class DescriptorTable:
    """
    The files behind the descriptors of this process at the last scan.

    With many descriptors, one scan serves all openings for a short time. A match is checked again,
    so a closed descriptor is never reported. Descriptors of open files of ours are known from their
    opening until they are about to be closed: a scan does not ask for their files.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._asked = clock, 0
        self._scan = _Scan({}, 0, 0.0, 0)
        self._taken = set[int]()
        """Descriptors that were in use at the last scan or have been found in use since."""
        self._ours: dict[FileKey, int] = {}
        self._open = _OpenNumbers()

    def holder(self, path: Path) -> Found | None:
        """Return a descriptor of the database at *path* or of its side files, or None."""
        now, scan = self._clock(), self._scan
        if scan.size < MANY or now - scan.at >= MOMENT or scan.asked != self._asked:
            scan = self._scan = self._look(now)
        for name in (f"{path}{suffix}" for suffix in SIDE_FILES):
            key = file_key(name)
            for number in self._numbers_of(key, scan) if key is not None else ():
                if _key(number) == key:
                    return number, name
        return None

    def forget(self) -> None:
        """Scan again at the next opening: another library is about to open a file."""
        self._asked += 1  # a scan that another thread has begun does not count

    def opened(self, path: Path) -> tuple[FileKey, ...]:
        """
        Remember the descriptors of a database that this thread has just opened; return its keys.

        The system gives the lowest free numbers. One that another thread took is not remembered.
        """
        keys = {key for suffix in SIDE_FILES if (key := file_key(f"{path}{suffix}")) is not None}
        free = (n for n in range(len(self._taken) + NEXT) if n not in self._taken)
        for number in list(islice(free, NEXT)):
            key = _key(number)
            if key is not None:
                self._taken.add(number)
                if key in keys:
                    self._ours[key] = number
        return tuple(keys)

    def keep(self, number: int) -> tuple[FileKey, ...]:
        """Remember a descriptor of ours; return its key for ``closing``."""
        key = _key(number)
        if key is None:
            return ()
        self._ours[key] = number
        return (key,)

    def closing(self, keys: Iterable[FileKey]) -> None:
        """Forget descriptors before they are closed: their numbers may soon be of other files."""
        for key in keys:
            self._ours.pop(key, None)

    def leave_to_the_parent(self) -> None:
        """Forget all descriptors, in a forked child, which has closed some of them."""
        self.forget()
        self._ours.clear()

    def _numbers_of(self, key: FileKey, scan: _Scan) -> Iterable[int]:
        held, ours = scan.held.get(key, ()), self._ours.get(key)
        return held if ours is None else (*held, ours)

    def _look(self, now: float) -> _Scan:
        held: defaultdict[FileKey, list[int]] = defaultdict(list)
        asked, numbers = self._asked, self._open.now()
        for number in numbers - set(self._ours.values()):
            key = _key(number)
            if key is None:  # that of the scan itself, which is free again
                numbers.discard(number)
            else:
                held[key].append(number)
        self._taken = numbers
        return _Scan(held, len(numbers), now, asked)


def _key(number: int) -> FileKey | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


table: Final = DescriptorTable()
"""The descriptors of this process."""

forks.in_child(table.leave_to_the_parent)
