"""Pruning deletes what the log returns, and nothing else, whatever happened to files and clocks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fleet.ship.agents import handler
from tests.fleet.ship.comparing import id_of, level, rows_of_file, rows_of_log
from tests.fleet.world import World

from onceward import Postbox
from onceward.errors import ReadOnlyStore
from onceward.fleet import ship
from onceward.fleet.ship import prune
from onceward.fleet.ship.objects import LocalObjects
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

Pair = Callable[[], tuple[Postbox, Postbox]]


def _mail(world: World, pair: Pair, count: int = 4) -> tuple[Path, Path]:
    """Let some messages end, close the files and return them."""
    alice, bob = pair()
    for _ in range(count):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    world.rest()
    return alice.file.path, bob.file.path


def _counts(path: Path) -> dict[str, int]:
    return {name: len(rows) for name, rows in rows_of_file(path).items()}


def _pruned(world: World, path: Path, log: str, keep: float = 0) -> prune.FilePruned:
    [done] = prune.files([str(path)], log, keep=keep, clock=world.clock)
    return done


def test_what_was_shipped_is_pruned_and_stays_in_the_log(
    world: World, pair: Pair, log: str
) -> None:
    """Ended rows go, with their dedup records; the log keeps them; open rows stay."""
    alice, bob = _mail(world, pair)
    with Postbox(alice, start=False, testing=Controls(clock=world.clock)) as box:
        box.send("bob", {"wish": "fine"}, type="do", delay=60)
    world.clock.advance(1)
    ship.files([str(world.folder)], log)
    before = rows_of_log(log, id_of(bob))

    done = [_pruned(world, path, log) for path in (alice, bob)]

    assert [(4, 0, ""), (8, 0, "")] == [(each.rows, each.kept, each.error) for each in done]
    assert (1, 0, 0) == (
        _counts(alice)["outbox"],
        _counts(bob)["inbox"],
        _counts(bob)["processed"],
    )
    ship.files([str(world.folder)], log)
    assert before == rows_of_log(log, id_of(bob))


def test_a_file_at_a_path_that_was_shipped_is_not_pruned_for_another_one(
    world: World, pair: Pair, log: str, tmp_path: Path
) -> None:
    """Files are told by their id: one that took another's place was never shipped."""
    alice, _ = _mail(world, pair)
    ship.files([str(world.folder)], log)
    with World(tmp_path / "elsewhere", clock=world.clock) as other:
        near, far = other.open("alice"), other.open(handler("bob"))
        near.send("bob", {"wish": "fine"}, type="do")
        other.run(near, far)
        moved = near.file.path
    shutil.move(moved, alice)
    assert id_of(alice) not in {file.file_id for file in ship.ShippedLog(log).files()}
    before = _counts(alice)

    done = _pruned(world, alice, log)

    assert (0, 1, before) == (done.rows, done.kept, _counts(alice))


@pytest.mark.broken("a page is overwritten")
def test_a_damaged_file_is_shipped_whole_once_it_was_repaired(
    world: World, pair: Pair, log: str
) -> None:
    """Half of a damaged file is never committed, nor pruned; after its repair all of it is."""
    alice, _ = _mail(world, pair, count=400)
    good = alice.read_bytes()
    con = apsw.Connection(str(alice))
    con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    [(page,)] = con.execute(
        "SELECT max(pageno) FROM dbstat WHERE name = '_onceward_outbox' AND pagetype = 'leaf'"
    ).fetchall()
    con.close()
    good = alice.read_bytes()
    at = (int(str(page)) - 1) * 4096
    alice.write_bytes(good[:at] + b"\xff" * 4096 + good[at + 4096 :])

    [half] = ship.files([str(alice)], log)
    refused = _pruned(world, alice, log)
    alice.write_bytes(good)
    [whole] = ship.files([str(alice)], log)

    assert "corrupt" in half.error
    assert ("corrupt" in refused.error, 0) == (True, refused.rows)
    assert ("", []) == (whole.error, level(log, [alice]))
    assert 400 == _pruned(world, alice, log).rows


def test_a_host_with_a_slow_clock_is_not_passed_over(
    tmp_path: Path, log: str, world: World, pair: Pair
) -> None:
    """Rows are taken by their sequence: a file whose clock is a year behind is shipped whole."""
    slow = ManualClock(world.clock.now() - 365 * 86_400_000)
    with World(tmp_path / "slow", clock=slow) as host:
        near, far = host.open("near"), host.open(handler("far"))
        for _ in range(3):
            near.send("far", {"wish": "fine"}, type="do")
            host.run(near, far)
            ship.files([str(host.folder)], log)
            slow.advance(1)
        host.rest()
        _mail(world, pair)
        ship.files([str(host.folder), str(world.folder)], log)

        assert [] == level(log, [near.file.path, far.file.path])
        assert 3 == prune.files([str(near.file.path)], log, keep=0, clock=slow)[0].rows


def test_shipping_and_pruning_come_to_an_end(world: World, pair: Pair, log: str) -> None:
    """What the log lacks stays, is counted, and is pruned after the next shipping."""
    alice, bob = _mail(world, pair)
    ship.files([str(world.folder)], log)
    _mail(world, pair)

    first = [_pruned(world, path, log) for path in (alice, bob)]
    ship.files([str(world.folder)], log)
    second = [_pruned(world, path, log) for path in (alice, bob)]
    third = [_pruned(world, path, log) for path in (alice, bob)]

    assert [(4, 4), (8, 8)] == [(each.rows, each.kept) for each in first]
    assert [(4, 0), (8, 0)] == [(each.rows, each.kept) for each in second]
    assert [(0, 0), (0, 0)] == [(each.rows, each.kept) for each in third]


def test_a_row_that_was_changed_in_the_log_is_not_pruned(
    world: World, pair: Pair, log: str
) -> None:
    """An object of the log whose bytes are not those that were written proves nothing."""
    alice, _ = _mail(world, pair)
    ship.files([str(world.folder)], log)
    [path] = Path(log).glob("data/outbox/*/*/*.parquet")
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 4 + b"PAR1")

    done = _pruned(world, alice, log)

    assert ("was altered" in done.error, 4) == (True, _counts(alice)["outbox"])


def test_a_row_that_changed_after_it_was_shipped_is_not_pruned(
    world: World, pair: Pair, log: str
) -> None:
    """A row in the file that differs in one column from the log's stays."""
    alice, _ = _mail(world, pair, count=20)
    ship.files([str(world.folder)], log)
    con = apsw.Connection(str(alice))
    con.execute("UPDATE _onceward_outbox SET reason = 'by hand' WHERE seq = 2")
    con.close()

    done = _pruned(world, alice, log)

    assert (19, 1) == (done.rows, done.kept)
    assert 2 in rows_of_file(alice)["outbox"]


@pytest.mark.broken("the sender's file was restored")
def test_a_restored_file_is_not_pruned_before_it_was_shipped_again(
    world: World, pair: Pair, log: str
) -> None:
    """The log's rows are of another past: they prove nothing about this file."""
    alice, _ = _mail(world, pair)
    backup = world.keep("alice")
    _mail(world, pair)
    ship.files([str(alice)], log)
    world.restore("alice", backup)

    refused = _pruned(world, alice, log)
    ship.files([str(alice)], log)
    done = _pruned(world, alice, log)

    assert [(0, 4), (4, 0)] == [(each.rows, each.kept) for each in (refused, done)]


def test_young_rows_stay_by_the_clock_of_the_file(world: World, pair: Pair, log: str) -> None:
    """The span to keep ends at the latest moment of the file, not of this machine."""
    alice, _ = _mail(world, pair)
    world.clock.advance(3600)
    _mail(world, pair)
    ship.files([str(world.folder)], log)

    assert 4 == _pruned(world, alice, log, keep=1800).rows
    assert 4 == _counts(alice)["outbox"]


def test_pruning_tells_a_comparison_of_files_how_far_it_went(
    world: World, pair: Pair, log: str
) -> None:
    """The outbox says up to when it was pruned, and streams up to which id; so does the log."""
    alice, bob = _mail(world, pair)
    ship.files([str(world.folder)], log)
    ids = [row["id"] for row in rows_of_file(bob)["processed"].values()]
    ended = [row["ended_at"] for row in rows_of_file(alice)["outbox"].values()]
    world.clock.advance(1)
    for path in (alice, bob):
        _pruned(world, path, log)
    ship.files([str(world.folder)], log)

    read = ship.ShippedLog(log)
    assert {"alice": max(ids)} == read.file(id_of(bob)).manifest.of(1).horizons
    assert max(ended) + 1 == read.file(id_of(alice)).manifest.of(1).outbox_pruned_at


def test_each_object_of_the_log_is_read_once(
    world: World, pair: Pair, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces a file is pruned in, none of them reads the same object again."""
    alice, _ = _mail(world, pair, count=12)
    ship.files([str(world.folder)], log)
    monkeypatch.setattr(prune, "SLICE", 2)
    read, get = list[str](), LocalObjects.get

    def counted(objects: LocalObjects, path: str) -> bytes:
        read.append(path)
        return get(objects, path)

    monkeypatch.setattr(LocalObjects, "get", counted)

    assert (12, 0) == ((done := _pruned(world, alice, log)).rows, done.kept)
    assert sorted(set(read)) == sorted(read)


def test_a_file_that_cannot_be_written_is_told_and_the_others_are_pruned(
    world: World, pair: Pair, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the file says why nothing was deleted."""
    alice, bob = _mail(world, pair)
    ship.files([str(world.folder)], log)

    def refusing(path: str, **options: Any) -> Postbox:
        if path == str(alice):
            msg = f"{path} is read-only"
            raise ReadOnlyStore(msg)
        return Postbox(path, **options)

    monkeypatch.setattr("onceward.fleet.ship.prune.Postbox", refusing)
    done = prune.files([str(alice), str(bob)], log, keep=0, clock=world.clock)

    assert [("read-only" in each.error, each.rows) for each in done] == [(True, 0), (False, 8)]
