"""
List the files that this process has open: let quiet ones rest, abandon all in a forked child.

A file that rests has freed its memory, which is returned to the system.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from onceward.errors import ForkedProcess
from onceward.file import file_checks, forks
from onceward.file.file_checks import FileKey, file_key

Name = tuple[FileKey, str]
"""A file and the VFS that it is open through."""
files: dict[Name, Any] = {}
"""Open databases: all their users share one writer, and so one commit."""
lock = forks.new_rlock()
"""Guards this table, and is never held while waiting: a busy file blocks no other."""
inherited: Final = set[FileKey]()
"""Files of the postboxes that were open when this process was forked."""
INHERITED: Final = (
    "{} was open when this process forked: start children by spawn, or fork before opening"
)
REST_PERIOD: Final = 5.0
"""Seconds between two looks: a file rests after one to two of them without a use."""
TRIMMED: Final = 20
"""
Number of files that have rested before the allocator is asked to return their memory.

It is asked sooner once all files rest: a process with fewer of them would keep their memory.
"""
_turns: Final = WeakValueDictionary[Name | Path, Any]()
"""Locks of files that are being created, opened or closed; an unused lock is removed."""


def turn(name: Name | Path) -> Any:
    """Return the lock of one file: a thread holds it to open or close the file, others wait."""
    with lock:
        return _turns.get(name) or _turns.setdefault(name, forks.new_rlock())


def create(path: Path, *, allow_network: bool) -> None:
    """
    Create the file at *path* unless it exists, and check that it may be a database.

    When this returns, no thread holds the descriptor that created the file: closing it later
    would drop the locks of the SQLite connections that have been opened since.

    Raises:
        StoreUnusable: see ``file_checks.create_or_check``.

    """
    with turn(path):
        file_checks.create_or_check(path, allow_network=allow_network)


def use(name: Name) -> Any:
    """Return the open database and count one more user of it; None if it is not open."""
    with lock:
        found = files.get(name)
        if found is None or found.closing:
            return None
        found.users += 1
        return found


def leave(database: Any) -> bool:
    """Count one user less; return whether it was the last one, which must close the file."""
    with lock:
        database.users -= 1
        return bool(database.users == 0)


def retire(database: Any) -> bool:
    """Mark the database as being closed; return False if a thread uses it again."""
    with lock:
        database.closing = database.users == 0
        return bool(database.closing)


def name_of(database: Any) -> Name | None:
    """Return the name under which the database is open."""
    with lock:
        return next((name for name, known in files.items() if known is database), None)


def enter(name: Name, database: Any) -> None:
    """Register the database for other threads of this process, only under its present name."""
    with lock:
        remove(database)
        files[name] = database


def remove(database: Any) -> None:
    """Remove the database from the table."""
    with lock:
        for name in [name for name, known in files.items() if known is database]:
            del files[name]


def of(key: FileKey) -> list[Any]:
    """Return the open databases of a file."""
    return [database for (known, _), database in list(files.items()) if known == key]


def finds(path: Path | str) -> bool:
    """Return whether this process has the file at *path* open."""
    key = file_key(path)
    return key is not None and any(key == known for known, _ in list(files))


def refuse_inherited(path: Path) -> None:
    """Raise ForkedProcess if a postbox of the parent process had the file open at the fork."""
    if file_key(path) in inherited:
        raise ForkedProcess(INHERITED.format(path))


def _hold_all(until: float, later: forks.Later) -> None:
    """Keep all threads but this one from writing; no file waits for another that is in use."""
    for database in sorted(files.values(), key=lambda each: not each.writer.queue.taken):
        database.hold(until, later)


def _leave_to_the_parent() -> None:
    inherited.update(key for (key, _), each in files.items() if each.receivers)
    for database in files.values():
        database.leave_to_the_parent()
    files.clear()
    _turns.clear()


forks.before(_hold_all)
forks.in_child(_leave_to_the_parent)


M_ARENA_MAX: Final = -8
"""Number of the option in glibc's malloc.h."""


class Rests:
    """Counts the files that have rested since their memory was last returned to the system."""

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim, self._rested = trim, 0

    def rest_quiet_files(self) -> float:
        """Let each file rest that was not used since the last look; return the seconds to wait."""
        opened = list(files.values())
        rested = sum(each.rest_if_quiet() for each in opened)
        self._rested += rested
        if self._rested >= TRIMMED or (rested and all(each.rests for each in opened)):
            self._rested = 0
            self._trim()
        return REST_PERIOD

    def rest_again(self, database: Any) -> None:
        """Let a file rest that rested until a short use."""
        database.rest()
        self._rested += 1


def share_heaps() -> None:
    """
    Let the threads of this process share two heaps of glibc; do nothing with another allocator.

    By itself it makes one for each thread, up to eight times the cores, and each keeps what was
    once used in it. It is for a process of our own, before its threads start.
    """
    _tell_glibc("mallopt", M_ARENA_MAX, 2)


def trim() -> None:
    """
    Ask glibc to return free pages to the system; do nothing with another allocator.

    By itself it returns only pages at the end of its heap, and those of 200 files lie in between.
    It takes 10 to 30 ms of another thread's time.
    """
    _tell_glibc("malloc_trim", 0)


def _tell_glibc(function: str, *numbers: int) -> None:
    """Call a function of glibc; do nothing with another allocator."""
    with suppress(ImportError, OSError, TypeError, AttributeError):
        import ctypes  # noqa: PLC0415 - few processes need it

        getattr(ctypes.CDLL(None), function)(*numbers)
