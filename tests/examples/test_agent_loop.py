"""The agent loop is killed at each of its calls, and each tool takes effect once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "examples" / "agent_loop"
sys.path.insert(0, str(LOOP))
from loop import (  # type: ignore[import-not-found]  # noqa: E402 - no package
    Task,
    Turn,
    agent_with,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = ("search flights", "book flight 7", "pay 420")
CALLS = 2 * len(PLAN) + 1
"""Calls of the model and of the tools, one after the other."""


class World:
    """What is outside: a model, tools with a ledger, and a call at which the process is killed."""

    def __init__(self, folder: Path, fatal: int, when: str) -> None:
        self._folder, self._fatal, self._when = folder, fatal, when
        self._calls = folder / "calls"

    def _call(self, number: int, work: Callable[[], Any]) -> Any:
        die = number == self._fatal and not (self._folder / "died").exists()
        with self._calls.open("a") as calls:
            calls.write(f"{number}\n")
        if die and self._when == "before":
            self._die()
        found = work()
        if die:
            self._die()
        return found

    def _die(self) -> None:
        (self._folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def model(self, said: list[str]) -> Turn:
        """Say the next line of the plan."""

        def think() -> Turn:
            done = len(said) - 1
            if done == len(PLAN):
                return Turn(answer="; ".join(said[1:]))
            tool, _, argument = PLAN[done].partition(" ")
            return Turn(tool=tool, argument=argument)

        found: Turn = self._call(2 * (len(said) - 1), think)
        return found

    def tool(self, name: str) -> Callable[[str, str], str]:
        """Return a tool that takes idempotency keys: its ledger has a file for each."""

        def use(argument: str, key: str) -> str:
            def effect() -> str:
                with (self._folder / f"{key}.ledger").open("a") as ledger:
                    if not ledger.tell():
                        ledger.write(f"{name} {argument}")
                return f"{name} {argument} done"

            number = next(n for n, line in enumerate(PLAN) if line.startswith(name))
            found: str = self._call(2 * number + 1, effect)
            return found

        return use

    @property
    def ledger(self) -> list[str]:
        """Return the effects of all tools."""
        return sorted(each.read_text() for each in self._folder.glob("*.ledger"))

    @property
    def calls(self) -> list[int]:
        """Return the numbers of the calls that were begun, by all processes."""
        return [int(line) for line in self._calls.read_text().split()]

    @property
    def tools(self) -> dict[str, Callable[[str, str], str]]:
        """Return the tools by name."""
        return {name: self.tool(name) for name in ("search", "book", "pay")}


def play(folder: Path, fatal: int, when: str) -> None:
    """Run the agent until its task is done, or its process is killed."""
    world = World(folder, fatal, when)
    agent = agent_with(world.model, world.tools)
    with Postbox(folder / "assistant.db", agent=agent, lease=1) as box:
        ticket = box.request("assistant", Task(goal="a trip"), key="trip")
        (folder / "answer").write_text(box.result(ticket, reply=str, timeout=30))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fatal", range(CALLS))
def test_a_killed_loop_goes_on_at_the_call_that_it_died_at(
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


def test_the_loop_is_40_lines() -> None:
    """What a page shows stays short."""
    lines = (LOOP / "loop.py").read_text().splitlines()

    assert 40 >= len([line for line in lines if line.strip()])


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
