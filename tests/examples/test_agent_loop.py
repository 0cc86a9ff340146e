"""The agent loop is killed at each of its calls, and each tool takes effect once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.children import PYTHON, Child

LOOP = Path(__file__).parents[2] / "examples" / "agent_loop"
sys.path.insert(0, str(LOOP))
from trip import (  # type: ignore[import-not-found]  # noqa: E402 - no package
    CALLS,
    PLAN,
    World,
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fatal", range(CALLS))
def test_a_killed_loop_goes_on_at_the_call_that_it_died_at(
    tmp_path: Path, fatal: int, when: str
) -> None:
    """Every other call is made once, and each tool has its effect once."""
    trip = [*PYTHON, LOOP / "trip.py", tmp_path, fatal, when]
    with Child(trip) as first:
        assert -signal.SIGKILL == first.wait(30)
    with Child(trip) as second:
        assert 0 == second.wait(30)

    world = World(tmp_path)
    assert sorted([*range(CALLS), fatal]) == sorted(world.calls)
    assert sorted(PLAN) == world.ledger
    assert "; ".join(f"{line} done" for line in PLAN) == (tmp_path / "answer").read_text()


def test_the_loop_is_40_lines() -> None:
    """What a page shows stays short."""
    lines = (LOOP / "loop.py").read_text().splitlines()

    assert 40 >= len([line for line in lines if line.strip()])
