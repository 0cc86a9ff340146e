"""Kill the trip of an agent at one of its calls, finish it, and compare what was called."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child

from onceward import Agent, Postbox

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "agent_loop"))
from trip import CALLS, PLAN, World  # type: ignore[import-not-found]  # noqa: E402 - no package

__all__ = ["CALLS", "FATAL", "PLAN", "World", "finish", "killed_and_finished"]

FATAL = [pytest.param(n, marks=[pytest.mark.proof] if n % 3 else []) for n in range(CALLS)]
"""The calls at which a trip is killed, every third of them in each run of the tests."""


def finish(folder: Path, agent: Agent, task: Any) -> None:
    """Run an agent until its task is done, or its process is killed."""
    with Postbox(folder / "assistant.db", agent=agent, lease=1) as box:
        ticket = box.request("assistant", task, key="trip")
        (folder / "answer").write_text(box.result(ticket, reply=str, timeout=30))


def killed_and_finished(program: str, folder: Path, fatal: int, when: str) -> None:
    """Start a trip twice: it dies at a call, then ends; each other call is made once."""
    me = [*PYTHON, program, folder, fatal, when]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with Child(me, env=env) as first:
        assert -signal.SIGKILL == first.wait(30)
    with Child(me, env=env) as second:
        assert 0 == second.wait(30)

    world = World(folder, fatal, when)
    assert sorted([*range(CALLS), fatal]) == sorted(world.calls)
    assert sorted(PLAN) == world.ledger
    assert "; ".join(f"{line} done" for line in PLAN) == (folder / "answer").read_text()
