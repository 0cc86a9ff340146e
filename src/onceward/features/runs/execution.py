"""Execute one run: call its handler, commit for it while its lease holds, end it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onceward.core.engine.async_face import OnWorker
from onceward.core.engine.deps import RuntimeDeps
from onceward.core.handle.around import surround
from onceward.core.handle.context import reply_options
from onceward.core.handle.inbox import LeasedMessage
from onceward.core.handle.invoke import (
    Loop,
    cause_of,
    log_failure,
    run_coroutine,
    settlement_for_error,
)
from onceward.core.handle.lanes import Lease
from onceward.core.handle.message import Message
from onceward.core.send.block import Transaction
from onceward.errors import HandlerSignal, LeaseLost, OncewardError, Retry
from onceward.features.runs.completion import PendingEffects, RunCompletion, RunOutcome, settlements
from onceward.features.runs.run import AsyncRun, Run
from onceward.features.runs.runs import OpenRun, aborted_error, call_returned, checkpoint, is_open
from onceward.features.runs.scheduler import ReadMessage, RunScheduler, StartedRun, exhausted
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Attempt
from onceward.message.body import encode
from onceward.message.queue_modes import CALLER, WORKER_RESULT
from onceward.message.quoting import error_text
from onceward.message.states import Done, Settlement

T = TypeVar("T")


class RunExecution:
    """One run that is executed by its thread, and that the heartbeat may stop."""

    def __init__(
        self,
        started: StartedRun,
        deps: RuntimeDeps,
        *,
        scheduler: RunScheduler,
        completion: RunCompletion,
        watched: bool = True,
    ) -> None:
        self.row: OpenRun = started.run
        """The run's row as of its last commit."""
        self._started, self._scheduler, self._completion = started, scheduler, completion
        self._db, self._sender, self._hooks = deps.db, deps.sender, deps.hooks
        self._policy, self._rng = deps.policy, deps.rng
        self._leased = [each.leased for each in started.messages]
        self._run = Run(started, sender=deps.sender, holder=self)
        self._settlements: Sequence[Settlement] = ()
        self._raised: BaseException | None = None
        self._took: float | None = None
        self._stop: Callable[[], object] = lambda: None
        limit = started.handler.timeout or deps.settings.handler_timeout
        self._until = time.monotonic() + limit
        self._late = False
        self._cancelled, self._watched = False, watched
        self._grace = deps.settings.abort_grace
        self._left_at = math.inf
        self._graces = 2 if started.handler.is_async else 1
        self.left = False
        """Whether the call was aborted and has not returned within the grace."""
        self.returned = False
        """Whether the handler has returned."""

    # -- for the heartbeat ------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run that is executed."""
        return self.row.id

    @property
    def session(self) -> str:
        """The session that is served."""
        return self.row.session

    @property
    def lease(self) -> Lease:
        """The lease that proves that this process holds the run."""
        return Lease(self.row.lane_id, self.row.token, self.row.owner, isolate=True)

    @property
    def overdue(self) -> bool:
        """Whether the handler has exceeded its timeout."""
        return time.monotonic() > self._until

    def cancel(self, *, late: bool = False) -> None:
        """
        Stop the handler: cancel a coroutine, set ``cancelled`` for a function.

        With *late* only its timeout was exceeded, so the run still ends itself.
        A second call does nothing.
        """
        if self._cancelled or (late and self._late):
            return
        if late:
            self._late = True
        else:
            self._cancelled = True
            self._left_at = self._db.clock.monotonic() + self._grace
        self._stop()

    @property
    def patience(self) -> float:
        """Return the seconds that the session waits for this call."""
        return min(self._grace, max(0.0, self._left_at - self._db.clock.monotonic()))

    def leave(self) -> bool:
        """
        Stop to count a call that was aborted and has not returned in time; say whether it is so.

        A coroutine is cancelled once more and gets the grace again.
        """
        now = self._db.clock.monotonic()
        if self.left or self.returned or now < self._left_at:
            return False
        self._graces -= 1
        self.left = not self._graces
        if not self.left:
            self._left_at = now + self._grace
            self._stop()
        return self.left

    # -- run.Holder -------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the run was ended from outside; asks the file where no thread looks for it."""
        if not self._watched and not self._cancelled and not is_open(self._db, self.row):
            self.cancel()
        return self._cancelled

    def checkpoint(self, partial: Any) -> None:
        """Commit partial output and what was sent so far; raises RunAborted."""
        text, pending = encode(partial).text, self._pending()

        def work(tx: StoreTransaction) -> None:
            checkpoint(tx, self.row, text)
            self._completion.commit(tx, self.row, pending)

        self._db.write(work)
        del self._run._drafts[: len(pending.drafts)]

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Commit work of the run at once; raises RunAborted."""
        kept: list[T] = []

        def mine(tx: StoreTransaction) -> None:
            kept.clear()
            self._completion.commit(
                tx, self.row, PendingEffects(work=[lambda yours: kept.append(work(yours))])
            )

        self._db.write(mine)
        return kept[0]

    def more(self) -> list[ReadMessage]:
        """Bind what waits to the run; raises RunAborted."""
        known = [each.id for each in self._leased]
        self.row, fresh = self._db.write(
            lambda tx: self._scheduler.inject(tx, self.row, self._started.handler, known)
        )
        self._leased += [each.leased for each in fresh]
        return fresh

    def _pending(self) -> PendingEffects:
        return PendingEffects(list(self._run._drafts), [])

    # -- running ----------------------------------------------------------------------------

    def run(self, loop: Loop, *, go_on: bool) -> StartedRun | None:
        """
        Call the handler and end the run; with *go_on* begin and return the next one.

        That is a run of the session that has waited longest. Returns None where there
        is none, or where the run was ended from outside.
        """
        try:
            if self._hooks.observers:
                return self._run_observed(loop, go_on=go_on)
            return self._call_and_end(loop, go_on=go_on)
        except LeaseLost:
            self._let_go()
            return None

    def _run_observed(self, loop: Loop, *, go_on: bool) -> StartedRun | None:
        """Call the handler and end the run in an attempt that observers see."""
        from onceward.observed import ObservedAttempt  # noqa: PLC0415 - rarely needed

        attempt = Attempt(
            agent=self._db.agent,
            session=self.session,
            frames=[each.frame for each in self._started.messages],
            number=self._leased[0].attempt,
            run_id=self.run_id,
        )
        with ObservedAttempt(self._hooks.observers, attempt) as observed:
            following = self._call_and_end(loop, go_on=go_on)
            observed.settle(self._settlements, self._raised)
            return following

    def _call_and_end(self, loop: Loop, *, go_on: bool) -> StartedRun | None:
        try:
            value = self._returned(loop)
            result, effects = self._answer(value)
            done = RunOutcome([Done()] * len(self._leased), result, took=self._took)
            return self._end(done, effects, go_on=go_on)
        except LeaseLost:
            raise
        except BaseException as error:
            cause = cause_of(error, own_thread=self._watched)
            if not isinstance(cause, Exception):
                raise
            if self._cancelled:
                raise aborted_error(self.row) from error
            if self._late:
                cause = Retry("it ran for longer than it may")
            return self._fail(cause, go_on=go_on)

    def _let_go(self) -> None:
        """Let the session go on after an aborted call; without this it does so after the grace."""
        with suppress(OncewardError):
            self._db.write(lambda tx: call_returned(tx, self.row))
            self._db.notifier.notify("in")

    def _returned(self, loop: Loop) -> Any:
        began = time.monotonic()
        try:
            around = self._started.handler.around
            return surround(around, self._run, lambda: self._call(loop))
        finally:
            self._took = time.monotonic() - began
            self.returned = True

    def _call(self, loop: Loop) -> Any:
        handler = self._started.handler
        if not handler.is_async:
            return handler.call(self._run)

        def start(on_worker: OnWorker) -> Any:
            return handler.call(AsyncRun(self._run, on_worker))

        def stoppable(stop: Callable[[], object]) -> None:
            self._stop = stop
            if self._cancelled:
                stop()

        return run_coroutine(start, loop(), stoppable)

    def _answer(self, value: Any) -> tuple[str | None, PendingEffects]:
        """Return the result as JSON, and the effects to be committed with the run's end."""
        effects = self._pending()
        effects.work = list(self._run._at_end_work)
        if value is None:
            return None, effects
        for message in self._to_answer():
            to, named = reply_options(message.frame, {})
            effects.drafts.append(self._sender.compose(self._run.session, to, value, named))
        return encode(value).text, effects

    def _to_answer(self) -> list[Message[Any]]:
        """Return the messages that get the run's answer: its requests, and the current message."""
        found = []
        for each in self._run.messages:
            asks = each.frame.replyto is not None
            mine = each.id not in self._run._answered if asks else each is self._run.message
            # The caller of a task gets a worker_result instead of a reply.
            told = each.type == WORKER_RESULT or CALLER in each.headers
            # An answer to an answer would never end.
            if each.in_reply_to is None and not told and mine:
                found.append(each)
        return found

    def _end(
        self, outcome: RunOutcome, effects: PendingEffects, *, go_on: bool
    ) -> StartedRun | None:
        def work(tx: StoreTransaction) -> StartedRun | None:
            self._completion.commit(tx, self.row, effects)
            self._completion.finish(tx, self.row, self._leased, outcome)
            return self._scheduler.next_run(tx) if go_on else None

        found = self._db.write(work)
        self._settlements = outcome.settlements
        self._db.notifier.notify("out")
        return found

    def _fail(self, error: BaseException, *, go_on: bool) -> StartedRun | None:
        now, self._raised = self._db.now(), error
        first = self._started.messages[0]
        log_failure(error, self._db.agent, first.leased, first.frame.type, run_id=self.row.id)

        def settled(leased: LeasedMessage) -> Settlement:
            spent = exhausted(self._policy, self._started.handler, leased.attempt)
            return settlement_for_error(
                error, leased.attempt, spent=spent, now=now, policy=self._policy, rng=self._rng
            )

        own = isinstance(error, OncewardError | HandlerSignal)
        cause = str(error) if own else error_text(error)
        ended = settlements(self._leased, settled)
        outcome = RunOutcome(ended, cause=cause[:500], took=self._took)
        return self._end(outcome, PendingEffects(), go_on=go_on)
