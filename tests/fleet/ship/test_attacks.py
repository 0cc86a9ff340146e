"""Full disks, torn writes and foreign objects in the log are told, and cost nothing that counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fleet.ship.comparing import level

from onceward import Postbox
from onceward.fleet import ship
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.log import NoLog
from onceward.fleet.ship.manifest import LogDamaged, LogTooNew, decoded
from onceward.fleet.ship.objects import LogUnwritable
from onceward.fleet.ship.shipper import Shipper
from onceward.testing.world import World

Pair = Callable[[], tuple[Postbox, Postbox]]


@pytest.fixture
def path(world: World, pair: Pair) -> Path:
    """Return a file in which some messages ended."""
    alice, bob = pair()
    for _ in range(3):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    world.rest()
    return alice.path


@pytest.mark.parametrize("write", [1, 2])
def test_a_full_disk_is_told_and_leaves_no_half(
    path: Path, log: str, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a segment or the manifest did not fit: nothing counts, and nothing half is left."""
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
    """A log that cannot be read is not begun anew: the file is named, and waits."""
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
    """A reader does not pass over what is gone."""
    ship.files([str(path)], log)
    [segment] = Path(log).glob("data/outbox/*/*/*.parquet")
    segment.unlink()

    with pytest.raises(LogDamaged, match=segment.name):
        list(ShippedLog(log).batches("outbox"))


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
