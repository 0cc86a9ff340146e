"""A message that is held up for a known reason is told from one that is stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Unpack

import pytest
from tests.fleet.mishaps import handling, post
from tests.fleet.world import World

from onceward import Agent, Postbox
from onceward.fleet import Report, Rules, reconcile
from onceward.message.queue_modes import QueueOptions

Place = Callable[[World], tuple[Postbox, Postbox]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a world in a folder of its own."""
    with World(tmp_path / "agents") as made:
        yield made


def _judged(world: World) -> Report:
    """Judge the files an hour later, when nothing is within the grace."""
    world.rest()
    return reconcile(world.folder, rules=Rules(now=world.clock.now() + 3_600_000))


def _said(report: Report) -> tuple[dict[str, int], list[object], bool]:
    """Return verdicts, reasons of waiting, and whether the run fails for what is stuck."""
    reasons = [row["waits_for"] for row in report.waits]
    return dict(report.verdicts), reasons, report.failed("stuck")


def _with_runs(**options: Unpack[QueueOptions]) -> Agent:
    agent = Agent("far")
    agent.runs("flow", **options)(lambda _run: None)
    return agent


def test_messages_of_a_paused_agent_wait_for_its_resume(world: World) -> None:
    """They are stuck once it is resumed, and no worker handles them."""
    near, far = world.open("near"), world.open(handling("far"))
    far.file.pause()
    post(near, "far", 2)
    world.run(near, far)
    paused = _judged(world)
    world.open("far").file.resume()

    assert ({"waiting": 2}, ["resume"], False) == _said(paused)
    assert [None] == [row["next_at"] for row in paused.waits]
    assert ({"unprocessed": 2}, [], True) == _said(_judged(world))


def test_messages_of_a_paused_session_wait_for_its_resume(world: World) -> None:
    """A message of another session of the agent does not."""
    near, far = world.open("near"), world.open(_with_runs(mode="queue"))
    far.runs.pause("flow")
    post(near, "far", 1)
    near.session("other").send("far", {"number": 1}, type="step")
    world.run(near, far)

    assert ({"waiting": 1, "unprocessed": 1}, ["resume"], True) == _said(_judged(world))


def test_messages_that_a_session_collects_wait_for_their_run(world: World) -> None:
    """The run begins when its session was quiet for ten hours."""
    near, far = world.open("near"), world.open(_with_runs(mode="collect", debounce=36_000))
    post(near, "far", 1)
    world.run(near, far)
    report = _judged(world)

    assert ({"waiting": 1}, ["run"], False) == _said(report)
    assert ["2026-01-01T10:00"] == [str(row["next_at"])[:16] for row in report.waits]


def _rated(rate: str, pattern: str = "step") -> Agent:
    agent = Agent("far")
    agent.on(pattern, rate=rate)(lambda _body: None)
    return agent


@pytest.mark.parametrize("pattern", ["step", "*", "#"])
def test_messages_wait_for_the_rate_of_their_handler(world: World, pattern: str) -> None:
    """All of them until its next call; if no worker makes that call, they are stuck."""
    near, far = world.open("near"), world.open(_rated("1/2h", pattern))
    for number in range(5):
        near.session(f"s{number}").send("far", {"number": number}, type="step")
    world.run(near, far)
    report = _judged(world)
    world.clock.advance(7_200)
    missed = _judged(world)

    assert ({"delivered_once": 1, "waiting": 4}, ["rate"], False) == _said(report)
    assert ["2026-01-01T02:00"] == [str(row["next_at"])[:16] for row in report.waits]
    assert ({"delivered_once": 1, "unprocessed": 4}, [], True) == _said(missed)


def test_messages_behind_one_that_waits_for_a_rate_wait_for_their_lane(world: World) -> None:
    """Also those of a handler without a rate; one that no worker handles is stuck."""
    agent = _rated("1/2h")
    agent.on("other")(lambda _body: None)
    near, far = world.open("near"), world.open(agent)
    post(near, "far", 2)
    post(near, "far", 1, type="other")
    world.run(near, far)
    near.session("quick").send("far", {"number": 1}, type="other")
    near.run_until_idle()
    verdicts, reasons, stuck = _said(_judged(world))

    assert {"delivered_once": 1, "waiting": 2, "unprocessed": 1} == verdicts
    assert ["lane", "rate"] == sorted(map(str, reasons))
    assert stuck
