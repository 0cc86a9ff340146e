"""Act in the middle of a run, on the thread that executes it."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from onceward.core.send.block import Transaction
from onceward.features.runs.run import AsyncRun, Holder, Run
from onceward.features.runs.runs import EarlierRun
from onceward.features.runs.scheduler import ReadMessage
from onceward.message.handler_work import StoredStep

T = TypeVar("T")


class MiddleOfRun:
    """Calls *act* once, at the first point at which a watched run can notice its end."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act, self._thread = act, get_ident()
        self.over = False
        """Whether a run came to such a point."""

    def watch(self, run: Run | AsyncRun) -> None:
        """Watch what a run asks of the file."""
        plain = run._plain if isinstance(run, AsyncRun) else run
        plain._holder = _Watched(plain._holder, self)

    def reach(self) -> None:
        """Report that a run is at such a point; do nothing on a loop's thread."""
        if not self.over and get_ident() == self._thread:
            self.over = True
            self._act()


class _Watched:
    """Passes everything on to the run's holder."""

    def __init__(self, holder: Holder, middle: MiddleOfRun) -> None:
        self._holder, self._middle = holder, middle

    def checkpoint(self, partial: Any) -> None:
        self._holder.checkpoint(partial)
        self._middle.reach()

    def write(self, work: Callable[[Transaction], T]) -> T:
        found = self._holder.write(work)
        self._middle.reach()
        return found

    def more(self) -> list[ReadMessage]:
        self._middle.reach()
        return self._holder.more()

    def make(self, name: str) -> Any:
        return self._holder.make(name)

    def earlier_steps(self, before: EarlierRun) -> tuple[StoredStep, ...]:
        return self._holder.earlier_steps(before)

    @property
    def cancelled(self) -> bool:
        self._middle.reach()
        return self._holder.cancelled
