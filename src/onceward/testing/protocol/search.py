"""Every state that the model can reach: whether it is safe, and whether there is a way to finish from it."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from onceward.testing.protocol.model import finished, steps, wrong
from onceward.testing.protocol.values import Rules, State

UNBOUNDED: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Search:
    """What an exhaustive search found; ``path`` leads to the first violation by the fewest steps."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float
    path: tuple[str, ...]
    taken: Counter[str]
    """How often each transition was taken."""


def explore(rules: Rules | None = None, *, most: int = 5_000_000, seconds: float = UNBOUNDED) -> Search:
    """
    Visit every state by the fewest steps; stop at the first that is wrong, or from which nothing can finish.

    After so many *seconds* it stops where it is: what was visited is safe, but not all that there is.
    """
    rules, begun = rules or Rules(), time.monotonic()
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {start: []}
    taken: Counter[str] = Counter()
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if time.monotonic() - begun > seconds:
            return Search("model", len(came), (), time.monotonic() - begun, (), taken)
        for name, after in steps(state, rules):
            taken[name.partition(" ")[0]] += 1
            kept = [] if name == "refused" else [state]
            if after in came:
                before[after] += kept
                continue
            came[after], before[after] = (state, name), kept
            if problem := wrong(after, rules):
                return Search("model", len(came), (problem,), time.monotonic() - begun, _path(came, after), taken)
            waiting.append(after)
        if len(came) > most:
            return Search("model", len(came), ("there are more states than were to be visited",), time.monotonic() - begun, (), taken)
    stuck = _stuck(before)
    problems = ("from some states there is no way to finish",) if stuck else ()
    return Search("model", len(came), problems, time.monotonic() - begun, _path(came, stuck[0]) if stuck else (), taken)


def _stuck(before: dict[State, list[State]]) -> list[State]:
    """Return the states from which nothing finishes unless it is given up, in the order of their discovery."""
    reached = {state for state in before if finished(state)}
    waiting = deque(reached)
    while waiting:
        for state in before[waiting.popleft()]:
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    return [state for state in before if state not in reached]


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names: list[str] = []
    while (step := came[state]) is not None:
        state, name = step
        names.append(name)
    return tuple(reversed(names))
