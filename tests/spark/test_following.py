"""What is new in a fleet, decided by files and positions alone, without Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Postbox
from onceward.fleet.columns import InvalidOption
from onceward.fleet.files import Found
from onceward.fleet.spark import follow as follow_module
from onceward.fleet.spark.follow import MOST_LOOKS, Follower, Head, advance, lag, slices
from onceward.fleet.spark.options import Options
from onceward.fleet.spark.positions import (
    ENDING,
    INLINE_MAX,
    KEPT,
    START,
    Anchor,
    ManifestMissing,
    Manifests,
    Position,
    Positions,
    start,
)

Made = Callable[..., Path]


def follower(folder: Path, table: str = "outbox") -> Follower:
    """Return what follows a folder."""
    return Follower(Options.of({"path": str(folder), "table": table}))


def send(path: Path, count: int) -> None:
    """Let an agent send so many more."""
    with Postbox(path, start=False, hold_unknown=True) as box:
        box.session().send_many([("bob", number) for number in range(count)], type="note")


def prune(path: Path, which: str) -> None:
    """Delete rows of an outbox as retention does, the ones that a condition names."""
    with Postbox(path, start=False) as live, live.begin() as tx:
        tx.execute(f"UPDATE _onceward_outbox SET state = 'cancelled', ended_at = 1 WHERE {which}")
        tx.execute(f"DELETE FROM _onceward_outbox WHERE {which}")


def step(follow: Follower, known: Positions, limit: int | None = None) -> Positions:
    """Take the next micro-batch."""
    return follow.anchored(known, advance(known, follow.heads(known), limit))


def told(positions: Positions) -> dict[str, tuple[int, int, str]]:
    """Return sequence, epoch and change by file name."""
    return {Path(path).name: (one.seq, one.epoch, one.change) for path, one in positions.items()}


def ranges(start: Positions, end: Positions) -> dict[str, list[tuple[int, int]]]:
    """Return what a micro-batch reads, by file name."""
    found: dict[str, list[tuple[int, int]]] = {}
    for _, piece in slices(start, end, 64 * 1024 * 1024):
        found.setdefault(Path(piece.path).name, []).append((piece.after, piece.to))
    return found


def test_new_rows_and_new_files_are_seen_once(box: Made, tmp_path: Path) -> None:
    """
    Each micro-batch starts where the last one ended.

    A file that came meanwhile begins at its beginning.
    """
    follow = follower(tmp_path)
    path = box("alice", 3)
    first = step(follow, {})
    send(path, 2)
    box("carol", 4)
    second = step(follow, first)

    assert {"alice.db": (3, 0, "new")} == told(first)
    assert {"alice.db": [(3, 5)], "carol.db": [(0, 4)]} == ranges(first, second)
    assert step(follow, second) is second


@pytest.mark.broken("the counters do not know of rows that a test deletes")
def test_pruned_rows_do_not_look_like_a_restored_file(box: Made, tmp_path: Path) -> None:
    """The newest rows may be gone by retention; the file's own count of issued numbers tells."""
    path = box("alice", 3)
    follow = follower(tmp_path)
    known = step(follow, {})
    prune(path, "TRUE")

    assert step(follow, known) is known
    send(path, 1)

    assert {"alice.db": [(3, 4)]} == ranges(known, step(follow, known))


def test_a_restored_file_is_read_again_under_a_new_epoch(box: Made, tmp_path: Path) -> None:
    """Sequences that went back are used again for other rows: nothing of the file is known."""
    path = box("alice", 3)
    backup = path.read_bytes()
    send(path, 4)
    follow = follower(tmp_path)
    known = step(follow, {})
    path.write_bytes(backup)
    back = step(follow, known)

    assert {"alice.db": (3, 1, "restored")} == told(back)
    assert {"alice.db": [(0, 3)]} == ranges(known, back)
    assert step(follow, back) is back


def test_a_restored_file_is_noticed_though_it_has_caught_up(box: Made, tmp_path: Path) -> None:
    """The id of the row that was read last tells, where the number alone does not."""
    path = box("alice", 3)
    backup = path.read_bytes()
    send(path, 4)
    follow = follower(tmp_path)
    known = step(follow, {})
    path.write_bytes(backup)
    send(path, 6)
    back = step(follow, known)

    assert {"alice.db": (9, 1, "restored")} == told(back)
    assert step(follow, back) is back


def test_a_restore_is_noticed_in_the_middle_of_a_file(box: Made, tmp_path: Path) -> None:
    """
    A limit ends a micro-batch between two rows, and the file is restored before the next one.

    The rows that were read are others now, so the file is read again, all twelve rows.
    """
    path = box("alice", 3)
    backup = path.read_bytes()
    send(path, 7)
    follow = follower(tmp_path)
    known = step(follow, {}, 5)
    path.write_bytes(backup)
    send(path, 9)
    back = step(follow, known)

    assert {"alice.db": (5, 0, "new")} == told(known)
    assert {"alice.db": (12, 1, "restored")} == told(back)
    assert {"alice.db": [(0, 12)]} == ranges(known, back)


def test_a_file_that_is_restored_while_a_batch_is_planned_waits(box: Made, tmp_path: Path) -> None:
    """Its position is not moved among rows of which it is not known whose they are."""
    path, _ = box("alice", 3), box("carol", 4)
    follow = follower(tmp_path)
    heads = follow.heads({})
    path.unlink()
    box("alice", 2)
    reached = follow.anchored({}, advance({}, heads, 4))

    assert {"carol.db": (2, 0, "new")} == told(reached)
    assert {"alice.db": (2, 0, "new"), "carol.db": (4, 0, "")} == told(step(follow, reached))


@pytest.mark.broken("the counters do not know of rows that a test deletes")
@pytest.mark.parametrize("pruned", ["seq = 7", "seq IN (3, 7)", "seq <= 3 OR seq = 7"])
def test_a_restore_is_noticed_though_the_row_read_last_was_pruned(
    box: Made, tmp_path: Path, pruned: str
) -> None:
    """A number that was read before stands in a row that was written later: it is another row."""
    path = box("alice", 3)
    backup = path.read_bytes()
    send(path, 4)
    follow = follower(tmp_path)
    known = step(follow, {})
    path.write_bytes(backup)
    send(path, 6)
    prune(path, pruned)

    assert {"alice.db": (9, 1, "restored")} == told(step(follow, known))


@pytest.mark.broken("a message ends in a state that no verb gives it")
def test_a_restore_is_noticed_by_another_change_of_the_same_message(
    box: Made, tmp_path: Path
) -> None:
    """A change of state is not named by its message alone, which has several."""
    path = tmp_path / "alice.db"
    with Postbox(path, agent="alice", start=False, hold_unknown=True, transitions=True) as alice:
        message = alice.send("bob", 1, type="note")
    backup = path.read_bytes()
    with Postbox(path, start=False, transitions=True) as alice:
        alice.cancel(message)
    follow = follower(tmp_path, "transitions")
    known = step(follow, {})
    path.write_bytes(backup)
    with Postbox(path, start=False, transitions=True) as alice, alice.begin() as tx:
        tx.execute("UPDATE _onceward_outbox SET state = 'failed', ended_at = 1")

    assert {"alice.db": (2, 0, "new")} == told(known)
    assert {"alice.db": (2, 1, "restored")} == told(step(follow, known))


@pytest.mark.broken("bob's backup is older than what alice believes to be stored")
def test_a_restore_is_noticed_though_the_message_read_last_came_again(tmp_path: Path) -> None:
    """
    Its sender sends it again, and it gets its old number; another one lies below it now.

    Dora's message would be lost, were it told by the message read last.
    """

    def deliver(*senders: str) -> None:
        for name in senders:
            with Postbox(tmp_path / f"{name}.db", agent=name, start=False) as sender:
                sender.send("bob", name, type="note")
                sender.run_until_idle()

    path = tmp_path / "bob.db"
    Postbox(path, agent="bob", start=False).close()
    backup = path.read_bytes()
    deliver("alice", "carol")
    follow = Follower(Options.of({"path": str(path), "table": "inbox"}))
    known = step(follow, {})
    path.write_bytes(backup)
    deliver("dora", "carol")

    assert {"bob.db": (2, 0, "new")} == told(known)
    assert {"bob.db": (3, 1, "restored")} == told(step(follow, known))


@pytest.mark.broken("the counters do not know of rows that a test deletes")
def test_a_restore_that_brings_pruned_rows_back_is_noticed(box: Made, tmp_path: Path) -> None:
    """Rows below the position that were not there any more mean an older file."""
    path = box("alice", 5)
    backup = path.read_bytes()
    prune(path, "seq > 2")
    follow = follower(tmp_path)
    known = step(follow, {})
    path.write_bytes(backup)

    assert {"alice.db": (5, 0, "new")} == told(known)
    assert {"alice.db": (5, 1, "restored")} == told(step(follow, known))


@pytest.mark.broken("the counters do not know of rows that a test deletes")
def test_pruning_the_row_read_last_is_no_restore(box: Made, tmp_path: Path) -> None:
    """Rows that are left are older than it, so the file goes on where it was."""
    path = box("alice", 5)
    follow = follower(tmp_path)
    known = step(follow, {})
    prune(path, "seq IN (2, 5)")
    send(path, 1)

    assert {"alice.db": [(5, 6)]} == ranges(known, step(follow, known))


def test_another_file_in_its_place_begins_anew(box: Made, tmp_path: Path) -> None:
    """
    A name that now leads to another agent's file, or to a new one, is a new epoch.

    The new file may be of the same agent.
    """
    path = box("alice", 5)
    follow = follower(tmp_path)
    known = step(follow, {})
    path.unlink()
    box("alice", 2)

    assert {"alice.db": (2, 1, "replaced")} == told(step(follow, known))


def test_a_vanished_file_is_told_once_and_may_come_back(
    box: Made,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was read of a file stays known while it is away."""
    path, away = box("alice", 3), tmp_path_factory.mktemp("away") / "alice.db"
    follow = follower(tmp_path)
    known = step(follow, {})
    shutil.move(path, away)
    assert step(follow, known) is known
    assert step(follow, known) is known
    shutil.move(away, path)
    send(path, 1)

    assert {"alice.db": [(3, 4)]} == ranges(known, step(follow, known))
    assert [f"file skipped file={path} why=vanished"] == caplog.messages


def test_a_bad_file_does_not_stop_the_others(
    box: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read is told, and read as soon as it can be."""
    box("alice", 2)
    (tmp_path / "late.db").touch()
    follow = follower(tmp_path)
    known = step(follow, {})
    (tmp_path / "late.db").unlink()
    box("late", 1)

    assert [f"file skipped file={tmp_path / 'late.db'} why=empty"] == caplog.messages
    assert {"late.db": [(0, 1)]} == ranges(known, step(follow, known))


def test_only_changed_files_are_opened_again(box: Made, tmp_path: Path) -> None:
    """
    An idle micro-batch looks at names, sizes and times.

    It does so once these are older than their own grain.
    """
    path = box("alice", 2)
    os.utime(path, ns=(1, 1))
    follow = follower(tmp_path)
    known = step(follow, {})
    [before] = follow.heads(known).values()
    [again] = follow.heads(known).values()

    assert before is again


heads = st.dictionaries(
    st.sampled_from([f"/{name}.db" for name in "abcdef"]),
    st.integers(0, 50).map(lambda high: Head("one", high, Anchor(high, str(high), 1))),
)


@given(heads, st.integers(1, 30))
def test_every_row_is_read_once_whatever_the_limit(now: Mapping[str, Head], limit: int) -> None:
    """
    Micro-batches of any size cover each file's rows in order, none twice.

    They come to an end, and none is larger than its limit.
    """
    known: Positions = {}
    read: dict[str, list[tuple[int, int]]] = {}
    while (reached := advance(known, now, limit)) is not known:
        pieces = [piece for _, piece in slices(known, reached, 1024)]
        assert sum(piece.to - piece.after for piece in pieces) <= limit
        for piece in pieces:
            read.setdefault(piece.path, []).append((piece.after, piece.to))
        known = reached

    for path, head in now.items():
        found = read.get(path, [])
        assert [0, *(to for _, to in found)] == [*(after for after, _ in found), head.high]


def test_a_busy_file_does_not_starve_the_others() -> None:
    """Every file that has something gets its share of a small micro-batch."""
    now = {
        "/busy.db": Head("one", 10**6),
        **{f"/{name}.db": Head("one", 3) for name in "xyz"},
    }
    reached = advance({}, now, 8)

    assert {"/busy.db": 2, "/x.db": 2, "/y.db": 2, "/z.db": 2} == {
        path: one.seq for path, one in reached.items()
    }


@pytest.mark.parametrize("inline", [True, False])
def test_positions_come_back_as_they_were(tmp_path: Path, inline: bool) -> None:
    """An offset names positions, in itself or in its folder, also for later readers."""
    known = {
        f"/{number}.db": Position("file", number, number % 2, "new", number, "anchor", 7)
        for number in range(100)
    }
    folder = "" if inline else str(tmp_path / "positions")
    offset = Manifests(folder).offset(known, start())

    assert known == Manifests(folder).positions(offset)
    assert (100, 4950) == (offset["files"], offset["rows"])
    assert {} == Manifests(folder).positions(START)


def test_offsets_do_not_grow_with_the_fleet(tmp_path: Path) -> None:
    """With a folder an offset is a name; without one a large fleet is refused."""
    known = {
        f"/fleet/{number:06}/agent.db": Position("0" * 32, number, 0, "", number, "1" * 36, 1)
        for number in range(INLINE_MAX + 1)
    }

    assert len(str(Manifests(str(tmp_path)).offset(known, start()))) < 200
    with pytest.raises(InvalidOption, match="give a folder beside its checkpoint"):
        Manifests("").offset(known, start())


def test_a_lost_manifest_is_an_error(tmp_path: Path) -> None:
    """A checkpoint without its folder is useless: a new one would read everything again."""
    offset = Manifests(str(tmp_path / "one")).offset({"/a.db": Position("one", 1)}, start())

    with pytest.raises(ManifestMissing, match="restore the folder"):
        Manifests(str(tmp_path / "two")).positions(offset)
    with pytest.raises(ManifestMissing, match="set the option manifests"):
        Manifests("").positions(offset)


def test_old_manifests_go(tmp_path: Path) -> None:
    """The folder holds as many as restarts may ask for, and the one that is needed."""
    kept, begun = Manifests(str(tmp_path)), start()
    offsets = [
        kept.offset({"/a.db": Position("one", number)}, begun) for number in range(1, KEPT + 20)
    ]
    kept.prune(offsets[0])

    assert KEPT + 1 == len(list(tmp_path.rglob(f"*{ENDING}")))
    assert Manifests(str(tmp_path)).positions(offsets[0]) == {"/a.db": Position("one", 1)}
    assert Manifests(str(tmp_path)).positions(offsets[-1]) == {"/a.db": Position("one", KEPT + 19)}


def test_streams_may_share_a_folder(tmp_path: Path) -> None:
    """The manifests of a slow stream outlive a thousand batches of a busy one beside it."""
    slow, busy = Manifests(str(tmp_path)), Manifests(str(tmp_path))
    known: Positions = {"/a.db": Position("one", 1)}
    offset, reached = slow.offset(known, start()), start()
    for number in range(KEPT + 20):
        reached = busy.offset({"/b.db": Position("two", number)}, reached)
    busy.prune(reached)

    assert known == Manifests(str(tmp_path)).positions(offset)


def test_a_large_fleet_is_looked_at_in_turns(box: Made, tmp_path: Path) -> None:
    """
    A look that takes too long leaves the rest to the next one.

    No file waits for ever, however busy the others are.
    """
    paths = [box(name, 1) for name in ("alice", "bob", "carol", "dora")]
    follow = Follower(Options.of({"path": str(tmp_path), "lookFor": "0"}))
    known: Positions = {}
    reached, behind = [], []
    for _ in range(5):
        known = step(follow, known)
        reached.append(sorted(told(known)))
        behind.append(follow.behind)
        send(paths[0], 1)

    assert ([1, 2, 3, 4, 4], [True, True, True, False, False]) == (
        [len(names) for names in reached],
        behind,
    )
    assert {"bob.db": 1, "carol.db": 1, "dora.db": 1} == {
        name: seq for name, (seq, *_) in told(known).items() if name != "alice.db"
    }


def test_the_first_look_costs_as_much_as_its_files(
    box: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However little time a look has, all files are examined once in at most eight looks.

    Files are listed once for all of them, so twice as many files cost twice as much.
    """
    path = box("alice", 1)
    for number in range(199):
        os.link(path, tmp_path / f"{number}.db")
    listed: list[str] = []
    opened: list[str] = []
    find, look = Options.files, Follower._stat

    def listing(given: Options, *, strict: bool = False) -> list[Found]:
        listed.extend(given.path)
        return find(given, strict=strict)

    def looking(given: Follower, found: Found, known: Position | None) -> Head | None:
        opened.append(found.path)
        return look(given, found, known)

    monkeypatch.setattr(Options, "files", listing)
    monkeypatch.setattr(Follower, "_stat", looking)
    follow = Follower(Options.of({"path": str(tmp_path), "lookFor": "0"}))
    known, steps = step(follow, {}), 1
    while follow.behind:
        known, steps = step(follow, known), steps + 1

    assert (200, 200, 1) == (len(known), len(opened), len(listed))
    assert steps <= MOST_LOOKS


def test_the_lag_is_told_by_agent(box: Made, tmp_path: Path) -> None:
    """Rows that a limit leaves for the next micro-batch are counted for the agents they are of."""
    box("alice", 9), box("carol", 2)
    follow = follower(tmp_path)
    heads = follow.heads({})
    reached = follow.anchored({}, advance({}, heads, 4))

    assert {
        "files": 2,
        "rows": 11,
        "lag": 7,
        "lag_by_agent": {"alice": 7},
    } == lag(reached, heads)


def test_a_file_at_rest_is_looked_at_without_a_trace(box: Made, tmp_path: Path) -> None:
    """
    Where no process works, no lock file is left; rows that are still in a WAL are not missed.

    The second file's own time is as old as the first one's.
    """
    resting, live = box("alice", 3), box("carol", 1)
    for path in (resting, live):
        for side in ("-wal", "-shm"):
            path.with_name(path.name + side).unlink(missing_ok=True)
        os.utime(path, ns=(1, 1))
    with Postbox(live, start=False, hold_unknown=True) as carol:
        carol.session().send_many([("bob", 1), ("bob", 2)], type="note")
        os.utime(live, ns=(1, 1))
        known = step(follower(tmp_path), {})

    assert {"alice.db": 3, "carol.db": 3} == {name: seq for name, (seq, *_) in told(known).items()}
    assert [] == list(tmp_path.glob("alice.db-[ws]*"))


def test_a_file_that_wakes_while_it_is_looked_at_is_looked_at_again(
    box: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read without a lock counts only if the file is the same afterwards."""
    path = box("alice", 3)
    os.utime(path, ns=(1, 1))
    really, looks = follow_module.head, iter((True, False))

    def head(*given: Any) -> Head:
        found = really(*given)
        if next(looks):
            send(path, 2)
        return found

    monkeypatch.setattr(follow_module, "head", head)

    assert {"alice.db": (5, 0, "new")} == told(step(follower(tmp_path), {}))
