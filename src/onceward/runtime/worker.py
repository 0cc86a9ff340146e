"""The worker: inbox to handler to settle. It leases lanes, so no message is in two hands and each lane keeps its order."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Flag
from threading import Lock, Thread
from typing import Final

from onceward.db import file_checks
from onceward.db.database import Database
from onceward.db.environment import SWITCH, disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import InvalidArgument, OncewardError, StoreClosed
from onceward.hooks import Hooks
from onceward.model.clock import Millis
from onceward.model.events import Event
from onceward.model.log import log
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings
from onceward.model.states import Done, RetryAt, Settlement
from onceward.runtime import background, results
from onceward.runtime.agent import Agent
from onceward.runtime.commit_batch import HandlerCommitBatch
from onceward.runtime.context import Context
from onceward.runtime.event_emitter import settlement_event
from onceward.runtime.invoke import (
    Loop,
    Prepared,
    call,
    log_failure,
    log_success,
    resolve_handler,
    settlement_of,
)
from onceward.runtime.sender import Sender
from onceward.store import inbox, lanes
from onceward.store.inbox import ClaimRequest, LeasedMessage
from onceward.store.lanes import Lease

QUICK: Final = 0.05
SLOW: Final = 0.5
MAX_IDLE_SECONDS: Final = 1.0
TICK: Final = 0.02
LANES: Final = 100
HANDLED: Final = Done()


@dataclass(slots=True)
class _Run:
    """The handler that runs now, as the heartbeat sees it."""

    started: float
    limit: float
    context: Context


class Worker:
    """One thread that claims lanes and runs their messages through the agent's handlers."""

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
        self._db, self._agent, self._settings, self._hooks = db, agent, settings, hooks
        self._sender, self._rng, self._loop = sender, rng, loop
        self._policy = policy or retry_policy(settings, retries=settings.handler_retries)
        self.owner = file_checks.owner_name()
        self._batch = HandlerCommitBatch(
            db, share_for=settings.share_commit_for, rest_for=self._rest_for, told=hooks.emit
        )
        self._reaper = background.dead_owner_reaper(db)
        self._types = _only_types(agent)
        self._flag, self._stopping, self._active = Flag(), Flag(), Flag()
        self._size = 1
        self._held: dict[int, Lease] = {}
        self._lock = Lock()
        self._run_now: _Run | None = None
        self._threads: list[Thread] = []
        self._unlisten: Callable[[], None] = lambda: None

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start claiming in the background, with a heartbeat beside it."""
        self._unlisten = background.listen(
            self._db, self._flag, self._reaper, poll=self._settings.poll_interval
        )
        self._threads = background.threads(self._db, worker=self._work, heartbeat=self._beat)
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Claim nothing more; wait up to *timeout* seconds for the running handler, give the rest back at once."""
        self._stopping.set()
        self._flag.set()
        self._unlisten()
        if self._threads:
            self._threads[0].join(timeout)
        self._active.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._flag.clear()
            wait: float | None = 1.0
            try:
                wait = self._idle_for()
                if wait == 0.0 and not self.round():
                    wait = self._idle_for(nothing_here=True)
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - a worker outlives every error of its file
                log.failure("warning", "worker waits", error, agent=self._db.agent, seconds=1)
            if wait and wait > MAX_IDLE_SECONDS:  # somebody holds a lane: perhaps nobody any more
                wait = MAX_IDLE_SECONDS
                self._reaper.release_leases()
            if wait != 0.0:
                self._flag.wait(wait)

    def _idle_for(self, *, nothing_here: bool = False) -> float | None:
        """
        Return how long there will be nothing to claim: 0 for now, None until somebody rings.

        After a claim that found *nothing here* for us, what is ready is for others:
        a commit that changes this rings, whoever makes it.
        """
        [(paused_at, ready, due_at)] = self._db.read(lanes.AGENDA)
        if disabled_by_environment() or paused_at is not None:
            return 1.0
        if ready and not nothing_here:
            return 0.0
        if ready and self._types is None:
            return 0.01  # others were quicker
        return None if due_at is None else max(0.0, (due_at - self._db.now()) / 1000)

    # -- working ----------------------------------------------------------------------------

    def run_due(self) -> int:
        """Handle, on this thread, one claim of what is ready now; return how many messages it held."""
        return self.round() if self._idle_for() == 0.0 else 0

    def round(self) -> int:
        """Claim what is ready, handle and settle it; return how many messages were claimed."""
        wanted = ClaimRequest(
            messages=self._size, lanes=LANES if self._types is None else -1, types=self._types
        )
        lease_for = round(1000 * self._settings.lease)
        claimed = self._db.write(
            lambda tx: inbox.claim(tx, wanted, owner=self.owner, until=tx.now + lease_for)
        )
        total = sum(map(len, claimed))
        if total:
            started = self._db.clock.monotonic()
            self._handle_all(claimed)
            self._adapt(total, self._db.clock.monotonic() - started)
        return total

    def _adapt(self, total: int, took: float) -> None:
        """Claim more where handlers are quick, one at a time where they are slow: others want lanes too."""
        if took > SLOW:
            self._size = 1
        elif took < QUICK and total >= self._size:
            self._size = min(self._size * 4, self._settings.claim_messages)

    def _handle_all(self, claimed: list[list[LeasedMessage]]) -> None:
        self._held = {}
        for lane in claimed:
            self._held[lane[0].lane.lane_id] = lane[0].lane
        self._batch.lost = False
        self._active.set()
        untouched = list(claimed)
        try:
            while untouched and not self._stopping.is_set() and not self._batch.lost:
                left = self._handle_lane(untouched.pop(0))
                if left:
                    untouched.insert(0, left)
                    break
        except BaseException:
            self._batch.abandon()
            raise
        finally:
            self._active.clear()
            self._batch.commit()
            self._held = {}
            if untouched:
                self._give_back(untouched)

    def _rest_for(self, attempt: int) -> Millis:
        """Return how long a message rests whose commit failed although it had one of its own."""
        return self._policy.delay(attempt, self._rng)

    def _give_back(self, untouched: list[list[LeasedMessage]]) -> None:
        def work(tx: StoreTransaction) -> None:
            for messages in untouched:
                lanes.release(tx, messages[0].lane, [m.seq for m in messages], broken=False)

        with suppress(OncewardError):
            self._db.write(work)

    def _handle_lane(self, messages: list[LeasedMessage]) -> list[LeasedMessage]:
        """Handle a lane's messages in order; return those that the kill-switch leaves for later."""
        now = self._db.now()
        prepared = [
            resolve_handler(self._agent, leased, now, self._policy) for leased in messages
        ]  # before any lock is held
        for index, (leased, ready) in enumerate(zip(messages, prepared, strict=True)):
            if (self._flag.is_set() or not self._threads) and self._switched_off():
                return messages[index:]
            settlement = self._handle(leased, ready)
            if self._batch.lost:
                break
            rest = len(messages) if self._stopping.is_set() else index + 1
            events = self._events(leased, settlement) if self._hooks._hooks else []
            self._batch.end(leased, settlement, rest=(messages, rest), events=events)
            if self._batch.due:
                self._batch.commit()
            if isinstance(settlement, RetryAt) or self._batch.lost or self._stopping.is_set():
                break
        return []

    def _switched_off(self) -> bool:
        """Look at the switch; somebody rang, and it may have been who threw it."""
        self._flag.clear()
        disabled = SWITCH in os.environ and disabled_by_environment()
        return disabled or self._db.read(lanes.AGENDA)[0][0] is not None

    def _handle(self, leased: LeasedMessage, ready: Prepared | Settlement) -> Settlement:
        if leased.expires_at is not None and leased.expires_at <= self._db.now():
            return self._told(leased, Done("expired"))
        settlement = self._run(ready, leased) if isinstance(ready, Prepared) else ready
        return settlement if settlement == HANDLED else self._told(leased, settlement)

    def _told(self, leased: LeasedMessage, settlement: Settlement) -> Settlement:
        """Let the caller of a task that found no good end hear of it in the same commit; where that finds no room, the task waits."""
        if isinstance(settlement, RetryAt) or results.task_of(leased) is None:
            return settlement
        try:
            results.tell(self._batch.join(), self._sender, leased, results.outcome_of(settlement))
        except OncewardError as error:
            self._batch.undo()
            return RetryAt(
                self._db.now() + round(1000 * MAX_IDLE_SECONDS), str(error), counted=False
            )
        return settlement

    def _run(self, ready: Prepared, leased: LeasedMessage) -> Settlement:
        context = Context(
            leased,
            ready.frame,
            ready.body,
            group=self._batch,
            sender=self._sender,
            extend=self._extend,
        )
        limit = ready.handler.max_runtime or self._settings.max_runtime
        self._run_now = _Run(time.monotonic(), limit, context)
        try:
            self._call(ready, leased, context)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - every exception is a verdict about this message
            self._batch.undo()
            log_failure(error, self._db.agent, leased, ready.frame.type)
            return settlement_of(
                error, ready, leased, now=self._db.now(), policy=self._policy, rng=self._rng
            )
        finally:
            self._run_now = None
            context._close()
        log_success(self._db.agent, leased, ready.frame.type)
        return HANDLED

    def _call(self, ready: Prepared, leased: LeasedMessage, context: Context) -> None:
        self._db.writer.thread_transactions.bind(
            self._batch
        )  # whatever the handler writes to its file commits with its mark
        try:
            answer = call(ready, context, self._loop)
            if results.task_of(leased) is not None:
                context._report(answer)
            elif answer is not None:
                context.reply(answer)
        finally:
            self._db.writer.thread_transactions.unbind()

    def _extend(self, leased: LeasedMessage, seconds: float) -> None:
        self._batch.write_outside(
            lambda tx: lanes.extend(tx, leased.lane, until=tx.now + round(1000 * seconds))
        )

    def _events(self, leased: LeasedMessage, settlement: Settlement) -> list[Event]:
        event = settlement_event(leased, settlement, agent=self._db.agent, at=self._db.now())
        return [event] if self._hooks.wanted(type(event)) else []

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> None:
        every = max(0.05, self._settings.lease / 3)
        beaten = time.monotonic()
        while not self._stopping.is_set() or self._held:
            if not self._active.wait(every):
                continue
            if not self._held and self._stopping.is_set():
                return
            self._stop_late()
            with suppress(OncewardError):
                due = time.monotonic() - beaten >= every
                beaten = time.monotonic() if due else beaten
                self._batch.heartbeat(self._prolong if due else None)
            time.sleep(TICK)

    def _stop_late(self) -> None:
        """Cancel a coroutine that runs for longer than it may; a thread cannot be stopped, it loses its lease."""
        run = self._run_now
        if (
            run is not None
            and run.context._cancel is not None
            and time.monotonic() - run.started > run.limit
        ):
            run.context._cancel()

    def _prolong(self, tx: StoreTransaction) -> None:
        """Keep the leases of this round, unless its handler has run for longer than it may."""
        run = self._run_now
        if run is not None and time.monotonic() - run.started > run.limit:
            return
        for lane in list(self._held.values()):
            lanes.extend(tx, lane, until=tx.now + round(1000 * self._settings.lease))


def _only_types(agent: Agent) -> tuple[str, ...] | None:
    if agent.unhandled == "dead":
        return None
    wild = [h.pattern for h in agent.handlers if "*" in h.pattern or "#" in h.pattern]
    if wild:
        msg = f"agent {agent.name} leaves unhandled mail waiting, so its handlers need exact types, not {wild[0]!r}"
        raise InvalidArgument(msg)
    return tuple(h.pattern for h in agent.handlers)
