"""
Every state that the model can reach.

Whether it is safe, and whether there is a way to finish from it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.proof.model import model
from tests.proof.model.values import Rules, State

UNBOUNDED: Final = float("inf")


class Machine(NamedTuple):
    """What is searched: where it starts, what may happen, what is wrong, and where it may end."""

    start: Callable[[Any], Any]
    steps: Callable[[Any, Any], Iterable[tuple[str, Any]]]
    wrong: Callable[[Any, Any], str]
    finished: Callable[[Any], bool]
    share: Callable[[Any, Callable[[Any, Any], Any]], Any] = lambda state, _: state
    """Returns a state with the parts that it shares with others."""


def _shared(state: State, share: Callable[[Any, Any], Any]) -> State:
    """Millions of states are made of thousands of senders and recipients."""
    return state._replace(
        sender=share(state.sender, state.sender), receiver=share(state.receiver, state.receiver)
    )


PROTOCOL: Final = Machine(
    lambda _: State(), model.steps, model.wrong, model.finished, share=_shared
)


@dataclass(frozen=True, slots=True)
class Search:
    """
    What an exhaustive search found.

    ``path`` leads to the first violation by the fewest steps.
    """

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float
    path: tuple[str, ...]
    taken: Counter[str]
    """How often each transition was taken."""


class _Seen:
    """
    States by number, in the order of their discovery.

    How each was reached first, and from where it can be.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.states: list[Any] = []
        self.came: list[tuple[int, str]] = []
        self.before: list[list[int]] = []
        self._numbers: dict[Any, int] = {}
        self._parts: dict[Any, Any] = {}

    def reach(self, state: Any, source: int, name: str) -> bool:
        """Note a step; return whether it led to a new state."""
        number = self._numbers.get(state)
        if number is not None:
            self.before[number] += [source] if name != "refused" else []
            return False
        state = self._machine.share(state, self._parts.setdefault)
        self._numbers[state] = len(self.states)
        self.states.append(state)
        self.came.append((source, name))
        self.before.append([source] if name != "refused" else [])
        return True

    def path(self, number: int) -> tuple[str, ...]:
        """Return the fewest steps that lead to a state."""
        names: list[str] = []
        while number:
            number, name = self.came[number]
            names.append(name)
        return tuple(reversed(names))

    def stuck(self) -> list[int]:
        """Return, in order of discovery, the states that cannot finish without giving up."""
        waiting = [
            number for number, state in enumerate(self.states) if self._machine.finished(state)
        ]
        reached = bytearray(len(self.states))
        for number in waiting:
            reached[number] = 1
        while waiting:
            for number in self.before[waiting.pop()]:
                if not reached[number]:
                    reached[number] = 1
                    waiting.append(number)
        return [number for number, done in enumerate(reached) if not done]


def explore(
    rules: Any = None,
    *,
    machine: Machine = PROTOCOL,
    most: int = 5_000_000,
    seconds: float = UNBOUNDED,
) -> Search:
    """
    Visit every state by the fewest steps.

    Stop at the first that is wrong, or from which nothing can finish.

    After so many *seconds* it stops where it is: what was visited is safe, but not all that there
    is.
    """
    rules, begun, seen, taken = rules or Rules(), time.monotonic(), _Seen(machine), Counter[str]()
    seen.reach(machine.start(rules), 0, "")

    def found(problem: str = "", at: int = 0) -> Search:
        return Search(
            "model",
            len(seen.states),
            (problem,) if problem else (),
            time.monotonic() - begun,
            seen.path(at),
            taken,
        )

    for number, state in enumerate(seen.states):  # grows while it is walked through
        if time.monotonic() - begun > seconds:
            return found()
        for name, after in machine.steps(state, rules):
            taken[name.partition(" ")[0]] += 1
            if seen.reach(after, number, name) and (problem := machine.wrong(after, rules)):
                return found(problem, len(seen.states) - 1)
        if len(seen.states) > most:
            return found("there are more states than were to be visited")
    stuck = seen.stuck()
    return found("from some states there is no way to finish", stuck[0]) if stuck else found()
