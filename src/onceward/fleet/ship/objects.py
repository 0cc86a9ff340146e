"""
Store the objects of a log in a folder or a bucket, each completely or not at all.

The promises of each filesystem:

- local: an object is written to a temporary file, synced and renamed; ``create`` is a hard link,
  which the operating system refuses if the name is taken.
- S3, GCS, ABFS: an object appears when its upload is complete, and listings are up to date
  (strong consistency). pyarrow offers no conditional write there, so processes agree on the
  content of a new object by votes (``agreement``); no clock and no lease is needed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from onceward.errors import InvalidArgument
from onceward.file.buckets import filesystem_at
from onceward.file.file_checks import sync
from onceward.fleet.opening import LogTrouble
from onceward.fleet.ship.agreement import agree

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogUnwritable(LogTrouble):
    """The log cannot be written: the rows stay in the files; fix the named cause, ship again."""

    retryable = True


class LogUnreadable(LogTrouble):
    """The log cannot be read: check its URI, the network and the credentials."""

    retryable = True


class Objects(Protocol):
    """The objects of a log, by their path below its URI."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object; an older one of that name is replaced."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that does not exist; return False if another process did."""
        ...

    def get(self, path: str) -> bytes:
        """Return an object; raise FileNotFoundError if there is none."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all in it, if it is there."""
        ...


class LocalObjects:
    """Objects in a folder of this machine."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def put(self, path: str, data: bytes) -> None:
        """Write, sync and rename: a reader sees the old object or the new one."""
        with _writing(path):
            self._written(path, data).replace(self._base / path)
            sync((self._base / path).parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write and link: the link fails if the name exists."""
        with _writing(path):
            fresh = self._written(path, data)
            try:
                (self._base / path).hardlink_to(fresh)
            except FileExistsError:
                return False
            finally:
                fresh.unlink(missing_ok=True)
            sync((self._base / path).parent)
            return True

    def _written(self, path: str, data: bytes) -> Path:
        target = self._base / path
        _made(target.parent)
        fresh = target.parent / f".{uuid4().hex}.new"
        try:
            with fresh.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        return fresh

    def get(self, path: str) -> bytes:
        """Return the object's bytes."""
        with _reading(path):
            return (self._base / path).read_bytes()

    def size(self, path: str) -> int | None:
        """Return the object's size."""
        with _reading(path), suppress(FileNotFoundError, NotADirectoryError):
            return (self._base / path).stat().st_size
        return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder without those of unfinished writes."""
        found: list[str] = []
        with _reading(folder), suppress(FileNotFoundError, NotADirectoryError):
            found = [path.name for path in (self._base / folder).iterdir()]
        return sorted(name for name in found if not name.startswith("."))

    def remove(self, path: str) -> None:
        """Unlink the object."""
        with _writing(path):
            (self._base / path).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        """Remove the folder and its content."""
        with _writing(folder), suppress(FileNotFoundError):
            shutil.rmtree(self._base / folder)


def _made(folder: Path) -> None:
    """Make a folder that outlives a power cut: the name of each new one is synced in its parent."""
    if folder.is_dir():
        return
    _made(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


class RemoteObjects:
    """Objects in a bucket, by a filesystem of pyarrow."""

    def __init__(self, filesystem: fs.FileSystem, base: str) -> None:
        self._fs, self._base = filesystem, base.rstrip("/")

    def put(self, path: str, data: bytes) -> None:
        """Upload: the object appears when the upload is complete."""
        with _writing(path):
            stream = self._fs.open_output_stream(f"{self._base}/{path}")
            stream.write(data)
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        """Agree with all other processes on the object's content, then write what was agreed."""
        if self.size(path) is not None:
            return False
        digest = hashlib.sha256(data).hexdigest()
        folder, _, name = path.rpartition("/")
        slot = f"{folder}.votes/{name}"
        self.put(f"{slot}/{digest}.draft", data)
        chosen = agree(self, slot, digest)
        with suppress(FileNotFoundError):  # the draft was removed: the number is long past
            self.put(path, data if chosen == digest else self.get(f"{slot}/{chosen}.draft"))
        return chosen == digest

    def get(self, path: str) -> bytes:
        """Return the object's bytes."""
        with _reading(path), self._fs.open_input_stream(f"{self._base}/{path}") as stream:
            data: bytes = stream.read()
        return data

    def size(self, path: str) -> int | None:
        """Return the object's size."""
        with _reading(path):
            info = self._fs.get_file_info(f"{self._base}/{path}")
        return info.size if info.type == fs.FileType.File else None

    def names(self, folder: str) -> list[str]:
        """Return the names that a listing shows."""
        chosen = fs.FileSelector(f"{self._base}/{folder}", allow_not_found=True)
        with _reading(folder):
            return sorted(info.base_name for info in self._fs.get_file_info(chosen))

    def remove(self, path: str) -> None:
        """Delete the object."""
        with _writing(path), suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._base}/{path}")

    def remove_folder(self, folder: str) -> None:
        """Delete what a listing shows, and the mark that pyarrow leaves in the folder's place."""
        with _writing(folder), suppress(FileNotFoundError):
            self._fs.delete_dir(f"{self._base}/{folder}")


def objects_at(uri: str, filesystem: fs.FileSystem | None = None) -> Objects:
    """
    Return the objects of a log at a URI (``s3://``, ``gs://``, ``abfs://``) or in a local folder.

    Raises:
        InvalidArgument: pyarrow cannot read the URI, or it names no folder and no bucket.

    """
    if filesystem is None and uri and ":/" not in uri:
        return LocalObjects(Path(uri).absolute())
    try:
        found, base = (filesystem, uri) if filesystem else filesystem_at(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"{uri!r} is not a place for a log: {error}") from error
    if not base:
        raise InvalidArgument(
            f"{uri!r} is not a place for a log: give a folder, or a bucket such as s3://logs/fleet"
        )
    if isinstance(found, fs.LocalFileSystem):
        return LocalObjects(Path(base).absolute())
    return RemoteObjects(found, base)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Raise LogUnwritable for an error of the filesystem while an object is written."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = "the disk is full" if getattr(error, "errno", 0) in FULL else str(error)
        msg = f"{path} was not written: {why}; it does not count: fix that and ship again"
        raise LogUnwritable(msg) from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise LogUnreadable for an error of the filesystem other than a missing object."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        msg = f"{path} of the log cannot be read: {error}; check its URI and credentials, try again"
        raise LogUnreadable(msg) from error
