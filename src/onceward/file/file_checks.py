"""
Check identity, holders and file system of a file, and the limit of open files.

POSIX locks belong to the process, not to the handle: closing any descriptor of the file drops the
locks of every connection to it. This module never opens a database file.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from functools import lru_cache
from pathlib import Path
from typing import Final

from onceward.errors import InvalidArgument, NetworkFilesystem, ReadOnlyStore, StoreUnusable
from onceward.file import forks
from onceward.message.clock import monotonic
from onceward.message.error_text import Hint
from onceward.message.ids import new_token

NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "drvfs",
    "afs", "ceph", "glusterfs", "lustre", "davfs",
})  # fmt: skip
MOUNT_FIELDS: Final = 5
SAVED: Final = ".before-"
"""Between the name of a file and the time of the restore that keeps it under this name."""
ESCAPED: Final = re.compile(r"\\([0-7]{3})")
FileKey = tuple[int, int]
"""Device and inode: the identity of a file under all its names."""


def refuse_dangling(path: str | os.PathLike[str]) -> None:
    """Raise StoreUnusable for a dangling link: a new file would hide the loss of the old one."""
    if os.path.islink(path) and not os.path.lexists(os.path.realpath(path)):
        raise StoreUnusable(
            f"{os.fspath(path)} is a link to {os.path.realpath(path)}, which does not exist: "
            "restore the file, or remove the link"
        )


def refuse_no_file(path: str | os.PathLike[str]) -> None:
    """Raise InvalidArgument for a name that SQLite takes for something else than a path."""
    name = os.fspath(path)
    if name in {"", ":memory:"} or (isinstance(name, str) and name.startswith("file:")):
        raise InvalidArgument(
            f"{name!r} is not a path: an agent's messages are kept in a file. Give its path; in a"
            " test use onceward.testing.Harness, which has a file of its own and deletes it"
        )


def canonical(path: str | os.PathLike[str]) -> Path:
    """Return the one path under which a file is opened, with all links resolved."""
    refuse_no_file(path)
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise StoreUnusable(f"{os.fspath(path)!r} is not a path: {error}") from error
    except FileNotFoundError as error:
        msg = f"{os.fspath(path)} is relative to a working folder that was deleted"
        raise StoreUnusable(f"{msg}: give an absolute path") from error


def file_key(path: Path | str) -> FileKey | None:
    """Return device and inode of a file, None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be examined: {error.strerror}") from error
    return found.st_dev, found.st_ino


def litestream_folder(path: Path) -> Path:
    """Return the folder in which Litestream keeps its state of a file."""
    return path.with_name(f".{path.name}-litestream")


def is_replicated(path: Path) -> bool:
    """Return whether Litestream replicates a file, or did so last."""
    return os.path.isdir(litestream_folder(path))


def create_or_check(path: Path, *, allow_network: bool) -> bool:
    """
    Ensure that *path* is or may become a database of ours; return whether it was created.

    A new file gets mode 0600 before SQLite opens it, and its side files inherit that.

    Raises:
        StoreUnusable: no such folder, a hard link, a directory, or a network file system.

    """
    if not path.parent.is_dir():
        raise StoreUnusable(f"folder {path.parent} does not exist: create it first")
    refuse_network(path.parent, allow=allow_network)
    try:
        os.close(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        )
    except FileExistsError:
        _refuse_odd(path)
        return False
    except PermissionError as error:
        raise ReadOnlyStore(f"cannot create {path}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        raise StoreUnusable(f"cannot create {path}: {error}") from error
    sync(path.parent)
    return True


def refuse_left_wal(path: Path) -> None:
    """
    Refuse to create a database whose WAL is there already: SQLite would delete that.

    Raises:
        StoreUnusable: the file was moved or deleted without the WAL, which has its last commits.

    """
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size and not path.exists():
        raise StoreUnusable(
            f"{path} was moved or deleted, and {wal.name} has its last commits, which a new file"
            f" would end: put {path.name} back, or move {wal.name} away"
        )


def _refuse_odd(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnusable(f"{path} is not a regular file")
    if found.st_nlink > 1:
        _refuse_half_restored(path)
        raise StoreUnusable(
            f"{path} has {found.st_nlink} hard links: each would get its own WAL; copy it to a "
            "single name"
        )


def _refuse_half_restored(path: Path) -> None:
    """Refuse a file that a restore has given a second name, and has not replaced."""
    for saved in path.parent.glob(f"{glob.escape(path.name)}{SAVED}*"):
        if saved.samefile(path):
            raise StoreUnusable(
                f"a restore of {path} was interrupted: run it again, with {saved} as the backup to"
                " go back to the old file"
            )


EFFECTIVE: Final = os.access in os.supports_effective_ids


def read_only_part(path: Path) -> str | None:
    """Return the first of a database and its side files that this process may not write to."""
    for name in (str(path), f"{path}-wal", f"{path}-shm"):
        if not _writable(name) and _is_read_only(name):
            return name
    return None


def _writable(name: str) -> bool:
    return os.access(name, os.W_OK, effective_ids=EFFECTIVE)


def _is_read_only(name: str) -> bool:
    """Return whether a file stays without write access: another process may just have made it."""
    found = file_key(name)
    return found is not None and not _writable(name) and file_key(name) == found


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names; do nothing if folders cannot be synced."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder, on a system that cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_network(folder: Path, *, allow: bool, mounts: str = "/proc/self/mountinfo") -> None:
    """Raise NetworkFilesystem if the locks of *folder* are not trusted, unless that is allowed."""
    kind = _recent_filesystem(folder, mounts, int(monotonic()))
    if allow or not (kind in NETWORK or kind == "fuse" or kind.startswith("fuse.")):
        return
    raise NetworkFilesystem(
        f"{folder} is on {kind}, whose locks SQLite cannot trust:"
        f" use a local disk, or {Hint.NETWORK_FILESYSTEM}"
    )


@lru_cache(maxsize=64)
def _recent_filesystem(folder: Path, mounts: str, second: int) -> str:
    """Return the result of ``filesystem``; openings within one second share it."""
    del second
    return filesystem(folder, mounts)


def filesystem(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system that holds *folder*; empty if unknown."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < MOUNT_FIELDS:
            continue
        point = ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        if len(point) >= best and f"{folder}/".startswith(point if point == "/" else f"{point}/"):
            best, kind = len(point), right.split(" ")[0]
    return kind


PROCESS_ID_PARTS: Final = 4


def owner_name() -> str:
    """Return the name of a new owner of leases: this process, and random bits."""
    return f"{process_id()}/{new_token()}"


def process_id(pid: int | None = None) -> str:
    """Return a name of this process that no later process gets; empty if unknown."""
    return _own_process_id(os.getpid()) if pid is None else _process_id_of(pid)


def _process_id_of(pid: int) -> str:
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
        started = _stat(pid)[19]
    except (OSError, IndexError):
        return ""
    return f"{boot_id()[:8]}.{space}.{pid}.{started}"


def _stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _only_unreaped(pid: int) -> bool:
    """Return whether a process has ended but its parent has not read its exit code yet."""
    try:
        told = _stat(pid)
        return told[0] == "Z" and told[17] == "1"  # with more than one thread, the others still run
    except (OSError, IndexError):
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process; False if that is unknown."""
    try:
        return _stat(pid)[0] in {"T", "t"}
    except (OSError, IndexError):
        return False


_own_process_id = lru_cache(maxsize=1)(_process_id_of)
"""A process keeps its mark while it lives; reading it takes a tenth of the time to open a file."""
# a child may get the number of an ancestor that has ended
forks.in_child(_own_process_id.cache_clear)


def is_dead(owner: str) -> bool:
    """Return whether the process of *owner* (mark, slash, token) has certainly ended."""
    mark = owner.partition("/")[0]
    here, parts = process_id().split("."), mark.split(".")
    if not len(here) == len(parts) == PROCESS_ID_PARTS or here[:2] != parts[:2]:
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    there = process_id(int(parts[2]))
    return there not in {"", mark} or _only_unreaped(int(parts[2]))


def is_gone(owner: str) -> bool:
    """Return whether the process of *owner* has ended, or is of another machine or container."""
    here, parts = process_id().split("."), owner.partition("/")[0].split(".")
    if len(parts) != PROCESS_ID_PARTS:
        return False
    return here[:2] != parts[:2] or is_dead(owner)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of the operating system; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


LEFT: Final = (
    "{} is open with sqlite3 in the process that sends this, so only a process of its own agent may"
    " fetch it"
)
"""Why messages and receipts for the agent of a file wait."""
LEFT_GLOB: Final = LEFT.format("*")

DESCRIPTORS: Final = 3
"""Descriptors of an open database: file, WAL and shared memory."""
UNLIMITED: Final = 65_536
"""The limit assumed for a process without a limit, or with a higher one."""


def files_limit() -> int:
    """Return the number of files that this process may have open."""
    return _limits()[0]


def raise_files_limit() -> int:
    """Raise this process's limit of open files as far as allowed, and return it."""
    soft, hard = _limits()
    if soft < hard:
        import resource  # noqa: PLC0415 - not on all platforms

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, most))
    return files_limit()


def _limits() -> tuple[int, int]:
    """Return the soft limit, and the hard limit up to which this process may raise it."""
    try:
        import resource  # noqa: PLC0415 - not on all platforms
    except ImportError:
        return UNLIMITED, UNLIMITED
    soft, hard = (
        UNLIMITED if each == resource.RLIM_INFINITY else min(each, UNLIMITED)
        for each in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def descriptors_left(number: int = DESCRIPTORS + 1) -> bool:
    """Return whether this process can open *number* more files; default: those of a database."""
    taken: list[int] = []
    try:
        for _ in range(number):
            taken.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before an error count
    except OSError:
        return False
    finally:
        for each in taken:
            os.close(each)
    return True
