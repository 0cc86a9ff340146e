"""Full disks, torn writes and foreign objects in the log are told, and cost nothing that counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.fleet.ship.comparing import level
from tests.fleet.ship.views import outbox_with
from tests.fleet.world import World

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.file.buckets import limited
from onceward.fleet import ship
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.log import NoLog
from onceward.fleet.ship.manifest import LogDamaged, LogTooNew, decoded
from onceward.fleet.ship.objects import LogUnwritable
from onceward.fleet.ship.shipper import Shipper

Pair = Callable[[], tuple[Postbox, Postbox]]


@pytest.fixture
def path(world: World, pair: Pair) -> Path:
    """Return a file in which some messages ended."""
    alice, bob = pair()
    for _ in range(3):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    world.rest()
    return alice.file.path


def test_a_power_cut_takes_no_folder_of_an_object(
    path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of each new folder is synced in its parent: what pruning trusts is on the disk."""
    synced = list[Path]()
    monkeypatch.setattr("onceward.fleet.ship.objects.sync", synced.append)

    ship.files([str(path)], log)

    folders = {Path(log), *(each for each in Path(log).rglob("*") if each.is_dir())}
    assert {folder.parent for folder in folders} <= set(synced)


@pytest.mark.parametrize("write", [1, 6, 7, 11], ids=["folder", "segment", "name", "manifest"])
def test_a_full_disk_is_told_and_leaves_no_half(
    path: Path, log: str, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that did not fit: nothing counts, and nothing half is left."""
    synced, sync = [0], os.fsync

    def full(number: int) -> None:
        synced[0] += 1
        if synced[0] == write:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    with monkeypatch.context() as patch:
        patch.setattr("onceward.fleet.ship.objects.os.fsync", full)
        with pytest.raises(LogUnwritable, match="the disk is full") as told:
            ship.files([str(path)], log)

    assert told.value.retryable
    assert [] == list(Path(log).rglob(".*.new"))
    with pytest.raises(NoLog):
        ShippedLog(log).files()
    ship.files([str(path)], log)
    assert [] == level(log, [path])


def test_a_damaged_manifest_is_told_and_nothing_is_shipped_past_it(path: Path, log: str) -> None:
    """A log that cannot be read is not begun again: the file is named, and waits."""
    ship.files([str(path)], log)
    [manifest] = Path(log).glob("files/*/manifests/*.json")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:100])

    [broken] = ship.files([str(path)], log)
    with pytest.raises(LogDamaged):
        ShippedLog(log).files()
    manifest.write_bytes(whole)
    [mended] = ship.files([str(path)], log)

    assert ("restore it from a copy" in broken.error, broken.commits) == (True, 0)
    assert ("", 0) == (mended.error, mended.commits)


def test_a_log_of_a_newer_version_is_left_alone() -> None:
    """A format that this version does not know is refused by name."""
    with pytest.raises(LogTooNew, match="upgrade"):
        decoded(b'{"format": 2}')


def test_foreign_objects_in_the_log_are_no_rows(path: Path, log: str) -> None:
    """Objects that no manifest names do not count: those of killed processes, and strangers'."""
    ship.files([str(path)], log)
    [segment] = Path(log).glob("data/outbox/*/*/*.parquet")
    segment.with_name("stranger.parquet").write_bytes(segment.read_bytes())
    (Path(log) / "files" / "stranger").mkdir()
    (Path(log) / "notes.txt").write_text("buy milk", encoding="utf-8")

    assert [] == level(log, [path])
    assert 1 == len(ShippedLog(log).files())


def test_a_missing_segment_is_told_by_its_name(path: Path, log: str) -> None:
    """A reader does not skip what is gone."""
    ship.files([str(path)], log)
    [segment] = Path(log).glob("data/outbox/*/*/*.parquet")
    segment.unlink()

    with pytest.raises(LogDamaged, match=segment.name):
        list(ShippedLog(log).batches("outbox"))


def test_a_changed_digit_of_a_manifest_is_told(path: Path, log: str) -> None:
    """A manifest that says another number is not believed: rows would be missed or be twice."""
    ship.files([str(path)], log)
    [manifest] = Path(log).glob("files/*/manifests/*.json")
    whole = manifest.read_text(encoding="utf-8")
    assert '"high": 3' in whole
    manifest.write_text(whole.replace('"high": 3', '"high": 2'), encoding="utf-8")

    [broken] = ship.files([str(path)], log)

    assert ("was altered" in broken.error, broken.commits) == (True, 0)


@pytest.mark.broken("the sender's file was restored")
def test_a_damaged_log_is_not_told_as_trouble_of_a_restored_file(
    path: Path, log: str, world: World
) -> None:
    """A new epoch looks into the log: what is wrong there is told as it is."""
    world.rest()
    backup = world.keep("alice")
    world.open("alice").send("bob", {"wish": "fine"}, type="do")
    world.rest()
    ship.files([str(path)], log)
    world.restore("alice", backup)
    for segment in Path(log).glob("data/outbox/*/*/*.parquet"):
        segment.unlink()

    [broken] = ship.files([str(path)], log)

    assert broken.error.startswith("data/outbox/")
    assert "is missing" in broken.error


def test_a_column_of_an_unknown_type_stops_its_own_file(path: Path, log: str, world: World) -> None:
    """A newer version may have columns that this one cannot type; other files are shipped."""
    world.rest()
    with outbox_with(path, "o.seq + 1 AS later"):
        done = {Path(each.path).name: each for each in ship.files([str(world.folder)], log)}

    assert "newer" in done["alice.db"].error
    assert ("", []) == (done["bob.db"].error, level(log, [world.path("bob")]))


def test_text_that_is_not_utf8_is_told_by_its_row(path: Path, log: str) -> None:
    """Only raw SQL writes it: the file waits, and its error says which value to overwrite."""
    with closing(apsw.Connection(str(path))) as con:
        con.execute("UPDATE _onceward_outbox SET reason = CAST(x'ff' AS TEXT) WHERE seq = 2")
    [held] = ship.files([str(path)], log)
    with closing(apsw.Connection(str(path))) as con:
        con.execute("UPDATE _onceward_outbox SET reason = NULL WHERE seq = 2")
    [mended] = ship.files([str(path)], log)

    assert "_onceward_outbox, seq 2: reason is text that is not UTF-8" in held.error
    assert "UPDATE" in held.error
    assert ("", []) == (mended.error, level(log, [path]))


@pytest.mark.parametrize("place", ["", "s3://", "s3:/logs/fleet", "gopher://logs"])
def test_a_place_that_is_none_is_refused(path: Path, place: str) -> None:
    """A slip in a URI is not a name of a folder here."""
    with pytest.raises(InvalidArgument, match="is not a place for a log"):
        ship.files([str(path)], place)


def test_gcs_gives_up_after_a_minute_unless_told_otherwise() -> None:
    """By itself it tries for a quarter of an hour, without a word."""
    assert limited("gs://logs/fleet") == "gs://logs/fleet?retry_limit_seconds=60"
    assert limited("gs://logs?scheme=http") == "gs://logs?scheme=http&retry_limit_seconds=60"
    assert limited("gs://logs?retry_limit_seconds=5") == "gs://logs?retry_limit_seconds=5"
    assert limited("s3://logs") == "s3://logs"


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_at_which_nothing_is_shipped_is_refused(rate: float) -> None:
    """It is not taken for no limit."""
    with pytest.raises(InvalidArgument, match="more than 0"):
        ship.Pace(rows_per_second=rate)


@pytest.mark.broken("a page is overwritten")
def test_one_bad_file_stops_no_other(path: Path, log: str, world: World) -> None:
    """Files that cannot be read are returned with their reason; the others are shipped."""
    (world.folder / "notes.db").write_text("buy milk\n" * 500, encoding="utf-8")
    (world.folder / "empty.db").touch()

    done = {Path(each.path).name: each for each in Shipper([str(world.folder)], log).once()}

    assert {"notes.db": True, "empty.db": True, "alice.db": False, "bob.db": False} == {
        name: bool(each.error) for name, each in done.items()
    }
    assert [] == level(log, [path])
