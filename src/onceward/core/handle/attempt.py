"""
Call a handler once: for a message, a batch, or the messages of a run.

An attempt is a value that lives as long as its call. ``run`` takes each kind through the same
steps, in this order:

1. The writes of this thread join the commit that ends the messages (``commits.bind``), and the
   functions that have no context as an argument find it (``CONTEXT``).
2. ``call``: a function runs on this thread, a coroutine on its loop. A call that returns after its
   timeout fails like one that raises TimeoutError.
3. ``keep``: what the handler wrote and returned is kept, and its messages end.
4. An exception undoes the writes. Then the call waits for a reply or a time (``suspend``), is put
   off because its process stops or its message was cancelled (``put_off``), or fails (``fail``).
5. The context is closed: what the handler left running can use it no longer.

Callers of dispatched tasks are told by ``tell``, in the same commit.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol, TypedDict, cast

from onceward.core.handle.call import CONTEXT, HandlerDeps, Suspended
from onceward.core.handle.invoke import (
    Loop,
    LoopClosed,
    cause_of,
    log_failure,
    run_coroutine,
    settlement_for_error,
    surround,
    with_trace,
)
from onceward.core.handle.loop_watch import LATE, LoopCall
from onceward.core.handle.signatures import Handler, Handlers, await_with, call_with
from onceward.core.rows import tickets
from onceward.core.rows.inbox import is_cancelled
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run import engine_loop as engine
from onceward.core.send import tasks
from onceward.errors import InvalidMessage, InvalidVersion, OncewardError, RequestFailed
from onceward.file import forks
from onceward.hooks import Attempt
from onceward.message.body import decode, encode
from onceward.message.clock import Millis, monotonic
from onceward.message.error_text import error_text, raised
from onceward.message.frame import Frame
from onceward.message.log import log
from onceward.message.names import meant
from onceward.message.retry import RetryPolicy
from onceward.message.topics import matches
from onceward.message.vocabulary import (
    ATTEMPT_NEVER_ENDED,
    HANDLED,
    Dead,
    RetryAt,
    Settlement,
    Waits,
    unreadable,
)

if TYPE_CHECKING:
    from onceward.core.handle.commit_batch import HandlerCommitBatch
    from onceward.core.run.async_face import OnWorker
    from onceward.file.transaction import StoreTransaction

STOPPED: Final = "its process was stopped while the handler ran"
CANCELLED: Final = "cancelled while the handler ran"
ALL_HANDLED: Final[Sequence[Settlement]] = (HANDLED,)


class Prepared(NamedTuple):
    """A message with its handler and its decoded body."""

    handler: Handler
    frame: Frame
    body: Any
    error: Exception | None = None
    """Exception of the body's own validators; it counts as a failure of the handler."""


def find_handler(handlers: Sequence[Handler], kind: str, topic: str | None) -> Handler | None:
    """
    Return the handler of a message by its type or topic.

    An exact type or topic precedes patterns, an earlier handler later ones.
    """
    for each in handlers:
        if each.pattern in (kind, topic):
            return each
    for each in handlers:
        if matches(each.pattern, kind) or (topic is not None and matches(each.pattern, topic)):
            return each
    return None


def resolve_handler(
    agent: Handlers, leased: LeasedMessage, now: Millis, policy: RetryPolicy
) -> Prepared | Settlement:
    """Return the handler and its argument, or the settlement of a message without one."""
    if (unfit := leased.undeliverable(now)) is not None:
        return unfit
    try:
        frame = Frame.accepted(leased.frame)
        handler = find_handler(agent.handlers, frame.type, frame.topic)
        if handler is None:
            near = meant(frame.type, [each.pattern for each in agent.handlers])
            error = f"agent {agent.name} has no handler for {frame.type}{near}"
            return Dead("unhandled", error, tried=False)
        if leased.attempt > 1 and _exhausted(policy, handler, leased.attempt - 1):
            return Dead("attempts_spent", ATTEMPT_NEVER_ENDED, tried=False)
    except InvalidMessage as error:
        return Dead("rejected", str(error), tried=False)
    try:
        frame = frame if frame.dataref is None else frame.with_stored_body()
        return Prepared(
            handler,
            frame,
            decode(frame.data, frame.data_base64, handler.body, frame.datacontenttype),
        )
    except InvalidVersion as error:  # a newer process may read it
        return Prepared(handler, frame, None, error)
    except InvalidMessage as error:
        return unreadable(error)
    except Exception as error:  # noqa: BLE001 - a user's validator failed
        return Prepared(handler, frame, None, error)


def _exhausted(policy: RetryPolicy, handler: Handler, attempt: int) -> bool:
    if handler.rules.attempts is not None:
        return attempt >= handler.rules.attempts
    return (handler.rules.retry or policy).exhausted(attempt)


class Commits(Protocol):
    """Commits what a handler writes."""

    def bind(self) -> None:
        """Take the writes of this thread, whose call begins."""

    def unbind(self) -> None:
        """Leave the writes of this thread alone: its call has ended."""

    def undo(self) -> None:
        """Undo the writes of the call."""


@dataclass(eq=False, kw_only=True)
class HandlerAttempt:
    """One call of a handler, and the state of the call that the heartbeat reads."""

    deps: HandlerDeps
    commits: Commits
    loop: Loop
    own_thread: bool
    """Whether the engine's own thread makes the call; otherwise its caller gets its exits."""
    context: Any
    leased: Sequence[LeasedMessage]
    """The messages, in order."""
    limit: float
    """The timeout in seconds."""
    started: float = field(default=math.inf, init=False)
    took: float | None = field(default=None, init=False)
    """Seconds that the call took; None while it runs."""
    failed: bool = field(default=False, init=False)
    """Whether it was ended by an exception, other than one by which it waits."""
    raised: BaseException | None = field(default=None, init=False)
    """That exception, while observers are called."""
    cancel_task: Callable[[], object] | None = field(default=None, init=False)
    """Cancels a running coroutine; None for a function."""
    late: bool = field(default=False, init=False)
    """Whether its coroutine was cancelled because it exceeded its timeout."""
    stopped: str = field(default="", init=False)
    """Why it was cancelled otherwise."""
    forks_before: int = field(default=0, init=False)

    # -- the life of a call -----------------------------------------------------------------

    def run(self) -> Sequence[Settlement]:
        """Call the handler; return the settlement of each message, in order."""
        self.forks_before, self.started = forks.count, monotonic()
        self.commits.bind()
        outer = CONTEXT.set(self.context)
        try:
            try:
                value = self.call()
            finally:
                self.took = monotonic() - self.started
                CONTEXT.reset(outer)
            if forks.count != self.forks_before:
                forks.leave()
            if self.took > self.limit:
                self._raise_late()
            return self.keep(value)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            return self._end(error)
        finally:
            self.commits.unbind()
            if self.context._closes:
                self.context._close()

    def observed(self) -> Sequence[Settlement]:
        """Do the same while observers see the attempt."""
        from onceward.observed import ObservedAttempt  # noqa: PLC0415 - rarely needed

        with ObservedAttempt(self.deps.hooks.observers, self.facts()) as observed:
            settlements = self.run()
            observed.settle(settlements, self.raised)
            self.raised = None  # its traceback refers to this attempt
            return settlements

    def _end(self, error: BaseException) -> Sequence[Settlement]:
        """Undo a call that raised *error*; return the settlement of each message."""
        self.commits.unbind()
        try:
            self._raise_cause(error)
        except Suspended as waiting:
            self.commits.undo()
            return self.suspend(waiting)
        except (Exception, CancelledError) as cause:  # noqa: BLE001 - every error settles them
            self.commits.undo()
            self.failed = True
            if self.stopped:
                return self.put_off()
            if self.deps.hooks.observers:
                self.raised = cause
            self.log(cause)
            return self.fail(cause)

    def _raise_cause(self, error: BaseException) -> NoReturn:
        """Raise the error by which the messages of a call are settled that *error* ended."""
        forks.leave_if_forked(self.forks_before, error)
        if self.late and isinstance(error, CancelledError):
            self._raise_late(error)
        cause = cause_of(error, own_thread=self.own_thread)
        if cause is error:
            raise error
        raise cause from error

    def _raise_late(self, cause: BaseException | None = None) -> NoReturn:
        raise TimeoutError(LATE.format(self.limit)) from cause

    # -- its steps --------------------------------------------------------------------------

    def facts(self) -> Attempt:
        """Return what observers learn of the attempt at its start."""
        first = self.leased[0]
        return Attempt(
            agent=self.deps.db.agent,
            session=first.session,
            frames=self.frames,
            number=first.attempt,
        )

    @property
    def frames(self) -> Sequence[Frame]:
        """The frames of the messages."""
        raise NotImplementedError

    def call(self) -> Any:
        """Call the handler; return what it returns."""
        raise NotImplementedError

    def keep(self, value: Any) -> Sequence[Settlement]:
        """Keep the writes of a call that has returned *value*; end its messages."""
        raise NotImplementedError

    def suspend(self, waiting: Suspended) -> Sequence[Settlement]:
        """Store that the handler waits; it is called again from its start."""
        raise NotImplementedError

    def put_off(self) -> Sequence[Settlement]:
        """Return the messages of a call that was ended from outside: they are not at fault."""
        again = RetryAt(self.deps.db.now(), self.stopped, counted=False)
        return [again] * len(self.leased)

    def fail(self, error: BaseException) -> Sequence[Settlement]:
        """Return the settlements after the call raised."""
        raise NotImplementedError

    def log(self, error: BaseException) -> None:
        """Log an unexpected exception."""
        log_failure(error, self.deps.db.agent, self.leased[0], self.frames[0].type)

    # -- for the heartbeat ------------------------------------------------------------------

    @property
    def running_for(self) -> float:
        """Seconds for which the call has run until now."""
        return monotonic() - self.started

    @property
    def overdue(self) -> bool:
        """Whether it has exceeded its timeout."""
        return self.running_for > self.limit

    def stop(self, why: str) -> bool:
        """Cancel a coroutine; return whether it is one. A function cannot be cancelled."""
        if self.cancel_task is None:
            return False
        self.stopped = why
        with suppress(RuntimeError):  # its loop is closed
            self.cancel_task()
        return True

    def stop_late(self) -> None:
        """Cancel a coroutine that exceeds its timeout; a function only loses its lease."""
        if not self.late and self.cancel_task is not None and self.overdue:
            self.late = True
            self.cancel_task()

    def stop_cancelled(self) -> None:
        """Cancel a coroutine of which a message was cancelled: its effects could not be kept."""
        if self.stopped or self.cancel_task is None:
            return
        if is_cancelled(self.deps.db.read, [each.seq for each in self.leased]):
            self.stop(CANCELLED)

    # -- coroutines -------------------------------------------------------------------------

    def wait_for(
        self, start: Callable[[OnWorker], Awaitable[Any]], handler: Callable[..., Any]
    ) -> Any:
        """Run the coroutine of a handler on its loop, until it has ended."""
        watched = LoopCall(
            self.deps.db.agent,
            handler,
            self.leased[0].id,
            blocked_after=self.deps.settings.tuning.blocked_after,
            limit=self.limit,
            until=self.started + self.limit,
        )
        return run_coroutine(start, self.loop(), self.stoppable, watched)

    def stoppable(self, cancel: Callable[[], object]) -> None:
        """Keep the function that cancels the coroutine, which has begun."""
        self.cancel_task = cache(cancel)  # the heartbeat calls it repeatedly


class CallOf(TypedDict):
    """The fields of an attempt that all attempts of one worker share."""

    deps: HandlerDeps
    commits: HandlerCommitBatch
    loop: Loop


@dataclass(eq=False, kw_only=True)
class MessageAttempt(HandlerAttempt):
    """One call with one message, which is committed with the calls of others."""

    commits: HandlerCommitBatch
    ready: Prepared
    noted: Callable[[StoreTransaction], None] | None = None
    """Keeps the guard's note of the message, in the commit of the handler's writes."""

    @property
    def frames(self) -> Sequence[Frame]:
        """The frame of the message."""
        return (self.ready.frame,)

    def call(self, *, within: bool = True) -> Any:
        """Call the handler, *within* the generators around it."""
        ready, context = self.ready, self.context
        if ready.error is not None:
            raise ready.error
        handler = ready.handler
        if within and any(handler.around):
            return surround(handler.around, context, partial(self.call, within=False))
        if handler.is_async:
            return self.wait_for(self._start, handler.call)
        if handler.dependencies is not None:
            return call_with(handler.dependencies, handler.call, ready.body, context)
        if handler.takes_context:
            return handler.call(ready.body, context)
        return handler.call(ready.body)

    def _start(self, on_worker: OnWorker) -> Awaitable[Any]:
        """Call a coroutine function; its context makes its database calls on this thread."""
        ready, window = self.ready, self.context._window(on_worker)
        handler, needed = ready.handler, ready.handler.dependencies
        if needed is not None:
            return await_with(needed, handler.call, ready.body, window)
        args = (ready.body, window) if handler.takes_context else (ready.body,)
        return cast("Awaitable[Any]", handler.call(*args))

    def keep(self, value: Any) -> Sequence[Settlement]:
        """Send, keep or drop what was returned, with the processed mark."""
        context, commits = self.context, self.commits
        if context._parts:
            context._end_call()
        [leased] = self.leased
        if tasks.NAMES_CALLER in leased.frame and tasks.task_of(leased) is not None:
            context._report(value)
        elif value is not None or self.ready.handler.rules.keep_result:
            self._answer(value, leased)
        if self.noted is not None:
            self.noted(commits.join())
        if self.deps.db.foreign_keys:
            commits.check_foreign_keys()  # COMMIT would undo the neighbours too
        return ALL_HANDLED

    def _answer(self, value: Any, leased: LeasedMessage) -> None:
        """Send what a handler returned to a message that asks for it; otherwise keep or drop it."""
        if self.ready.frame.replyto is not None:
            if value is not None:
                self.context.reply(value)
        elif self.ready.handler.rules.keep_result is not False:
            try:
                self._keep_result(value, leased)
            except OncewardError as error:
                if self.ready.handler.rules.keep_result:
                    raise
                log.debug("result not kept", message_id=leased.id, error=str(error))

    def _keep_result(self, value: Any, leased: LeasedMessage) -> None:
        """Keep what a handler returned, for the retention of results."""
        if keep_for := round(1000 * self.deps.settings.result_retention):
            payload = encode(value)
            size = self.deps.outbox.composer.check_size(value, payload)
            tx = self.commits.join()
            tickets.keep_result(tx, leased, payload, size=size, until_at=tx.now + keep_for)

    def suspend(self, waiting: Suspended) -> Sequence[Settlement]:
        """Store that the handler waits, with its requests; it is called again from its start."""
        try:
            tx = self.commits.join()
            for part in self.context._parts:
                part.keep(tx)
            again = Waits(waiting.until(tx), str(waiting), counted=False)
        except OncewardError as error:
            self.commits.undo()
            return self.fail(error)
        return [again] * len(self.leased)

    def fail(self, error: BaseException) -> Sequence[Settlement]:
        """Return the settlement of the message, and tell the caller of a task."""
        [leased] = self.leased
        ended = [self.after(error, self.ready, leased)]
        return tell(self.deps, self.commits, self.leased, ended)

    def after(self, error: BaseException, ready: Prepared, leased: LeasedMessage) -> Settlement:
        """Return the settlement of a message after the call raised."""
        if isinstance(error, RequestFailed) and self._asked(error.message_id):
            # Every call would find the same failure.
            return Dead("rejected", error_text(error), raised=raised(error, self.took))
        return failure(self.deps, error, ready, leased, took=self.took)

    def _asked(self, message_id: str | None) -> bool:
        """Return whether the handler made a request, which its next call finds."""
        return any(part.has(message_id) for part in self.context._parts)


def failure(
    deps: HandlerDeps,
    error: BaseException,
    prepared: Prepared,
    leased: LeasedMessage,
    *,
    took: float | None = None,
) -> Settlement:
    """Return the settlement of a message whose handler raised after *took* seconds."""
    rules = prepared.handler.rules
    if rules.forbids_retry_after(error) and not isinstance(error, LoopClosed):
        return Dead("rejected", error_text(error), raised=raised(error, took))
    policy = rules.retry or deps.policy
    spent = _exhausted(policy, prepared.handler, leased.attempt)
    found = settlement_for_error(
        error, leased.attempt, spent=spent, now=deps.db.now(), policy=policy, rng=deps.rng
    )
    return with_trace(found, error, took)


def tell(
    deps: HandlerDeps,
    commits: HandlerCommitBatch,
    leased: Sequence[LeasedMessage],
    ended: Sequence[Settlement],
) -> Sequence[Settlement]:
    """
    Send the callers of dispatched tasks their results, in the same commit.

    Return the settlements; if the outbox has no capacity for a result, undo all and retry all.
    """
    try:
        for each, settlement in zip(leased, ended, strict=True):
            if not isinstance(settlement, RetryAt) and tasks.task_of(each) is not None:
                outcome = tasks.outcome_of(settlement)
                tasks.tell(commits.join(), deps.outbox, each, outcome)
    except OncewardError as error:
        commits.undo()
        due_at = deps.db.now() + round(1000 * engine.MAX_IDLE_SECONDS)
        return [RetryAt(due_at, str(error), counted=False)] * len(ended)
    return ended
