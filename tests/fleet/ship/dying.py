"""Objects of a log that stop a process, or let another one run, at a chosen step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onceward.fleet.ship.objects import Objects

STEPS: Final = ("put", "create", "get", "size", "names", "remove", "remove_folder")


class Killed(BaseException):
    """The process ends here, as by SIGKILL: no cleaning up of ours may run after it."""


class Stepping:
    """Counts the moments before and after each step, and calls *at* in the chosen one."""

    def __init__(self, inner: Objects, when: int, at: Callable[[], object]) -> None:
        self._inner, self._when, self._at = inner, when, at
        self.steps = 0
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        """Return a step of the objects behind it."""
        step = getattr(self._inner, name)
        return (lambda *args: self._step(step, *args)) if name in STEPS else step

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        self._pass()
        found = step(*args)
        self._pass()
        return found

    def _pass(self) -> None:
        if self._dead:
            raise Killed
        self.steps += 1
        if self.steps == self._when:
            self._happen()

    def _happen(self) -> None:
        try:
            self._at()
        except Killed:
            self._dead = True  # a dead process cleans nothing up
            raise


def kill() -> None:
    """End the process."""
    raise Killed
