"""The graph of the trip is killed at each of its calls, and each tool takes effect once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.frameworks.killed_trips import CALLS, FATAL, ROOT, World, finish, killed_and_finished

from onceward import Postbox

pytest.importorskip("langgraph", reason="needs onceward[frameworks-test]")

sys.path.insert(0, str(ROOT / "examples" / "trip_graph"))
from graph import Task, agent_with  # type: ignore[import-not-found]


def play(folder: Path, fatal: int, when: str) -> None:
    """Run the agent until its task is done, or its process is killed."""
    world = World(folder, fatal, when)
    finish(folder, agent_with(world.model, world.tools), Task(goal="a trip"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fatal", FATAL)
def test_a_killed_graph_goes_on_at_the_call_that_it_died_at(
    tmp_path: Path, fatal: int, when: str
) -> None:
    """Every other call is made once, and each tool has its effect once."""
    killed_and_finished(__file__, tmp_path, fatal, when)

    with Postbox(tmp_path / "assistant.db", agent="assistant", start=False) as box:
        states = box.query("SELECT count(*), count(DISTINCT step) FROM onceward_checkpoints")
        assert [(CALLS + 2, CALLS + 2)] == states
        assert [] == box.file.check()


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
