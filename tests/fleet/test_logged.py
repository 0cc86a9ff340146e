"""A shipped log is judged as the files themselves, and knows what they have pruned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[ship]' brings it")

from onceward.cli import main
from onceward.errors import InvalidArgument
from onceward.fleet import Rules, reconcile, ship
from onceward.testing import fleet as generator
from onceward.testing.fleet_faults import BEFORE, NOW, handling, post
from onceward.testing.world import World

UNTOLD = {"double_processed", "duplicated", "same_ids"}
"""
Copies of a file that both go on: a log tells their rows from those of a restored file later.
Two tenants' equal ids: a log does not keep to which of them a stream belongs.
"""


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


def test_a_log_knows_what_was_pruned_since(tmp_path: Path) -> None:
    """Messages whose dedup records are gone from the files are proved by the log beside them."""
    with World(tmp_path / "agents") as world:
        near, far = world.open("near"), world.open(handling("far"))
        post(near, "far", 3)
        world.run(near, far)
        world.rest()
        list(ship.files([str(tmp_path / "agents")], str(tmp_path / "log")))
        far = world.open(handling("far"))
        world.clock.advance(8 * 86_400)
        far.run_maintenance()
        now = world.clock.now()
        world.rest()
    rules, agents = Rules(now=now, late_after=1e9), tmp_path / "agents"
    alone = reconcile(agents, out=tmp_path / "alone", rules=rules)
    beside = reconcile(agents, out=tmp_path / "beside", rules=rules, log=str(tmp_path / "log"))

    assert {"forgotten": 3} == dict(alone.verdicts)
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


def test_a_log_and_a_state_are_not_taken_together(tmp_path: Path) -> None:
    """A state says how far files were read, which is nothing that a log knows."""
    with pytest.raises(InvalidArgument, match="not both"):
        reconcile(out=tmp_path / "out", log=str(tmp_path), state=tmp_path / "state.db")
    assert not (tmp_path / "out").exists()
