"""Opening a recipient's file costs the same however many others are open."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from onceward import Postbox
from onceward.file import database, descriptors, open_files
from onceward.file.file_checks import file_key
from onceward.transports import file

TINY = 4096
"""Bytes of prepared statements below which a file has none of ours."""
OPENING = 18
"""Statements from the connection to the commit of the open barrier, pragmas included."""


@pytest.fixture(autouse=True)
def no_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of other tests, which may be closed later, take no place."""
    slots = file.FileSlots()
    monkeypatch.setattr(file, "slots", slots)
    monkeypatch.setattr(file, "slots", slots)


@pytest.fixture
def calls() -> Counter[str]:
    """Calls by name, for ``count``."""
    return Counter()


def count(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    """Count the calls of a function."""
    run = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return run(*args, **options)

    patch.setattr(owner, name, counted)


def recipients(folder: Path, number: int) -> list[str]:
    """Create the files of so many agents; return their names."""
    names = [f"r{n}" for n in range(number)]
    for name in names:
        Postbox(folder / f"{name}.db", agent=name, start=False, durability="fast").close()
    return names


def deliver(box: Postbox, names: list[str]) -> None:
    """Send each recipient a message, and deliver it."""
    box.send_many([(name, 1) for name in names])
    box.run_until_idle()


def test_an_opening_looks_at_no_other_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    """With fewer places than recipients, only a few are opened again, and each by itself."""
    names = recipients(tmp_path, 12)
    monkeypatch.setattr(file, "files_allowed", lambda: 8)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, names)
        count(monkeypatch, file.FileSlots, "paths", calls)
        count(monkeypatch, database, "is_connected_to", calls)
        count(monkeypatch, database, "connect", calls)
        deliver(box, names)
        seen = dict(calls)

    assert {"connect": 5} == seen


def test_many_openings_share_a_look_at_the_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    """Once the process has many descriptors, the openings of one moment look at them once."""
    names = recipients(tmp_path, 60)
    now = [0.0]
    table = descriptors.DescriptorTable(clock=lambda: now[0])
    monkeypatch.setattr(descriptors, "table", table)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, names[:40])
        count(monkeypatch, table._open, "now", calls)
        deliver(box, names[40:50])
        same = calls.total()
        now[0] += descriptors.MOMENT
        deliver(box, names[50:])
        later = calls.total()

    assert (0, 1) == (same, later)


def test_a_closed_descriptor_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that was closed since the look holds nothing; one that is open does."""
    monkeypatch.setattr(descriptors, "MANY", 1)
    path = tmp_path / "a.db"
    path.touch()
    table = descriptors.DescriptorTable(clock=lambda: 0.5)
    with path.open() as handle:
        table._look(0.5)
        held = table.holder(path)
        number = handle.fileno()

    assert ((number, str(path)), None) == (held, table.holder(path))


def test_statements_of_an_opening(tmp_path: Path) -> None:
    """A recipient's file is opened with so many statements; its schema is checked once."""
    [name] = recipients(tmp_path, 1)
    statements = list[str]()
    apsw.connection_hooks.append(
        lambda con: con.trace_v2(
            apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"])
        )
    )
    try:
        database.Database.open(tmp_path / f"{name}.db", agent=name, mode="existing").close()
    finally:
        apsw.connection_hooks.pop()
    assert OPENING == len(statements), statements


def test_a_file_that_only_takes_parcels_has_a_small_cache(tmp_path: Path) -> None:
    """A file that is open to deliver to keeps 512 KiB of pages; opened by its agent, 16 MiB."""
    [name] = recipients(tmp_path, 1)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, [name])
        key = (file_key(tmp_path / f"{name}.db"), "")
        writer: database.Database = open_files.files[key]  # type: ignore[index]  # it exists
        sizes = [_cache_size(writer)]
        writer.reopen()
        sizes.append(_cache_size(writer))
        with Postbox(tmp_path / f"{name}.db", agent=name, start=False):
            sizes.append(_cache_size(writer))
            deliver(box, [name])
            sizes.append(_cache_size(writer))

    assert [-512, -512, -16384, -16384] == sizes


def _cache_size(db: database.Database) -> int:
    with db.writer.exclusive() as handle:
        [(size,)] = handle.execute("PRAGMA cache_size").fetchall()
    return int(size)


def test_files_beyond_a_number_give_their_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files used in turns only so many keep schema and statements; the others work as before."""
    monkeypatch.setattr(file, "WARM", 2)
    names = recipients(tmp_path, 4)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        kept, statements = list[list[bool]](), list[list[bool]]()
        for _ in range(2):
            deliver(box, names)
            kept.append([_schema_bytes(tmp_path, name) > 0 for name in names])
            statements.append([_statement_bytes(tmp_path, name) > TINY for name in names])
        found = box.query("SELECT state, count(*) FROM onceward_outbox GROUP BY state")

    assert 2 * [[True, True, False, False]] == kept == statements
    assert [("sent", 8)] == [tuple(row) for row in found]


def test_a_file_that_is_used_again_takes_the_place_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file keeps its schema once it was used twice since another that kept its own."""
    monkeypatch.setattr(file, "WARM", 2)
    names = recipients(tmp_path, 3)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, names)
        deliver(box, names[2:])
        kept = [_schema_bytes(tmp_path, name) > 0 for name in names]

    assert [False, True, True] == kept


def test_a_file_that_only_takes_parcels_keeps_few_statements(tmp_path: Path) -> None:
    """Its agent's own opening connects again, with a larger cache; messages stay."""
    [name] = recipients(tmp_path, 1)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, [name])
        sizes = [_statements_kept(tmp_path, name)]
        with Postbox(tmp_path / f"{name}.db", agent=name, start=False) as own:
            sizes.append(_statements_kept(tmp_path, name))
            deliver(box, [name])
            [(waiting,)] = own.query("SELECT count(*) FROM onceward_inbox")

    assert ([database.FEW_STATEMENTS, 512], 2) == (sizes, waiting)


def test_a_parcel_prepares_no_statement_again(tmp_path: Path) -> None:
    """The second parcel to a file finds all its statements prepared."""
    [name] = recipients(tmp_path, 1)
    with Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box:
        deliver(box, [name])
        deliver(box, [name])
        before = _prepared(tmp_path, name)
        for _ in range(20):
            deliver(box, [name])
        again = _prepared(tmp_path, name)

    assert before == again


def test_a_file_that_its_agent_has_open_gives_nothing_back(tmp_path: Path) -> None:
    """A rest is for files that only take parcels: the agent's own statements stay prepared."""
    [name] = recipients(tmp_path, 1)
    with (
        Postbox(tmp_path / f"{name}.db", agent=name, start=False),
        Postbox(tmp_path / "s.db", agent="s", start=False, durability="fast") as box,
    ):
        deliver(box, [name])
        _database(tmp_path, name).rest_after_parcel()

        assert _schema_bytes(tmp_path, name) > 0


def _database(folder: Path, name: str) -> database.Database:
    found: database.Database = open_files.files[(file_key(folder / f"{name}.db"), "")]  # type: ignore[index]  # it exists
    return found


def _connection(folder: Path, name: str) -> apsw.Connection:
    con, _ = _database(folder, name).connections()
    assert con is not None
    return con


def _schema_bytes(folder: Path, name: str) -> int:
    return _connection(folder, name).status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0]


def _statements_kept(folder: Path, name: str) -> int:
    return _connection(folder, name).cache_stats()["size"]


def _statement_bytes(folder: Path, name: str) -> int:
    return _connection(folder, name).status(apsw.SQLITE_DBSTATUS_STMT_USED)[0]


def _prepared(folder: Path, name: str) -> int:
    return _connection(folder, name).cache_stats()["misses"]
