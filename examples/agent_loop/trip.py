"""
Run the agent loop until its trip is booked, on a model that answers from memory.

    python trip.py HOME [CALL before|after]

With the number of a call, from 0, the process kills itself there, once: before its effect, or after
it and before its result is stored.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loop import Task, Turn, agent_with

from onceward import Postbox

PLAN = ("search flights", "book flight 7", "pay 420")
CALLS = 2 * len(PLAN) + 1
"""Calls of the model and of the tools, one after the other."""
LEASE = 1
"""Seconds after which the message of a dead process is taken again."""


class World:
    """A model, tools with a ledger, and a call at which the process dies."""

    def __init__(self, folder: Path, fatal: int | None = None, when: str = "after") -> None:
        self._folder, self._fatal, self._when = folder, fatal, when

    def _call(self, number: int, work: Callable[[], Any]) -> Any:
        died = self._folder / f"died-{number}-{self._when}"
        die = number == self._fatal and not died.exists()
        with (self._folder / "calls").open("a", encoding="utf-8") as calls:
            calls.write(f"{number}\n")
        if die and self._when == "before":
            self._die(died)
        found = work()
        if die:
            self._die(died)
        return found

    def _die(self, died: Path) -> None:
        died.touch()
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
                with (self._folder / f"{key}.ledger").open("a", encoding="utf-8") as ledger:
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
        return sorted(each.read_text("utf-8") for each in self._folder.glob("*.ledger"))

    @property
    def calls(self) -> list[int]:
        """Return the numbers of the calls that were begun, by all processes."""
        return [int(line) for line in (self._folder / "calls").read_text("utf-8").split()]

    @property
    def tools(self) -> dict[str, Callable[[str, str], str]]:
        """Return the tools by name."""
        return {name: self.tool(name) for name in ("search", "book", "pay")}


def play(folder: Path, world: World) -> None:
    """Run the agent until its task is done, or its process is killed."""
    agent = agent_with(world.model, world.tools)
    with Postbox(folder / "assistant.db", agent=agent, lease=LEASE) as box:
        ticket = box.request("assistant", Task(goal="a trip"), key="trip")
        answer = box.result(ticket, reply=str, timeout=60)
    (folder / "answer").write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    home, *fate = sys.argv[1:]
    fatal, when = (int(fate[0]), fate[1]) if fate else (None, "after")
    play(Path(home), World(Path(home), fatal, when))
