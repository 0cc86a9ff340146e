"""A shipped log is judged as the files themselves, and knows what they have pruned."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[ship]' brings it")

from tests.fleet import generator
from tests.fleet.mishaps import BEFORE, NOW, handling, patient, post
from tests.fleet.world import World

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.fleet import Rules, reconcile, ship
from onceward.fleet.ship import prune
from onceward.fleet.summary import FROM_BOTH, FROM_FILES, FROM_LOG
from onceward.message.clock import iso
from onceward.message.settings import DAY
from onceward.ops.cli import main

UNTOLD = {"double_processed", "duplicated", "same_ids"}
"""
Copies of a file that both go on: a log tells their rows from those of a restored file later.
Two tenants' equal ids: a log does not keep to which of them a stream belongs.
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a world in a folder of its own."""
    with World(tmp_path / "agents") as made:
        yield made


@pytest.mark.broken("nearly everything went wrong in these files")
def test_a_log_is_judged_as_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the files, from the log alone, each message gets its verdict."""
    made = generator.build(tmp_path / "agents", mishaps={*BEFORE, *NOW} - UNTOLD)
    log = str(tmp_path / "log")
    list(ship.files([str(made.folder)], log))
    report = reconcile(out=tmp_path / "out", log=log, rules=Rules(now=made.now))

    assert dict(made.verdicts) == dict(report.verdicts)
    assert 1 == main(["fleet", "reconcile", "--log", log, "--out", str(tmp_path / "two"), "--json"])
    assert report.verdicts["lost"] == json.loads(capsys.readouterr().out)["verdicts"]["lost"]


@pytest.mark.parametrize(
    ("pruned", "left"),
    [(("far",), {"forgotten": 3}), (("near",), {"forgotten": 3}), (("near", "far"), {})],
    ids=["inbox", "outbox", "both"],
)
def test_a_log_knows_what_was_pruned_since(
    tmp_path: Path, pruned: tuple[str, ...], left: dict[str, int]
) -> None:
    """Messages whose records are gone from the files are proved by the log beside them."""
    with World(tmp_path / "agents") as world:
        near, far = world.open("near"), world.open(handling("far"))
        post(near, "far", 3)
        world.run(near, far)
        world.rest()
        list(ship.files([str(tmp_path / "agents")], str(tmp_path / "log")))
        world.clock.advance(8 * 86_400)
        for name in pruned:
            world.open(name).file.run_maintenance()
        now = world.clock.now()
        world.rest()
    rules, agents = Rules(now=now, late_after=1e9), tmp_path / "agents"
    alone = reconcile(agents, out=tmp_path / "alone", rules=rules)
    beside = reconcile(agents, out=tmp_path / "beside", rules=rules, log=str(tmp_path / "log"))

    assert left == dict(alone.verdicts)
    assert {"delivered_once": 3} == dict(beside.verdicts)


def test_a_log_that_is_behind_proves_no_loss(tmp_path: Path) -> None:
    """What was confirmed after the recipient was shipped last is undecided, not lost."""
    with World(tmp_path / "agents") as world:
        near, far = world.open("near"), world.open(handling("far"))
        post(near, "far", 1)
        world.run(near, far)
        world.rest()
        log = str(tmp_path / "log")
        list(ship.files([str(tmp_path / "agents" / "far.db")], log))
        world.clock.advance(3e9)  # beyond the machine's own clock
        near, far = world.open("near"), world.open(handling("far"))
        post(near, "far", 2)
        world.run(near, far)
        world.clock.advance(7200)
        now = world.clock.now()
        world.rest()
        list(ship.files([str(tmp_path / "agents" / "near.db")], log))
    report = reconcile(out=tmp_path / "out", log=log, rules=Rules(now=now))

    assert {"delivered_once": 1, "unwitnessed": 2} == dict(report.verdicts)


def _handled(world: World, count: int) -> None:
    """Let messages from near take effect at far, and end."""
    near, far = world.open("near"), world.open(handling("far"))
    post(near, "far", count)
    world.run(near, far)
    world.clock.advance(1)
    world.rest()


def _verdicts(world: World, folder: Path, files: str = "*.db") -> dict[str, int]:
    """Ship the agents' files and judge the log alone, all of it before the grace."""
    world.rest()
    log, out = str(folder / "log"), folder / f"out-{len(list(folder.iterdir()))}"
    ship.files([str(world.folder / files)], log)
    report = reconcile(out=out, log=log, rules=Rules(now=world.clock.now() + 3_600_000))
    return dict(report.verdicts)


@pytest.mark.broken("the recipient's file was restored")
def test_what_a_file_lost_by_its_first_restore_stays_lost_after_a_second(
    world: World, tmp_path: Path
) -> None:
    """A past that was overwritten twice proves nothing that the last file does not have."""
    _handled(world, 2)
    first = world.keep("far")
    _handled(world, 3)
    second = world.keep("far", "later")
    _handled(world, 4)
    _verdicts(world, tmp_path)
    world.restore("far", second)
    assert {"delivered_once": 5, "lost": 4} == _verdicts(world, tmp_path)
    world.restore("far", first)

    assert {"delivered_once": 2, "lost": 7} == _verdicts(world, tmp_path)


@pytest.mark.broken("the recipient's file was restored")
def test_what_was_pruned_in_an_overwritten_past_does_not_excuse_loss(
    world: World, tmp_path: Path
) -> None:
    """The horizons of a restored file count, not those that the lost one had reached."""
    world.open("near"), world.open("far")
    backup = world.keep("far")
    near = world.open("near", retention=30 * DAY)
    far = world.open(handling("far"))
    post(near, "far", 3)
    world.run(near, far)
    world.clock.advance(8 * DAY)
    far.file.run_maintenance()
    world.rest()
    assert {"forgotten": 3} == _verdicts(world, tmp_path)
    world.restore("far", backup)

    assert {"lost": 3} == _verdicts(world, tmp_path)


@pytest.mark.broken("the recipient's file was restored")
def test_an_effect_in_an_overwritten_past_is_none(world: World, tmp_path: Path) -> None:
    """A message that the restored file still keeps, unhandled, is not handled by the lost one."""
    near, far = world.open("near"), world.open("far")
    post(near, "far", 3)
    world.run(near, far)
    backup = world.keep("far")
    _handled(world, 0)
    assert {"delivered_once": 3} == _verdicts(world, tmp_path)
    world.restore("far", backup)

    assert {"unprocessed": 3} == _verdicts(world, tmp_path)


@pytest.mark.broken("the recipient's file was restored")
def test_a_log_shows_effects_that_a_restore_has_repeated(world: World, tmp_path: Path) -> None:
    """The sender sends again what the lost file had handled: the log alone knows both effects."""
    _handled(world, 2)
    backup = world.keep("far")
    _handled(world, 3)
    assert {"delivered_once": 5} == _verdicts(world, tmp_path)
    world.restore("far", backup)
    _handled(world, 1)
    world.rest()
    rules = Rules(now=world.clock.now() + 3_600_000)
    alone = reconcile(world.folder, out=tmp_path / "files", rules=rules)

    asked = 1  # the restored file's question for what it had sent
    assert {"delivered_once": 6 + asked} == dict(alone.verdicts)
    assert {"delivered_once": 3 + asked, "double_processed": 3} == _verdicts(world, tmp_path)


@pytest.mark.broken("the recipient's file was restored")
def test_a_log_proves_nothing_for_a_file_that_was_restored_since(
    world: World, tmp_path: Path
) -> None:
    """What the file has lost is lost beside its log, too, and the run is told to be incomplete."""
    _handled(world, 2)
    backup = world.keep("far")
    _handled(world, 3)
    _verdicts(world, tmp_path)
    world.restore("far", backup)
    rules, log = Rules(now=world.clock.now() + 3_600_000), str(tmp_path / "log")

    first = reconcile(world.folder, out=tmp_path / "first", rules=rules, log=log)
    ship.files([str(world.folder)], log)
    second = reconcile(world.folder, out=tmp_path / "second", rules=rules, log=log)

    assert [{"delivered_once": 2, "lost": 3}] * 2 == [dict(first.verdicts), dict(second.verdicts)]
    assert ["changing"] == [str(each["reason"]) for each in first.quarantine]
    assert (False, True) == (first.complete, second.complete)


@pytest.mark.broken("the recipient's file was restored")
def test_a_log_knows_a_file_that_was_restored_to_what_was_shipped(tmp_path: Path) -> None:
    """The shipper notes that it found the file level: what was confirmed since is lost."""
    log, far = str(tmp_path / "log"), tmp_path / "far.db"
    with (
        Postbox(tmp_path / "near.db", agent="near", start=False) as near,
        Postbox(far, agent=handling("far"), start=False) as handler,
    ):
        _exchange(near, handler, 2)
    ship.files([str(far)], log)
    backup = far.read_bytes()
    with (
        Postbox(tmp_path / "near.db", agent="near", start=False) as near,
        Postbox(far, agent=handling("far"), start=False) as handler,
    ):
        _exchange(near, handler, 3)
    ship.files([str(tmp_path / "near.db")], log)
    behind = _alone(log, tmp_path)
    far.write_bytes(backup)
    [again] = ship.files([str(far)], log)
    files = reconcile(tmp_path / "near.db", far, rules=_at_once())

    assert 0 == again.commits
    assert {"delivered_once": 2, "unwitnessed": 3} == behind
    assert {"delivered_once": 2, "lost": 3} == _alone(log, tmp_path) == dict(files.verdicts)


@pytest.mark.broken("a backup lies beside the file")
def test_a_copy_elsewhere_says_nothing_of_the_file(tmp_path: Path) -> None:
    """An unchanged backup of a file that cannot be read does not vouch for it."""
    log, far = str(tmp_path / "log"), tmp_path / "far.db"
    with (
        Postbox(tmp_path / "near.db", agent="near", start=False) as near,
        Postbox(far, agent=handling("far"), start=False) as handler,
    ):
        _exchange(near, handler, 2)
    ship.files([str(far)], log)
    (tmp_path / "backup.db").write_bytes(far.read_bytes())
    with (
        Postbox(tmp_path / "near.db", agent="near", start=False) as near,
        Postbox(far, agent=handling("far"), start=False) as handler,
    ):
        _exchange(near, handler, 3)
    ship.files([str(tmp_path / "near.db"), str(tmp_path / "backup.db")], log)

    assert {"delivered_once": 2, "unwitnessed": 3} == _alone(log, tmp_path)


def _exchange(near: Postbox, far: Postbox, count: int) -> None:
    post(near, "far", count)
    for _ in range(4):
        near.run_until_idle()
        far.run_until_idle()


def _at_once() -> Rules:
    return Rules(now=time.time_ns() // 1_000_000 + 1000, grace=0.0)


def _alone(log: str, folder: Path) -> dict[str, int]:
    out = folder / f"out-{len(list(folder.iterdir()))}"
    return dict(reconcile(out=out, log=log, rules=_at_once()).verdicts)


DELETED = {
    "inbox": ("far", ("inbox", "processed_messages"), {"delivered_once": 2, "lost": 3}),
    "outbox": ("near", ("outbox",), {"delivered_once": 2, "orphan": 3}),
}
"""By name: the agent, the tables from which three rows are deleted, and the verdicts."""


def _delete(world: World, name: str, tables: Iterable[str]) -> None:
    with world.open(name).begin() as tx:
        for each in tables:
            tx.execute(f"DELETE FROM _onceward_{each} WHERE seq > 2")
    world.rest()


@pytest.mark.broken("rows were deleted by hand")
@pytest.mark.parametrize("side", DELETED)
def test_a_row_that_was_deleted_after_it_was_shipped_is_found(
    world: World, tmp_path: Path, side: str
) -> None:
    """The log does not excuse a row that its file must still have; alone it tells of its time."""
    name, tables, verdicts = DELETED[side]
    _handled(world, 5)
    alone = _verdicts(world, tmp_path)
    _delete(world, name, tables)
    rules, log = Rules(now=world.clock.now() + 3_600_000), str(tmp_path / "log")
    files = reconcile(world.folder, rules=rules)
    both = reconcile(world.folder, rules=rules, log=log)

    assert {"delivered_once": 5} == alone == _verdicts(world, tmp_path)
    assert verdicts == dict(files.verdicts) == dict(both.verdicts)


def test_a_report_says_what_its_evidence_vouches_for(world: World, tmp_path: Path) -> None:
    """Files, a log up to a moment, or both: the same sentence on the page and in the JSON."""
    _handled(world, 1)
    log, rules = str(tmp_path / "log"), Rules(now=world.clock.now() + 3_600_000)
    ship.files([str(world.folder)], log)
    said = [
        reconcile(*paths, rules=rules, log=uri, out=tmp_path / name).evidence
        for name, paths, uri in (
            ("files", [world.folder], None),
            ("by-log", [], log),
            ("both", [world.folder], log),
        )
    ]

    level = min(file.seen_at for file in ship.ShippedLog(log).files())
    assert [FROM_FILES, FROM_LOG.format(upto=iso(level)), FROM_BOTH] == said
    assert said[1] in (tmp_path / "by-log" / "report.html").read_text(encoding="utf-8")


@pytest.mark.broken("rows were deleted by hand")
def test_a_message_that_was_deleted_from_both_files_is_lost(world: World, tmp_path: Path) -> None:
    """No file knows it; the log has it, and neither file can have pruned it."""
    _handled(world, 5)
    alone = _verdicts(world, tmp_path)
    for name, tables, _ in DELETED.values():
        _delete(world, name, tables)
    rules, log = Rules(now=world.clock.now() + 3_600_000), str(tmp_path / "log")
    out = tmp_path / "both"
    both = reconcile(world.folder, rules=rules, log=log, out=out)

    assert {"delivered_once": 5} == alone
    assert {"delivered_once": 2} == dict(reconcile(world.folder, rules=rules).verdicts)
    assert {"delivered_once": 2, "lost": 3} == dict(both.verdicts)
    assert {"nothing, deleted"} == {str(row["sender_says"]) for row in both.examples}


@pytest.mark.broken("a backup lies beside the file")
@pytest.mark.parametrize(("where", "commits"), [("before", 4), ("within", 3)])
def test_a_backup_beside_an_idle_file_overwrites_nothing(
    world: World, tmp_path: Path, where: str, commits: int
) -> None:
    """Whichever is shipped first, the file goes on: no message is lost, and no commit repeated."""
    _handled(world, 2)
    world.keep("far", "a" if where == "before" else "z")
    _handled(world, 3)
    nights = [_verdicts(world, tmp_path, "**/*.db") for _ in range(3)]

    assert [{"delivered_once": 5}] * 3 == nights
    files = ship.ShippedLog(str(tmp_path / "log")).files()
    assert {"near": 1, "far": commits} == {each.agent: each.manifest.number for each in files}


def test_a_shipped_file_that_is_not_beside_its_log_is_missed(world: World, tmp_path: Path) -> None:
    """The run fails until its agent is retired; the log alone, without files, misses none."""
    _handled(world, 2)
    world.rest()
    log = str(tmp_path / "log")
    ship.files([str(world.folder)], log)
    world.path("far").unlink()
    rules = Rules(now=world.clock.now() + 3_600_000)
    beside = reconcile(world.folder, out=tmp_path / "1", rules=rules, log=log)
    retired = reconcile(world.folder, out=tmp_path / "2", rules=rules, log=log, retired=["far"])
    alone = reconcile(out=tmp_path / "3", rules=rules, log=log)

    assert ["gone"] == [row["reason"] for row in beside.quarantine]
    assert "--retired far" in str(beside.quarantine[0]["detail"])
    assert (True, False, False) == tuple(one.failed() for one in (beside, retired, alone))
    assert {"delivered_once": 2} == dict(beside.verdicts) == dict(retired.verdicts)


@pytest.mark.broken("a file was restored, another one deleted")
def test_a_copy_that_differs_does_not_hide_that_another_file_is_gone(
    world: World, tmp_path: Path
) -> None:
    """Both are listed: which file a copy is of is known."""
    _handled(world, 2)
    backup = world.keep("far")
    _handled(world, 1)
    world.clock.advance(1)
    world.open("gone")
    world.rest()
    old = world.path("far", "old")
    old.parent.mkdir()
    world.path("far").rename(old)
    world.restore("far", backup)
    world.open("far")
    world.rest()
    log = str(tmp_path / "log")
    ship.files([str(world.folder)], log)
    world.path("gone").unlink()
    rules = Rules(now=world.clock.now() + 3_600_000)
    found = reconcile(world.folder, out=tmp_path / "1", rules=rules, log=log)

    assert {"differs", "gone"} == {str(row["reason"]) for row in found.quarantine}


@pytest.mark.broken("the recipient's file was deleted and begun again")
def test_an_agent_that_is_begun_again_is_judged_as_a_restored_one(
    world: World, tmp_path: Path
) -> None:
    """What the lost file had is lost, or took effect twice; retired, the log speaks for it."""
    _handled(world, 3)
    world.rest()
    log = str(tmp_path / "log")
    ship.files([str(world.folder)], log)
    world.path("far").unlink()
    world.open("far")
    world.rest()
    rules = Rules(now=world.clock.now() + 3_600_000)
    begun = reconcile(world.folder, out=tmp_path / "1", rules=rules, log=log)
    retired = reconcile(world.folder, out=tmp_path / "2", rules=rules, log=log, retired=["far"])
    _handled(world, 1)
    later = reconcile(world.folder, out=tmp_path / "3", rules=rules, log=log)

    assert {"lost": 3} == dict(begun.verdicts)
    assert (
        ["gone"]
        == [row["reason"] for row in begun.quarantine]
        == [row["reason"] for row in later.quarantine]
    )
    assert ({"delivered_once": 3}, True) == (dict(retired.verdicts), retired.complete)
    assert {"delivered_once": 1, "double_processed": 3} == dict(later.verdicts)


def _keep_one(world: World) -> None:
    """Let a message arrive for a wait that comes later."""
    near, far = world.open("near"), world.open(patient("far"))
    near.session("flow").send("far", {"by": "ada"}, type="approval")
    world.run(near, far)
    world.clock.advance(1)


def _take_it(world: World) -> None:
    """Let a handler wait for the message that is kept."""
    near, far = world.open("near"), world.open(patient("far"))
    near.session("flow").send("far", {"wish": "person"}, type="step")
    world.run(near, far)
    world.clock.advance(1)


def test_a_message_is_kept_until_a_wait_takes_it(world: World, tmp_path: Path) -> None:
    """The files say so, a state keeps it in mind, and the log ships its row again."""
    rules, state = Rules(now=world.clock.now() + 7_200_000), tmp_path / "state.db"
    _keep_one(world)
    kept = [
        _verdicts(world, tmp_path),
        dict(reconcile(world.folder, rules=rules, state=state).verdicts),
    ]
    _take_it(world)
    taken = [
        _verdicts(world, tmp_path),
        dict(reconcile(world.folder, rules=rules, state=state).verdicts),
        dict(reconcile(world.folder, rules=rules).verdicts),
    ]

    epochs = {len(file.manifest.epochs) for file in ship.ShippedLog(str(tmp_path / "log")).files()}
    assert [{"kept": 1}] * 2 == kept
    assert [{"delivered_once": 2}] * 3 == taken
    assert {1} == epochs, "the row that changed is no other past of its file"


def test_a_kept_message_is_not_pruned_once_it_is_shipped(world: World, tmp_path: Path) -> None:
    """Its row is still to change: the log would say for ever that no wait took it."""
    _keep_one(world)
    _verdicts(world, tmp_path)
    pruned = prune.files([str(world.path("far"))], str(tmp_path / "log"), keep=0, clock=world.clock)
    _take_it(world)

    assert [""] == [one.error for one in pruned]
    assert {"delivered_once": 2} == _verdicts(world, tmp_path)


@pytest.mark.parametrize(
    ("chosen", "outcomes"),
    [(None, []), ("approval-1", [("dropped",)])],
    ids=["minted", "chosen"],
)
def test_a_message_that_no_wait_took_in_time_did_not_take_effect(
    world: World, chosen: str | None, outcomes: list[tuple[str]]
) -> None:
    """After the retention a dedup record that stays says that it was dropped."""
    near, far = world.open("near"), world.open(patient("far"))
    near.session("flow").send("far", {"by": "ada"}, type="approval", message_id=chosen)
    world.run(near, far)
    world.clock.advance(8 * DAY)
    for _ in range(2):
        far.file.run_maintenance()

    assert [] == far.query("SELECT id FROM onceward_inbox")
    assert outcomes == far.query("SELECT outcome FROM onceward_processed_messages")


def test_a_log_and_a_state_are_not_taken_together(tmp_path: Path) -> None:
    """A state says how far files were read, which is nothing that a log knows."""
    with pytest.raises(InvalidArgument, match="either log or state"):
        reconcile(out=tmp_path / "out", log=str(tmp_path), state=tmp_path / "state.db")
    assert not (tmp_path / "out").exists()


def test_what_ended_otherwise_after_it_was_shipped_was_not_deleted(
    world: World, tmp_path: Path
) -> None:
    """Dead letters that were discarded, and what was pruned since, are missing for a reason."""
    near, far = world.open("near"), world.open("far")
    post(near, "far", 2, ttl=3600)
    world.turns(near)
    world.run(near, far)
    post(near, "elsewhere", 2, ttl=3600)
    world.clock.advance(1)
    alone = _verdicts(world, tmp_path)
    world.clock.advance(2 * 3600)
    near, far = world.open("near"), world.open(handling("far"))
    world.run(near, far)
    discarded = [
        box.dead_letters.discard(letter.id)
        for box in (near, far)
        for letter in box.dead_letters.list()
    ]
    world.clock.advance(8 * DAY)
    for box in (near, far):
        box.file.run_maintenance()
    world.rest()
    rules, log = Rules(now=world.clock.now() + 3_600_000), str(tmp_path / "log")
    both = reconcile(world.folder, rules=rules, log=log)

    assert {"in_flight": 2, "unprocessed": 2} == alone
    assert {True} == set(discarded)
    assert 0 == both.broken
