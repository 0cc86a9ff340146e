"""A file that was restored, copied or replaced is noticed, and no history overwrites another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.fleet.ship.comparing import id_of, level, rows_of_file, rows_of_log
from tests.fleet.world import World

from onceward import Postbox
from onceward.fleet import ship
from onceward.fleet.ship import ShippedLog
from onceward.testing import Controls

Pair = Callable[[], tuple[Postbox, Postbox]]


def _mail(world: World, pair: Pair, count: int) -> Path:
    """Let some messages end, close the files and return the sender's."""
    alice, bob = pair()
    for _ in range(count):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    world.clock.advance(1)
    world.rest()
    return alice.file.path


def _ship(path: Path, log: str) -> ship.FileShipped:
    [done] = ship.files([str(path)], log)
    assert "" == done.error
    return done


@pytest.mark.broken("the sender's file was restored")
@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_restored_file_begins_an_epoch_however_far_it_went_on(
    world: World, pair: Pair, log: str, after: int
) -> None:
    """Even one that has passed its old number again is not taken for the file that was shipped."""
    path = _mail(world, pair, 3)
    _ship(path, log)
    backup = world.keep("alice")
    _mail(world, pair, 3)
    _ship(path, log)
    past = rows_of_file(path)
    world.restore("alice", backup)
    for _ in range(after):
        _mail(world, pair, 1)

    told, again = _ship(path, log), _ship(path, log)

    assert ("restored", 2) == (told.history, told.epoch)
    assert ("same", 2, 0) == (again.history, again.epoch, again.commits)
    assert [] == level(log, [path])
    assert past == rows_of_log(log, id_of(path), epoch=1)


@pytest.mark.broken("the sender's file was restored")
def test_the_past_that_was_overwritten_is_told_from_what_both_share(
    world: World, pair: Pair, log: str
) -> None:
    """Rows after the branching are abandoned; those before it belong to both histories."""
    path = _mail(world, pair, 3)
    backup = world.keep("alice")
    _mail(world, pair, 2)
    _ship(path, log)
    world.restore("alice", backup)
    _mail(world, pair, 1)
    _ship(path, log)

    found = [
        (row["_epoch"], row["seq"], row["_abandoned"])
        for batch in ShippedLog(log).batches("outbox", columns=["_epoch", "seq", "_abandoned"])
        for row in batch.to_pylist()
    ]

    shared = [(1, seq, False) for seq in (1, 2, 3)]
    new = range(1, 8)  # the restored file has asked for the two that it had sent, and has them
    assert [*shared, (1, 4, True), (1, 5, True), *((2, seq, False) for seq in new)] == sorted(found)
    kept = ShippedLog(log).batches("outbox", columns=["seq"], abandoned=False)
    assert 10 == sum(batch.num_rows for batch in kept)


@pytest.mark.broken("the sender's file was restored")
def test_a_file_whose_rows_alone_went_back_is_noticed(world: World, pair: Pair, log: str) -> None:
    """A copy from before messages ended has the same sequences, and other states."""
    alice, bob = pair()
    for _ in range(3):
        alice.send("bob", {"wish": "fine"}, type="do")
    backup = world.keep("alice")
    alice, bob = pair()
    world.run(alice, bob)
    world.rest()
    _ship(alice.file.path, log)
    world.restore("alice", backup)
    for _ in range(3):
        pair()
        world.rest()

    assert "restored" == _ship(world.path("alice"), log).history
    assert [] == level(log, [world.path("alice")])


def test_a_file_with_other_open_rows_is_noticed(world: World, log: str) -> None:
    """Messages that still wait have ids, too: others in their places are of another history."""
    world.open("bob")
    for round_ in range(2):
        alice = world.open("alice")
        alice.send("bob", {"wish": "fine"}, type="do", delay=3600)
        if not round_:
            backup = world.keep("alice")
    _ship(alice.file.path, log)
    world.restore("alice", backup)
    for _ in range(3):
        world.open("alice").send("bob", {"wish": "fine"}, type="do", delay=3600)
        world.rest()

    assert "restored" == _ship(world.path("alice"), log).history


def test_two_copies_that_both_go_on_are_told(world: World, pair: Pair, log: str) -> None:
    """Each continues an epoch of its own, however often they are shipped in turn."""
    path = _mail(world, pair, 3)
    _ship(path, log)
    other = world.folder / "other" / "alice.db"
    other.parent.mkdir()
    shutil.copyfile(path, other)
    told = []
    for _ in range(3):
        for each in (path, other):
            with Postbox(each, start=False, testing=Controls(clock=world.clock)) as box:
                box.send("alice", {"wish": "fine"}, type="do")
            world.clock.advance(1)
            told.append(_ship(each, log))

    assert [1, 2, 1, 2, 1, 2] == [each.epoch for each in told]
    assert ["same", "restored", "copied", "copied", "copied", "copied"] == [
        each.history for each in told
    ]
    [one, two] = (rows_of_log(log, id_of(path), epoch=epoch) for epoch in (1, 2))
    assert (rows_of_file(path), rows_of_file(other)) == (one, two)
    rows = [
        past
        for batch in ShippedLog(log).batches("outbox", columns=["_abandoned"])
        for past in batch["_abandoned"].to_pylist()
    ]
    assert {False} == set(rows)


@pytest.mark.broken("a backup lies beside the file")
def test_a_copy_that_stays_as_it_is_adds_nothing(world: World, pair: Pair, log: str) -> None:
    """A backup beside the file is shipped once as a history of its own, and never again."""
    path = _mail(world, pair, 3)
    other = world.folder / "kept" / "alice.db"
    other.parent.mkdir()
    shutil.copyfile(path, other)
    _mail(world, pair, 1)
    both = [str(path), str(other)]
    first = ship.files(both, log)
    second = ship.files(both, log)

    assert ["new", "restored"] == [each.history for each in first]
    assert [0, 0] == [each.commits for each in second]


def test_a_file_that_was_pruned_whole_goes_on(world: World, pair: Pair, log: str) -> None:
    """Rows by which a file is recognised may all be gone: its counters go on, and so does it."""
    path = _mail(world, pair, 10)
    _ship(path, log)
    world.clock.advance(30 * 86_400)
    with Postbox(path, start=False, testing=Controls(clock=world.clock)) as box:
        assert 10 <= box.file.run_maintenance()
    _mail(world, pair, 2)

    done = _ship(path, log)

    assert ("same", 1, 2) == (done.history, done.epoch, done.rows)
    assert 12 == len(rows_of_log(log, id_of(path))["outbox"])


def test_the_clock_of_the_host_may_go_back(world: World, pair: Pair, log: str) -> None:
    """Nothing is decided by the time of day: a clock that is set back changes nothing."""
    path = _mail(world, pair, 2)
    _ship(path, log)
    world.clock.step(-86_400)

    _mail(world, pair, 2)
    done = _ship(path, log)

    assert ("same", []) == (done.history, level(log, [path]))


@pytest.mark.broken("the file's id was changed by hand")
@pytest.mark.parametrize("evil", ["../../escape", "a/b", "", "x" * 300, "name\n", "%2e%2e"])
def test_an_evil_file_id_stays_in_the_log(
    world: World, pair: Pair, log: str, tmp_path: Path, evil: str
) -> None:
    """A file may claim any id: no object is written outside of the log."""
    path = _mail(world, pair, 2)
    con = apsw.Connection(str(path))
    con.execute("UPDATE _onceward_file_info SET file_id = ?", (evil,))
    con.close()
    before = {each for each in tmp_path.rglob("*") if Path(log) not in each.parents}

    _ship(path, log)

    after = {each for each in tmp_path.rglob("*") if Path(log) not in each.parents}
    assert {Path(log)} == {each for each in after - before if not each.name.startswith("alice")}
    assert [] == level(log, [path])


def test_an_evil_file_name_is_a_name(world: World, pair: Pair, log: str) -> None:
    """Names of files are told as they are, and stand in no object's name."""
    path = _mail(world, pair, 2)
    evil = path.with_name("a*b; $(rm) \n?.db")
    shutil.copyfile(path, evil)

    [done] = ship.files([str(path.parent)], log)[:1]

    assert (str(evil), "") == (done.path, done.error)
    assert not [each for each in Path(log).rglob("*") if "rm" in each.name]
