"""Snapshots: what they hold, how seldom files are read for them, and what they cost."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Retry
from onceward.file.read_only import FileReader, opened
from onceward.ops.observe import snapshots
from onceward.ops.observe.snapshots import FileSnapshot, Snapshots, agent_files, read_snapshot
from onceward.ops.views import overview as questions
from onceward.ops.views.overview import Overview
from onceward.testing import Controls, ManualClock

Settle = Callable[[Path], None]
MOST_STATEMENTS = 15
"""Of one look at a file, those that open it included."""
SMALL = {
    "(subquery-3)", "CONSTANT", "_onceward_file_info", "m", "onceward_backlog", "q", "s", "w",
    "waiting",
}  # fmt: skip
"""Scans of what is short: rows of the file, peers, sessions with runs, handlers; limited lists."""


def numbers(found: FileSnapshot) -> Overview:
    """Return the numbers of a file that could be read."""
    assert found.overview is not None, found.problem
    return found.overview


def test_a_snapshot_has_the_numbers_of_a_file(shop: Postbox, billing: Postbox) -> None:
    """Backlog by peer and of the inbox, with the moments since when the oldest messages wait."""
    shop.send("billing", 1)
    shop.run_until_idle()
    shop.send("billing", 2)
    [waits] = shop.query("SELECT created_at FROM onceward_outbox WHERE state = 'pending'")
    [came] = billing.query("SELECT received_at FROM onceward_inbox")

    ours, theirs = read_snapshot(shop.file.path, 7), read_snapshot(billing.file.path, 7)

    found, other = numbers(ours), numbers(theirs)
    assert ("shop", 7, None) == (ours.agent, ours.taken_at, ours.problem)
    assert ("shop", "safe") == (found.file.agent, found.file.durability)
    assert (("billing", waits[0]),) == found.outbox
    assert (waits[0], None) == (found.outbox_oldest_at, found.inbox_oldest_at)
    assert ((), came[0]) == (other.outbox, other.inbox_oldest_at)
    assert (1, 2, 0) == tuple(found.stats[name] for name in ("pending", "enqueued", "received"))
    assert shop.file.stats() == dict(found.stats)
    assert shop.file.path.stat().st_size == ours.file_bytes
    assert Path(f"{shop.file.path}-wal").stat().st_size == ours.wal_bytes


def test_a_snapshot_knows_leases_breakers_and_the_pause(tmp_path: Path) -> None:
    """A lease with its end, a lane that failed, a peer whose breaker is open, a paused agent."""
    clock, agent = ManualClock(), Agent("b")

    @agent.on("json")
    def fails(_: object) -> None:
        raise Retry(after=60)

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b,
    ):
        for session in ("x", "y"):
            a.session(session).send("b", 1)
        a.run_until_idle()
        b.run_until_idle()
        clock.advance(61)
        b.run_until_idle()
        a.session("z").send("b", 1)
        a.run_until_idle()
        assert b.receive() is not None
        b.peers.add("gone", f"file:{tmp_path}/gone.db")
        sql = "UPDATE _onceward_peers SET breaker = 'open' WHERE name = 'gone'"
        b._db.write(lambda tx: tx.run(sql))
        b.file.pause()
        found = numbers(read_snapshot(b.file.path, 0))
        [(ends,)] = b.query("SELECT due_at FROM onceward_lanes WHERE state = 'leased'")

    assert (1, ends, 2, 2) == (
        found.lanes.leased,
        found.lanes.lease_ends_at,
        found.lanes.waiting,
        found.lanes.failing,
    )
    assert (1, 1) == (found.breakers_open, found.peers_failing)
    assert clock.now() == found.file.paused_at


def test_a_snapshot_knows_the_queue_of_runs(tmp_path: Path) -> None:
    """Messages that wait for a run of their session count, whichever session it is."""
    agent = Agent("b")
    agent.runs(mode="collect", debounce=60)(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        for session in ("x", "x", "y"):
            a.session(session).send("b", 1)
        a.run_until_idle()
        b.run_until_idle()
        found = numbers(read_snapshot(b.file.path, 0))

    assert (3, 0, 0) == (found.run_queue, found.runs_open, found.calls_left)


def test_an_unchanged_file_is_not_opened_again(
    shop: Postbox, billing: Postbox, settle: Settle
) -> None:
    """A file whose size and time did not change keeps its snapshot; the other is read again."""
    many, files = Snapshots(), [shop.file.path, billing.file.path]
    shop.send("billing", 1)
    for path in files:
        settle(path)
    first = many.take(files)
    reads = [many.reads]
    assert first == many.take(files)
    reads.append(many.reads)
    shop.send("billing", 2)
    second = many.take(files)
    reads.append(many.reads)

    assert [2, 2, 3] == reads
    assert ([1, 0], [2, 0]) == tuple(
        [numbers(each).outgoing for each in of] for of in (first, second)
    )


def test_reading_a_file_takes_few_statements(
    shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand files that changed are a thousand times this, whatever is in them."""
    ran: list[str] = []
    walk = FileReader.walk

    def counted(self: FileReader, sql: str, bindings: Any = None) -> Any:
        ran.append(sql)
        return walk(self, sql, bindings)

    monkeypatch.setattr(FileReader, "walk", counted)
    shop.send_many([("billing", n) for n in range(50)])
    read_snapshot(billing.file.path, 0)
    empty, ran[:] = len(ran), []
    shop.run_until_idle()
    read_snapshot(billing.file.path, 0)

    assert empty == len(ran)
    assert len(ran) <= MOST_STATEMENTS


def test_a_change_within_the_same_tick_is_not_missed(shop: Postbox) -> None:
    """A file that was changed a moment ago is read again: its time may stand for two changes."""
    many = Snapshots()
    many.take([shop.file.path])
    many.take([shop.file.path])

    assert 2 == many.reads


def test_a_wal_of_the_same_size_is_seen_by_its_time(shop: Postbox, settle: Settle) -> None:
    """A WAL that is overwritten from its start keeps its size."""
    many = Snapshots()
    settle(shop.file.path)
    many.take([shop.file.path])
    os.utime(f"{shop.file.path}-wal")
    many.take([shop.file.path])

    assert 2 == many.reads


def test_a_look_is_bounded_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Without time one file is read at each look, the longest unread first."""
    clock = ManualClock()
    for name in ("a", "b", "c"):
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    many, files = Snapshots(clock), agent_files([tmp_path])
    seen = []
    for _ in range(4):
        clock.advance(1)
        seen.append([each.problem or each.agent for each in many.take(files, within=0)])

    assert [
        ["a", snapshots.UNREAD, snapshots.UNREAD],
        ["a", "b", snapshots.UNREAD],
        ["a", "b", "c"],
        ["a", "b", "c"],
    ] == seen


def test_a_home_lists_agents_but_not_its_directory(shop: Postbox, billing: Postbox) -> None:
    """Files by name, each once, also where a file and its home are both given."""
    shop.agents.register()
    home = shop.file.path.parent

    assert (home / "directory.db").exists()
    assert [billing.file.path, shop.file.path] == agent_files([home, shop.file.path])


@pytest.mark.parametrize("kind", ["gone", "other", "empty", "older"])
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, kind: str) -> None:
    """One bad file harms no other: its snapshot has the problem, and no numbers."""
    path = tmp_path / f"{kind}.db"
    if kind == "other":
        path.write_bytes(b"no database" * 1000)
    if kind in {"empty", "older"}:
        con = sqlite3.connect(path)
        con.execute("CREATE TABLE t (x)" if kind == "older" else "PRAGMA user_version = 1")
        con.close()

    found = read_snapshot(path, 5)

    assert (kind, 5, None) == (found.agent, found.taken_at, found.overview)
    why = {"gone": "does not exist", "other": "file is not a database"}
    assert why.get(kind, "is not an agent's file") in f"{found.problem}"


def test_a_reader_holds_up_no_writer(shop: Postbox) -> None:
    """While a file is read, commits go on."""
    with opened(shop.file.path) as reader:
        reader.hold()
        before = questions.stats(reader)
        shop._db.write(lambda tx: tx.run("CREATE TABLE mine (x)"))
        after = questions.stats(reader)

    assert before == after


@pytest.mark.parametrize(
    "sql", [questions.BACKLOG, questions.LANE_COUNTS, questions.RUN_COUNTS, questions.QUESTION]
)
def test_statements_use_indexes(shop: Postbox, sql: str) -> None:
    """No statement passes all messages or all lanes: each step is found by an index."""
    plan = [str(row[-1]) for row in shop._db.read(f"EXPLAIN QUERY PLAN {sql}")]
    scanned = {
        line.split()[1] for line in plan if line.startswith("SCAN") and " INDEX " not in line
    }

    assert set() == scanned - SMALL, plan
