"""Record what the folder of large bodies asks of the disk, in the journal of the databases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.proof.power_cut.disk import Op
from tests.proof.power_cut.recorder import Recorder

from onceward.features.large_bodies import folder
from onceward.file import file_checks
from onceward.testing import ManualClock

SYNC, MKDIR, REPLACE, UNLINK = file_checks.sync, Path.mkdir, Path.replace, Path.unlink


class BodyFiles:
    """The folder of a home, as a store: databases of another file system have no folder."""

    def __init__(self, home: Path, clock: ManualClock) -> None:
        near = SimpleNamespace(
            path=home / "near.db", agent="near", durability="safe", now=clock.now
        )
        self._folder = folder.Folder(near)  # type: ignore[arg-type]  # what it asks of a database

    def put(self, name: str, data: bytes) -> None:
        """Store a body."""
        self._folder.put(name, data)

    def get(self, name: str) -> bytes:
        """Return a body."""
        return self._folder.get(name)

    def delete(self, name: str) -> None:
        """Delete a body."""
        self._folder.delete(name)

    def names(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Yield the names of bodies."""
        return self._folder.names(folder)


class _Draft(BytesIO):
    """A file that is being written; its content reaches the cache when it is closed."""

    def __init__(self, files: _Files, handle: int, inode: int) -> None:
        super().__init__()
        self._files, self._handle, self._inode = files, handle, inode

    def close(self) -> None:
        """Write."""
        if not self.closed:
            os.write(self._handle, self.getvalue())
            os.close(self._handle)
            self._files.log(Op("write", self._inode, data=self.getvalue()))
        super().close()


class _Files:
    """The operating system as the folder of bodies sees it."""

    def __init__(self, recorder: Recorder, home: Path) -> None:
        self._recorder, self._home = recorder, home
        self._opened: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        """Create a file."""
        handle = os.open(path, flags, mode)
        self._opened[handle] = self._recorder.inode(self._name(path), 0)
        return handle

    def fdopen(self, handle: int, _mode: str) -> _Draft:
        """Return a file to write."""
        return _Draft(self, handle, self._opened.pop(handle))

    def log(self, op: Op) -> None:
        """Keep an operation that has been done."""
        with self._recorder.lock:
            self._recorder.log.append(op)

    def mkdir(self, path: Path, *given: Any, **named: Any) -> None:
        """Make a folder."""
        MKDIR(path, *given, **named)
        if self._is_ours(path):
            with self._recorder.lock:
                self._recorder.inode(f"{self._name(path)}/", 0)

    def replace(self, path: Path, target: Path) -> Path:
        """Give a file another name."""
        found = REPLACE(path, target)
        if self._is_ours(path):
            inode = self._recorder.rename(self._name(path), self._name(target))
            self.log(Op("link", inode, self._name(target)))
            self.log(Op("unlink", name=self._name(path)))
        return found

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file."""
        there = path.exists()
        UNLINK(path, missing_ok)
        if there and self._is_ours(path):
            self._recorder.forget(self._name(path))
            self.log(Op("unlink", name=self._name(path)))

    def sync(self, path: Path) -> None:
        """Make a file's content durable, or the names in a folder."""
        SYNC(path)
        if path == self._home:
            self.log(Op("sync-folder", name="bodies/"))
        elif self._is_ours(path) and path.is_dir():
            self.log(Op("sync-folder", name=f"{self._name(path)}/any"))
        elif self._is_ours(path):
            self.log(Op("sync", self._recorder.inode(self._name(path), 0)))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._home).as_posix()

    def _is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self._home / "bodies")


@contextmanager
def recorded(recorder: Recorder | None, home: Path) -> Iterator[None]:
    """Record the files of bodies in a block; without a recorder nothing is recorded."""
    with ExitStack() as stack:
        if recorder is not None:
            files = _Files(recorder, home)
            stack.enter_context(patch.object(folder, "os", files))
            stack.enter_context(patch.object(file_checks, "sync", files.sync))
            for name in ("mkdir", "replace", "unlink"):
                stack.enter_context(patch.object(Path, name, _method(getattr(files, name))))
        yield


def _method(work: Any) -> Any:
    """Return a function, which is bound to a path as a method is."""

    def method(*given: Any, **named: Any) -> Any:
        return work(*given, **named)

    return method
