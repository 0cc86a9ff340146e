"""The log holds what the files hold, whatever happened between two times of shipping."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.fleet.ship.comparing import id_of, level, rows_of_log
from tests.fleet.ship.views import outbox_with
from tests.fleet.world import World

from onceward import Postbox
from onceward.core.rows import late_changes
from onceward.fleet import ship
from onceward.fleet.ship import Pace, compaction
from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.changes import Limit
from onceward.fleet.ship.objects import LocalObjects
from onceward.fleet.ship.shipper import Shipper
from onceward.fleet.ship.tables import TABLES

Pair = Callable[[], tuple[Postbox, Postbox]]
WISHES = ("fine", "reject", "drop", "fine", "reject")


def _paths(world: World) -> list[Path]:
    return sorted(world.folder.glob("*.db"))


def _story(world: World, pair: Pair) -> list[Callable[[], object]]:
    """Return steps in which rows begin, change, end, end otherwise and go."""
    alice, bob = pair()

    def send() -> None:
        for wish in WISHES:
            alice.send("bob", {"wish": wish}, type="do")

    def replay() -> None:
        [second, first] = [dead.id for dead in bob.dead_letters.list()]
        bob.dead_letters.replay(first)
        bob.dead_letters.discard(second)

    def rolled_back() -> None:
        """The recipient comes back empty: the sender takes up again what had ended."""
        world.shut(bob)
        for end in ("", "-wal", "-shm"):
            Path(f"{world.path('bob')}{end}").unlink(missing_ok=True)
        pair_again[:] = pair()
        pair_again[0].send("bob", {"wish": "fine"}, type="do")
        world.run(*pair_again)

    pair_again = [alice, bob]
    return [
        send,
        alice.run_until_idle,
        lambda: world.run(alice, bob),
        lambda: world.turns(alice, bob),
        replay,
        lambda: world.turns(*pair_again),
        rolled_back,
        lambda: world.turns(*pair_again, times=2),
        send,
    ]


@pytest.mark.parametrize("every", [1, 2, 3, 9])
@pytest.mark.parametrize("rows", [2, 50_000])
def test_the_log_at_rest_equals_the_files(
    world: World, pair: Pair, log: str, every: int, rows: int
) -> None:
    """However often files are shipped, and in whatever pieces, the log ends level with them."""
    pace = Pace(Limit(rows=rows))
    for number, step in enumerate(_story(world, pair), 1):
        step()
        if number % every == 0:
            done = ship.files([str(world.folder)], log, pace=pace)
            assert {("", 1)} == {(each.error, each.epoch) for each in done}
            assert [] == level(log, _paths(world)), step


def test_what_is_level_is_not_shipped_again(world: World, pair: Pair, log: str) -> None:
    """A second time in a row adds no commit, not even an empty one."""
    world.run(*pair())
    ship.files([str(world.folder)], log)
    before = sorted(path.name for path in Path(log).rglob("*"))

    again = ship.files([str(world.folder)], log)

    assert [0, 0] == [each.commits for each in again]
    assert before == sorted(path.name for path in Path(log).rglob("*"))


def test_a_change_of_an_ended_row_is_shipped_although_it_was_not_watched(
    world: World, pair: Pair, log: str
) -> None:
    """Dead letters that are replayed or discarded leave the log, too."""
    alice, bob = pair()
    alice.send("bob", {"wish": "reject"}, type="do")
    alice.send("bob", {"wish": "reject"}, type="do")
    world.run(alice, bob)
    ship.files([str(world.folder)], log)
    dead = [each.id for each in bob.dead_letters.list()]
    assert sorted(dead) == sorted(
        row["id"] for row in rows_of_log(log, id_of(bob.file.path))["dead_letters"].values()
    )

    bob.dead_letters.discard_all()
    ship.files([str(world.folder)], log)

    assert {} == rows_of_log(log, id_of(bob.file.path))["dead_letters"]


def _forget_late_changes(box: Postbox) -> None:
    """Let the maintenance of a file keep the last of its late changes only."""
    with pytest.MonkeyPatch.context() as patch:
        few = late_changes.PRUNE.replace(f"{late_changes.KEPT}", "1")
        patch.setattr(late_changes, "PRUNE", few)
        box.file.run_maintenance()


def _discard_unseen(world: World, alice: Postbox, bob: Postbox, log: str) -> None:
    """Ship dead letters and discard them; the file no longer says that they changed."""
    for _ in range(4):
        alice.send("bob", {"wish": "reject"}, type="do")
    world.run(alice, bob)
    ship.files([str(world.folder)], log)
    bob.dead_letters.discard_all()
    _forget_late_changes(bob)


def test_a_file_that_has_forgotten_its_late_changes_is_compared_whole(
    world: World, pair: Pair, log: str
) -> None:
    """A shipper that comes back too late reads all rows again, and loses no change."""
    alice, bob = pair()
    _discard_unseen(world, alice, bob, log)

    ship.files([str(world.folder)], log)

    assert [] == level(log, _paths(world))


def test_pruned_rows_stay_in_the_log(world: World, pair: Pair, log: str) -> None:
    """What retention prunes from a file after it was shipped is kept, with its horizon."""
    alice, bob = pair()
    for wish in WISHES:
        alice.send("bob", {"wish": wish}, type="do")
    world.run(alice, bob)
    ship.files([str(world.folder)], log)
    before = rows_of_log(log, id_of(bob.file.path))
    world.clock.advance(30 * 86_400)
    assert bob.file.run_maintenance()

    ship.files([str(world.folder)], log)

    after = rows_of_log(log, id_of(bob.file.path))
    assert {name: before[name] for name in ("inbox", "processed")} == {
        name: after[name] for name in ("inbox", "processed")
    }
    [horizon] = ship.ShippedLog(log).file(id_of(bob.file.path)).manifest.of(1).horizons.values()
    assert max(row["id"] for row in before["processed"].values()) == horizon


def test_days_and_agents_are_partitions(world: World, pair: Pair, log: str) -> None:
    """Each row lies in the folder of the day on which it began, and of its agent's hash."""
    alice, bob = pair()
    alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    world.clock.advance(86_400)
    alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)

    ship.files([str(world.folder)], log)

    days = sorted(path.name for path in (Path(log) / "data" / "outbox").iterdir())
    assert ["day=2026-01-01", "day=2026-01-02"] == days
    [buckets] = {
        tuple(sorted(path.name for path in (Path(log) / "data" / "outbox" / day).iterdir()))
        for day in days
    }
    assert 1 == len(buckets)


def test_many_small_segments_are_folded(world: World, pair: Pair, log: str) -> None:
    """After many commits a day has few segments, and the same rows."""
    alice, bob = pair()
    for _ in range(40):
        alice.send("bob", {"wish": "fine"}, type="do")
        world.run(alice, bob)
        ship.files([str(world.folder)], log)

    file = ship.ShippedLog(log).file(id_of(alice.file.path))
    assert len([each for each in file.segments if each.table == "outbox"]) <= 17
    assert [] == level(log, _paths(world))


def test_days_of_few_messages_share_a_segment(world: World, pair: Pair, log: str) -> None:
    """After a month of nights a table has few segments, and the same rows."""
    alice, bob = pair()
    for _ in range(30):
        alice.send("bob", {"wish": "fine"}, type="do")
        world.run(alice, bob)
        ship.files([str(world.folder)], log)
        world.clock.advance(86_400)

    file = ship.ShippedLog(log).file(id_of(bob.file.path))
    tables = {table: [each for each in file.segments if each.table == table] for table in TABLES}
    assert {True} == {len(found) <= compaction.FEW for found in tables.values()}
    assert 30 == sum(each.rows for each in tables["processed"])
    assert [] == level(log, _paths(world))


def test_folding_brings_nothing_back_that_was_removed(world: World, pair: Pair, log: str) -> None:
    """Dead letters that were discarded while no shipper came stay gone when their day is folded."""
    alice, bob = pair()
    _discard_unseen(world, alice, bob, log)
    ship.files([str(world.folder)], log)
    alice.send("bob", {"wish": "reject"}, type="do")
    world.run(alice, bob)
    ship.files([str(world.folder)], log)

    objects = ship.ShippedLog(log).objects
    compaction.compacted(objects, manifests.newest(objects, id_of(bob.file.path)), few=1)

    assert [] == level(log, _paths(world))


@pytest.mark.parametrize("most", [1, 5, 12, 1000])
def test_a_day_with_many_rows_is_folded_in_parts(
    world: World, pair: Pair, log: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest segments are folded, and their rows are later than those they replace."""
    monkeypatch.setattr(compaction, "ROWS", most)
    compacted = partial(compaction.compacted, few=2)
    monkeypatch.setattr("onceward.fleet.ship.shipper.compacted", compacted)
    for step in _story(world, pair):
        step()
        ship.files([str(world.folder)], log)
        assert [] == level(log, _paths(world)), step


def test_a_busy_day_does_not_stay_in_small_pieces(
    world: World, pair: Pair, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a day has more than is folded at once, what comes then is folded all the same."""
    monkeypatch.setattr(compaction, "ROWS", 30)
    alice, _ = pair()
    for _ in range(80):
        alice.send("bob", {"wish": "fine"}, type="do")
        ship.files([str(alice.file.path)], log)

    file = ship.ShippedLog(log).file(id_of(alice.file.path))
    outbox = [each for each in file.segments if each.table == "outbox"]
    assert 80 == sum(each.rows for each in outbox)
    assert len(outbox) <= 16 + 80 / 15
    assert [] == level(log, [alice.file.path])


def test_a_column_that_came_later_is_null_in_older_rows(world: World, pair: Pair, log: str) -> None:
    """A file whose schema gained a column goes on in the same log; nothing is taken for a copy."""
    alice, bob = pair()
    alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    ship.files([str(world.folder)], log)
    with outbox_with(world.shut(alice), "'fresh' AS colour"):
        alice, _ = pair()
        alice.send("bob", {"wish": "fine"}, type="do")
        [done, _] = ship.files([str(world.folder)], log)
        world.rest()

    assert ("same", "") == (done.history, done.error)
    colours = [
        value
        for batch in ship.ShippedLog(log).batches("outbox", columns=["seq", "colour"])
        for value in batch["colour"].to_pylist()
    ]
    assert [None, "fresh"] == sorted(colours, key=str)


def test_a_pace_holds_between_commits(world: World, pair: Pair, log: str) -> None:
    """A limited shipper waits after each piece, as long as its rows may take."""
    alice, _ = pair()
    for _ in range(5):
        alice.send("bob", {"wish": "fine"}, type="do")
    waits = list[float]()
    pace = Pace(Limit(rows=2), rows_per_second=0.001, sleep=waits.append)

    ship.files([str(alice.file.path)], log, pace=pace)

    assert 2 == len(waits)
    assert 1900 < waits[0] < 2000 < waits[1]


def test_a_log_is_as_old_as_its_reading(
    world: World, pair: Pair, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long an upload takes: what the file heard meanwhile is later than its log."""
    alice, _ = pair()
    alice.send("bob", {"wish": "fine"}, type="do")
    uploads, put = list[int](), LocalObjects.put

    def slow(objects: LocalObjects, path: str, data: bytes) -> None:
        uploads.append(_now())
        while _now() == uploads[-1]:
            pass
        put(objects, path, data)

    monkeypatch.setattr(LocalObjects, "put", slow)
    ship.files([str(alice.file.path)], log)

    assert ship.ShippedLog(log).file(id_of(alice.file.path)).manifest.shipped_at <= uploads[0]


def _now() -> int:
    return time.time_ns() // 1_000_000


def test_a_file_that_did_not_change_is_not_opened_again(
    world: World, pair: Pair, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shipper on a timer costs an idle file one look at its size and times."""
    world.run(*pair())
    world.rest()
    monkeypatch.setattr("onceward.fleet.ship.shipper.SETTLED_NS", -(10**18))
    shipper = Shipper([str(world.folder)], log)
    shipper.once()
    opened = list[str]()
    monkeypatch.setattr("onceward.fleet.ship.shipper.opened", opened.append)

    again = shipper.once()

    assert ([], [0, 0]) == (opened, [each.commits for each in again])
