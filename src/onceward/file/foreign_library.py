"""
Refuse the standard library's sqlite3 on a file that this process has open.

It has its own SQLite library, which does not know our connections. POSIX locks belong to the
process, so when it closes the file our connections lose their locks, another process may recover
the WAL under them, and returned commits are lost. Other libraries, and ``ATTACH``, raise no event
and are not detected.

Python 3.11 allows one thread at a time to set its trace function. A hook lets another thread run
during that, which then fails with a RuntimeError when it starts. So on 3.11 a process that is
traced, by coverage or a debugger, gets no hook.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from onceward.errors import ForeignHandle, StoreUnusable
from onceward.file import descriptors, open_files

EVENT: Final = "sqlite3.connect"
URI: Final = re.compile(r"file:(?://[^/]*)?(?P<path>[^?#]*)")

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
        with suppress(StoreUnusable, ValueError):  # no file has the name
            if open_files.finds(name):
                break
    else:
        return
    raise ForeignHandle(_explain(name))


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
