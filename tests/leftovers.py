"""
Check the files that a test leaves.

A connection takes longer to read the schema of a file, and to prepare the checks, than to run them.
Most files of tests have the schema of a ready-made one: their bytes are put where a connection that
knows this schema reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.api.features import rules
from onceward.errors import OncewardError
from onceward.features.checks import invariants
from onceward.file.connection import close, connect
from onceward.file.read_only import FileReader, opened

HEADER: Final = 72
"""Bytes of a database file up to the end of its application id."""
PAGE: Final = 4096
FIRST: Final = 100
"""Bytes of the file's header on its first page."""
JOURNALED: Final = b"\1\1"
"""Says at offset 18 that the file has no WAL."""
COOKIE: Final = slice(40, 44)
"""The number of the schema in the header; it changes with the schema."""
SCHEMA_PAGES: Final = "SELECT pageno FROM dbstat WHERE name = 'sqlite_schema'"
PEERS: Final = "SELECT name FROM _onceward_peers UNION SELECT recipient FROM _onceward_outbox"
"""The agents about which ``check_pair`` finds anything in the file of a sender."""
Ask = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Left:
    """A file that a test left."""

    name: str
    agent: str
    ask: Ask


class Mirror:
    """A connection to a file whose bytes others take the place of."""

    def __init__(self, path: Path, made: bytes) -> None:
        self._shown = 0
        path.write_bytes(b"")
        self._file = path.open("r+b", 0)  # stays open: closing it would drop the other's locks
        self._put(made)
        self._con = connect(path, readonly=True)
        self.reader = FileReader(self._con, path)

    def show(self, data: bytes) -> None:
        """Put other bytes there, as the next change of the file."""
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._shown += 1
        change = self._shown.to_bytes(4, "big")
        self._file.seek(0)
        self._file.write(data[:18] + JOURNALED + data[20:24] + change + data[28:92] + change)
        self._file.write(data[96:])
        self._file.truncate(len(data))

    def close(self) -> None:
        """Close the connection, then the file."""
        close(self._con)
        self._file.close()


class Leftovers:
    """Readers of files; one with the ready-made schema is read by a mirror."""

    def __init__(self, folder: Path, made: bytes) -> None:
        self._folder, self._made = folder, made
        self._free, self._all = list[Mirror](), list[Mirror]()
        pages = [number for (number,) in self._mirror().reader.rows(SCHEMA_PAGES)]
        self._schema = [slice(max(FIRST, PAGE * (number - 1)), PAGE * number) for number in pages]

    def close(self) -> None:
        """Close all mirrors."""
        for each in self._all:
            each.close()

    @contextmanager
    def reading(self, path: Path) -> Iterator[FileReader]:
        """
        Read an agent's file for a block.

        Raises:
            OncewardError: as ``opened``.

        """
        data = b"" if _has_journal(path) else path.read_bytes()
        if not self._has_schema(data):
            with opened(path) as reader:
                reader.hold()
                yield reader
            return
        mirror = self._mirror()
        try:
            mirror.show(data)
            yield mirror.reader
        finally:
            self._free.append(mirror)

    def offenders(self, folder: Path) -> list[str]:
        """
        Return what breaks a rule in the files below *folder*.

        Files that refuse to open are their own tests' business.
        """
        paths = sorted(path for path in folder.rglob("*.db") if _ours(path))
        return _found(paths, self.reading) and _found(paths, opened)

    def _mirror(self) -> Mirror:
        if self._free:
            return self._free.pop()
        self._all.append(Mirror(self._folder / f"{len(self._all)}", self._made))
        return self._all[-1]

    def _has_schema(self, data: bytes) -> bool:
        made = self._made
        return data[COOKIE] == made[COOKIE] and all(data[at] == made[at] for at in self._schema)


def _found(paths: list[Path], reading: Callable[[Path], Any]) -> list[str]:
    with ExitStack() as stack:
        files: list[Left] = []
        for path in paths:
            with suppress(OncewardError, apsw.Error):
                reader = stack.enter_context(reading(path))
                for (agent,) in reader.rows("SELECT agent FROM onceward_file"):
                    files.append(Left(path.name, agent, reader.rows))
        found = [(file, broken) for file in files for broken in invariants.check(file, rules())]
        for one, other in _pairs(files):
            found += [(one, broken) for broken in invariants.check_pair(one, other)]
        return [
            f"{file.name}: {broken.invariant} {broken.offender} ({broken.rule})"
            for file, broken in found
        ]


def _pairs(files: list[Left]) -> Iterator[tuple[Left, Left]]:
    """Yield each file that knows the agent of another one, and that other one."""
    for one in files if len(files) > 1 else ():
        peers = {name for (name,) in one.ask(PEERS)}
        yield from ((one, other) for other in files if other is not one and other.agent in peers)


def _has_journal(path: Path) -> bool:
    beside = (path.with_name(f"{path.name}{end}") for end in ("-wal", "-journal"))
    return any(each.exists() and each.stat().st_size for each in beside)


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(HEADER)[68:72] == b"once"
