"""What is new in a fleet, decided by files and positions alone, without Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Postbox
from onceward.fleet.columns import InvalidOption
from onceward.spark.follow import Follower, Head, advance, slices
from onceward.spark.options import Options
from onceward.spark.positions import (
    INLINE_MAX,
    KEPT,
    START,
    ManifestMissing,
    Manifests,
    Position,
    Positions,
)

Made = Callable[..., Path]


def follower(folder: Path, table: str = "outbox") -> Follower:
    """Return what follows a folder."""
    return Follower(Options.of({"path": str(folder), "table": table}))


def send(path: Path, count: int) -> None:
    """Let an agent send so many more."""
    with Postbox(path, start=False, hold_unknown=True) as box:
        box.session().send_many([("bob", number) for number in range(count)], type="note")


def step(follow: Follower, known: Positions, limit: int | None = None) -> Positions:
    """Take the next micro-batch."""
    return advance(known, follow.heads(known), limit)


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
    with Postbox(path, start=False) as live, live.begin() as tx:
        tx.execute("UPDATE _onceward_outbox SET state = 'cancelled', ended_at = 1")
        tx.execute("DELETE FROM _onceward_outbox")

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
    st.integers(0, 50).map(lambda high: Head("one", high, str(high))),
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
        "/busy.db": Head("one", 10**6, ""),
        **{f"/{name}.db": Head("one", 3, "") for name in "xyz"},
    }
    reached = advance({}, now, 8)

    assert {"/busy.db": 2, "/x.db": 2, "/y.db": 2, "/z.db": 2} == {
        path: one.seq for path, one in reached.items()
    }


@pytest.mark.parametrize("inline", [True, False])
def test_positions_come_back_as_they_were(tmp_path: Path, inline: bool) -> None:
    """An offset names positions, in itself or in its folder, also for later readers."""
    known = {
        f"/{number}.db": Position("file", number, number % 2, "anchor", "new")
        for number in range(100)
    }
    folder = "" if inline else str(tmp_path / "positions")
    offset = Manifests(folder).offset(known)

    assert known == Manifests(folder).positions(offset)
    assert (100, 4950) == (offset["files"], offset["rows"])
    assert {} == Manifests(folder).positions(START)


def test_offsets_do_not_grow_with_the_fleet(tmp_path: Path) -> None:
    """With a folder an offset is a name; without one a large fleet is refused."""
    known = {
        f"/fleet/{number:06}/agent.db": Position("0" * 32, number, 0, "1" * 36)
        for number in range(INLINE_MAX + 1)
    }

    assert len(str(Manifests(str(tmp_path)).offset(known))) < 120
    with pytest.raises(InvalidOption, match="name a folder beside its checkpoint"):
        Manifests("").offset(known)


def test_a_lost_manifest_is_an_error(tmp_path: Path) -> None:
    """A checkpoint without its folder is no checkpoint: a new one would read everything again."""
    offset = Manifests(str(tmp_path / "one")).offset({"/a.db": Position("one", 1)})

    with pytest.raises(ManifestMissing, match="restore the folder"):
        Manifests(str(tmp_path / "two")).positions(offset)
    with pytest.raises(ManifestMissing, match="give the option manifests"):
        Manifests("").positions(offset)


def test_old_manifests_go(tmp_path: Path) -> None:
    """The folder holds as many as restarts may ask for, and the one that is needed."""
    kept = Manifests(str(tmp_path))
    offsets = [kept.offset({"/a.db": Position("one", number)}) for number in range(1, KEPT + 20)]
    kept.prune(offsets[0])

    assert KEPT + 1 == len(list(tmp_path.iterdir()))
    assert Manifests(str(tmp_path)).positions(offsets[0]) == {"/a.db": Position("one", 1)}
    assert Manifests(str(tmp_path)).positions(offsets[-1]) == {"/a.db": Position("one", KEPT + 19)}


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
