"""The guard: which file system holds a folder, and whether the file is still where it was."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from onceward import Postbox, Tuning
from onceward.errors import (
    NetworkFilesystem,
    OutcomeUnknown,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreUnusable,
)
from onceward.events import WalDeleted
from onceward.file.file_checks import create_or_check, file_key, filesystem, refuse_network
from onceward.file.read_only import opened as opened_to_read

Open = Callable[..., Postbox]
MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
30 21 0:40 / /net rw shared:9 master:1 - nfs4 server:/x rw
31 30 8:2 / /net/local rw - xfs /dev/sdb rw
32 21 0:41 / /auto rw - autofs systemd-1 rw
33 32 0:42 / /auto rw - nfs server:/y rw
34 21 0:43 / /with\040space rw - cifs //s/x rw
35 21 0:44 / /back\134slash rw - fuse.sshfs host: rw
36 21 0:45 / /mnt/host rw - 9p host rw
37 21 0:46 / /disk rw - fuseblk /dev/sdc rw
broken line

"""
WHERE = {
    "/": "ext4",
    "/home/me": "ext4",
    "/net": "nfs4",
    "/net/a/b": "nfs4",
    "/net/local/a": "xfs",
    "/network": "ext4",
    "/auto/a": "nfs",
    "/with space/a": "cifs",
    "/back\\slash": "fuse.sshfs",
    "/mnt/host": "9p",
    "/disk/a": "fuseblk",
}
LOST_AT = "SELECT wal_lost_at FROM onceward_file"
REFUSED = {"nfs4", "nfs", "cifs", "fuse.sshfs", "9p"}


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    """Return a mount table of a machine with all kinds of file systems."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS, encoding="utf-8")
    return str(table)


@pytest.mark.parametrize(("folder", "kind"), WHERE.items())
def test_the_innermost_and_latest_mount_counts(mounts: str, folder: str, kind: str) -> None:
    """A folder lies on the nearest mount point above it, the later one of two at one point."""
    assert kind == filesystem(Path(folder), mounts)


@pytest.mark.parametrize(("folder", "kind"), WHERE.items())
def test_network_file_systems_are_refused_unless_allowed(
    mounts: str, folder: str, kind: str
) -> None:
    """Where locks do not hold nothing is opened, unless the caller asks for it."""
    refuse_network(Path(folder), allow=True, mounts=mounts)
    if kind in REFUSED:
        with pytest.raises(NetworkFilesystem, match=kind):
            refuse_network(Path(folder), allow=False, mounts=mounts)
    else:
        refuse_network(Path(folder), allow=False, mounts=mounts)


def test_no_mount_table_means_no_opinion(tmp_path: Path) -> None:
    """Where the machine does not tell, nothing is refused."""
    assert "" == filesystem(tmp_path, str(tmp_path / "none"))


def test_preparing_says_whether_the_file_is_new(tmp_path: Path) -> None:
    """Only the first caller creates the file."""
    assert [True, False] == [create_or_check(tmp_path / "a", allow_network=False) for _ in range(2)]


def test_a_file_is_known_by_device_and_inode(tmp_path: Path) -> None:
    """Two names of one file have one key; no file has none."""
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")

    assert file_key(tmp_path / "a") == file_key(tmp_path / "b") is not None
    assert file_key(tmp_path / "c") is None


def settled(box: Postbox) -> None:
    """Move everything into the main file, so that a lost WAL loses nothing old."""
    box._db.checkpoint(truncate=True)


def delete_wal(box: Postbox) -> None:
    """Delete the side files, as a script that tidies up does."""
    for end in ("-wal", "-shm"):
        Path(f"{box.file.path}{end}").unlink()


def test_a_commit_into_a_wal_that_was_taken_away_is_repeated(box: Postbox) -> None:
    """A deleted WAL is noticed at the next commit, which is repeated in a file that is found."""
    kept = box.send("b", 1)
    settled(box)
    Path(f"{box.file.path}-wal").unlink()

    again = box.send("b", 2)

    assert (["pending", "pending"], []) == (
        [box.state(kept), box.state(again)],
        box.file.check(),
    )


def test_a_deleted_wal_is_saved_by_the_process_that_has_it_open(
    box: Postbox, caplog: pytest.LogCaptureFixture
) -> None:
    """The next commit moves all that stood in the WAL alone into the file; log and event tell."""
    settled(box)
    told = SimpleQueue[WalDeleted]()
    box.on(WalDeleted, told.put)
    kept = [box.send("b", number) for number in range(20)]
    delete_wal(box)

    again = box.send("b", 20)

    assert (["pending"] * 21, []) == (list(map(box.state, [*kept, again])), box.file.check())
    assert "deleted WAL saved" in caplog.text
    event = told.get(timeout=60)
    assert ("a", str(box.file.path), True) == (event.agent, event.path, event.saved)
    assert "the -wal was deleted under this process, which has saved all of it" in (
        box.file.health().reasons
    )
    assert [(None,)] == box.query(LOST_AT)


def test_a_hook_of_a_deleted_wal_may_write(opened: Open) -> None:
    """It is called on a thread of its own, and by a postbox whose file another one has closed."""
    box, other = opened("a"), opened("a")
    settled(box)
    sent = SimpleQueue[str]()
    box.on(WalDeleted, lambda _: sent.put(box.send("b", "the -wal was deleted")))
    other.close()
    delete_wal(box)

    box.send("b", 1)

    assert "pending" == box.state(sent.get(timeout=60))


def test_a_reader_creates_no_second_wal(box: Postbox) -> None:
    """While only the WAL is missing, a reader is told so, and the saving is still possible."""
    settled(box)
    kept = box.send("b", 1)
    Path(f"{box.file.path}-wal").unlink()

    with pytest.raises(StoreFault, match="its -wal was deleted"), opened_to_read(box.file.path):
        raise AssertionError

    assert not Path(f"{box.file.path}-wal").exists()
    assert ["pending", "pending"] == [box.state(box.send("b", 2)), box.state(kept)]


def test_a_reader_that_connects_prevents_no_saving(box: Postbox) -> None:
    """SQLite creates an empty WAL for it; it reads again once the next commit has saved the old."""
    kept = box.send("b", 1)
    delete_wal(box)
    with pytest.raises(StoreFault), box._db.readers.lend(1.0):
        pass
    assert Path(f"{box.file.path}-wal").exists()

    again = box.send("b", 2)

    assert ["pending"] * 2 == [box.state(kept), box.state(again)]
    assert ([], [(2,)]) == (box.file.check(), box.query("SELECT count(*) FROM onceward_outbox"))


def test_a_new_file_is_saved_from_its_wal(box: Postbox) -> None:
    """A file that lies in its WAL whole, as after its creation, is saved by the next commit."""
    kept = box.send("b", 1)
    delete_wal(box)

    assert ["pending", "pending"] == [box.state(kept), box.state(box.send("b", 2))]
    assert [] == box.file.check()


def test_closing_saves_a_deleted_wal(opened: Open) -> None:
    """A file that is closed before its next commit has what stood in the deleted WAL."""
    box = opened("a")
    kept = box.send("b", 1)
    delete_wal(box)
    box.close()

    assert "pending" == opened("a").state(kept)


def test_a_deleted_wal_is_kept_until_a_reader_ends(box: Postbox) -> None:
    """While a long read prevents the saving, commits are unsure and nothing is dropped."""
    first = box.send("b", 1)
    with box._db.readers.lend(1.0) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM onceward_outbox").fetchall()
        second = box.send("b", 2)
        delete_wal(box)
        box._db.writer.queue.timeout = 0.05
        with pytest.raises(OutcomeUnknown, match="cannot be moved into the file yet"):
            box.send("b", 3)
        reader.execute("ROLLBACK")
    last = box.send("b", 4)

    assert ["pending"] * 3 == list(map(box.state, [first, second, last]))
    assert [] == box.file.check()


def test_commits_that_cannot_be_saved_are_told(
    box: Postbox, elsewhere: Callable[..., list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """
    Another process has created a new WAL: the old one is not mixed with it.

    The caller whose commit notices it gets an error, and the new commits stay.
    """
    settled(box)
    told = SimpleQueue[WalDeleted]()
    box.on(WalDeleted, told.put)
    gone = box.send("b", 1)
    delete_wal(box)
    elsewhere(box.file.path, "CREATE TABLE of_the_other (id INTEGER)")

    with pytest.raises(OutcomeUnknown, match="commits since the last checkpoint may be lost"):
        box.send("b", 2)

    assert "deleted WAL not saved" in caplog.text
    assert not told.get(timeout=60).saved
    assert any("its commits may be lost" in reason for reason in box.file.health().reasons)
    assert ["absent", "pending"] == [box.state(gone), box.state(box.send("b", 3))]
    assert [(box._db.deleted_wal.at,)] == box.query(LOST_AT)  # type: ignore[union-attr]  # told
    assert [] == box.query("SELECT id FROM of_the_other")
    assert [] == box.file.check()


def test_no_file_is_created_beside_a_wal_that_has_commits(box: Postbox) -> None:
    """SQLite would delete it; the file is put back, and has all that was committed."""
    kept, path, aside = box.send("b", 1), box.file.path, box.file.path.with_name("moved.db")
    path.rename(aside)

    with pytest.raises(StoreUnusable, match="has its last commits, which a new file would end"):
        Postbox(path, agent="a", start=False)

    assert not path.exists()
    aside.rename(path)
    assert ["pending", "pending"] == [box.state(kept), box.state(box.send("b", 2))]


def test_a_new_file_takes_the_place_of_one_that_is_gone_with_its_wal(opened: Open) -> None:
    """Nothing is left of the old one that a new one could end."""
    path = opened("a").file.path
    opened("a").close()
    for name in path.parent.glob("a.db*"):
        name.unlink()

    assert [] == opened("a").file.check()


def test_closing_leaves_the_new_wal_of_another_process(
    opened: Open, elsewhere: Callable[..., list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """
    Closing writes nothing of a deleted WAL over the commits of another process.

    The file and the log say that commits were lost.
    """
    box = opened("a")
    settled(box)
    box.send("b", 1)
    delete_wal(box)
    elsewhere(box.file.path, "CREATE TABLE of_the_other (id INTEGER)")
    before = box._db.now()
    box.close()

    again = opened("a")

    assert ([], []) == (again.query("SELECT id FROM of_the_other"), again.file.check())
    assert "deleted WAL not saved" in caplog.text
    assert before <= again.query(LOST_AT)[0][0]


def test_a_commit_into_a_moved_file_is_not_acknowledged(box: Postbox) -> None:
    """
    While the file is elsewhere sends fail loudly.

    Once it is back, everything goes on, and the unsure message is findable.
    """
    kept = box.send("b", 1)
    hidden = box.file.path.with_name("hidden")
    box.file.path.rename(hidden)

    with pytest.raises(OutcomeUnknown) as caught:
        box.send("b", 2)
    with pytest.raises(StoreError):
        box.send("b", 3)
    with pytest.raises(StoreError, match="is no longer there"):
        box.file.stats()
    hidden.rename(box.file.path)
    last = box.send("b", 4)

    [unsure] = caught.value.message_ids
    assert ("pending", "pending") == (box.state(kept), box.state(last))
    assert box.state(unsure) in {"pending", "absent"}
    assert [] == box.file.check()


def test_an_idle_process_tells_that_its_file_was_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With no message in either direction the maintenance round notices, and logs it."""
    with Postbox(tmp_path / "a.db", agent="a", tuning=Tuning(maintenance_interval=0.05)) as box:
        hidden = box.file.path.with_name("hidden")
        box.file.path.rename(hidden)
        until = time.monotonic() + 60
        while "maintenance waits" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
        hidden.rename(box.file.path)

    assert "maintenance waits agent=a seconds=0.05" in caplog.text
    taken = "a.db is no longer there", "went to a file that was moved or deleted"
    assert any(each in caplog.text for each in taken)  # as it was noticed before a commit or by it


def test_a_tick_is_a_commit_even_if_the_clock_stands_still(box: Postbox) -> None:
    """
    What is read after it is durable.

    So it writes something, though the file has seen a later time than ours.
    """
    with box.begin() as tx:
        tx.execute("UPDATE _onceward_file_info SET clock_at = clock_at + 3600000")
    log = Path(f"{box.file.path}-wal")
    sizes = [log.stat().st_size]
    seen = box._db.read("SELECT clock_at FROM _onceward_file_info")
    for _ in range(2):
        box.state("nothing")
        sizes.append(log.stat().st_size)

    assert sizes == sorted(set(sizes))
    assert seen == box._db.read("SELECT clock_at FROM _onceward_file_info")


def test_a_folder_that_is_moved_is_noticed(opened: Open, tmp_path: Path) -> None:
    """Moving the folder moves the file; a file in its place, too, is a typed error."""
    home = tmp_path / "home"
    home.mkdir()
    box = opened(at=home / "a.db")
    box.send("b", 1)
    home.rename(tmp_path / "moved")
    home.touch()

    with pytest.raises(StoreError):
        box.send("b", 2)
    home.unlink()
    (tmp_path / "moved").rename(home)

    assert "pending" == box.state(box.send("b", 3))


def test_a_replaced_file_is_refused(opened: Open, tmp_path: Path) -> None:
    """Another database under the file's name gets none of our writes and is not adopted."""
    box, other = opened("a"), opened("other", at=tmp_path / "other.db")
    box.send("b", 1)
    settled(box)
    other.close()
    shutil.copy(other.file.path, tmp_path / "copy")
    (tmp_path / "copy").replace(box.file.path)

    for expected in (OutcomeUnknown, StoreError):
        with pytest.raises(expected):
            box.send("b", 2)

    assert other.file.path.read_bytes() == box.file.path.read_bytes()


@pytest.mark.parametrize("notices", ["a commit", "closing"])
def test_a_file_that_was_moved_with_its_wal_has_lost_nothing(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, notices: str
) -> None:
    """Another file has its name, with a WAL of its own: that one stays, and no loss is told."""
    box, other = opened("a"), opened("other", at=tmp_path / "other.db")
    kept, moved = box.send("b", 1), tmp_path / "moved"
    moved.mkdir()
    for end in ("", "-wal", "-shm"):
        Path(f"{box.file.path}{end}").rename(moved / f"a.db{end}")
        shutil.copy(f"{other.file.path}{end}", f"{box.file.path}{end}")
    wal = Path(f"{box.file.path}-wal").read_bytes()

    if notices == "a commit":
        with pytest.raises(OutcomeUnknown, match="moved or deleted"):
            box.send("b", 2)
    box.close()

    assert (wal, "") == (Path(f"{box.file.path}-wal").read_bytes(), caplog.text)
    for end in ("", "-wal", "-shm"):
        Path(f"{box.file.path}{end}").unlink()
    assert "pending" == opened("a", at=moved / "a.db").state(kept)


def test_a_file_replaced_by_its_like_is_refused(opened: Open, tmp_path: Path) -> None:
    """Even a database of the same agent is not ours if it was made apart."""
    box = opened("a")
    box.send("b", 1)
    settled(box)
    Path(f"{box.file.path}-wal").unlink()
    (tmp_path / "twin").mkdir()
    twin = opened("a", at=tmp_path / "twin" / "a.db")
    twin.close()
    twin.file.path.replace(box.file.path)

    with pytest.raises(OutcomeUnknown):
        box.send("b", 2)
    with pytest.raises(StoreCorrupt, match="replaced"):
        box.send("b", 2)


def test_after_a_failed_reopening_the_file_closes_and_opens_again(opened: Open) -> None:
    """A postbox that lost its file does not stand in the way of the next one on the same path."""
    box = opened()
    hidden = box.file.path.with_name("hidden")
    box.file.path.rename(hidden)
    with pytest.raises(OutcomeUnknown):
        box.send("b", 1)
    box.close()
    hidden.rename(box.file.path)

    again = opened()

    assert again._db is not box._db
    assert "pending" == again.state(again.send("b", 2))


def test_another_process_may_checkpoint_and_close(
    box: Postbox, elsewhere: Callable[..., list[Any]]
) -> None:
    """
    A foreign checkpoint moves our frames into the file.

    The guard does not mistake it for a theft.
    """
    kept = box.send("b", 1)
    elsewhere(
        box.file.path, "SELECT count(*) FROM _onceward_outbox", "PRAGMA wal_checkpoint(TRUNCATE)"
    )

    assert ["pending", "pending"] == [box.state(kept), box.state(box.send("b", 2))]
    assert [] == box.file.check()
