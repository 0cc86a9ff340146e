"""
Read what Litestream keeps beside a file that it replicates.

The folder of shop.db is .shop.db-litestream. Version 0.3 keeps the copied WALs in
generations/NAME/wal, NAME being the text of the file generation, and removes those that its slowest
replica has, except the last. Version 0.5 keeps copied transactions in ltx/0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from onceward.file.file_checks import litestream_folder
from onceward.message.clock import Millis

KEPT: Final = 3
"""WALs that version 0.3 keeps while its replicas follow."""


class Copied(NamedTuple):
    """One copied part of a WAL."""

    name: str
    size: int
    at: Millis


def copies(path: Path) -> list[Copied]:
    """Return the kept parts, the oldest first; empty before the first copy."""
    return sorted(_copies(litestream_folder(path)))


def _copies(state: Path) -> Iterator[Copied]:
    for part in (*_wals(state), *state.glob("ltx/0/*.ltx")):
        try:
            found = part.stat()
        except FileNotFoundError:  # removed since
            continue
        yield Copied(part.name, found.st_size, found.st_mtime_ns // 1_000_000)


def _wals(state: Path) -> Iterator[Path]:
    try:
        generation = (state / "generation").read_text().strip()
    except OSError:  # version 0.5 has none
        return iter(())
    return (state / "generations" / generation / "wal").glob("*.wal")


def unconfirmed_since(found: list[Copied]) -> Millis | None:
    """Return since when replicas have confirmed nothing; None if they follow, or none can say."""
    wals = [each for each in found if each.name.endswith(".wal")]
    return wals[1].at if len(wals) > KEPT else None


def url_of(source: Path) -> str | None:
    """Return the URL of a folder that is a replica; None for another folder."""
    if any((source / name).is_dir() for name in ("generations", "ltx")):
        return f"file://{quote(str(source.absolute()))}"
    return None
