"""
Simulate the death of a process within the process.

From the chosen point on, no statement of the code that is still on the stack reaches the file:
SQLite's own files stay as a killed process leaves them, and the next opening recovers them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args
from weakref import WeakSet

import apsw

from onceward.api.agent import Agent
from onceward.core.handle.call import CONTEXT
from onceward.core.handle.signatures import Handler
from onceward.features.batches.context import BatchContext
from onceward.features.runs.run import AsyncRun, Run
from onceward.features.runs.scheduler import SessionHandler
from onceward.file.file_checks import canonical
from onceward.testing.during_run import MiddleOfRun

Point = Literal[
    "before-handler",  # the message is leased, its handler has not begun
    "after-handler",  # the handler returned; its effects are not committed
    "before-commit",  # effects, mail and processed mark are written; the COMMIT does not run
    "after-commit",  # the COMMIT ran; the caller was not told
    "before-push",  # a parcel is stored, it has not left
    "after-push",  # the peer keeps the parcel; its receipts are lost
]
"""Points at which a process may die."""

POINTS: Final[tuple[Point, ...]] = get_args(Point)
StepPoint = Literal[
    "before-step",  # a step's function has not begun
    "after-step",  # the function returned; its result is not stored
    "stored-step",  # the result is committed; the handler does not go on
]
"""Points of a handler's step at which a process may die."""
STEP_POINTS: Final[tuple[StepPoint, ...]] = get_args(StepPoint)


class Crash(BaseException):
    """The process dies here; ``except Exception`` does not catch it, like SIGKILL."""


class Life:
    """Watches every connection to one file, and ends them all at the chosen point."""

    def __init__(self, path: Path) -> None:
        self._path = str(canonical(path))
        self._connections: WeakSet[apsw.Connection] = WeakSet()
        self._point: Point | StepPoint | None = None
        self._step: str | None = None
        """Name of the step at which the process dies; None for any."""
        self.over = False
        """Whether the process has died."""
        self.pumping = False
        """Whether the engines run; outside of them every commit counts for ``before-commit``."""
        self._handled = self._committed = False
        self.middle: MiddleOfRun | None = None
        """Watches the runs that begin, to act in the middle of one."""
        apsw.connection_hooks.append(self._connected)

    def end_watch(self) -> None:
        """Stop watching new connections."""
        apsw.connection_hooks.remove(self._connected)

    def arm(self, point: Point | StepPoint | None, step: str | None = None) -> None:
        """
        Die when *point* is reached, of *step* where it is given; None is never.

        Raises:
            ValueError: there is no such point.

        """
        known = (*POINTS, *STEP_POINTS)
        if point is not None and point not in known:
            raise ValueError(f"there is no point {point!r}: the points are {', '.join(known)}")
        self._point, self._handled, self._committed = point, False, False
        self._step = step

    def reach(self, point: Point) -> None:
        """Report that the code is at a point; raise Crash if the process dies there."""
        if self.over or point == self._point:
            self._die()

    def _passed(self, point: str, step: str) -> None:
        """Report that a handler is at a point of a step."""
        if self.over or (point == self._point and self._step in {None, step}):
            self._die()

    def _watch_steps(self, handled: object) -> None:
        """Follow the steps of the handler that begins."""
        contexts: Iterable[Any] = (
            handled._contexts.values() if isinstance(handled, BatchContext) else [handled]
        )
        for each in contexts:
            each._make = partial(self._make, each._make)

    def _make(self, make: Callable[[str], Any], name: str) -> Any:
        part = make(name)
        if name == "steps":
            part.passed = self._passed
        return part

    def begin(self, args: tuple[Any, ...]) -> None:
        """Report that a handler begins, with these arguments."""
        self.reach("before-handler")
        if (handled := CONTEXT.get()) is not None:
            self._watch_steps(handled)
        if self.middle is not None and args and isinstance(args[0], Run | AsyncRun):
            self.middle.watch(args[0])

    def handled(self) -> None:
        """Report that a handler has ended, so that the next COMMIT is its own."""
        self._handled = True
        self.reach("after-handler")

    def told(self, _event: object = None) -> None:
        """Mark that an outside party learns of a commit."""
        if self._committed:
            self.reach("after-commit")

    def again(self) -> None:
        """Become a new process."""
        self.over = False
        self.arm(None)

    def _connected(self, connection: apsw.Connection) -> None:
        if connection.filename and str(canonical(connection.filename)) == self._path:
            self._connections.add(connection)
            connection.exec_trace = self._traced

    def _traced(self, _cursor: object, sql: str, _bindings: object) -> bool:
        if self.over and not sql.startswith("ROLLBACK"):  # undoing writes nothing
            self._die()
        self.told()
        if sql == "COMMIT" and self._point is not None and (self._handled or not self.pumping):
            self.reach("before-commit")
            self._committed = True
        return True

    def _die(self) -> None:
        if not self.over:
            self.over = True
            for connection in self._connections:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raise Crash(f"the process died at {self._point}")


def mortal(agent: Agent, life: Life) -> Agent:
    """Return a copy of *agent* whose handlers pass the points of *life*."""
    twin = Agent(agent.name, unhandled=agent.unhandled)
    twin._openings, twin._awaited = agent._openings, agent._awaited
    twin.handlers = [replace(handler, call=_mortal(handler, life)) for handler in agent.handlers]
    twin.sessions = [replace(handler, call=_mortal(handler, life)) for handler in agent.sessions]
    return twin


def _mortal(handler: Handler | SessionHandler, life: Life) -> Callable[..., Any]:
    if handler.is_async:
        return _mortal_async(handler.call, life)

    def run(*args: Any, **given: Any) -> Any:
        life.begin(args)
        try:
            return handler.call(*args, **given)
        finally:
            life.handled()

    return run


def _mortal_async(call: Callable[..., Awaitable[Any]], life: Life) -> Callable[..., Awaitable[Any]]:
    async def run(*args: Any, **given: Any) -> Any:
        life.begin(args)
        try:
            return await call(*args, **given)
        finally:
            life.handled()

    return run
