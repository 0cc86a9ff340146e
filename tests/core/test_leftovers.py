"""The reader of files that tests leave reads each of them as it is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.leftovers import Leftovers, Mirror
from tests.ready_made import ReadyMade, copied

from onceward import Postbox
from onceward.file.read_only import FileReader, opened

BODIES = "SELECT body FROM onceward_outbox ORDER BY 1"
SPOIL = "UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended_pending'"


def made(path: Path, *bodies: int, sql: str = "") -> Path:
    """Make a file with messages to an agent that is not there, and whatever else."""
    with Postbox(path, agent=path.stem, start=False, hold_unknown=True) as box:
        box.send_many([("nobody", each) for each in bodies])
        if sql:
            box._db.write(lambda tx: tx.run(sql))
    return path


def all_rows(file: FileReader) -> dict[str, Any]:
    """Return the rows of every table of ours."""
    names = file.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL")
    return {name: file.rows(f'SELECT * FROM "{name}"') for (name,) in names}


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the files that a mirror showed."""
    shown, show = list[int](), Mirror.show

    def told(mirror: Mirror, data: bytes) -> None:
        shown.append(len(data))
        show(mirror, data)

    monkeypatch.setattr(Mirror, "show", told)
    return shown


def test_a_mirror_shows_each_file_in_its_turn(
    tmp_path: Path, leftovers: Leftovers, mirrors: list[int]
) -> None:
    """One after the other and several at once, small after large, as an opening reads them."""
    large = made(tmp_path / "large.db", *range(2000))
    paths = [large, *(made(tmp_path / f"{n}.db", n) for n in range(3))]
    expected, found = [], []
    for path in [*paths, large]:
        with opened(path) as file:
            expected.append(all_rows(file))
        with leftovers.reading(path) as file:
            found.append(all_rows(file))
    with ExitStack() as stack:
        files = [stack.enter_context(leftovers.reading(path)) for path in paths]
        found += [all_rows(file) for file in files]

    assert expected + expected[:-1] == found
    assert [path.stat().st_size for path in [*paths, large, *paths]] == mirrors


@pytest.mark.parametrize("sql", ["CREATE TABLE mine (x)", "DROP VIEW onceward_dead_letters"])
def test_another_schema_is_read_by_an_opening(
    tmp_path: Path, leftovers: Leftovers, mirrors: list[int], sql: str
) -> None:
    """No mirror shows a file with tables of its own, or with fewer of ours."""
    path = made(tmp_path / "a.db", 1, sql=sql)
    with leftovers.reading(path) as file:
        assert [("1",)] == file.rows(BODIES)

    assert [] == mirrors


def test_commits_in_the_wal_are_read(
    tmp_path: Path, leftovers: Leftovers, mirrors: list[int], ready_made: ReadyMade
) -> None:
    """A file that is still open, or whose process was killed, is read with its WAL."""
    path = tmp_path / "a.db"
    with copied(ready_made), Postbox(path, agent="a", start=False, hold_unknown=True) as box:
        box.send("nobody", 1)
        with leftovers.reading(path) as file:
            assert [("1",)] == file.rows(BODIES)

    assert [] == mirrors


@pytest.mark.broken("the violation is planted")
def test_a_violation_is_found_after_a_sound_file(tmp_path: Path, leftovers: Leftovers) -> None:
    """What a mirror has shown before does not hide it, nor stays after it."""
    for folder in ("sound", "spoilt"):
        (tmp_path / folder).mkdir()
    made(tmp_path / "sound" / "a.db", 1)
    made(tmp_path / "spoilt" / "a.db", 1, sql=SPOIL)

    [found] = leftovers.offenders(tmp_path / "spoilt")

    assert found.startswith("a.db: ")
    assert [] == leftovers.offenders(tmp_path / "sound")


@pytest.mark.broken("the violation is planted")
def test_a_violation_between_two_files_is_found(tmp_path: Path, leftovers: Leftovers) -> None:
    """It names the sender's file, wherever the recipient's stands among others."""
    folder = tmp_path / "spoilt"
    folder.mkdir()
    made(folder / "aaron.db", 1)
    with (
        Postbox(folder / "ann.db", agent="ann", start=False) as ann,
        Postbox(folder / "bob.db", agent="bob", start=False) as bob,
    ):
        ann.send("bob", 1)
        ann.run_until_idle()
        bob._db.write(lambda tx: tx.run("UPDATE _onceward_sender_streams SET number = number - 1"))

    [found] = leftovers.offenders(folder)

    assert found.startswith("ann.db: X2 ")
