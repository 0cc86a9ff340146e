"""
Refuse the standard library's sqlite3 on a file that this process has open.

It has its own SQLite library, which does not know our connections. POSIX locks belong to the
process, so when it closes the file our connections lose their locks, another process may recover
the WAL under them, and returned commits are lost. Other libraries, and ``ATTACH``, raise no event
and are not detected.

A file that is open here for deliveries only is left to sqlite3: before it connects, the file is
closed, and this process opens it for no later delivery. The order: note the file, wait for an
opening that has begun, close, connect. An opening looks at the note when it has the file's turn.

Python 3.11 allows one thread at a time to set its trace function. A hook lets another thread run
during that, which then fails with a RuntimeError when it starts. So on 3.11 a process that is
traced, by coverage or a debugger, gets no hook.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from onceward.errors import ForeignHandle, StoreUnusable
from onceward.file import descriptors, open_files
from onceward.file.file_checks import FileKey, file_key
from onceward.message.clock import monotonic

EVENT: Final = "sqlite3.connect"
URI: Final = re.compile(r"file:(?://[^/]*)?(?P<path>[^?#]*)")

PATIENCE: Final = 5.0
"""Seconds that sqlite3 waits until a delivery to its file has ended."""
SEEN_FOR: Final = 60.0
"""Seconds for which a file counts as another library's after its descriptor was seen."""
NOTED_MAX: Final = 10_000
"""Maximum files that are remembered."""

theirs: Final = dict[str, tuple[FileKey, float]]()
"""Files that another library has opened in this process: by path, which file, and until when."""
releasing: Final = list[Callable[[FileKey], None]]()
"""Functions that close a file, or have its last delivery close it."""
_installed = False


def install_hook() -> None:
    """
    Install the audit hook, once per process, unless ``ends_threads``; it cannot be removed.

    Every other event of the interpreter (an import, an open file) costs one comparison, 0.2 µs.
    """
    global _installed  # noqa: PLW0603 - one hook per process, installed on first use
    if not (_installed or ends_threads()):
        _installed = True
        sys.addaudithook(_refuse_open_file)


def ends_threads() -> bool:
    """Return whether an audit hook in Python would end threads of this process at random."""
    if sys.version_info >= (3, 12):
        return False
    return sys.gettrace() is not None or threading.gettrace() is not None


def _refuse_open_file(event: str, args: tuple[Any, ...]) -> None:
    if event != EVENT:
        return
    descriptors.table.forget()
    for name in _paths(args[0]):
        key = None
        with suppress(StoreUnusable, ValueError):  # no file has the name
            key = file_key(name)
        if key is not None and not _leave(os.path.realpath(name), key):
            raise ForeignHandle(_explain(name))


def note(path: str, key: FileKey, until: float) -> None:
    """Remember that another library has a file open in this process."""
    path = os.path.realpath(path)
    if len(theirs) >= NOTED_MAX:
        theirs.pop(next(iter(theirs)), None)
    theirs[path] = key, until


def has(path: str | os.PathLike[str]) -> bool:
    """Return whether another library has opened the file in this process, and may do so again."""
    real = os.path.realpath(path)
    key, until = theirs.get(real, (None, 0.0))
    return key is not None and monotonic() < until and key == file_key(real)


def _leave(real: str, key: FileKey) -> bool:
    """Leave a file to sqlite3; return False if a postbox has it open here."""
    note(real, key, math.inf)
    deadline = monotonic() + PATIENCE
    turn = open_files.turn((key, ""))
    while turn.acquire(timeout=max(0.0, deadline - monotonic())):  # none opens or closes it now
        found = open_files.of(key)
        turn.release()
        if not found:
            return True
        if not all(each.only_takes_parcels for each in found) or monotonic() > deadline:
            break
        for release in releasing:
            release(key)
        time.sleep(0.001)
    theirs.pop(real, None)
    return False


def _paths(database: object) -> Iterator[str]:
    """Yield the paths that *database* may mean: itself and, if it is a URI, its path."""
    with suppress(TypeError):  # sqlite3 raises its own error
        name = os.fsdecode(database)  # type: ignore[arg-type]  # checked by the call
        yield name
        if (uri := URI.match(name)) is not None:
            yield os.fsdecode(unquote_to_bytes(uri["path"]))


def _explain(name: str) -> str:
    return (
        f"{name} is open as a postbox in this process: sqlite3, a second SQLite library, would drop"
        " its locks and lose commits; use Postbox.query() and begin(), or sqlite3 in another"
        " process"
    )
