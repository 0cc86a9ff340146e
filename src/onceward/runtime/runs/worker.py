"""The runner: session queues to runs. One scout looks at the file and begins runs, each is played on a thread of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, Thread
from typing import Final

from onceward.db import file_checks
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import OncewardError, StoreClosed
from onceward.hooks import Hooks
from onceward.model.log import log
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings
from onceward.runtime import background
from onceward.runtime.agent import Agent
from onceward.runtime.event_emitter import EventEmitter
from onceward.runtime.invoke import Loop
from onceward.runtime.runs.completion import RunCompletion
from onceward.runtime.runs.execution import RunExecution
from onceward.runtime.runs.scheduler import RunScheduler, SchedulePass, StartedRun
from onceward.runtime.sender import Sender
from onceward.store import lanes, runs, session_queues

MAX_IDLE_SECONDS: Final = 1.0
IN_A_ROW: Final = 32
"""Runs of one session that follow each other on one thread before others get their turn."""


class RunWorker:
    """Serves the sessions of one agent by runs, in one process."""

    def __init__(
        self,
        db: Database,
        agent: Agent,
        *,
        settings: Settings,
        hooks: Hooks,
        sender: Sender,
        rng: random.Random,
        loop: Loop,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._db, self._settings, self._sender, self._rng, self._loop = (
            db,
            settings,
            sender,
            rng,
            loop,
        )
        self._policy = policy or retry_policy(settings, retries=settings.handler_retries)
        self.owner = file_checks.owner_name()
        teller = EventEmitter(hooks, db.agent)
        self.completion = RunCompletion(db.agent, sender=sender, teller=teller, owner=self.owner)
        self.scheduler = RunScheduler(
            agent,
            settings=settings,
            closing=self.completion,
            teller=teller,
            policy=self._policy,
            owner=self.owner,
            ids=sender.mint,
        )
        self._reaper = background.dead_owner_reaper(db)
        self._live: dict[str, RunExecution] = {}
        self._lock = Lock()
        self._flag, self._stopping, self._quiet = Flag(), Flag(), Flag()
        self._quiet.set()
        self._threads: list[Thread] = []
        self._unlisten: Callable[[], None] = lambda: None
        db.write(self.scheduler.register)

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving in the background, with a heartbeat beside it."""
        self._unlisten = background.listen(
            self._db, self._flag, self._reaper, poll=self._settings.poll_interval
        )
        self._threads = background.threads(self._db, scout=self._poll, runs=self._beat)
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Begin nothing more; wait up to *timeout* seconds for open runs, then abort them: their messages go back to the head."""
        self._stopping.set()
        self._flag.set()
        self._unlisten()
        for thread in self._threads[:1]:
            thread.join(timeout)
        if not self._quiet.wait(timeout):
            with suppress(OncewardError):
                self._db.write(self._abort_mine)
            self._cancel(self._executions())
            self._quiet.wait(timeout)

    def _abort_mine(self, tx: StoreTransaction) -> None:
        for stage in self._executions():
            run = runs.by_id(tx, stage.row.id)
            if run is not None and run.owner == self.owner:
                policy = self.scheduler.queue(tx, run.session).policy
                self.completion.abort(tx, run, policy, "its process was stopped", preempted=False)

    # -- the scout --------------------------------------------------------------------------

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._flag.clear()
            wait: float | None = MAX_IDLE_SECONDS
            try:
                self._cancel(self._taken_away())
                wait = self._idle_for()
                if wait == 0.0 and self._serve().index_is_damaged:
                    wait = MAX_IDLE_SECONDS
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - a runner outlives every error of its file
                log.failure("warning", "run worker waits", error, agent=self._db.agent, seconds=1)
            if wait is None or wait > MAX_IDLE_SECONDS:
                wait = MAX_IDLE_SECONDS
                self._reaper.release_leases()
            if wait:
                self._flag.wait(wait)

    def _idle_for(self) -> float | None:
        """Return how long there will be nothing to do: 0 for now, None until somebody rings."""
        [(paused_at, arrived, ready, due_at)] = self._db.read(
            session_queues.AGENDA, {"patterns": self.scheduler.patterns}
        )
        if disabled_by_environment() or paused_at is not None:
            return MAX_IDLE_SECONDS
        if arrived or (ready and self._slots > 0):
            return 0.0
        return None if due_at is None else max(0.0, (due_at - self._db.now()) / 1000)

    @property
    def _slots(self) -> int:
        return self._settings.max_runs - len(self._live)

    def _serve(self) -> SchedulePass:
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, self._slots))
        if looked.moved or looked.started:
            self._db.notifier.notify("out")  # receipts of what found no room
        self._cancel(self._taken_away())
        for stage in [self._enter(seat) for seat in looked.started]:
            Thread(
                target=self._execute,
                args=(stage,),
                name=f"onceward-run-{self._db.agent}",
                daemon=True,
            ).start()
        return looked

    def _taken_away(self) -> list[RunExecution]:
        """Return the runs that we play and that somebody ended."""
        stages = self._executions()
        if not stages:
            return []
        still = {run_id for (run_id,) in self._db.read(runs.STILL, (self.owner,))}
        return [stage for stage in stages if stage.row.id not in still]

    def _cancel(self, stages: list[RunExecution]) -> None:
        for stage in stages:
            stage.cancel()

    def _executions(self) -> list[RunExecution]:
        with self._lock:
            return list(self._live.values())

    # -- playing ----------------------------------------------------------------------------

    def run_due(self) -> int:
        """Take in what arrived, begin and play one run on this thread; return how many messages and runs moved."""
        if self._idle_for() != 0.0:
            return 0
        looked = self._db.write(lambda tx: self.scheduler.schedule(tx, 1))
        for seat in looked.started:
            self._execute(self._enter(seat), in_a_row=1)
        return looked.moved + len(looked.started)

    def _enter(self, seat: StartedRun) -> RunExecution:
        stage = RunExecution(
            seat, self._db, sender=self._sender, usher=self.scheduler, closing=self.completion,
            policy=self._policy, rng=self._rng, limit=self._settings.max_runtime,
        )  # fmt: skip
        with self._lock:
            self._live[stage.row.id] = stage
            self._quiet.clear()
        return stage

    def _leave(self, stage: RunExecution) -> None:
        with self._lock:
            self._live.pop(stage.row.id, None)
            if not self._live:
                self._quiet.set()

    def _execute(self, stage: RunExecution, in_a_row: int = IN_A_ROW) -> None:
        for left in range(in_a_row - 1, -1, -1):
            seat: StartedRun | None = None
            try:
                seat = stage.run(self._loop, go_on=left > 0 and not self._stopping.is_set())
                following = None if seat is None else self._enter(seat)
            except StoreClosed:
                return
            except OncewardError as error:
                log.failure(
                    "warning", "run not ended: its lease will expire", error,
                    agent=self._db.agent, session=stage.row.session, run_id=stage.row.id,
                )  # fmt: skip
                following = None
            finally:
                self._leave(stage)
            if following is None:
                break
            stage = following
        self._flag.set()

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> None:
        every = max(0.02, self._settings.lease / 3)
        while not self._stopping.wait(min(every, 1.0)) or self._executions():
            late = [stage for stage in self._executions() if stage.overdue]
            for stage in late:
                stage.cancel(late=True)
            kept = [stage for stage in self._executions() if stage not in late]
            if kept and time.monotonic() >= self._beaten + every:
                with suppress(OncewardError):
                    self._prolong(kept)
            if self._stopping.is_set():
                self._quiet.wait(every)

    _beaten = 0.0

    def _prolong(self, stages: list[RunExecution]) -> None:
        def work(tx: StoreTransaction) -> None:
            for stage in stages:
                lanes.extend(tx, stage.lease, until=tx.now + round(1000 * self._settings.lease))

        self._db.write(work)
        self._beaten = time.monotonic()
