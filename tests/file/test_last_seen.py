"""An opening finds out whether its file was restored, moved or copied since the last one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from onceward import Postbox
from onceward.file.database import Database
from onceward.file.in_flight import HEADERS
from onceward.file.last_seen import MARK

CRASHES = """
import os, signal, sys
from onceward import Postbox
box = Postbox(sys.argv[1], agent="shop", start=False)
for n in range(int(sys.argv[2])):
    box.send("shop", {"n": n})
os.kill(os.getpid(), signal.SIGKILL)
"""


def crashed(path: Path, messages: int = 1) -> None:
    """Use a file in another process, which is killed then."""
    ended = subprocess.run([sys.executable, "-c", CRASHES, path, str(messages)], check=False)
    assert -signal.SIGKILL == ended.returncode


def used(path: Path, messages: int = 1) -> None:
    """Use a file and close it."""
    with Postbox(path, agent="shop", start=False) as box:
        for n in range(messages):
            box.send("shop", {"n": n})


def is_restored(path: Path) -> bool:
    """Return what an opening finds out."""
    opened = Database.open(path)
    try:
        return opened.was_restored
    finally:
        opened.close()


def remove(path: Path) -> None:
    """Remove a database as a restore does: without the file that holds locks and notes."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that was used and closed, beside a copy: ``backup``."""
    made = tmp_path / "shop.db"
    used(made)
    shutil.copyfile(made, tmp_path / "backup")
    return made


def test_a_new_file_is_not_restored(tmp_path: Path) -> None:
    """Nor is it at its second opening."""
    assert [False, False] == [is_restored_as(tmp_path / "new.db") for _ in range(2)]


def is_restored_as(path: Path) -> bool:
    """Return what the opening of a file finds out that may have to be created."""
    with Postbox(path, agent="new", start=False) as box:
        return box._db.was_restored


@pytest.mark.parametrize("use", [used, crashed])
def test_a_file_that_is_opened_again_is_not_restored(path: Path, use: object) -> None:
    """Whether its last process closed it or was killed."""
    found = []
    for _ in range(3):
        use(path)  # type: ignore[operator]
        found.append(is_restored(path))

    assert [False] * 3 == found


@pytest.mark.parametrize("messages", [0, 1])
def test_an_older_copy_in_its_place_is_a_restored_file(path: Path, messages: int) -> None:
    """Copied over the old one, which keeps its inode, by number of messages since."""
    used(path, messages)
    shutil.copyfile(path.parent / "backup", path)

    assert [True, False] == [is_restored(path), is_restored(path)]


def test_a_copy_of_the_last_session_is_a_restored_file(tmp_path: Path) -> None:
    """A backup that was taken while the file was last open has the same number of openings."""
    path, backup = tmp_path / "shop.db", tmp_path / "backup"
    with Postbox(path, agent="shop", start=False) as box:
        box.send("shop", {})
        subprocess.run([sys.executable, "-m", "onceward", "backup", path, backup], check=True)
        box.send("shop", {})
    shutil.copyfile(backup, path)

    assert is_restored(path)


def test_a_copy_after_a_kill_is_a_restored_file(path: Path) -> None:
    """No messages need be missing in it: the WAL of the killed process is."""
    crashed(path, messages=0)
    remove(path)
    shutil.copyfile(path.parent / "backup", path)

    assert [True, False] == [is_restored(path), is_restored(path)]


def test_a_moved_file_is_found_out(path: Path, tmp_path: Path) -> None:
    """The note stays at the old place; in the new one its first opening finds none."""
    moved = tmp_path / "elsewhere" / "shop.db"
    moved.parent.mkdir()
    path.rename(moved)

    assert [True, False] == [is_restored(moved), is_restored(moved)]


def test_another_file_in_its_place_is_found_out(path: Path, tmp_path: Path) -> None:
    """A file that was used elsewhere, with another id, and has come further."""
    used(tmp_path / "other.db", 3)
    used(tmp_path / "other.db", 3)
    (tmp_path / "other.db").replace(path)

    assert is_restored(path)


def test_a_file_is_not_restored_while_others_use_it(path: Path) -> None:
    """A process joins, and goes on after the other one, which closes first."""
    with Postbox(path, agent="shop", start=False) as box:
        box.send("shop", {})
        program = f"from onceward.file.database import Database as D; d = D.open({str(path)!r})\n"
        program += "print(d.was_restored)"
        ran = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        box.send("shop", {})

    assert ("False", False) == (ran.stdout.strip(), is_restored(path))


def test_a_file_that_another_process_just_closes_is_not_restored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its WAL is gone, and its note comes a moment later: the opening waits for it."""
    crashed(path)
    con = apsw.Connection(str(path))  # stands for the process that closes: its WAL is removed
    con.execute("SELECT 1 FROM _onceward_file_info")
    con.close()
    noted = list[float]()

    def note(seconds: float) -> None:
        noted.append(seconds)
        with Path(f"{path}-run").open("r+b") as run:
            run.seek(HEADERS)
            run.write(MARK[::-1])

    monkeypatch.setattr("onceward.file.last_seen.time.sleep", note)

    assert (False, 1) == (is_restored(path), len(noted))


def test_without_a_place_for_the_note_nothing_is_found_out(path: Path) -> None:
    """The file opens, and its peers are not greeted by each of its openings."""
    Path(f"{path}-run").unlink()
    Path(f"{path}-run").mkdir()
    opened = Database.open(path)
    found = opened.was_restored
    opened.close()

    assert not found
