"""
Store bodies as files in the folder ``bodies`` of a home.

A body is written to a draft, made durable, and then gets its name, which is made durable, too. A
crash leaves a draft, or a file of a message that was never committed: ``sweeping`` removes both.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from onceward.features.large_bodies import places
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.directory import directory_path

FOLDER: Final = "bodies"


class Folder:
    """The files of a home, for the agent of one of its databases."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.path = directory_path(Path(db.path)).with_name(FOLDER)
        self._made: set[Path] = set()

    def put(self, name: str, data: bytes) -> None:
        """Write a draft; make it durable under its name."""
        final = self.path / name
        draft = final.parent.with_name(places.DRAFTS) / secrets.token_hex(8)
        try:
            self._make(draft.parent)
            self._make(final.parent)
            self._write(data, draft)
            draft.replace(final)
            self._sync(final.parent)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        try:
            return (self.path / name).read_bytes()
        except NotADirectoryError as error:
            raise FileNotFoundError(name) from error

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def names(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Yield the bodies that an agent has sent, and drafts."""
        for each in _entries(self.path / folder):
            for file in _entries(each.path):
                with suppress(FileNotFoundError):
                    at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
                    yield f"{folder}/{each.name}/{file.name}", at

    def _write(self, data: bytes, draft: Path) -> None:
        """Write a body that the readers of the agent's file may read."""
        mode = self._mode()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        at = self._db.now() / 1000
        os.utime(draft, (at, at))
        self._sync(draft)

    def _mode(self) -> int:
        """Return the mode of the agent's file without its x bits."""
        return Path(self._db.path).stat().st_mode & 0o666

    def _make(self, folder: Path) -> None:
        """Create a folder with those around it, durably; look once for each."""
        if folder in self._made:
            return
        mode = self._mode()
        for each in (self.path, folder.parent, folder):
            each.mkdir(mode | (mode & 0o444) >> 2, exist_ok=True)
            self._sync(each.parent)  # it may be new, and made by a process that was killed since
        self._made.add(folder)

    def _sync(self, path: Path) -> None:
        if self._db.durability == "safe":
            file_checks.sync(path)


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        yield from found
