"""A shipper that is killed, or meets another one, at any step leaves a log that is right."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from tests.children import PYTHON, side_by_side
from tests.fleet.ship.comparing import level
from tests.fleet.ship.dying import Killed, Stepping, kill
from tests.fleet.world import World

from onceward import Postbox
from onceward.fleet import ship
from onceward.fleet.ship import Pace, compaction
from onceward.fleet.ship.changes import Limit
from onceward.fleet.ship.objects import LocalObjects, Objects, RemoteObjects
from onceward.fleet.ship.shipper import Shipper

Pair = Callable[[], tuple[Postbox, Postbox]]
PACE = Pace(Limit(rows=4))
WHOLE = Pace()


def _local(folder: Path) -> Objects:
    return LocalObjects(folder)


class _Folders(RemoteObjects):
    """A bucket in a folder: folders come with the objects in them."""

    def put(self, path: str, data: bytes) -> None:
        Path(self._base, path).parent.mkdir(parents=True, exist_ok=True)
        super().put(path, data)


def _bucket(folder: Path) -> Objects:
    return _Folders(fs.LocalFileSystem(), str(folder))


PLACES = pytest.mark.parametrize("place", [_local, _bucket], ids=["linked", "voted"])


@pytest.fixture
def changed(world: World, pair: Pair) -> Path:
    """Return alice's file, in which six rows ended and three did not."""
    alice, bob = pair()
    for _ in range(6):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    for _ in range(3):
        alice.send("bob", {"wish": "fine"}, type="do")
    return alice.file.path


def _send(path: Path) -> None:
    with Postbox(path, start=False) as box:
        box.send("bob", {"wish": "fine"}, type="do")


def _shipper(path: Path, objects: Any, pace: Pace = PACE) -> Shipper:
    made = Shipper([str(path)], "unused", pace=pace)
    made._log._objects = objects
    return made


def _log(objects: Objects) -> ship.ShippedLog:
    log = ship.ShippedLog("unused")
    log._objects = objects
    return log


def _moments(path: Path, objects: Objects, scratch: Callable[[], Objects]) -> int:
    """Return how many moments there are in one run."""
    counted = Stepping(scratch(), -1, kill)
    _shipper(path, counted).once()
    return counted.steps


@PLACES
def test_a_shipper_may_be_killed_between_any_two_steps(
    changed: Path, tmp_path: Path, place: Callable[[Path], Objects]
) -> None:
    """Whatever was written before, the next shipper brings the log level, and no row is twice."""
    moments = _moments(changed, place(tmp_path / "n"), lambda: place(tmp_path / "count"))
    assert moments > 40

    for when in range(1, moments + 1):
        folder = tmp_path / f"killed-{when}"
        with pytest.raises(Killed):
            _shipper(changed, Stepping(place(folder), when, kill)).once()
        [done] = _shipper(changed, place(folder)).once()

        assert ("", []) == (done.error, level(_log(place(folder)), [changed])), when
        shutil.rmtree(folder)


@pytest.mark.parametrize("pace", [PACE, WHOLE], ids=["pieces", "whole"])
@PLACES
def test_two_shippers_may_meet_at_any_step(
    changed: Path, tmp_path: Path, place: Callable[[Path], Objects], pace: Pace
) -> None:
    """One that overtakes another between any two steps: both end, and no row is twice."""
    count = Stepping(place(tmp_path / "count"), -1, kill)
    _shipper(changed, count, pace).once()

    for when in range(1, count.steps + 1):
        folder = tmp_path / f"met-{when}"

        def other(folder: Path = folder) -> None:
            _send(changed)
            [done] = _shipper(changed, place(folder), pace).once()
            assert "" == done.error

        [done] = _shipper(changed, Stepping(place(folder), when, other), pace).once()

        assert ("", []) == (done.error, level(_log(place(folder)), [changed])), when
        shutil.rmtree(folder)


@PLACES
def test_a_shipper_that_slept_for_long_adds_nothing_of_the_past(
    changed: Path, tmp_path: Path, place: Callable[[Path], Objects]
) -> None:
    """Its number was taken, and even forgotten, by many commits of others: it begins again."""
    folder = tmp_path / "log"

    def others() -> None:
        for _ in range(40):
            _shipper(changed, place(folder)).once()
            _send(changed)

    for when in (5, 9, 13, 17):
        _shipper(changed, Stepping(place(folder), when, others), WHOLE).once()

        assert [] == level(_log(place(folder)), [changed]), when


@PLACES
def test_compaction_may_be_killed_between_any_two_steps(
    changed: Path, tmp_path: Path, place: Callable[[Path], Objects]
) -> None:
    """The log has the same rows before, between and after."""
    _shipper(changed, place(tmp_path / "log")).once()
    log = _log(place(tmp_path / "log"))
    [file] = log.files()
    steps = 0
    for when in range(1, 1000):
        folder = tmp_path / f"killed-{when}"
        shutil.copytree(tmp_path / "log", folder)
        stepping = Stepping(place(folder), when, kill)
        with suppress(Killed):
            compaction.compacted(stepping, file.manifest, few=1)
        assert [] == level(_log(place(folder)), [changed]), when
        [done] = _shipper(changed, place(folder)).once()
        assert ("", []) == (done.error, level(_log(place(folder)), [changed])), when
        shutil.rmtree(folder)
        steps = stepping.steps
        if steps < when:
            break
    assert 5 < steps < 999


PROGRAM = """
import os, signal, sys
from onceward.fleet import ship
from onceward.fleet.ship import objects
when = int(sys.argv[3])
def counted(name, inner, seen=[0]):
    def step(self, *args):
        seen[0] += 1
        if seen[0] == when:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(self, *args)
    return step
for name in ("put", "create", "_written", "get", "size", "names"):
    setattr(objects.LocalObjects, name, counted(name, getattr(objects.LocalObjects, name)))
[done] = ship.files([sys.argv[1]], sys.argv[2])
assert not done.error, done.error
"""


def test_a_process_that_is_killed_in_truth_is_no_different(changed: Path, log: str) -> None:
    """A program under SIGKILL, again and again and each time a little later, comes to its end."""
    codes = []
    for when in range(1, 60, 4):
        command = [sys.executable, "-c", PROGRAM, str(changed), log, str(when)]
        codes.append(subprocess.run(command, check=False).returncode)
        if codes[-1] == 0:
            break

    assert (-signal.SIGKILL, 0) == (codes[0], codes[-1])
    assert [] == level(log, [changed])


def test_two_processes_at_once_end_in_one_log(changed: Path, log: str) -> None:
    """Two programs that ship the same file at the same time add each row once."""
    side_by_side([[*PYTHON, "-c", PROGRAM, changed, log, "0"]] * 2)

    assert [] == level(log, [changed])
