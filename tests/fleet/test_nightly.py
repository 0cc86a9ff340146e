"""A run with a state reads what is new, and finds what a run over everything finds."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.fleet.mishaps import handling, numbered, post, tenant
from tests.fleet.world import World

from onceward import Postbox
from onceward.core.rows import differing
from onceward.errors import InvalidArgument
from onceward.fleet import run as job
from onceward.fleet import unsettled
from onceward.fleet.manifest import OutputBusy
from onceward.fleet.report import Report
from onceward.fleet.run import reconcile
from onceward.fleet.unsettled import NoState, State
from onceward.fleet.verdicts import Rules

DAY = 86_400.0


class Nights:
    """Two agents that live from day to day, and a reconciliation each night."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.world = World(folder / "agents")

    def work(self, count: int, wish: str = "fine") -> None:
        """Let messages be sent and handled, then a day pass."""
        near, far = self.world.open("near"), self.world.open(handling("far"))
        post(near, "far", count, wish=wish)
        self.world.turns(near, far)
        self.world.clock.advance(DAY)

    def night(self, *retired: str) -> Report:
        """Reconcile by the state."""
        return self._run(self.folder / "state.db", *retired)

    def whole(self) -> Report:
        """Reconcile all that there is."""
        return self._run(None)

    def _run(self, state: Path | None, *retired: str) -> Report:
        self.world.rest()
        self.number += 1
        rules, out = Rules(now=self.world.clock.now()), self.folder / f"out-{self.number}"
        return reconcile(self.folder / "agents", out=out, rules=rules, state=state, retired=retired)


@pytest.fixture
def nights(tmp_path: Path) -> Iterator[Nights]:
    """Return two agents and their nights."""
    made = Nights(tmp_path)
    yield made
    made.world.rest()


def _all(report: Report) -> Counter[str]:
    return Counter(report.before) + Counter(report.verdicts)


def test_each_night_judges_the_day_and_all_nights_judge_everything(nights: Nights) -> None:
    """What was settled is not read again; the sums are those of a run over all files."""
    found = []
    for count in (5, 3, 4):
        nights.work(count)
        found.append(nights.night())

    assert [5, 3, 4] == [report.messages for report in found]
    assert {"delivered_once": 12} == dict(_all(found[-1])) == dict(nights.whole().verdicts)


def test_what_was_open_is_judged_again_until_it_is_settled(nights: Nights) -> None:
    """A message that waited one night is handled the next: it is counted when it ends."""
    near, far = nights.world.open("near"), nights.world.open("far")
    post(near, "far", 2)
    nights.world.run(near, far)
    nights.world.clock.advance(DAY)
    first = nights.night()
    nights.work(1)
    second = nights.night()
    third = nights.night()

    assert [{"unprocessed": 2}, {"late": 2, "delivered_once": 1}, {}] == [
        dict(report.verdicts) for report in (first, second, third)
    ]
    assert nights.whole().verdicts == _all(third)


def test_a_dead_letter_that_was_settled_is_judged_again_when_it_is_replayed(
    nights: Nights,
) -> None:
    """Its new rows are joined with those that an earlier night has read."""
    nights.work(2, wish="reject")
    first = nights.night()
    far = nights.world.open(handling("far"))
    far.dead_letters.replay(far.dead_letters.list()[0].id)
    nights.world.run(far)
    nights.world.clock.advance(DAY)
    second = nights.night()

    assert ({"dead_lettered": 2}, 1) == (dict(first.verdicts), second.messages)
    assert ("acked", "processed") not in [
        (row["sender_says"], row["verdict"]) for row in second.examples
    ]
    assert {"orphan": 0, "no_recipient_row": 0} == {
        name: second.verdicts.get(name, 0) for name in ("orphan", "no_recipient_row")
    }


@pytest.mark.broken("a file was restored to what it was days ago")
def test_a_file_that_went_back_has_everything_judged_anew(nights: Nights) -> None:
    """What was settled with its help may be lost now, and is found."""
    nights.work(3)
    kept = nights.world.keep("far")
    backup = kept.rename(nights.folder / "far.kept")
    nights.work(4)
    before = nights.night()
    nights.world.restore("far", backup)
    after = nights.night()

    assert ({"delivered_once": 7}, {}) == (dict(before.verdicts), dict(before.before))
    assert ({"delivered_once": 3, "lost": 4}, {}) == (dict(after.verdicts), dict(after.before))
    assert after.failed()


@pytest.mark.broken("a copy of a file went on by itself")
def test_a_second_effect_is_found_days_after_the_first(nights: Nights) -> None:
    """A clone that handles settled messages again has no sender's row that is new; it is found."""
    nights.work(2)
    clone = nights.world.keep("far", "clones")
    near, far = nights.world.open("near"), nights.world.open(handling("far"))
    post(near, "far", 3)
    nights.world.run(near, far)
    nights.world.clock.advance(DAY)
    hidden = clone.rename(clone.with_suffix(".away"))
    first = nights.night()
    hidden.rename(clone)
    near, other = nights.world.open("near"), nights.world.open(handling("far"), where="clones")
    near.peers.add("far", f"file:{clone}")
    other.peers.add("near", f"file:{near.file.path}")
    post(near, "far", 1)
    nights.world.turns(near, other)
    nights.world.clock.advance(DAY)
    second = nights.night()

    assert {"delivered_once": 5} == dict(first.verdicts)
    assert 3 == second.verdicts["double_processed"] == nights.whole().verdicts["double_processed"]


@pytest.mark.broken("a copy of a file went on by itself")
def test_a_second_effect_in_a_new_copy_is_found(nights: Nights) -> None:
    """A clone of an agent that writes to itself has both sides of each message: all are asked."""
    me = nights.world.open("far")
    post(me, "far", 2)
    nights.world.run(me)
    clone = nights.world.keep("far", "clones")
    hidden = clone.rename(clone.with_suffix(".away"))
    me = nights.world.open(handling("far"))
    nights.world.run(me)
    nights.world.clock.advance(DAY)
    first = nights.night()
    hidden.rename(clone)
    nights.world.run(nights.world.open(handling("far"), where="clones"))
    nights.world.clock.advance(DAY)
    second = nights.night()

    assert ({"delivered_once": 2}, {"double_processed": 2}, {}) == (
        dict(first.verdicts),
        dict(second.verdicts),
        dict(second.before),
    )


def _numbered(near: Postbox, far: Postbox, nights: Nights) -> None:
    """Send messages with the numbers as ids that each tenant chooses, and let a day pass."""
    numbered(near, far.agent, 4)
    nights.world.run(near, far)
    nights.world.clock.advance(DAY)


@pytest.mark.broken("two tenants choose the same ids")
def test_equal_ids_of_two_tenants_are_taken_back_as_often_as_they_were_counted(
    nights: Nights,
) -> None:
    """A backup beside a file makes both tenants' messages be judged again, once each."""
    for where in ("west", "east"):
        _numbered(*tenant(nights.world, "room", where), nights)
        nights.night()
    backup = nights.folder / "agents" / "kept" / "room-far.db"
    backup.parent.mkdir()
    shutil.copyfile(nights.world.path("room-far", "west"), backup)

    assert {"delivered_once": 8} == _all(nights.night()) == nights.whole().verdicts
    assert {"delivered_once": 8} == _all(nights.night())


@pytest.mark.broken("two tenants choose the same ids")
def test_an_id_that_another_tenant_settled_is_not_counted_twice(nights: Nights) -> None:
    """While one tenant's message waits, the other's is judged with it every night."""
    _numbered(*tenant(nights.world, "room", "west"), nights)
    assert {"delivered_once": 4} == _all(nights.night())
    near, far = tenant(nights.world, "room", "east")
    nights.world.shut(far)
    idle = nights.world.open("room-far", where="east")
    _numbered(near, idle, nights)
    waiting = [_all(nights.night()) for _ in range(3)]
    nights.world.shut(idle)
    _numbered(*tenant(nights.world, "room", "east"), nights)

    assert [{"delivered_once": 4, "unprocessed": 4}] * 3 == waiting
    settled = [_all(nights.night()) for _ in range(2)]
    assert [nights.whole().verdicts] * 2 == settled


def test_a_file_that_was_moved_is_read_on_where_it_lies_now(nights: Nights) -> None:
    """A file is known by its own mark, not by its path."""
    nights.work(2)
    first = nights.night()
    (nights.world.folder / "moved").mkdir()
    for name in ("near", "far"):
        nights.world.path(name).rename(nights.world.path(name, "moved"))
    second = nights.night()

    assert ({"delivered_once": 2}, {}, {"delivered_once": 2}) == (
        dict(first.verdicts),
        dict(second.verdicts),
        dict(second.before),
    )
    assert second.complete


def _gone(report: Report) -> list[str]:
    return [Path(row["path"]).name for row in report.quarantine if row["reason"] == "gone"]


@pytest.mark.broken("a file is taken away on purpose")
def test_a_file_that_is_gone_fails_every_night_until_it_is_back(nights: Nights) -> None:
    """A known file that is not found is told, with what ends it; nothing of it is proved."""
    nights.work(3)
    assert not nights.night().failed()
    far = nights.world.path("far")
    away = far.rename(nights.folder / "far.away")
    for report in (nights.night(), nights.night()):
        assert (True, False, False) == (
            report.failed(),
            report.failed("loss"),
            report.complete,
        )
        assert ["far.db"] == _gone(report)
        [line] = [row["meaning"] for row in report.rows() if row["verdict"] == "gone"]
        assert "the file of far, seen last at" in line
        assert "--retired far" in line
    away.rename(far)

    assert not nights.night().failed()


@pytest.mark.parametrize("by", ["agent", "path"])
def test_a_retired_file_is_forgotten(nights: Nights, by: str) -> None:
    """It is named once, and fails no night any more; a file that is there cannot be retired."""
    nights.work(3)
    nights.night()
    far = nights.world.path("far")
    far.unlink()
    name = "far" if by == "agent" else str(far)

    assert [[], []] == [_gone(nights.night(name, "near")), _gone(nights.night())]
    nights.world.path("near").rename(nights.folder / "near.away")
    nights.world.open("other")
    assert ["near.db"] == _gone(nights.night())


@pytest.mark.broken("a file is replaced on purpose")
def test_a_file_is_missed_though_another_one_lies_in_its_place(nights: Nights) -> None:
    """An agent that is begun again has another file: everything is read, and the first missed."""
    nights.work(3)
    nights.night()
    nights.world.path("far").unlink()
    nights.world.open("far")
    found = nights.night()

    assert ["far.db"] == _gone(found)
    assert ["far.db"] == _gone(nights.night())
    assert [] == _gone(nights.night("far"))


@pytest.mark.broken("the recipient's file was restored")
def test_a_file_that_is_put_aside_hides_no_loss_from_a_state(nights: Nights) -> None:
    """While it lies among the files each night judges everything; later nights add up again."""
    nights.work(2)
    backup = nights.world.keep("far", "../kept")
    nights.work(3)
    assert {"delivered_once": 5} == _all(nights.night())
    far, old = nights.world.path("far"), nights.world.path("far", "old")
    old.parent.mkdir()
    far.rename(old)
    nights.world.restore("far", backup)
    nights.world.open("far")
    for _ in range(2):
        found = nights.night()
        assert ["differs"] == [row["reason"] for row in found.quarantine]
        assert {"delivered_once": 2, "lost": 3} == _all(found) == _all(nights.whole())
    old.unlink()

    for _ in range(2):
        assert {"delivered_once": 2, "lost": 3} == _all(nights.night())
    nights.work(1)
    assert _all(nights.whole()) == _all(nights.night())


def test_only_what_is_known_can_be_retired(nights: Nights) -> None:
    """Neither a state nor a log: nothing is known of earlier files."""
    with pytest.raises(InvalidArgument, match="also give log or state"):
        nights._run(None, "far")


def test_a_run_that_dies_before_its_last_commit_is_done_again(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state moves on when the results are there, in one commit: nothing is passed over."""
    nights.work(2)
    nights.night()
    nights.work(3)

    def die(_: State) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(State, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            nights.night()
    again = nights.night()

    assert (3, {"delivered_once": 2}) == (again.messages, dict(again.before))


KILLED = """
import os, signal, sys
from onceward.fleet import Rules, reconcile, run
from onceward.fleet.unsettled import State

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

folder, now, step = sys.argv[1:]
setattr({"commit": State, "keep_file": State, "finish": run}[step], step, die)
rules = Rules(now=int(now))
reconcile(folder + "/agents", out=folder + "/killed", rules=rules, state=folder + "/state.db")
"""


@pytest.mark.parametrize("step", ["keep_file", "finish", "commit"])
def test_a_killed_run_leaves_the_state_as_it_was(step: str, nights: Nights) -> None:
    """SIGKILL before, between or after the results: the next run judges the same day."""
    nights.work(2)
    nights.night()
    nights.work(3)
    nights.world.rest()
    words = [str(nights.folder), str(nights.world.clock.now()), step]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
    again = nights.night()

    assert -signal.SIGKILL == done.returncode
    assert (3, {"delivered_once": 2}) == (again.messages, dict(again.before))
    assert nights.whole().verdicts == _all(again)


def test_files_in_which_nothing_happened_are_not_opened(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle fleet costs a look at its files' sizes and times."""
    monkeypatch.setattr(unsettled, "QUIET_NS", -1)
    nights.work(2)
    nights.night()
    monkeypatch.setattr("onceward.fleet.increment.attached", None)

    assert (0, 2, True) == (
        (report := nights.night()).messages,
        report.files,
        report.complete,
    )


def test_a_state_has_one_run_at_a_time(nights: Nights) -> None:
    """A second run is told so, instead of counting everything twice."""
    nights.work(1)
    nights.night()
    with closing(apsw.Connection(str(nights.folder / "state.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputBusy, match="another run"):
            nights.night()


@pytest.mark.parametrize("content", [b"buy milk\n" * 100, None])
def test_a_state_is_never_made_of_another_file(
    content: bytes | None, nights: Nights, tmp_path: Path
) -> None:
    """Neither a text nor an application's database is written to."""
    nights.work(1)
    path = tmp_path / "mine.db"
    if content is None:
        with closing(apsw.Connection(str(path))) as con:
            con.execute("CREATE TABLE mine (a)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()

    with pytest.raises(NoState):
        job.reconcile(tmp_path / "agents", out=tmp_path / "out", state=path)
    assert before == path.read_bytes()


@pytest.mark.parametrize("box", ["inbox", "outbox"])
def test_other_contents_that_are_noticed_later_are_judged_then(nights: Nights, box: str) -> None:
    """A message that was settled in an earlier night gets the new verdict, and is counted once."""
    nights.work(3)
    nights.night()
    agent, peer = ("far", "near") if box == "inbox" else ("near", "far")
    opened = nights.world.open(agent)
    [(known,)] = opened.query(f"SELECT id FROM onceward_{box} LIMIT 1")
    opened._db.write(lambda tx: differing.note(tx, box, peer, [known]))  # type: ignore[arg-type]
    nights.work(1)
    found = nights.night()

    assert Counter(delivered_once=3, other_contents=1) == _all(found)
    assert _all(nights.whole()) == _all(nights.night())
