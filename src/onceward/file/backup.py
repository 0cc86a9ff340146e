"""Copy an agent's file while it is used, and replace it with a copy; a crash loses neither."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import apsw

from onceward.errors import Busy, DiskFull, StoreCorrupt, StoreUnusable
from onceward.file import identity, migrations
from onceward.file.connection import BusyHandler, close, raise_meant, translate_error
from onceward.file.file_checks import canonical, sync
from onceward.file.owner_lock import OwnerLock
from onceward.file.read_only import connected
from onceward.message.clock import Millis, monotonic

PATIENCE: Final = 30.0
"""Seconds; a reader of a WAL waits only for a recovery or until the last connection closes."""
SOUND: Final = "PRAGMA integrity_check(1)"
INFO: Final = """
SELECT agent,
       max(clock_at,
           coalesce((SELECT created_at FROM _onceward_outbox ORDER BY seq DESC LIMIT 1), 0),
           coalesce((SELECT received_at FROM _onceward_inbox ORDER BY seq DESC LIMIT 1), 0)),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0), file_id
  FROM _onceward_file_info
"""


class CopyInfo(NamedTuple):
    """The agent of a file, its latest moment, and its last messages in both directions."""

    agent: str
    at: Millis
    sent_upto_seq: int
    received_upto_seq: int
    file_id: str


def copy_file(source: Path, target: Path, *, at_rest: bool = False) -> CopyInfo:
    """
    Copy *source* with its WAL to the new file *target*, durably, as one snapshot.

    Writers of *source* go on. The copy is read and checked. With *at_rest* nothing is created
    beside a *source* without a WAL, such as a backup, and no process may write it.

    Raises:
        FileExistsError: *target* exists; it is unchanged.
        StoreError: *source* cannot be read, is damaged, or is not an agent's file; no copy is left.

    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        _copy(source, target, at_rest=at_rest)
        info = _examined(target, source)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, DiskFull):  # that of the copy: nothing else was written
            raise DiskFull(f"{target}: its disk or quota is full; free space, try again") from error
        raise
    finally:
        for suffix in ("-wal", "-shm", "-journal"):
            Path(f"{target}{suffix}").unlink(missing_ok=True)
    sync(target)
    sync(target.absolute().parent)
    return info


def read_info(path: Path) -> CopyInfo:
    """Return a file's agent; raise StoreError if it cannot be read or is not an agent's file."""
    with _reading(path) as con:
        return _info(con, path)


def read_at_rest(path: Path) -> CopyInfo:
    """
    Return a backup's agent, and leave no file beside it; commits in a WAL are not read.

    Raises:
        StoreError: it cannot be read, or is not an agent's file.

    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    try:
        con = apsw.Connection(uri, flags=flags)
    except apsw.Error as error:
        raise_meant(translate_error(error, path), error)
        raise
    with _closing(con, path):
        return _info(con, path)


@contextmanager
def _closing(con: apsw.Connection, path: Path) -> Iterator[apsw.Connection]:
    """Close a connection after a block, whose errors are raised as those of *path*."""
    try:
        yield con
    except apsw.Error as error:
        raise_meant(translate_error(error, path), error)
        raise
    finally:
        close(con)


@contextmanager
def _reading(path: Path, *, at_rest: bool = False) -> Iterator[apsw.Connection]:
    """Open a file for reading; its first statements wait for other processes for a while."""
    patience = BusyHandler()
    patience.deadline = monotonic() + PATIENCE
    with connected(path, patience, at_rest=at_rest) as con:
        try:
            yield con
        except apsw.Error as error:
            raise_meant(translate_error(error, path), error)
            raise


def _info(con: apsw.Connection, path: Path) -> CopyInfo:
    if not migrations.is_agents(lambda sql, values: con.execute(sql, values).fetchall()):
        raise StoreUnusable(f"{path} is not an agent's file: give the path of one")
    [row] = con.execute(INFO).fetchall()
    return CopyInfo(*row)  # type: ignore[arg-type]  # columns of INFO


def _copy(source: Path, target: Path, *, at_rest: bool) -> None:
    with (
        _reading(source, at_rest=at_rest) as live,
        _closing(apsw.Connection(str(target)), source) as copy,
        copy.backup("main", live, "main") as backup,
    ):
        backup.step(-1)  # all at once: in slices each commit of a writer would restart it


def _examined(target: Path, source: Path) -> CopyInfo:
    """Return the copy's agent; raise StoreError unless it is an undamaged agent's file."""
    with _closing(apsw.Connection(str(target)), source) as con:
        [(verdict,)] = con.execute(SOUND).fetchall()
        if verdict != "ok":
            found = str(verdict).strip()[:200]
            raise StoreCorrupt(f"{source} is damaged: {found}; recover it, or use another file")
        return _info(con, source)


PARTS: Final = ("", "-wal")
"""The parts of a file that hold messages; SQLite rebuilds the -shm."""


class Takeovers(NamedTuple):
    """The takeover that a file comes from, and the one after which it is not used any more."""

    own: str | None = None
    superseded_by: str | None = None


def read_takeovers(path: Path) -> Takeovers:
    """Return the takeovers of a file; raise StoreError if it cannot be read."""
    with _reading(path) as con:
        return Takeovers(*identity.takeovers(con))


def stamp(copy: Path, takeovers: Takeovers) -> None:
    """Store the takeovers of a copy that no process uses yet, durably."""
    with _closing(apsw.Connection(str(copy)), copy) as con:
        identity.stamp(con, *takeovers)
    sync(copy)


class Replacement:
    """
    The exclusive right to the path of a file: no process can open it until the block ends.

    Raises:
        StoreUnusable: a process has the file open.

    """

    def __init__(self, path: Path) -> None:
        self.path = canonical(path)
        try:
            self._lock = OwnerLock(self.path, patience=0.0)
        except Busy as error:
            raise _in_use(path) from error
        if not self._lock.exclusive:
            self._lock.close()
            raise _in_use(path)

    def __enter__(self) -> Self:
        """Return the right itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Allow processes to open the file again."""
        self._lock.close()

    def put(self, copy: Path, saved: Path) -> None:
        """
        Keep the old file, if there is one, as *saved* and replace it with *copy*.

        SQLite would write a leftover WAL into the new file, so the WAL is removed before the copy
        is moved. Both parts get second names first: no process opens a file that has two, so a
        process that finds this half done neither misses the WAL nor creates an empty file. On a
        file system without hard links the file is removed before its WAL.
        """
        for suffix in reversed(PARTS):
            old, new = Path(f"{self.path}{suffix}"), Path(f"{saved}{suffix}")
            if old.exists() and (not suffix or old.stat().st_size):
                _second_name(old, new)
        folder = self.path.parent
        sync(folder)
        linked = saved.exists() and saved.samefile(self.path)
        for suffix in ("-wal", "-shm") if linked else (*PARTS, "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            sync(folder)
        with suppress(OSError):
            os.truncate(f"{self.path}-run", 0)  # its notes are about the old file
        copy.replace(self.path)
        sync(folder)


def _second_name(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        shutil.copy2(old, new)
        sync(new)


def _in_use(path: Path) -> StoreUnusable:
    cure = "stop every process that has it open, which onceward doctor lists"
    msg = f"{path} is open, or its file system has no locks to find that out: {cure}"
    return StoreUnusable(msg)
