"""Files are opened as they are found, live or damaged, and never changed by it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer

import apsw
import pytest

from onceward import Postbox
from onceward.fleet.coverage import READ
from onceward.fleet.loading import load, workspace
from onceward.fleet.opening import Unreadable, opened

COUNT = "SELECT count(*) FROM onceward_outbox"
SOME = 20
NOBODY = 65534

Made = Callable[..., Path]


def reason(path: Path, **options: str) -> str:
    """Return why a file is refused."""
    with pytest.raises(Unreadable) as caught, opened(str(path), **options) as source:  # type: ignore[arg-type]
        source.check()
    return caught.value.reason


def count(path: Path, **options: str) -> int:
    """Return how many outbox rows a reader sees."""
    with opened(str(path), **options) as source:  # type: ignore[arg-type]
        [(found,)] = source.con.execute(COUNT).fetchall()
        return int(str(found))


def damage(path: Path, at: int) -> None:
    """Overwrite a piece of a file."""
    data = bytearray(path.read_bytes())
    data[at : at + 2000] = b"\xa5" * 2000
    path.write_bytes(data)


def test_a_good_file_says_whose_it_is(box: Callable[..., Path]) -> None:
    """The agent's name comes from the file, not from its name."""
    path = box("alice", 3)
    moved = path.rename(path.with_name("backup-of-somebody.db"))

    with opened(str(moved)) as source:
        assert "alice" == source.agent
        assert source.version >= 1


def test_rows_that_are_still_in_the_wal_are_read(box: Callable[..., Path]) -> None:
    """A live file's newest rows are not in the main file yet; a reader sees them all."""
    path = box()
    with Postbox(path, start=False, hold_unknown=True) as live:
        live.session().send_many([("bob", number) for number in range(SOME)], type="note")
        assert path.with_name(f"{path.name}-wal").stat().st_size > 0

        assert SOME == count(path)


@pytest.mark.parametrize("copy", ["auto", "never", "always"])
def test_reading_changes_nothing(box: Callable[..., Path], copy: str) -> None:
    """The file's bytes are the same afterwards; a WAL that SQLite made for its lock stays empty."""
    path = box("alice", SOME)
    before = path.read_bytes()

    assert SOME == count(path, copy=copy)
    assert before == path.read_bytes()
    assert 0 == sum(wal.stat().st_size for wal in path.parent.glob("*-wal"))


def test_a_copy_takes_the_wal_along(box: Callable[..., Path]) -> None:
    """A copy of the main file alone would miss what is in the WAL."""
    path = box()
    with Postbox(path, start=False, hold_unknown=True) as live:
        live.session().send_many([("bob", number) for number in range(SOME)], type="note")

        assert SOME == count(path, copy="always")


def test_a_reader_cannot_write(box: Callable[..., Path]) -> None:
    """The connection refuses to change the file."""
    with opened(str(box())) as source, pytest.raises(apsw.ReadOnlyError):
        source.con.execute("DELETE FROM _onceward_transitions")


@pytest.mark.broken("a damaged file stays damaged")
def test_what_is_no_agents_file_is_named_by_its_reason(
    tmp_path: Path, box: Callable[..., Path]
) -> None:
    """Vanished, empty, damaged and foreign files are told apart."""
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("buy milk\n" * 500)
    with apsw.Connection(str(tmp_path / "other.db")) as con:
        con.execute("CREATE TABLE t (x)")
    con.close()
    broken = box("broken", 200)
    damage(broken, 9 * 4096)

    assert "vanished" == reason(tmp_path / "gone.db")
    assert "empty" == reason(tmp_path / "empty.db")
    assert "corrupt" == reason(tmp_path / "text.db")
    assert "foreign" == reason(tmp_path / "other.db")
    assert "corrupt" == reason(broken)


@pytest.fixture
def closed(box: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a file in a folder that any user of the tests may look into, but not write to."""
    shared = Path(tempfile.mkdtemp(prefix="onceward-closed-"))
    shared.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    folder = shared / "fleet"
    folder.mkdir()
    path = Path(shutil.move(box("alice", SOME), folder / "alice.db"))
    path.chmod(0o644)
    folder.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    yield path
    os.seteuid(was)
    folder.chmod(0o755)
    shutil.rmtree(shared)


def test_a_read_only_folder_is_read_through_a_copy(closed: Path) -> None:
    """SQLite needs to write beside a file with a WAL; where it may not, a copy is read."""
    assert SOME == count(closed)
    assert "unreadable" == reason(closed, copy="never")


def test_a_workspace_reads_such_a_folder_through_a_copy(closed: Path) -> None:
    """What is judged is attached as it lies, or as a copy where SQLite cannot write beside it."""
    with closing(workspace(Path(tempfile.gettempdir(), "work.db"))) as con:
        read = load(con, str(closed))
        [(rows,)] = con.execute("SELECT count(*) FROM temp.evidence").fetchall()

    assert (READ, "alice", SOME) == (read.state, read.agent, rows)


def test_a_locked_file_is_waited_for_and_then_left(box: Callable[..., Path]) -> None:
    """A file that is locked against readers for longer than the patience lasts is left out."""
    path = box("alice", 1)
    con = apsw.Connection(str(path))
    con.execute("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").fetchall()
    with pytest.raises(Unreadable) as caught, opened(str(path), busy_timeout=0.05):
        pass
    con.close()

    assert "locked" == caught.value.reason


def test_a_file_that_changes_under_every_copy_is_left(
    box: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is trusted only if no process wrote while it was made."""
    path = box("alice", 1)
    really = shutil.copyfile

    def copyfile(source: str, target: str) -> object:
        done = really(source, target)
        os.utime(path)
        return done

    monkeypatch.setattr(shutil, "copyfile", copyfile)

    assert "changing" == reason(path, copy="always")


def test_a_reader_waits_from_its_first_statement_on(box: Made) -> None:
    """
    A first reader that locks the file does not leave it out.

    It makes the file's index or recovers its WAL, and keeps all others out meanwhile.
    """
    path = box("alice", SOME)
    holder = apsw.Connection(str(path))
    holder.execute("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").fetchall()
    release = Timer(0.3, holder.close)
    release.start()

    assert SOME == count(path)
    release.join()
