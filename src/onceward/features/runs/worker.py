"""Serve an agent's sessions by runs: schedule them on one thread, execute each on its own."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial

from onceward.core.engine import engine_loop as engine
from onceward.core.engine.deps import RuntimeDeps
from onceward.core.engine.engine_loop import EngineLoop, lane_reaper, named_thread
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle import lanes
from onceward.core.handle.agent import Agent
from onceward.core.handle.invoke import Loop
from onceward.errors import OncewardError, StoreClosed
from onceward.features.runs import runs, session_queues
from onceward.features.runs.completion import RunCompletion
from onceward.features.runs.execution import RunExecution
from onceward.features.runs.scheduler import RunScheduler, SchedulePass, StartedRun
from onceward.file import file_checks
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.log import log


class RunWorker:
    """Serves the sessions of one agent by runs, in one process."""

    def __init__(self, deps: RuntimeDeps, agent: Agent, loop: Loop) -> None:
        self._deps, self._db, self._settings = deps, deps.db, deps.settings
        self._handler_loop = loop
        self.owner = file_checks.owner_name()
        self.completion = RunCompletion(
            deps.db.agent,
            sender=deps.sender,
            emitter=EventEmitter(deps.hooks, deps.db.agent),
            owner=self.owner,
            grace=deps.settings.abort_grace,
        )
        self.scheduler = RunScheduler(deps, agent, self.completion, owner=self.owner)
        self._loop = EngineLoop(deps.db, "run-worker", self._look, reaper=lane_reaper(deps.db))
        self._calls = self.scheduler.calls
        self._extended_at = 0.0
        self._db.write(self.scheduler.register)

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving in the background, with a heartbeat on a second thread."""
        self._loop.start("in", poll=self._settings.poll_interval)
        named_thread(self._db, "run-heartbeat", self._beat).start()

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

    def cancel(self) -> None:
        """Do nothing: ``stop`` has cancelled the calls that outlived it."""

    @property
    def busy(self) -> bool:
        """Whether a call still runs after ``stop``."""
        return not self._calls.quiet.is_set()

    def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for calls that still run."""
        self._calls.quiet.wait(timeout)

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
        # Another process may end a run of this one, so the loop never waits without a limit.
        return math.inf if wait is None else wait

    def _idle_for(self) -> float | None:
        """Return the seconds until there is something to do: None for not before a notification."""
        [(paused_at, arrived, ready, due_at)] = self._db.read(
            session_queues.AGENDA, {"patterns": self.scheduler.patterns}
        )
        if disabled_by_environment() or paused_at is not None:
            return engine.MAX_IDLE_SECONDS
        if arrived or (ready and self._slots > 0):
            return 0.0
        return None if due_at is None else max(0.0, (due_at - self._db.now()) / 1000)

    @property
    def _slots(self) -> int:
        return self._settings.max_runs - len(self._calls.counted())

    def _serve(self) -> SchedulePass:
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, self._slots))
        if looked.moved or looked.started:
            self._db.notifier.notify("out")  # receipts of messages that a full queue refused
        self._cancel(self._ended_elsewhere())
        for execution in [self._enter(started) for started in looked.started]:
            named_thread(self._db, "run", partial(self._execute, execution)).start()
        return looked

    def _ended_elsewhere(self) -> list[RunExecution]:
        """Return the runs that are executed here and were ended from outside."""
        executions = self._calls.counted()
        if not executions:
            return []
        still = {run_id for (run_id,) in self._db.read(runs.STILL, (self.owner,))}
        return [execution for execution in executions if execution.row.id not in still]

    def _cancel(self, executions: list[RunExecution]) -> None:
        for execution in executions:
            execution.cancel()

    def _leave_calls(self) -> None:
        """Tell of aborted calls that have not returned within the grace, and count them no more."""
        for call in [each for each in self._calls.counted() if each.leave()]:
            self._calls.update()
            log.warning(
                "aborted call has not returned", agent=self._db.agent,
                session=call.session, run_id=call.run_id, seconds=self._settings.abort_grace,
            )  # fmt: skip
            self._db.write(partial(self.completion.leave, run=call.row))

    # -- executing --------------------------------------------------------------------------

    def run_due(self) -> int:
        """
        Schedule, and execute one run on this thread; return how many messages and runs moved.

        Called from inside a run, it cancels that run where a message has ended it.
        """
        self._leave_calls()
        if self._idle_for() != 0.0:
            return 0
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, 1))
        self._cancel(self._ended_elsewhere())
        for started in looked.started:
            self._execute(self._enter(started), alone=True)
        return looked.moved + len(looked.started)

    def _enter(self, started: StartedRun) -> RunExecution:
        execution = RunExecution(
            started,
            self._deps,
            scheduler=self.scheduler,
            completion=self.completion,
            watched=self._loop.started,
        )
        self._calls.add(execution)
        return execution

    def _execute(self, execution: RunExecution, *, alone: bool = False) -> None:
        """Execute a run and, unless *alone*, those that its thread can begin after it."""
        following: RunExecution | None = execution
        while following is not None:
            execution, following = following, None
            go_on = not (alone or execution.left or self._loop.stopping.is_set())
            try:
                started = execution.run(self._handler_loop, go_on=go_on)
                following = None if started is None else self._enter(started)
            except StoreClosed:
                return
            except OncewardError as error:
                log.failure(
                    "warning", "run not ended: its lease will expire", error,
                    agent=self._db.agent, session=execution.session, run_id=execution.run_id,
                )  # fmt: skip
            finally:
                self._calls.remove(execution)
        self._loop.notified.set()

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> None:
        every = max(0.02, self._settings.lease / 3)
        while not self._loop.stopping.wait(min(every, 1.0)) or self._calls.counted():
            late = [execution for execution in self._calls.counted() if execution.overdue]
            for execution in late:
                execution.cancel(late=True)
            kept = [execution for execution in self._calls.counted() if execution not in late]
            if kept and time.monotonic() >= self._extended_at + every:
                with suppress(OncewardError):
                    self._extend(kept)
            if self._loop.stopping.is_set():
                self._calls.quiet.wait(every)

    def _extend(self, executions: list[RunExecution]) -> None:
        lease_for = round(1000 * self._settings.lease)

        def work(tx: StoreTransaction) -> None:
            for execution in executions:
                lanes.extend(tx, execution.lease, until=tx.now + lease_for)

        self._db.write(work)
        self._extended_at = time.monotonic()
