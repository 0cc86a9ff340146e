"""Serve an agent's sessions by runs: schedule them on one thread, execute each on its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from threading import Event as Flag
from threading import get_ident
from typing import Any, Final, TypeVar

from onceward.core.handle.attempt import HandlerAttempt
from onceward.core.handle.call import CallHome, HandlerDeps, Suspended
from onceward.core.handle.invoke import (
    Loop,
    log_failure,
    settlement_for_error,
    surround,
    with_trace,
)
from onceward.core.handle.message import Message
from onceward.core.rows import claimable, lanes
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run import engine_loop as engine
from onceward.core.run.async_face import OnWorker
from onceward.core.run.engine_loop import EngineLoop, lane_reaper
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.run.threads import engine_threads
from onceward.core.send.block import Transaction
from onceward.errors import HandlerSignal, LeaseLost, OncewardError, StoreClosed
from onceward.features.runs import runs, session_queues
from onceward.features.runs.run import AsyncRun, Run
from onceward.features.runs.runs import (
    EarlierRun,
    OpenRun,
    PendingEffects,
    RunCompletion,
    RunOutcome,
    aborted_error,
    call_returned,
    checkpoint,
    is_open,
    settlements,
)
from onceward.features.runs.scheduler import (
    ReadMessage,
    RunScheduler,
    SchedulePass,
    SessionHandler,
    StartedRun,
    exhausted,
)
from onceward.file import file_checks, forks
from onceward.file.environment import disabled_by_environment
from onceward.file.in_flight import ALL_LEASED, NOTE, NOTES, CallNotes, CallRecords
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Attempt
from onceward.message.body import encode
from onceward.message.clock import Millis, monotonic
from onceward.message.error_text import error_text, message_of
from onceward.message.frame import Frame
from onceward.message.handler_work import StoredStep
from onceward.message.ids import RepeatableIds
from onceward.message.log import log
from onceward.message.options import reply_options
from onceward.message.queue_modes import CALLER, WORKER_RESULT
from onceward.message.vocabulary import Done, Settlement, Waits

T = TypeVar("T")
LEFT_MAX: Final = 3
"""Maximum abandoned calls of one session; at the maximum it waits until one has returned."""


SCOPE: Final = 16
"""Digits of the digest that identifies the messages of a run."""
RECHECK: Final = 1.0
"""Minimum seconds after which such a session is checked again."""


class OpenCalls:
    """
    The calls of this process, by run.

    A session has one call at a time. An abandoned call no longer counts, for its session or for the
    number of runs, but a session abandons LEFT_MAX at most.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._calls: dict[str, RunExecution] = {}
        self._lock = forks.new_lock()
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
        """Update which calls were abandoned."""
        with self._lock:
            self._update()

    def _update(self) -> None:
        if any(not call.left for call in self._calls.values()):
            self.quiet.clear()
        else:
            self.quiet.set()

    def counted(self) -> list[RunExecution]:
        """Return the calls that count: those that were not abandoned."""
        with self._lock:
            return [call for call in self._calls.values() if not call.left]

    def delay(self, session: str) -> float:
        """Return the seconds for which a session begins no run; 0.0 if it may begin one."""
        with self._lock:
            calls = [each for each in self._calls.values() if each.session == session]
        left = sum(each.left and not each.returned for each in calls)
        waits = [each.patience for each in calls if not each.left and not each.returned]
        return max([*waits, max(self._grace, RECHECK) if left >= LEFT_MAX else 0.0])


class RunNotes:
    """
    Notes which runs have begun to call their handler: a run that had not counts as no attempt.

    Each has its place in the record of their worker until it ends; its lease proves the note.
    """

    def __init__(self, file: CallRecords, owner: str) -> None:
        self._file, self._owner = file, owner
        self._notes: CallNotes | None = None
        self._places: dict[str, int] = {}
        self._lock = forks.new_lock()

    def enter(self, lease: Millis) -> None:
        """Take a record; without one the beginning of a run counts."""
        self._notes = self._file.enter(self._owner, "run", lease)

    def begin(self, run: OpenRun) -> None:
        """Note the call of a run before it begins."""
        notes = self._notes
        if notes is None:
            return
        note = NOTE.pack(notes.turn, run.lane_id, run.token, ALL_LEASED)
        try:
            with self._lock:  # a reader stops at the first place that was never written
                free = set(range(NOTES)) - set(self._places.values())
                place = self._places[run.id] = min(free, default=NOTES - 1)
                os.pwrite(self._file.handle, note, notes.at + place * NOTE.size)
        except OSError as error:
            log.failure("warning", "calls are not noted", error, run_id=run.id)
            self._notes = None
            self._file.leave(self._owner)

    def end(self, run_id: str) -> None:
        """Free the place of a run that has ended."""
        with self._lock:
            self._places.pop(run_id, None)


ENDED: Final = "its run was ended from outside"


class RunCommits:
    """Commits the steps of a run separately; see ``Committer``. Its end has a commit of its own."""

    def __init__(self, execution: RunExecution, note: Callable[[OpenRun], None]) -> None:
        self._execution, self._note, self._thread = execution, note, 0
        self.write = self.beside = self.at_end = execution._db.write

    def bind(self) -> None:
        """Note the call; what it writes on this thread is committed at once."""
        self._thread = get_ident()
        self._note(self._execution.row)

    def unbind(self) -> None:
        """Refuse further steps."""
        self._execution._run._close()

    def undo(self) -> None:
        """Do nothing: what a run has not committed is in memory."""

    def free(self) -> None:
        """Only check that the run is still open: it holds no lock."""
        self._execution._run.raise_if_cancelled()

    @contextmanager
    def block(self, place: str) -> Iterator[tuple[Transaction, StoreTransaction]]:
        """Commit the writes of a block."""
        execution = self._execution
        with execution._db.transaction() as tx:
            run = execution._run
            yours = Transaction(tx, execution._outbox, run.session, hops=run._hops, ids=run._ids)
            yours._begin_part(place)
            try:
                yield yours, tx
            finally:
                yours._finish()

    def wait(self, suspended: Suspended) -> None:
        """End the run; its messages get another one when it can continue."""
        raise suspended

    @property
    def on_own_thread(self) -> bool:
        """Whether the calling thread runs the handler."""
        return self._thread == get_ident()


class RunExecution(HandlerAttempt):
    """
    One run that its thread executes, and that the heartbeat may stop.

    Its messages and its work are written when it ends, in one commit with their settlements.
    """

    commits: RunCommits

    def __init__(
        self,
        started: StartedRun,
        deps: HandlerDeps,
        loop: Loop,
        *,
        scheduler: RunScheduler,
        completion: RunCompletion,
        watched: bool = True,
        note: Callable[[OpenRun], None] = lambda _: None,
    ) -> None:
        self.row: OpenRun = started.run
        """The run's row at its last commit."""
        self._started, self._scheduler, self._completion = started, scheduler, completion
        self._db, self._outbox = deps.db, deps.outbox
        self._run = deps.complete(Run)(started, outbox=deps.outbox, holder=self)
        super().__init__(
            deps=deps,
            commits=RunCommits(self, note),
            loop=loop,
            own_thread=watched,
            context=self._run,
            leased=[each.leased for each in started.messages],
            limit=started.handler.timeout or deps.settings.handler_timeout,
        )
        self._following: StartedRun | None = None
        self._go_on, self._written = False, 0
        self._grace = deps.settings.tuning.abort_grace
        self._left_at = math.inf
        self._graces = 2 if started.handler.is_async else 1
        self.left = False
        """Whether the call was aborted and has not returned within the grace."""
        self.given_up = False
        """Whether its lease is left to run out, because the handler exceeded its timeout."""

    # -- for the heartbeat ------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The executed run."""
        return self.row.id

    @property
    def session(self) -> str:
        """The served session."""
        return self.row.session

    @property
    def lease(self) -> Lease:
        """The lease that proves that this process holds the run."""
        return Lease(self.row.lane_id, self.row.token, self.row.owner, isolate=True)

    @property
    def returned(self) -> bool:
        """Whether the handler has returned."""
        return self.took is not None

    def abort(self) -> None:
        """
        Stop a call whose run was ended from outside; a second call does nothing.

        A coroutine is cancelled; a function sees ``cancelled``.
        """
        if not self.stopped:
            self._left_at = self._db.clock.monotonic() + self._grace
            self.stopped = ENDED
            self._stop()

    def _stop(self) -> None:
        if self.cancel_task is not None:
            self.cancel_task()

    def stoppable(self, cancel: Callable[[], object]) -> None:
        """Keep the function that cancels the coroutine, which ``leave`` calls once more."""
        self.cancel_task = cancel
        if self.stopped:
            cancel()

    @property
    def patience(self) -> float:
        """Return the seconds that the session waits for this call."""
        return min(self._grace, max(0.0, self._left_at - self._db.clock.monotonic()))

    def leave(self) -> bool:
        """
        Stop counting an aborted call that has not returned in time; return whether that is so.

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
        """Whether the run was ended from outside; reads the file if no thread checks it."""
        if not self.own_thread and not self.stopped and not is_open(self._db, self.row):
            self.abort()
        return self.stopped != ""

    def checkpoint(self, partial: Any) -> None:
        """Commit partial output and the messages sent so far; raise RunLost."""
        text, pending = encode(partial).text, self._pending()

        def work(tx: StoreTransaction) -> None:
            checkpoint(tx, self.row, text)
            self._completion.commit(tx, self.row, pending)

        self._db.write(work)
        del self._run._drafts[: len(pending.drafts)]

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Commit work of the run at once; raise RunLost."""
        kept: list[T] = []
        self._written += 1
        effects = PendingEffects(work=[lambda yours: kept.append(work(yours))])
        effects.ids = self._ids_of(f"write {self._written}")

        def mine(tx: StoreTransaction) -> None:
            kept.clear()
            self._completion.commit(tx, self.row, effects)

        self._db.write(mine)
        return kept[0]

    def more(self) -> list[ReadMessage]:
        """Bind the waiting messages to the run; raise RunLost."""
        known = [each.id for each in self.leased]
        self.row, fresh = self._db.write(
            lambda tx: self._scheduler.inject(tx, self.row, self._started.handler, known)
        )
        self.leased = [*self.leased, *(each.leased for each in fresh)]
        return fresh

    def _ids_of(self, place: str) -> RepeatableIds | None:
        """Return the ids of what a part of the run sends."""
        ids = self._run._ids
        return None if ids is None else ids.within(place)

    def _pending(self) -> PendingEffects:
        return PendingEffects(list(self._run._drafts), [])

    def make(self, name: str) -> Any:
        """
        Make a part of the call, for the messages with which the run began.

        A run with the same messages finds their steps and their requests.
        """
        ids = [(each.leased.sender, each.leased.id) for each in self._started.messages]
        home = CallHome(
            leased=self.leased[0],
            lease=self.lease,
            commits=self.commits,
            scope=_scope(ids),
        )
        return self.deps.make(name, home)

    def earlier_steps(self, before: EarlierRun) -> tuple[StoredStep, ...]:
        """Return the steps of the previous run; none if its messages were pruned."""
        ids = runs.names(self._db.read, before.began_with)
        if len(ids) < len(before.began_with):
            return ()
        found: tuple[StoredStep, ...] = self._run._steps.of_others(*ids[0], _scope(ids))
        return found

    # -- running ----------------------------------------------------------------------------

    def execute(self, *, go_on: bool) -> StartedRun | None:
        """
        Call the handler and end the run; with *go_on* begin and return the next one.

        That is a run of the session that has waited longest. Return None if there is none, or if
        the run was ended from outside.
        """
        self._go_on = go_on
        try:
            if self.deps.hooks.observers:
                self.observed()
            else:
                self.run()
        except LeaseLost:
            self._let_go()
        return self._following

    def _let_go(self) -> None:
        """Release the session after an aborted call; otherwise it continues after the grace."""
        with suppress(OncewardError):
            self._db.write(lambda tx: call_returned(tx, self.row))
            self._db.notifier.notify("in")

    def facts(self) -> Attempt:
        """Return what observers learn of the run at its start."""
        return replace(super().facts(), run_id=self.run_id)

    @property
    def frames(self) -> Sequence[Frame]:
        """The frames of the messages with which the run begins."""
        return [each.frame for each in self._started.messages]

    def call(self) -> Any:
        """Call the handler within the generators around it."""
        return surround(self._started.handler.around, self._run, self._call)

    def _call(self) -> Any:
        handler = self._started.handler
        if handler.is_async:
            return self.wait_for(self._start, handler.call)
        return handler.call(self._run)

    def _start(self, on_worker: OnWorker) -> Any:
        self._run._face = self.deps.complete(AsyncRun)(self._run, on_worker)
        return self._started.handler.call(self._run._face)

    def keep(self, value: Any) -> Sequence[Settlement]:
        """End the run with its effects and the reply."""
        self._run._end_call()
        self.commits.unbind()
        result, effects = self._answer(value)
        done = RunOutcome([Done()] * len(self.leased), result, took=self.took)
        return self._end_run(lambda _: done, effects)

    def suspend(self, waiting: Suspended) -> Sequence[Settlement]:
        """End a run that continues later: its messages wait, and no attempt is counted."""

        # it sees messages that came since its last check
        def outcome(tx: StoreTransaction) -> RunOutcome:
            again = Waits(waiting.until(tx), str(waiting), counted=False)
            return RunOutcome([again] * len(self.leased), cause=str(waiting), took=self.took)

        return self._end_run(outcome, PendingEffects())

    def put_off(self) -> Sequence[Settlement]:
        """Commit nothing: the run has ended, and its messages were given back."""
        raise aborted_error(self.row)

    def fail(self, error: BaseException) -> Sequence[Settlement]:
        """End the run as failed, by the policy of its messages."""
        if isinstance(error, LeaseLost):
            raise error
        now, deps = self._db.now(), self.deps

        def settled(leased: LeasedMessage) -> Settlement:
            spent = exhausted(deps.policy, self._started.handler, leased.attempt)
            found = settlement_for_error(
                error, leased.attempt, spent=spent, now=now, policy=deps.policy, rng=deps.rng
            )
            return with_trace(found, error, self.took)

        own = isinstance(error, OncewardError | HandlerSignal)
        cause = message_of(error) if own else error_text(error)
        ended = settlements(self.leased, settled)
        outcome = RunOutcome(ended, cause=cause[:500], took=self.took)
        return self._end_run(lambda _: outcome, PendingEffects())

    def log(self, error: BaseException) -> None:
        """Log an unexpected exception, with the run."""
        first = self._started.messages[0]
        log_failure(error, self._db.agent, first.leased, first.frame.type, run_id=self.row.id)

    def _answer(self, value: Any) -> tuple[str | None, PendingEffects]:
        """Return the result as JSON, and the effects to commit with the run's end."""
        effects = self._pending()
        effects.work, effects.ids = list(self._run._at_end_work), self._ids_of("end")
        if value is None:
            return None, effects
        ids = self._ids_of("answer")
        for message in self._to_answer():
            to, named = reply_options(message.frame, {})
            named["ids"] = ids
            effects.drafts.append(self._outbox.compose(self._run.session, to, value, named))
        return encode(value).text, effects

    def _to_answer(self) -> list[Message[Any]]:
        """Return the requests among the run's messages that it has not answered itself."""
        answered = self._run._answered
        return [
            each
            for each in self._run.messages
            if each.frame.replyto is not None and each.id not in answered and not _is_task(each)
        ]

    def _end_run(
        self, outcome: Callable[[StoreTransaction], RunOutcome], effects: PendingEffects
    ) -> Sequence[Settlement]:
        """Commit the run's effects and its end; begin the next one, if asked to."""

        def work(tx: StoreTransaction) -> tuple[Sequence[Settlement], StartedRun | None]:
            self._completion.commit(tx, self.row, effects)
            ended = outcome(tx)
            self._completion.finish(tx, self.row, self.leased, ended)
            return ended.settlements, self._scheduler.next_run(tx) if self._go_on else None

        settled, self._following = self._db.write(work)
        self._db.notifier.notify("out")
        return settled


def _is_task(message: Message[Any]) -> bool:
    """Return whether a worker_result, not a reply, tells the caller of a message its end."""
    return message.type == WORKER_RESULT or CALLER in message.headers


def _scope(ids: Sequence[tuple[str, str]]) -> str:
    """Return the digest that separates a run's steps from those of other messages."""
    return sha256(json.dumps(ids).encode()).hexdigest()[:SCOPE]


SOON: Final = 0.05
"""Seconds between two looks whether the workers are idle, while a run waits for that."""


class RunWorker:
    """Serves the sessions of one agent by runs, in one process."""

    def __init__(
        self,
        deps: HandlerDeps,
        handlers: Sequence[SessionHandler],
        loop: Loop,
        *,
        beside_workers: bool,
    ) -> None:
        self._beside_workers = beside_workers
        self._deps, self._db, self._settings = deps, deps.db, deps.settings
        self._handler_loop = loop
        self.owner = file_checks.owner_name()
        self.completion = RunCompletion(
            deps.db.agent,
            outbox=deps.outbox,
            emitter=EventEmitter(deps.hooks, deps.db.agent),
            owner=self.owner,
            grace=deps.settings.tuning.abort_grace,
        )
        self._calls = OpenCalls(deps.settings.tuning.abort_grace)
        self._notes = RunNotes(deps.db.in_flight, self.owner)
        self.scheduler = RunScheduler(
            deps, handlers, self.completion, owner=self.owner, delay=self._calls.delay
        )
        self._loop = EngineLoop(deps.db, "run-worker", self._look, reaper=lane_reaper(deps.db))
        self._keeper = EngineLoop(deps.db, "run-keeper", self._keep)
        self._extended_at = 0.0
        self._db.write(self.scheduler.register)

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving in the background."""
        self._notes.enter(round(1000 * self._settings.lease))
        self._keeper.start(delay=math.inf)
        self._loop.start("in", poll=self._settings.tuning.poll_interval)

    def stop(self, timeout: float) -> None:
        """
        Begin no more runs; wait up to *timeout* seconds for the open ones, then abort them.

        The messages of an aborted run go back to the head of their queue.
        """
        self._loop.stop(timeout)
        if not self._calls.quiet.wait(timeout):
            with suppress(OncewardError):
                self._db.write(self._abort_mine)
            self._cancel(self._calls.counted())
            self._calls.quiet.wait(timeout)
        if self._calls.quiet.is_set():
            self._keeper.stop(timeout)

    def cancel(self) -> bool:
        """Return whether calls still run, which ``stop`` has cancelled."""
        return not self._calls.quiet.is_set()

    def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for calls that still run."""
        if self._calls.quiet.wait(timeout):
            self._keeper.stop(timeout)

    def _abort_mine(self, tx: StoreTransaction) -> None:
        for execution in self._calls.counted():
            run = runs.by_id(tx, execution.row.id)
            if run is not None and run.owner == self.owner:
                policy = self.scheduler.queue(tx, run.session).policy
                self.completion.abort(tx, run, policy, "its process was stopped", preempted=False)

    # -- scheduling -------------------------------------------------------------------------

    def _look(self) -> float:
        self._cancel(self._ended_elsewhere())
        self._leave_calls()
        wait = self._idle_for()
        if wait == 0.0 and self._serve().index_is_damaged:
            return engine.MAX_IDLE_SECONDS
        # Another process may end a run of this one, so every wait of the loop is limited.
        return math.inf if wait is None else wait

    def _idle_for(self) -> float | None:
        """Return the seconds until there is work; None: not before a notification."""
        paused_at, arrived, ready, due_at = session_queues.agenda(
            self._db.read, self.scheduler.patterns
        )
        if disabled_by_environment() or paused_at is not None:
            return engine.MAX_IDLE_SECONDS
        if arrived or (ready and self._slots > 0):
            return 0.0
        wait = None if due_at is None else max(0.0, (due_at - self._db.now()) / 1000)
        if not session_queues.suspects(self._db.read, self.scheduler.patterns):
            return wait
        return 0.0 if self._may_take_suspects() else min(SOON, SOON if wait is None else wait)

    def _may_take_suspects(self) -> bool:
        """Return whether this process calls no handler, and its workers find nothing to claim."""
        if self._calls.counted() or self._db.in_flight.busy:
            return False
        return not (self._beside_workers and claimable.agenda(self._db.read).ready == 1)

    @property
    def _slots(self) -> int:
        return self._settings.max_runs - len(self._calls.counted())

    def _serve(self) -> SchedulePass:
        alone = self._may_take_suspects()
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, self._slots, alone=alone))
        if looked.moved or looked.started:
            self._db.notifier.notify("out")  # receipts of messages that a full queue refused
        self._cancel(self._ended_elsewhere())
        for execution in [self._enter(started) for started in looked.started]:
            name = f"onceward-run-{self._db.agent}"
            engine_threads().run(name, partial(self._execute, execution))
        return looked

    def _ended_elsewhere(self) -> list[RunExecution]:
        """Return the runs of this process that were ended from outside."""
        executions = self._calls.counted()
        if not executions:
            return []
        still = runs.still_open(self._db.read, self.owner)
        return [execution for execution in executions if execution.row.id not in still]

    def _cancel(self, executions: list[RunExecution]) -> None:
        for execution in executions:
            execution.abort()

    def _leave_calls(self) -> None:
        """Report aborted calls that have not returned within the grace, and stop counting them."""
        for call in [each for each in self._calls.counted() if each.leave()]:
            self._calls.update()
            log.warning(
                "aborted call has not returned", agent=self._db.agent,
                session=call.session, run_id=call.run_id, seconds=self._settings.tuning.abort_grace,
            )  # fmt: skip
            self._db.write(partial(self.completion.leave, run=call.row))

    # -- executing --------------------------------------------------------------------------

    def run_due(self) -> int:
        """
        Schedule, and execute one run on this thread; return how many messages and runs moved.

        Called from inside a run, it cancels that run if a message has ended it.
        """
        self._leave_calls()
        if self._idle_for() != 0.0:
            return 0
        alone = self._may_take_suspects()
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, 1, alone=alone))
        self._cancel(self._ended_elsewhere())
        for started in looked.started:
            self._execute(self._enter(started), alone=True)
        return looked.moved + len(looked.started)

    def _enter(self, started: StartedRun) -> RunExecution:
        execution = RunExecution(
            started,
            self._deps,
            self._handler_loop,
            scheduler=self.scheduler,
            completion=self.completion,
            watched=self._loop.started,
            note=self._notes.begin,
        )
        self._calls.add(execution)
        self._keeper.notify()
        return execution

    def _execute(self, execution: RunExecution, *, alone: bool = False) -> None:
        """Execute a run and, unless *alone*, the runs that its thread can begin afterwards."""
        following: RunExecution | None = execution
        while following is not None:
            execution, following = following, None
            go_on = not (alone or execution.left or self._loop.stopping.is_set())
            try:
                started = execution.execute(go_on=go_on)
                following = None if started is None else self._enter(started)
            except StoreClosed:
                return
            except OncewardError as error:
                log.failure(
                    "warning", "run not ended: its lease will expire", error,
                    agent=self._db.agent, session=execution.session, run_id=execution.run_id,
                )  # fmt: skip
            finally:
                self._notes.end(execution.run_id)
                self._calls.remove(execution)
        self._loop.notify()

    # -- heartbeat --------------------------------------------------------------------------

    def _keep(self) -> float | None:
        """Cancel late runs and prolong the leases of the others; return when to do so again."""
        every = max(0.02, self._settings.lease / 3)
        late = [execution for execution in self._calls.counted() if execution.overdue]
        for execution in late:
            execution.stop_late()
        self._give_up(late)
        kept = [execution for execution in self._calls.counted() if execution not in late]
        if kept and monotonic() >= self._extended_at + every:
            with suppress(OncewardError):
                self._extend(kept)
        return min(every, 1.0) if self._calls.counted() else None

    def _give_up(self, executions: list[RunExecution]) -> None:
        """Let the leases of late runs run out, once for each."""
        new = [each for each in executions if not each.given_up]
        if new:
            with suppress(OncewardError):
                self._db.write(partial(_give_up_leases, leases=[each.lease for each in new]))
                for each in new:
                    each.given_up = True

    def _extend(self, executions: list[RunExecution]) -> None:
        lease_for = round(1000 * self._settings.lease)

        def work(tx: StoreTransaction) -> None:
            for execution in executions:
                lanes.extend(tx, execution.lease, until=tx.now + lease_for)

        self._db.write(work)
        self._extended_at = monotonic()


def _give_up_leases(tx: StoreTransaction, leases: list[Lease]) -> None:
    for held in leases:
        lanes.give_up(tx, held)
