"""Find the files of a fleet by name and size, without opening a database file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape, has_magic, iglob
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from onceward.errors import OncewardError
from onceward.message.names import DIRECTORY

BRACES: Final = re.compile(r"\{([^{}]*)\}")
"""Innermost alternatives of a pattern: ``{a,b}``."""
SIDES: Final = ("-wal", "-shm", "-journal", "-run")
"""Ends of the names of the files that SQLite and an open postbox keep beside a database."""


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A file and its WAL, from the file system."""

    path: str
    size: int
    """Bytes of the file and of its WAL: what a reader reads at most."""
    mark: tuple[int, int, int, int, int]
    """Inode, size and change time of file and WAL: if they are the same, nothing was committed."""

    @property
    def wal_size(self) -> int:
        """Bytes of the WAL; none if there is none."""
        return self.mark[3]

    @property
    def changed_ns(self) -> int:
        """When file or WAL last changed."""
        return max(self.mark[2], self.mark[4])


class NoSuchPath(OncewardError):
    """A path or a glob matches nothing: correct it; the message begins like Spark's own."""

    def __init__(self, path: str) -> None:
        self.sentence = f"Path does not exist: {path}. SQLSTATE: 42K03"
        """The message without the condition, which Spark puts before it."""
        super().__init__(f"[PATH_NOT_FOUND] {self.sentence}")
        self.path = path

    def __reduce__(self) -> tuple[type[NoSuchPath], tuple[str]]:
        return NoSuchPath, (self.path,)


class NamesNoFile(OncewardError):
    """A path or a glob matches no agent's file: correct or omit it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} matches no agent's file: correct or omit it")
        self.path = path

    def __reduce__(self) -> tuple[type[NamesNoFile], tuple[str]]:
        return NamesNoFile, (self.path,)


def find(patterns: Iterable[str], *, names: str = "", strict: bool = False) -> list[Found]:
    """
    Return the files of the glob *patterns*, once each, by path; a folder means all its ``*.db``.

    ``**`` is any depth, ``{a,b}`` either of them, and a glob that matches folders only means their
    files. A path that exists is meant itself, whatever its name holds. *names* is a glob for the
    names of files. The directory of a home, and what SQLite or an open postbox keep beside an
    agent's file, are not agents' files, and are skipped even if they are named.

    A file that vanishes in between is skipped. Links are resolved, so that no file is read twice
    under two names.

    Raises:
        NoSuchPath: only if *strict*: a pattern names neither a file nor a folder.

    """
    paths: set[str] = set()
    for pattern in patterns:
        named = [path for one in _spelt_out(pattern) for path in _named(one, names)]
        if strict and not (named or names or _is_there(pattern)):
            raise NoSuchPath(pattern)
        paths.update(map(os.path.realpath, named))
    return [found for path in sorted(paths) if (found := stat(path)) is not None]


def of_each(patterns: Iterable[str]) -> list[Found]:
    """
    Return the files of the glob *patterns* as ``find`` does; each pattern must name a file.

    Files that lie beside agents' files may be named among them, as a shell does for ``home/*.db``.

    Raises:
        NamesNoFile: a path does not exist, a folder is empty, or a glob matches nothing; or only
            what is kept beside agents' files is named.

    """
    files: dict[str, Found] = {}
    beside = ""
    for pattern in patterns:
        found = find([pattern])
        if not found and not _is_beside(_local(pattern)):
            raise NamesNoFile(pattern)
        beside = beside if found else pattern
        files |= {one.path: one for one in found}
    if beside and not files:
        raise NamesNoFile(beside)
    return [files[path] for path in sorted(files)]


def check(patterns: Iterable[str]) -> None:
    """Raise NoSuchPath for a path that does not exist; a glob may match later."""
    for pattern in patterns:
        if not _is_there(pattern) and not (has_magic(pattern) or BRACES.search(pattern)):
            raise NoSuchPath(pattern)


def stat(path: str) -> Found | None:
    """Return the current file system facts of one file; None if there is none."""
    try:
        main = os.stat(path)
    except OSError:
        return None
    size, changed = 0, 0
    with suppress(OSError):
        wal = os.stat(f"{path}-wal")
        if wal.st_size:  # a reader creates an empty one
            size, changed = wal.st_size, wal.st_mtime_ns
    return Found(
        path, main.st_size + size, (main.st_ino, main.st_size, main.st_mtime_ns, size, changed)
    )


def _is_there(pattern: str) -> bool:
    return any(os.path.exists(path) for path in _spelt_out(pattern))


def _spelt_out(pattern: str) -> list[str]:
    """Return the local paths of a pattern with braces; an existing path is taken literally."""
    local = _local(pattern)
    if os.path.exists(local):
        return [local]
    found = BRACES.search(local)
    if found is None:
        return [local]
    head, tail = local[: found.start()], local[found.end() :]
    return [path for one in found[1].split(",") for path in _spelt_out(f"{head}{one}{tail}")]


def _local(pattern: str) -> str:
    if not pattern.startswith("file:"):
        return pattern
    plain = pattern.removeprefix("file:")
    plain = plain.removeprefix("//") if plain.startswith("///") else plain
    return plain if "%" not in plain or os.path.exists(plain) else unquote(plain)


def _named(path: str, names: str) -> Iterator[str]:
    if os.path.isdir(path):
        yield from _inside(path, names)
    elif os.path.exists(path):
        yield from () if _is_beside(path) else (path,)
    elif has_magic(path):
        found = list(_globbed(path))
        files = [one for one in found if _may_be_agents(one, names)]
        yield from files or (file for folder in found for file in _inside(folder, names))


def _is_beside(path: str) -> bool:
    """Return whether a file is a home's directory, or one that is kept beside an agent's file."""
    if os.path.basename(path) == DIRECTORY:
        return os.path.isfile(path)
    return any(path.endswith(end) and os.path.isfile(path.removesuffix(end)) for end in SIDES)


def _inside(folder: str, names: str) -> Iterator[str]:
    every = os.path.join(escape(folder), "**", "*" if names else "*.db")
    return (path for path in _globbed(every) if _may_be_agents(path, names))


def _globbed(pattern: str) -> Iterator[str]:
    """Yield the matches of a glob; below ``**`` each folder is entered once, despite links."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from iglob(pattern)
        return
    at = parts.index("**")
    rest = parts[at + 1 :] or ("*",)
    for root in _globbed(os.path.join(".", *parts[:at])):
        for folder in _folders(root):
            yield from _globbed(os.path.join(escape(folder), *rest))


def _folders(root: str) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    left = [root]
    while left:
        folder = left.pop()
        with suppress(OSError):
            found = os.stat(folder)
            with os.scandir(folder) as entries:
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
                left += [one.path for one in entries if _is_open_folder(one)]
            yield folder


def _is_open_folder(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".")
    return not (hidden or entry.is_file(follow_symlinks=False)) and os.path.isdir(entry.path)


def _may_be_agents(path: str, names: str) -> bool:
    name = os.path.basename(path)
    return (
        not path.endswith(SIDES)
        and name != DIRECTORY
        and (not names or fnmatchcase(name, names))
        and os.path.isfile(path)
    )
