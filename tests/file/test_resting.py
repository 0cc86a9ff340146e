"""Files that nothing uses free their memory; what they do while idle does not undo it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw
import pytest
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.core.run.threads import EngineThreads
from onceward.file import open_files
from onceward.file.database import QUIET, Database
from onceward.file.transaction import StoreTransaction

Open = Callable[..., Postbox]
STATEMENTS: Final = 8_000
"""Most bytes of prepared statements that a file at rest keeps."""
PAGES: Final = 10_000
"""Most bytes of pages that it keeps."""


def held(db: Database) -> tuple[int, int, int]:
    """Return the bytes of schema, statements and pages of the writer's connection."""
    con = db._con
    assert con is not None
    names = ("SCHEMA_USED", "STMT_USED", "CACHE_USED")
    schema, statements, pages = (
        con.status(getattr(apsw, f"SQLITE_DBSTATUS_{name}"))[0] for name in names
    )
    return schema, statements, pages


def change(tx: StoreTransaction) -> None:
    """Change a row."""
    tx.run("UPDATE _onceward_file_info SET opened = opened + 1")


def look_until_quiet(db: Database) -> None:
    """Look as often as a file needs that nothing uses."""
    for _ in range(QUIET):
        db.rest_if_quiet()


def test_a_quiet_file_frees_what_it_reads_again(opened: Open) -> None:
    """It keeps neither schema nor statements nor pages nor second connections, and works on."""
    box = opened()
    box.send(box.agent, 1)
    box.query("SELECT 1 FROM onceward_outbox")
    box._db._open_reader()
    look_until_quiet(box._db)
    schema, statements, pages = held(box._db)

    assert box._db.rests
    assert (0, True, True) == (schema, statements <= STATEMENTS, pages <= PAGES)
    assert (box._db._con,) == tuple(each for each in box._db.connections() if each is not None)
    assert [(1,)] == [tuple(row) for row in box.query("SELECT count(*) FROM onceward_outbox")]
    box.send(box.agent, 2)
    assert [(2,)] == box._db.read("SELECT count(*) FROM onceward_outbox")


@pytest.mark.parametrize("use", ["read", "write", "exclusive"])
def test_a_file_in_use_does_not_rest(opened: Open, use: str) -> None:
    """A use between two looks keeps its memory, and one after them ends its rest."""
    db = opened()._db

    def work() -> None:
        match use:
            case "read":
                db.read("SELECT count(*) FROM onceward_outbox")
            case "write":
                db.write(change)
            case _:
                with db.writer.exclusive() as handle:
                    handle.execute("SELECT count(*) FROM onceward_outbox")

    for _ in range(2 * QUIET):
        work()
        db.rest_if_quiet()
    kept = held(db)[0]
    db.rest()
    rested = db.rests
    work()

    assert kept > 0
    assert (True, False) == (rested, db.rests)


def test_a_file_rests_once(opened: Open) -> None:
    """Further looks at a file that rests run nothing in it."""
    db = opened()._db
    look_until_quiet(db)
    ran = list[str]()
    assert db._con is not None
    db._con.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
    again = [db.rest_if_quiet() for _ in range(3)]
    db._con.trace_v2(0)

    assert ([False] * 3, []) == (again, ran)


def test_an_open_transaction_keeps_the_file_awake(opened: Open) -> None:
    """Looks neither wait for its turn nor touch its connection; the file rests later."""
    box = opened()
    with box._db.writer.exclusive():
        look_until_quiet(box._db)
        during = [box._db.rests]
    with box.begin() as tx:
        tx.send(box.agent, 1)
        look_until_quiet(box._db)
        during.append(box._db.rests)
    look_until_quiet(box._db)

    assert ([False, False], True) == (during, box._db.rests)
    assert [(1,)] == box._db.read("SELECT count(*) FROM onceward_outbox")


def test_a_check_for_commits_of_other_processes_leaves_it_at_rest(opened: Open) -> None:
    """The statement that an idle file runs all the time needs no schema."""
    db = opened()._db
    look_until_quiet(db)
    for _ in range(3):
        db.version()
    schema, statements, pages = held(db)

    assert db.rests
    assert (0, True, True) == (schema, statements <= STATEMENTS, pages <= PAGES)


def test_resting_is_no_news(opened: Open) -> None:
    """The second connection goes without waking an engine; a commit just before wakes them."""
    db = opened()._db
    heard = list[str]()
    stop = db.notifier.listen("in", lambda: heard.append("in"))
    db._open_reader()
    db.notifier.begin(db.version)
    counts = list[int]()
    for commit in (False, True):
        if commit:
            db._open_reader()
            db.notifier.look(db.version)
            heard.clear()
            db.write(change)
        db.rest()
        db.notifier.look(db.version)
        counts.append(len(heard))
    stop()

    assert [0, 1] == counts


def test_the_first_look_of_an_engine_is_its_only_one(opened: Open) -> None:
    """An engine that knows the version before it reads is not woken by the first check."""
    db = opened()._db
    heard = list[str]()
    stop = db.notifier.listen("in", lambda: heard.append("in"))
    db.notifier.begin(db.version)
    db.notifier.look(db.version)
    before = len(heard)
    db.write(change)
    db.notifier.begin(db.version)  # another engine starts: that change is still news
    db.notifier.look(db.version)
    stop()

    assert (0, 1) == (before, len(heard))


def test_memory_is_returned_after_enough_files(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator is asked once for many files, however they came to rest."""
    db, trimmed, seen = opened()._db, list[str](), list[int]()
    for _ in range(QUIET):
        open_files.Rests(
            open_files.trim
        ).rest_quiet_files()  # also files that other tests left open
    monkeypatch.setattr(open_files, "TRIMMED", 3)
    rests = open_files.Rests(lambda: trimmed.append("trimmed"))
    for _ in range(6):
        rests.rest_again(db)
        rests.rest_quiet_files()
        seen.append(len(trimmed))

    assert [0, 0, 1, 1, 1, 2] == seen


def test_memory_is_returned_when_the_last_file_rests(opened: Open) -> None:
    """A process with few files does not wait until more of them have rested."""
    one, other = opened()._db, opened("b")._db
    trimmed = list[str]()
    rests = open_files.Rests(lambda: trimmed.append("trimmed"))

    def look(*used: Database) -> int:
        for _ in range(QUIET):
            for each in used:
                each.quiet = 0
            rests.rest_quiet_files()
        return len(trimmed)

    assert [0, 1, 1] == [look(other), look(), look()]
    one.quiet = 0
    assert [2, 2] == [look(), look()]


def test_asking_the_allocator_fails_on_no_platform() -> None:
    """Where there is nothing to ask, nothing happens."""
    assert open_files.trim() is None  # type: ignore[func-returns-value]


def test_an_idle_agent_comes_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engines find nothing to do, and the process lets its file rest; a message is handled."""
    monkeypatch.setattr(open_files, "REST_PERIOD", 0.01)
    agent, handled = Agent("a"), list[int]()
    agent.on("number")(handled.append)
    with Postbox(tmp_path / "a.db", agent=agent) as box:
        threads = EngineThreads()
        threads.start()
        threads.watch(box._db.notifier, "in", box._db.version_if_open, 0.0)
        until(lambda: box._db.rests)
        box.send("a", 7, type="number")
        until(lambda: handled)
        until(lambda: box._db.rests)
        threads.end(threads._rest)
        threads.files.remove(box._db.notifier)

    assert [7] == handled
