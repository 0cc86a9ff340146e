"""Call every verb while something else is held, and say which of them waited for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from tests.proof.liveness.holds import HOLDS, WAITS, opened
from tests.proof.liveness.verbs import CALLS, Bystander

from onceward import Postbox
from onceward.errors import OncewardError

BOUND: Final = 0.5
"""Seconds within which a verb returns."""
TRIES: Final = 3
"""A busy machine makes a verb late once; what is held makes it late each time."""
PATIENCE: Final = 5.0
"""Seconds after which a verb that has not returned is left behind."""


@dataclass(frozen=True, slots=True)
class Waited:
    """A verb that did not return in time while something else was held."""

    held: str
    verb: str
    seconds: float

    def __str__(self) -> str:
        """Tell it in a line."""
        return f"{self.verb} took {self.seconds:.2f} s while {self.held} was held"


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one thing that was held."""

    held: str
    verbs: int
    slowest: tuple[float, str]
    waited: tuple[Waited, ...]


def took(call: Callable[[], object]) -> float:
    """Return the seconds of a call; an error of ours is an answer like any other."""

    def quietly() -> None:
        with suppress(OncewardError):
            call()

    thread = Thread(target=quietly, daemon=True)
    begun = time.monotonic()
    thread.start()
    thread.join(PATIENCE)
    return time.monotonic() - begun


def least(call: Callable[[], object]) -> float:
    """Return the seconds of the quickest of some calls, each made only if the last was late."""
    best = took(call)
    for _ in range(TRIES - 1):
        if best <= BOUND:
            break
        best = min(best, took(call))
    return best


def judged(held: str, folder: Path) -> Told:
    """Hold one thing, and call all verbs of another file meanwhile."""
    with ExitStack() as stack:
        y = opened(stack, folder)
        calls = {name: _of(call, Bystander.of(y)) for name, call in CALLS.items()}
        calls["Postbox(...) and close"] = lambda: _reopen(folder)
        calls["a message that is sent and handled"] = lambda: _delivered(y)
        calls["a message to a peer that answers"] = lambda: _pushed(y)
        for call in calls.values():  # what a first call loads is not judged
            took(call)
        with HOLDS[held](folder, y):
            times = {name: least(call) for name, call in calls.items()}
    late = tuple(Waited(held, name, at) for name, at in times.items() if at > BOUND)
    slowest = max((at, name) for name, at in times.items())
    return Told(held, len(times), slowest, late)


def _of(call: Callable[[Bystander], object], y: Bystander) -> Callable[[], object]:
    return lambda: call(y)


def _delivered(y: Postbox) -> None:
    sent = y.session("free").send("y", 1, type="seen")
    until = time.monotonic() + PATIENCE
    while y.state(sent) != "acked" and time.monotonic() < until:
        time.sleep(0.005)


def _pushed(y: Postbox) -> None:
    sent = y.session("free").send("near", 1)
    until = time.monotonic() + PATIENCE
    while y.state(sent) in WAITS and time.monotonic() < until:
        time.sleep(0.005)


def _reopen(folder: Path) -> None:
    Postbox(folder / "mine" / "z.db", agent="z", start=False).close()
