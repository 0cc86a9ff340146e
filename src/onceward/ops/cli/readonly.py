"""Open the file of a command read-only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from onceward.file import migrations
from onceward.file.read_only import FileReader, opened, opened_any
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.target import existing
from onceward.ops.views.asking import Source

WAIT_FOR: Final = 5.0
"""Seconds. A reader of a WAL waits only for a recovery or the last connection's close."""
Ids = Callable[[Source, str], list[str]]
"""Returns a few ids that start with a text."""


def look(path: Path) -> AbstractContextManager[FileReader]:
    """Open a file of any schema read-only; it is not changed."""
    return opened_any(existing(path), wait=WAIT_FOR)


def views(path: Path) -> AbstractContextManager[FileReader]:
    """Open a file read-only; raise StoreUnusable unless it has the views of this version."""
    return opened(existing(path), wait=WAIT_FOR)


def pending(found: FileReader) -> tuple[migrations.Migration, ...]:
    """Return the schema steps that a file still needs."""
    return migrations.pending(found)


def whole_id(found: FileReader, ids: Ids, prefix: str) -> str:
    """
    Return the one id that starts with *prefix*.

    Raises:
        NothingThere: no id does.
        Usage: several do.

    """
    some = ids(found, prefix)
    if prefix in some:
        return prefix
    if len(some) > 1:
        among = f"{len(some)} or more ids start with {prefix!r}, among them {some[0]} and {some[1]}"
        raise Usage(f"{among}: give more of it")
    if not some:
        msg = f"no id starts with {prefix!r}: see onceward ls outbox, ls inbox and dead ls"
        raise NothingThere(msg)
    return some[0]
