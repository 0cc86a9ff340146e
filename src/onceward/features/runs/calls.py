"""Keep the calls of session handlers that have not returned, in this process."""

from __future__ import annotations

from threading import Event as Flag
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onceward.features.runs.execution import RunExecution

LEFT_MAX: Final = 3
"""Calls of one session that are left; with so many it waits until one of them has returned."""


RECHECK: Final = 1.0
"""Shortest time in seconds after which such a session is looked at again."""


class OpenCalls:
    """
    The calls of this process, by run.

    A session has one call at a time. A call that was left counts no longer, for
    its session or for the number of runs, but a session leaves LEFT_MAX at most.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._calls: dict[str, RunExecution] = {}
        self._lock = Lock()
        self.quiet = Flag()
        """Set while no call counts."""
        self.quiet.set()

    def add(self, call: RunExecution) -> None:
        """Count a call."""
        with self._lock:
            self._calls[call.run_id] = call
            self._update()

    def remove(self, call: RunExecution) -> None:
        """Forget a call that has returned."""
        with self._lock:
            self._calls.pop(call.run_id, None)
            self._update()

    def update(self) -> None:
        """Look again which calls were left."""
        with self._lock:
            self._update()

    def _update(self) -> None:
        if any(not call.left for call in self._calls.values()):
            self.quiet.clear()
        else:
            self.quiet.set()

    def counted(self) -> list[RunExecution]:
        """Return the calls that count: those that were not left."""
        with self._lock:
            return [call for call in self._calls.values() if not call.left]

    def delay(self, session: str) -> float:
        """Return the seconds for which a session begins no run; 0.0 is none."""
        with self._lock:
            calls = [each for each in self._calls.values() if each.session == session]
        left = sum(each.left and not each.returned for each in calls)
        waits = [each.patience for each in calls if not each.left and not each.returned]
        return max([*waits, max(self._grace, RECHECK) if left >= LEFT_MAX else 0.0])
