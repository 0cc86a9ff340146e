"""
Watch the event loops on which coroutines run.

A coroutine that blocks its loop stops all handlers that share it. The worker that waits for a
coroutine pings the loop; if there is no answer for ``blocked_after``, the log names the agent and
the handler of the coroutine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from onceward.file import forks
from onceward.message.clock import monotonic
from onceward.message.log import LOST, log, quietly

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop

LOOK: Final = 0.5
"""Seconds between two looks at the loop of a coroutine."""
PAUSE: Final = 4 * LOOK
"""After as many seconds without a look, this process was stopped."""
LATE: Final = "the call took longer than its timeout of {:g} s"


class LoopCall(NamedTuple):
    """A coroutine that a worker waits for."""

    agent: str
    handler: Callable[..., Any]
    message_id: str
    blocked_after: float
    """Seconds without an answer of its loop after which that is logged; 0: it is not."""
    limit: float
    """Its timeout in seconds."""
    until: float = math.inf
    """When its timeout ends, in monotonic seconds."""

    def named(self) -> dict[str, str]:
        """Return the fields that name the call in the log."""
        name = getattr(self.handler, "__qualname__", None) or type(self.handler).__qualname__
        return {"agent": self.agent, "handler": str(name), "message_id": self.message_id}


CALL: ContextVar[LoopCall | None] = ContextVar("onceward_loop_call", default=None)
"""The call of a task, and of the tasks that it starts."""


class LoopWatch:
    """Tells in the log that a loop does not answer, once for each time."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], LoopCall] = WeakKeyDictionary()
        self._thread = 0
        self._pinged = self._looked = -math.inf
        self._answered, self._told = True, False

    def begin(self, task: asyncio.Task[Any], call: LoopCall) -> None:
        """Note a task of the loop, on the loop's thread."""
        self._tasks[task], self._thread = call, get_ident()

    def look(self, loop: AbstractEventLoop, call: LoopCall) -> None:
        """Ping the loop, or tell if it has not answered the last ping for too long."""
        with self._lock:
            ping, silent = self._judge(monotonic(), call.blocked_after)
        if silent:
            self._tell(loop, call, silent)
        elif ping:
            with suppress(RuntimeError):  # it is closed: its caller sees that
                loop.call_soon_threadsafe(self._answer)

    def _judge(self, now: float, after: float) -> tuple[bool, float]:
        """Return whether to ping, and the seconds of a silence that is to be told."""
        slept, self._looked = now - self._looked > PAUSE, now
        waited = now - self._pinged
        if self._answered:
            if waited < LOOK / 2:  # another worker has just asked
                return False, 0.0
            self._pinged, self._answered, self._told = now, False, False
            return True, 0.0
        if slept:  # this process did not run: the loop could not answer
            self._pinged = now
        elif waited >= after and not self._told:
            self._told = True
            return False, waited
        return False, 0.0

    def _answer(self) -> None:
        self._answered, self._thread = True, get_ident()

    def _tell(self, loop: AbstractEventLoop, waiting: LoopCall, seconds: float) -> None:
        """Log the call that runs on the loop, and its present line."""
        if not loop.is_running():
            log.warning("the event loop of a handler is stopped", **waiting.named())
            return
        culprit = self._culprit(loop)
        log.warning(
            "a coroutine blocks the event loop: all async handlers of its loop wait",
            **({} if culprit is None else culprit.named()),
            seconds=round(seconds, 1),
            line=self._line(),
        )

    def _culprit(self, loop: AbstractEventLoop) -> LoopCall | None:
        """Return the call whose task runs now; None if it is a task of other code."""
        import asyncio  # noqa: PLC0415 - async handlers only

        task = asyncio.current_task(loop)
        if task is None:
            return None
        call = self._tasks.get(task)
        if call is None and sys.version_info >= (3, 12):  # it may be a task of a handler
            return task.get_context().get(CALL)
        return call

    def _line(self) -> str:
        """Return where the loop's thread is now."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return ""
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"


_watches: dict[AbstractEventLoop, LoopWatch] = {}  # strong: not every loop allows weak references


def watch_of(loop: AbstractEventLoop) -> LoopWatch:
    """Return the watch of a loop; forget loops that were closed."""
    found = _watches.get(loop)
    if found is None:
        for each in [each for each in list(_watches) if each.is_closed()]:
            _watches.pop(each, None)
        found = _watches.setdefault(loop, LoopWatch())
    return found


def begin(loop: AbstractEventLoop, task: asyncio.Task[Any], call: LoopCall) -> None:
    """Note a task that begins on its loop."""
    if call.blocked_after:
        quietly(watch_of(loop).begin, task, call, failed=LOST.add)


def look(loop: AbstractEventLoop, call: LoopCall) -> None:
    """
    Tell in the log if the loop of a call does not answer.

    Raises:
        TimeoutError: the loop was stopped, and the timeout of the call has passed.

    """
    if call.blocked_after:
        quietly(watch_of(loop).look, loop, call, failed=LOST.add)
    if monotonic() > call.until and not loop.is_running():
        raise TimeoutError(LATE.format(call.limit))
