"""Threads that open, close and read one file at once: none gets an error that the others made."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import apsw
import pytest
from tests.waiting import until

from onceward.errors import StoreClosed
from onceward.file import database, descriptors
from onceward.file.database import Database

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""
ONE = "SELECT 1"


class Call(Thread):
    """A call on a thread of its own, and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        """Keep what the call returns or raises."""
        try:
            self.outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            self.outcome = error

    def ended(self) -> Any:
        """Wait for the outcome."""
        self.join(LIMIT)
        return self.outcome


@contextmanager
def paused_while_it_connects(work: Callable[[], Any]) -> Iterator[tuple[Call, Event]]:
    """Run *work* on a thread that stops in its next connection, once SQLite has the file open."""
    stopped, go_on = Event(), Event()

    def stop(_: apsw.Connection) -> None:
        if isinstance(current_thread(), Call) and not stopped.is_set():  # no engine's thread
            stopped.set()
            go_on.wait(LIMIT)

    apsw.connection_hooks.append(stop)
    try:
        call = Call(work)
        assert stopped.wait(LIMIT)
        yield call, go_on
    finally:
        apsw.connection_hooks.remove(stop)
        go_on.set()
        call.join(LIMIT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of an agent's file."""
    found = tmp_path / "a.db"
    Database.open(found, agent="a").close()
    return found


def test_a_reader_that_connects_while_the_file_is_opened_for_any_use_reads(path: Path) -> None:
    """The opening replaces the connections of a file that only accepted parcels."""
    first = Database.open(path, mode="deliver")
    with paused_while_it_connects(lambda: first.ask(ONE)) as (reading, go_on):
        second = Database.open(path)
        go_on.set()
        assert [(1,)] == reading.ended()
    second.close()
    first.close()


def test_two_openings_for_any_use_reconnect_once(path: Path) -> None:
    """The second one waits until the first one has done it."""
    first = Database.open(path, mode="deliver")
    with first.writer.exclusive():
        openings = [Call(lambda: Database.open(path)) for _ in range(2)]
        until(lambda: first.writer.queue.waiting == 2)
    opened = [each.ended() for each in openings]

    assert ([first, first], 2) == (opened, first._openings)
    for each in (first, *opened):
        each.close()


def test_a_connection_that_is_being_opened_holds_no_file_foreign(path: Path) -> None:
    """A thread connects to a file that its last user closes meanwhile; the next one opens it."""
    first = Database.open(path)
    with paused_while_it_connects(lambda: first.ask(ONE)) as (reading, go_on):
        first.close()
        second = Database.open(path)
        go_on.set()
        assert StoreClosed is type(reading.ended())

    assert [(1,)] == second.ask(ONE)
    second.close()


def test_a_connection_that_was_closed_during_the_look_holds_no_file_foreign(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor was seen, and is gone when the connections are compared: look again."""
    monkeypatch.setattr(database, "OPENED_OR_CLOSED", 0.0)
    monkeypatch.setattr(descriptors, "MANY", sys.maxsize)  # look now, however many are open
    first, holder, seen = Database.open(path), descriptors.table.holder, list[bool]()
    with paused_while_it_connects(lambda: first.ask(ONE)) as (reading, go_on):
        first.close()

        def close_meanwhile(real: Path) -> descriptors.Found | None:
            found = holder(real)
            seen.append(found is not None)
            go_on.set()
            reading.join(LIMIT)
            return found

        monkeypatch.setattr(descriptors.table, "holder", close_meanwhile)
        second = Database.open(path)

    assert [True, False] == seen
    second.close()
