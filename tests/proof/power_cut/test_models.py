"""The disk that is cut, and the ways in which it may come out of it."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest
from tests.proof.power_cut.case import Cut
from tests.proof.power_cut.disk import Disk, Image, Op
from tests.proof.power_cut.persistence import MODELS, image
from tests.proof.power_cut.recorder import recording
from tests.proof.power_cut.track import Life, Track, lay_out

OLD, NEW = b"o" * 2048, b"n" * 2048
DRAWN = 40


def disk(*more: Op) -> Disk:
    """
    Return a disk with a durable file of old bytes that is overwritten and grows.

    The overwrite by new bytes is under way.
    """
    made = Disk.of({"a.db": OLD})
    for op in (Op("write", 1, at=0, data=NEW), Op("write", 1, at=2048, data=NEW), *more):
        made.apply(op)
    return made


def drawn(model: str, of: Callable[[], Disk] = disk) -> list[Image]:
    """Return many images by one model."""
    return [image(of(), model, Random(seed)) for seed in range(DRAWN)]


def test_nothing_leaves_what_was_synced() -> None:
    """Without a sync neither bytes nor size have changed."""
    assert {"a.db": OLD} == image(disk(), "nothing", Random(1))


def test_everything_leaves_what_the_machine_showed() -> None:
    """With luck all of it has reached the disk."""
    assert {"a.db": NEW + NEW} == image(disk(), "everything", Random(1))


@pytest.mark.parametrize("model", MODELS)
def test_no_model_touches_what_a_sync_has_made_durable(model: str) -> None:
    """Whatever happens to what is under way, a synced file stays."""
    assert [{"a.db": NEW + NEW}] * DRAWN == drawn(model, lambda: disk(Op("sync", 1)))


@pytest.mark.parametrize(
    "model", sorted(set(MODELS) - {"nothing", "everything", "size-only", "one-file", "newest"})
)
def test_models_draw_many_images(model: str) -> None:
    """A random model shows more than one face, and the same one for the same seed."""
    assert len({each["a.db"] for each in drawn(model)}) > 2
    assert drawn(model) == drawn(model)


def test_a_torn_write_is_a_prefix() -> None:
    """Some prefix of the operations is there, the last of them cut somewhere in the middle."""
    assert all((NEW + NEW).startswith(each["a.db"].replace(b"o", b"")) for each in drawn("torn"))


def test_the_newest_come_without_the_older() -> None:
    """The later write may be there without the earlier one, never the other way round."""
    assert {OLD + NEW, NEW + NEW} == {each["a.db"] for each in drawn("newest")}


def test_sectors_are_written_whole() -> None:
    """A sector is old or new, never both."""
    sectors = {
        each["a.db"][at : at + 512] for each in drawn("sectors") for at in range(0, 2048, 512)
    }

    assert {b"o" * 512, b"n" * 512} == sectors


def test_size_without_data_is_zeros() -> None:
    """The file has grown, and nothing of what was written is in it."""
    assert {"a.db": OLD + bytes(2048)} == image(disk(), "size-only", Random(1))


def test_garbage_stays_where_a_write_was_under_way() -> None:
    """Powersafe overwrite: bytes outside of an interrupted write are never damaged."""
    grown = [image(_partly(), "garbage", Random(seed))["a.db"] for seed in range(DRAWN)]

    assert {OLD[:512]} == {each[:512] for each in grown}
    assert {OLD[1024:]} == {each[1024:] for each in grown}
    assert len({each[512:1024] for each in grown}) > 2


def _partly() -> Disk:
    made = Disk.of({"a.db": OLD})
    made.apply(Op("write", 1, at=512, data=b"n" * 512))
    return made


def test_one_file_is_written_back_alone() -> None:
    """Of two files under way one is complete and the other as it was."""

    def two() -> Disk:
        made = Disk.of({"a.db": OLD, "b.db": OLD})
        made.apply(Op("write", 1, at=0, data=NEW))
        made.apply(Op("write", 2, at=0, data=NEW))
        return made

    assert {(NEW, OLD), (OLD, NEW)} == {
        (each["a.db"], each["b.db"]) for each in drawn("one-file", two)
    }


def test_a_name_is_durable_once_its_folder_is_synced() -> None:
    """A synced file whose name was not synced may be gone; another agent's folder does not help."""

    def named(folder: str) -> Disk:
        made = Disk()
        for op in (
            Op("link", 1, "a.db-wal"),
            Op("write", 1, at=0, data=NEW),
            Op("sync", 1),
            Op("sync-folder", name=folder),
        ):
            made.apply(op)
        return made

    assert {} == image(named("b.db"), "nothing", Random(1))
    assert {"a.db-wal": NEW} == image(named("a.db-wal"), "nothing", Random(1))


def test_a_deleted_file_may_come_back() -> None:
    """Until its folder is synced a deleted name still leads to its old file."""
    gone = Disk.of({"a.db-wal": OLD})
    gone.apply(Op("unlink", name="a.db-wal"))

    assert ({"a.db-wal": OLD}, {}) == (
        image(gone, "nothing", Random(1)),
        image(gone, "everything", Random(1)),
    )


def test_a_write_beyond_the_end_leaves_zeros() -> None:
    """Holes read as zeros, also after the file was cut."""
    holed = Disk.of({"a.db": b"abc"})
    for op in (Op("truncate", 1, at=1), Op("write", 1, at=4, data=b"z")):
        holed.apply(op)

    assert {"a.db": b"a\0\0\0z"} == holed.cached()


def test_the_recorder_sees_all_that_reaches_the_files(tmp_path: Path) -> None:
    """Played back, the log gives the very bytes that lie in the folder, main file and WAL."""
    with recording(Disk(), 1) as recorder:
        con = apsw.Connection(str(tmp_path / "a.db"), vfs=recorder.name)
        con.execute(
            "PRAGMA journal_mode = WAL; CREATE TABLE t (x); PRAGMA wal_checkpoint"
        ).fetchall()
        con.execute(
            "INSERT INTO t VALUES (randomblob(9000)); INSERT INTO t SELECT x FROM t"
        ).fetchall()
        con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        con.close()

    disk = Track(Life(Disk(), tuple(recorder.log), (), ())).at(len(recorder.log))
    assert {
        path.name: path.read_bytes()
        for path in tmp_path.iterdir()
        if not path.name.endswith("-shm")
    } == disk.cached()


def test_a_track_stops_anywhere() -> None:
    """Any moment of a life is the operations up to it."""
    log = tuple(Op("write", 1, at=at, data=b"x") for at in range(170))
    track = Track(Life(Disk.of({"a.db": b""}), log, (), ()))

    assert list(range(171)) == [len(track.at(at).cached()["a.db"]) for at in range(171)]


def test_laying_out_leaves_nothing_else(tmp_path: Path) -> None:
    """A folder holds the image and no file of the one before it."""
    lay_out({"a.db": b"long", "a.db-wal": b"w"}, tmp_path)
    lay_out({"a.db": b"s"}, tmp_path)

    assert {"a.db": b"s"} == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_cut_has_a_name() -> None:
    """What a run prints can be given back; a model that does not exist is named."""
    assert Cut(812, "sectors", 1) == Cut.parse(str(Cut(812, "sectors", 1)))
    with pytest.raises(ValueError, match="no model is called 'melted'"):
        Cut.parse("812/melted/1")
