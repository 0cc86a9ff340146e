"""Reads beside another program that changes the schema of the file."""

import math
from collections.abc import Callable, Iterator
from threading import Lock, get_ident

import apsw
import pytest

from onceward import Postbox
from onceward.errors import Busy
from onceward.file import read_only

Open = Callable[..., Postbox]
COUNT = "SELECT count(*) FROM onceward_outbox"
SOME = 600
"""Changes after which SQLite has given up a statement several times."""


class Program:
    """Changes the schema of a file each time that another connection prepares a statement."""

    def __init__(self) -> None:
        self.changes: float = 0
        self._con: apsw.Connection | None = None
        self._lock, self._thread = Lock(), 0
        """One thread changes the schema at a time; its own statements change nothing."""

    def change(self, box: Postbox, times: float) -> None:
        """Change the schema so many times from now on."""
        self._con = apsw.Connection(str(box.file.path))
        self._con.set_busy_timeout(5_000)  # a change that fails would be the last one
        self._con.execute("PRAGMA synchronous = OFF; CREATE TABLE theirs (a)")
        self.changes = times

    def watch(self, connection: apsw.Connection) -> None:
        """Notice each statement of a connection that reads."""
        connection.authorizer = self._prepares

    def _prepares(self, action: int, *_: str | None) -> int:
        if action == apsw.SQLITE_SELECT and self._con is not None and self._thread != get_ident():
            with self._lock:
                self._change_once(self._con)
        return apsw.SQLITE_OK

    def _change_once(self, con: apsw.Connection) -> None:
        if self.changes > 0:
            self.changes, self._thread = self.changes - 1, get_ident()
            try:
                con.execute("DROP TABLE theirs; CREATE TABLE theirs (a)")
            finally:
                self._thread = 0

    def close(self) -> None:
        """Close its connection."""
        if self._con is not None:
            self._con.close()


@pytest.fixture
def program() -> Iterator[Program]:
    """A program that has not begun."""
    made = Program()
    apsw.connection_hooks.append(made.watch)
    yield made
    apsw.connection_hooks.remove(made.watch)
    made.close()


def from_outside(box: Postbox) -> object:
    """Read as the inspector does."""
    with read_only.opened(box.file.path, wait=box._db.writer.queue.timeout) as reader:
        return reader.rows(COUNT)


def typed(box: Postbox) -> object:
    """Read as ``onceward sql`` does."""
    with read_only.opened(box.file.path, wait=box._db.writer.queue.timeout) as reader:
        return [tuple(row.values()) for row in reader.typed(COUNT)]


READS: dict[str, Callable[[Postbox], object]] = {
    "an engine": lambda box: box._db.read(COUNT),
    "a caller": lambda box: box._db.ask(COUNT),
    "a query": lambda box: box.query(COUNT),
    "the inspector": from_outside,
    "a command": typed,
}


@pytest.mark.parametrize("by", READS)
def test_a_read_outlives_changes_of_the_schema(opened: Open, program: Program, by: str) -> None:
    """It is repeated when SQLite gives it up."""
    box = opened()
    box.send("b", 0)
    program.change(box, SOME)

    assert [(1,)] == READS[by](box)
    assert 0 == program.changes


@pytest.mark.parametrize("by", READS)
def test_a_read_ends_while_the_schema_changes(opened: Open, program: Program, by: str) -> None:
    """Its error says that trying again helps."""
    box = opened(busy_timeout=0.2)
    program.change(box, math.inf)

    with pytest.raises(Busy, match=r"kept changing the schema for the whole deadline; .* again"):
        READS[by](box)


def test_a_search_outlives_changes_of_the_schema(opened: Open, program: Program) -> None:
    """Each of its statements is repeated."""
    box = opened(search=True)
    sent = box.send("b", "hello")
    program.change(box, SOME)

    assert [sent] == [each.id for each in box.search("hello").messages]
