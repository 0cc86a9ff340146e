"""Run the coroutine of a handler on its loop; say what an exception means for its message."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, cast

from onceward.core.handle import loop_watch
from onceward.core.handle.call import Suspended
from onceward.core.handle.loop_watch import CALL, LOOK, LoopCall
from onceward.core.handle.signatures import Around
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run.async_face import OnWorker, carried
from onceward.errors import (
    Drop,
    ForkedProcess,
    HandlerSignal,
    InvalidArgument,
    InvalidVersion,
    LeaseLost,
    Paused,
    Reject,
    Retry,
)
from onceward.file import forks
from onceward.message.clock import Millis
from onceward.message.error_text import (
    error_text,
    exc_info,
    is_honest,
    message_of,
    of_handler,
    raised,
    safe_repr,
    trace_of,
)
from onceward.message.log import log
from onceward.message.retry import RetryPolicy
from onceward.message.times import millis
from onceward.message.vocabulary import Dead, Done, RetryAt, Settlement

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop
Loop = Callable[[], "AbstractEventLoop"]
CLOSED: Final = (
    "the event loop was closed while the handler ran: keep it open as long as the postbox"
)
CLOSED_BEFORE: Final = (
    "the event loop is closed, so no coroutine is called: close the postbox before its loop"
)
CLOSED_FOR: Final = 10_000
"""Milliseconds until the next look at a message whose handler had no loop."""
NEWER_AFTER: Final = 2_000
"""Milliseconds until a body of a newer version is tried again, by any process that is free."""


class LoopClosed(RuntimeError):
    """The loop of a coroutine was closed before the coroutine was called."""


def with_trace(settlement: Settlement, error: BaseException, took: float | None) -> Settlement:
    """Return a settlement with the traceback of its *error*, if that is a failure."""
    if isinstance(settlement, Done) or isinstance(error, Paused):
        return settlement
    return replace(settlement, raised=raised(error, took))


def settlement_for_error(
    error: BaseException,
    attempt: int,
    *,
    spent: bool,
    now: Millis,
    policy: RetryPolicy,
    rng: random.Random,
) -> Settlement:
    """Return the settlement after the *attempt*-th attempt raised; *spent*: it was the last."""
    match error:
        case Reject():
            return Dead("rejected", message_of(error))
        case Drop():
            return Done("dropped")
        case Paused():
            return RetryAt(now, "paused: it continues after resume()", counted=False)
        case LoopClosed():  # the message is not at fault; another process may handle it
            return RetryAt(now + CLOSED_FOR, message_of(error), counted=False)
        case InvalidVersion(newer=True):  # a process with a newer program may handle it
            return RetryAt(now + NEWER_AFTER, message_of(error), counted=False)
    if spent:
        return Dead("attempts_spent", _text_of(error))
    wait, text = wait_after(error, attempt, policy=policy, rng=rng)
    return RetryAt(now + wait, text)


def wait_after(
    error: BaseException, attempt: int, *, policy: RetryPolicy, rng: random.Random
) -> tuple[Millis, str]:
    """Return how long to wait after the *attempt*-th attempt, and why there is another one."""
    text = _text_of(error)
    if not isinstance(error, Retry):
        return policy.delay(attempt, rng), text
    try:
        after = error.after
        return policy.delay(attempt, rng) if after is None else millis("after", after), text
    except Exception as wrong:  # noqa: BLE001 - the attribute may be of the user's own class
        return policy.delay(attempt, rng), f"{text} ({message_of(wrong)})"


def _text_of(error: BaseException) -> str:
    return message_of(error) if isinstance(error, Retry) else error_text(error)


def cause_of(error: BaseException, *, own_thread: bool) -> BaseException:
    """
    Return the error of a call as its messages are settled by it.

    On an engine's thread an exit, or a cancellation from inside, is a failure like any other:
    otherwise it would end the engine, and no more messages would be handled. So is an exception
    whose class lies about itself, or a group that cannot be taken apart.
    """
    if not is_honest(error):
        return RuntimeError(f"the handler raised {error_text(error)}")
    if isinstance(error, BaseExceptionGroup):  # of tasks, one of which may only be waiting
        try:
            error = cause_of_group(error)
        except Exception:  # noqa: BLE001 - too deep, or a method of the user's own class
            return RuntimeError(f"the handler raised {error_text(error)}")
    if not own_thread or isinstance(error, Exception | Suspended):
        return error
    return RuntimeError(f"the handler raised {safe_repr(error)}")


def cause_of_group(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return why tasks ended: the failure, the handler's reason, or the request it awaits."""
    ends, failed = group.split((HandlerSignal, Suspended))
    if ends is None or failed is not None:
        return failed or group
    cause: BaseException = ends.subgroup(HandlerSignal) or ends
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def log_failure(
    error: BaseException, agent: str, leased: LeasedMessage, type_: str, **more: str
) -> None:
    """Log an unexpected exception; the first time with a traceback that begins at the handler."""
    if isinstance(error, HandlerSignal | Paused | LeaseLost | CancelledError):
        return
    of_message = log.bind(
        agent=agent,
        session=leased.session,
        message_id=leased.id,
        type=type_,
        attempt=leased.attempt,
        **more,
    )
    trace = of_handler(trace_of(error))
    shown = {"exc_info": exc_info(error, trace)} if leased.attempt == 1 else {}
    of_message.warning("handler failed", error=error_text(error), **shown)


def run_coroutine(
    start: Callable[[OnWorker], Awaitable[Any]],
    loop: AbstractEventLoop,
    stoppable: Callable[[Callable[[], object]], None],
    watched: LoopCall | None = None,
) -> Any:
    """
    Run a coroutine on *loop* while this thread makes its database calls, until it has ended.

    *stoppable* is called with the function that cancels the coroutine, once for
    each call of it. A *watched* loop that does not answer is logged.

    Raises:
        LoopClosed: *loop* is closed; nothing was called.
        TimeoutError: *loop* was stopped, and the timeout of the call has passed.

    """
    import asyncio  # noqa: PLC0415 - async handlers only

    if loop.is_closed():
        raise LoopClosed(CLOSED_BEFORE)
    jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    ended, before = Future[Any](), forks.count

    async def on_worker(work: Callable[[], Any]) -> Any:
        if ended.done():  # a task that outlives its handler
            raise asyncio.CancelledError
        if forks.count != before:  # a forked child does not have this thread
            raise ForkedProcess(forks.FORKED)
        done: Future[Any] = Future()
        jobs.put(partial(_fulfil, done, carried(work)))
        return await asyncio.wrap_future(done)

    on_loop = _OnLoop(loop, start(on_worker), ended, watched)
    on_loop.begin(lambda: jobs.put(None))
    stoppable(lambda: loop.call_soon_threadsafe(on_loop.cancel))
    try:
        while (job := _next(jobs, loop, watched)) is not None:
            job()
    except BaseException:
        ended.cancel()  # nothing makes its database calls any more
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_loop.cancel)
        raise
    return ended.result()


class _OnLoop:
    """A coroutine that runs on a loop for a worker; its methods run on the loop's thread."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        pending: Awaitable[Any],
        ended: Future[Any],
        watched: LoopCall | None,
    ) -> None:
        self._loop, self._pending, self._ended, self._watched = loop, pending, ended, watched
        self._handler = _ordinary(pending)
        self._task: asyncio.Task[Any] | None = None

    def begin(self, told: Callable[[], None]) -> None:
        """Begin the coroutine soon, from a worker's thread; call *told* when it has ended."""
        self._told = told
        named = CALL.set(self._watched)  # the context of its task is a copy of this one
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # the loop is closed
            self._drop()
            raise
        finally:
            CALL.reset(named)

    def _begin(self) -> None:
        if self._ended.done():  # its time has passed while the loop was stopped
            self._drop()
            return
        self._task = self._loop.create_task(self._handler)
        self._task.add_done_callback(self._end)
        if self._watched is not None:
            loop_watch.begin(self._loop, self._task, self._watched)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if not self._ended.done():
            _copy(task, self._ended)
        self._told()

    def cancel(self) -> None:
        """Cancel the coroutine, if it has begun."""
        if self._task is not None:
            self._task.cancel()

    def _drop(self) -> None:
        """Close a coroutine that does not begin."""
        self._handler.close()
        if isinstance(self._pending, Coroutine):
            self._pending.close()


def run_to_end(pending: Awaitable[Any], loop: AbstractEventLoop) -> Any:
    """
    Run a coroutine on *loop* while this thread waits.

    Raises:
        InvalidArgument: this is the loop's own thread, which would wait for itself.

    """
    import asyncio  # noqa: PLC0415 - async agents only

    coroutine = _ordinary(pending)
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        msg = "this thread runs the event loop: open an agent with async at_open by AsyncPostbox"
        raise InvalidArgument(msg)
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _next(
    jobs: SimpleQueue[Callable[[], None] | None], loop: AbstractEventLoop, watched: LoopCall | None
) -> Callable[[], None] | None:
    """
    Return the next call of a coroutine, or None once it has ended.

    Raises:
        RuntimeError: its loop was closed.
        TimeoutError: its loop was stopped, and its time has passed.

    """
    while True:
        try:
            return jobs.get(timeout=LOOK)
        except Empty:
            if loop.is_closed():
                raise RuntimeError(CLOSED) from None
            if watched is not None:
                loop_watch.look(loop, watched)


def _copy(task: asyncio.Task[Any], ended: Future[Any]) -> None:
    """Set the outcome of a task in *ended*, for the thread that waits for it."""
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


async def _ordinary(handler: Awaitable[Any]) -> Any:
    """Await a handler; turn its exit into an error, because other handlers share the loop."""
    before = forks.count
    try:
        found = await handler
    except (SystemExit, KeyboardInterrupt) as error:
        forks.leave_if_forked(before, error)
        msg = f"the handler raised {safe_repr(error)}"
        raise RuntimeError(msg) from error
    except BaseException as error:
        forks.leave_if_forked(before, error)
        raise
    if forks.count != before:
        forks.leave()
    return found


def _fulfil(done: Future[Any], work: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised in the awaiting coroutine
        done.set_exception(error)


def surround(groups: Sequence[Sequence[Around]], context: Any, handle: Callable[[], Any]) -> Any:
    """Call *handle* inside the generators of all groups, the first one outermost."""
    return _within([each for group in groups for each in group], context, handle)


def _within(makers: Sequence[Around], context: Any, handle: Callable[[], Any]) -> Any:
    if not makers:
        return handle()
    steps = cast("Generator[None, Any, Any]", makers[0](context))
    try:
        next(steps)
    except StopIteration as end:  # it did not yield: the handler is not called
        return end.value
    try:
        value = _within(makers[1:], context, handle)
    except BaseException as error:
        changed = _raise_in(steps, error)
        if isinstance(error, Exception):
            return changed
        raise  # do not replace a call that ended from outside or waits for a reply
    changed = _end(steps, lambda: steps.send(value))
    return value if changed is None else changed


def _raise_in(steps: Generator[None, Any, Any], error: BaseException) -> Any:
    """Raise *error* at the yield; return what the generator returns if it catches it."""
    return _end(steps, lambda: steps.throw(error))


def _end(steps: Generator[None, Any, Any], go_on: Callable[[], object]) -> Any:
    try:
        go_on()
    except StopIteration as end:
        return end.value
    steps.close()
    msg = "a generator of agent.around yields once"
    raise RuntimeError(msg)
