"""The graph of the trip is killed at each of its calls, and each tool takes effect once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox

pytest.importorskip("langgraph", reason="needs onceward[frameworks-test]")

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / name) for name in ("trip_graph", "agent_loop")]
from graph import Task, agent_with  # type: ignore[import-not-found]  # noqa: E402 - no package
from trip import CALLS, PLAN, World  # type: ignore[import-not-found]  # noqa: E402 - no package


def play(folder: Path, fatal: int, when: str) -> None:
    """Run the agent until its task is done, or its process is killed."""
    world = World(folder, fatal, when)
    agent = agent_with(world.model, world.tools)
    with Postbox(folder / "assistant.db", agent=agent, lease=1) as box:
        ticket = box.request("assistant", Task(goal="a trip"), key="trip")
        (folder / "answer").write_text(box.result(ticket, reply=str, timeout=30))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "fatal", [pytest.param(n, marks=[pytest.mark.proof] if n % 3 else []) for n in range(CALLS)]
)
def test_a_killed_graph_goes_on_at_the_call_that_it_died_at(
    tmp_path: Path, fatal: int, when: str
) -> None:
    """Every other call is made once, and each tool has its effect once."""
    me = [*PYTHON, __file__, tmp_path, fatal, when]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with Child(me, env=env) as first:
        assert -signal.SIGKILL == first.wait(30)
    with Child(me, env=env) as second:
        assert 0 == second.wait(30)

    world = World(tmp_path, fatal, when)
    assert sorted([*range(CALLS), fatal]) == sorted(world.calls)
    assert sorted(PLAN) == world.ledger
    assert "; ".join(f"{line} done" for line in PLAN) == (tmp_path / "answer").read_text()
    with Postbox(tmp_path / "assistant.db", agent="assistant", start=False) as box:
        states = box.query("SELECT count(*), count(DISTINCT step) FROM onceward_checkpoints")
        assert [(CALLS + 2, CALLS + 2)] == states
        assert [] == box.file.check()


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
