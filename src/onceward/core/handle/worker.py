"""Run inbox messages through an agent's handlers: claim lanes, call handlers, settle."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Final, NoReturn, Protocol

from onceward.core import requests
from onceward.core.engine import engine_loop as engine
from onceward.core.engine.engine_loop import EngineLoop, RuntimeDeps, Team, lane_reaper
from onceward.core.engine.event_emitter import kind_of, settlement_event
from onceward.core.engine.threads import QUICK_TICK, TICK
from onceward.core.handle import inbox, lanes
from onceward.core.handle.commit_batch import CLAIM_LOST, CLAIM_WAITS, HandlerCommitBatch
from onceward.core.handle.context import Context
from onceward.core.handle.inbox import (
    SAME,
    SAME_ROW,
    ClaimGate,
    ClaimRequest,
    LeasedMessage,
    RowKey,
)
from onceward.core.handle.invoke import (
    Loop,
    Prepared,
    call,
    cause_of,
    log_failure,
    resolve_handler,
    settlement_of,
)
from onceward.core.handle.lanes import Lease
from onceward.core.handle.signatures import Handlers
from onceward.core.handle.steps import CONTEXT
from onceward.core.requests import Suspended
from onceward.errors import InvalidArgument, OncewardError, RequestFailed
from onceward.file import file_checks
from onceward.file.environment import SWITCH, disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Attempt
from onceward.message.clock import Millis
from onceward.message.events import Event
from onceward.message.log import log
from onceward.message.names import error_text
from onceward.message.times import Span, millis
from onceward.message.traces import raised
from onceward.message.vocabulary import Dead, Done, RetryAt, Settlement, Waits

QUICK: Final = 0.05
"""
Seconds below which a claim is called quick, so that the next one is larger.

A handler that takes longer has the lanes given back that its worker has not begun.
"""
SLOW: Final = 0.5
"""Seconds above which a claim is called slow, so that the next one has a single message."""
LANES: Final = 100
"""Most lanes that one claim looks at."""
MANY: Final = 16
"""Messages of a claim from which on the next one is read and decoded before the lock is taken."""
ASYNC_WORKERS: Final = 8
"""Most coroutines of an agent that run at once where no number was said."""
NO_LEASE: Final = Lease(0, 0, "", isolate=False)
HANDLED: Final = Done()
LATE: Final = "the call took longer than its timeout of {:g} s"
STOPPED: Final = "its process was stopped while the handler ran"
CANCELLED: Final = "cancelled while the handler ran"


@dataclass(slots=True)
class RunningCall:
    """The handler that runs now, as the heartbeat sees it."""

    started: float
    limit: float
    context: Context
    late: bool = False
    """Whether it was cancelled because it exceeded its limit."""
    stopped: str = ""
    """Why it was cancelled: its postbox stops, or its message is cancelled."""


class CallGuard(Protocol):
    """Decides in the file, by a note of each message, whether its handler is called."""

    def note(self, ready: Prepared, leased: LeasedMessage) -> Any:
        """Return the note of a message, None where its handler is called anyway."""

    def claim(self, tx: StoreTransaction, note: Any) -> Settlement | None:
        """Write a note before the call, in a commit of its own; return how the message ends."""

    def keep(self, tx: StoreTransaction, note: Any) -> None:
        """Keep a note, in the commit of what the handler wrote."""


def _stay() -> bool:
    """Start no further worker."""
    return False


class Worker:
    """
    One thread that claims lanes and runs their messages through the agent's handlers.

    A lane is leased to one worker at a time: its messages keep their order, and
    none is handled by two. ``commit_batch`` says who holds its transaction when.
    """

    _many = False
    """Whether the last claim had many messages, and what was read ahead of it was used."""
    _registered = False
    """Whether the file says that this worker may handle messages of an open claim."""
    _logs_each = False
    """Whether a line of the log for each message would be written."""
    _active = False
    """Whether a claim is handled, which the keeper looks after."""
    _beaten = 0.0
    """When the leases were last prolonged."""
    _quick = False
    """Whether the last round's handlers were well, and quicker than an open claim waits."""
    _exhausted = False
    """Whether the round has ended all that was ready when it began, and was told of nothing new."""
    _due_at: Millis | None = None
    """When the first lane was due that rested or was leased as the round began."""
    _left_leases = False
    """Whether an error may have left leases that this worker no longer works on."""
    _run_now: RunningCall | None = None
    _took: float | None = None
    """Seconds that the last handler ran; None where the last message had none."""
    _raised: BaseException | None = None
    """The exception of the last handler, for observers."""
    _note: Any = None
    """The guard's note of the message that is handled now; None where it has none."""

    def __init__(
        self,
        deps: RuntimeDeps,
        agent: Handlers,
        loop: Loop,
        *,
        gate: ClaimGate | None = None,
        guard: CallGuard | None = None,
        grow: Callable[[], bool] = _stay,
        team: Team | None = None,
    ) -> None:
        self._db, self._settings, self._hooks = deps.db, deps.settings, deps.hooks
        self._outbox, self._rng, self._policy = deps.outbox, deps.rng, deps.policy
        self._steps = partial(deps.steps, deps)
        self._agent, self._handler_loop = agent, loop
        self.owner = file_checks.owner_name()
        self._batch = HandlerCommitBatch(
            deps.db,
            share_for=deps.settings.share_commit_for,
            rest_for=self._delay_for,
            told=deps.hooks.emit,
        )
        self._types = _only_types(agent)
        self._gate, self._guard = gate, guard
        self._grow = grow
        """Start a further worker; False once there is no more to start."""
        self._may_grow = grow is not _stay
        self._loop = EngineLoop(
            deps.db,
            "worker",
            self._look,
            reaper=lane_reaper(deps.db),
            beat=self._beat,
            team=team,
        )
        self._keeper = EngineLoop(deps.db, "keeper", self._keep)
        self._size = 1
        self._prepared: dict[RowKey, Prepared | Settlement] = {}
        """Messages that were decoded ahead of their claim, by sequence, id and attempt."""
        self._served: frozenset[int] = frozenset()
        """Lanes that had a turn although more may wait in them: the others come first."""
        self._held: dict[int, Lease] = {}
        self._unbegun: deque[list[LeasedMessage]] = deque()
        self._beginning = Lock()
        """Held while a lane is begun, or those that are not are given back."""
        self._rounds = Lock()
        """Held during a round: the loop's thread and callers of ``run_due`` take turns."""

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start claiming in the background."""
        self._keeper.start(delay=math.inf)
        self._loop.start("in", poll=self._settings.poll_interval)

    def stop(self, timeout: float) -> None:
        """
        Claim no more; wait up to *timeout* seconds for the running handler, return the rest.

        A handler that takes longer keeps the worker registered until it ends. Where the file
        is closed before that, the next process that finds this one dead claims alone what
        the handler may have been at.
        """
        self._loop.stop(timeout)
        if not self._loop.busy:
            self._keeper.stop(timeout)
        self._unregister()

    def cancel(self) -> None:
        """Cancel the coroutine that still runs, if any, after ``stop``; its message goes back."""
        run = self._run_now
        if run is not None and run.context._cancel is not None:
            run.stopped = STOPPED
            with suppress(RuntimeError):  # its loop is closed
                run.context._cancel()

    @property
    def busy(self) -> bool:
        """Whether a handler still runs after ``stop``."""
        return self._loop.busy

    def join(self, timeout: float) -> None:
        """Wait after ``stop`` up to *timeout* seconds for the handler that still runs."""
        self.stop(timeout)

    def _unregister(self) -> None:
        if self._registered and not self._held:
            with suppress(OncewardError):
                self._db.write(partial(lanes.unregister, owner=self.owner))

    def _look(self) -> float | None:
        wait = self._idle_for()
        if wait == 0.0:
            with self._rounds:
                found = self.round()
            if self._loop.stopping.is_set():  # ``stop`` may have waited in vain
                self._unregister()
            if not found:
                return self._idle_for(nothing_here=True)
            if self._exhausted:
                return self._until_due()
        return wait

    def _until_due(self) -> float | None:
        """Return the seconds until a lane is due; None where none rests or is leased."""
        return None if self._due_at is None else max(0.0, (self._due_at - self._db.now()) / 1000)

    def _idle_for(self, *, nothing_here: bool = False) -> float | None:
        """
        Return the seconds until there is something to claim: None for not before a notification.

        With *nothing_here* a claim has just found nothing, so what is ready is
        for readers or other workers; a commit that changes this notifies.
        """
        paused_at, ready, self._due_at = lanes.agenda(self._db.read)
        if disabled_by_environment() or paused_at is not None:
            return engine.MAX_IDLE_SECONDS
        if (ready or self._left_leases) and not nothing_here:
            return 0.0
        if ready and self._types is None and self._gate is None:
            return 0.01  # other workers were quicker
        wait = self._until_due()
        if self._gate is None or not ready:
            return wait
        token = self._gate.wait(self._db.now())
        return token if wait is None or (token is not None and token < wait) else wait

    # -- working ----------------------------------------------------------------------------

    def run_due(self) -> int:
        """
        Handle, on this thread, one claim of what is ready; return how many messages it had.

        That is none while another thread handles a claim, and after ``stop``.
        """
        if self._loop.stopping.is_set() or not self._rounds.acquire(blocking=False):
            return 0
        try:
            return self.round() if self._idle_for() == 0.0 else 0
        finally:
            self._rounds.release()

    def round(self) -> int:
        """Claim what is ready, handle and settle it; return how many messages were claimed."""
        request = ClaimRequest(
            messages=self._size,
            lanes=LANES if self._types is None else -1,
            types=self._types,
            served=self._served,
        )
        self._batch.lost = False  # before the claim, which may be lost itself
        try:
            if self._many and self._shares_claims and self._gate is None and self._types is None:
                request = self._read_ahead(request)
            work = partial(self._claim, request=request)
            claimed = self._batch.claim(work) if self._shares_claims else self._db.write(work)
            total = sum(map(len, claimed))
            if total >= self._size:  # its last lane may have more, and waits for the others now
                last, turn = claimed[-1][0].lane.lane_id, self._served
                over = last in turn or len(turn) >= LANES
                self._served = frozenset([last]) if over else turn | {last}
            self._many = total >= MANY and (not request.ahead or self._is_ahead(claimed))
            if total >= request.messages:
                self._loop.wake_next()
            self._exhausted = total < request.messages and self._has_all_of(claimed)
            if total:
                started = self._db.clock.monotonic()
                self._handle_all(claimed)
                self._adapt(total, self._db.clock.monotonic() - started)
        except Exception:
            self._left_leases = True
            raise
        finally:
            self._prepared.clear()
            if self._gate is not None:
                self._gate.leave()
        self._left_leases, self._batch.left_leases = self._batch.left_leases, False
        self._exhausted = self._exhausted and not (self._left_leases or self._batch.lost)
        return total

    def _read_ahead(self, request: ClaimRequest) -> ClaimRequest:
        """Read and decode what a claim will find, so that no other writer waits for that."""
        rows, now = inbox.read_ahead(self._db.read, request), self._db.now()
        for row in rows:
            leased = LeasedMessage(NO_LEASE, *row)
            ready = resolve_handler(self._agent, leased, now, self._policy)
            self._prepared[SAME_ROW(row)] = ready
        return replace(request, ahead=dict(zip(self._prepared, rows, strict=True)))

    def _has_all_of(self, claimed: list[list[LeasedMessage]]) -> bool:
        """Return whether a claim that is not full has all that was ready of its lanes."""
        alone = any(lane[0].lane.isolate for lane in claimed)
        return self._types is None and self._gate is None and len(claimed) < LANES and not alone

    def _is_ahead(self, claimed: list[list[LeasedMessage]]) -> bool:
        """Return whether a claim found what was read ahead of it, and no other worker had it."""
        return SAME(claimed[0][0]) in self._prepared

    @property
    def _shares_claims(self) -> bool:
        """
        Whether a claim is committed with the effects of its handlers.

        Only while they are quick, and where the heartbeat can commit it alone, should
        one not be. A worker that dies meanwhile leaves its row in the file: the
        messages it may have died of are then claimed alone and counted first.
        """
        return self._registered and self._quick and not self._left_leases

    def _claim(self, tx: StoreTransaction, request: ClaimRequest) -> list[list[LeasedMessage]]:
        """Claim messages; before that release what an error had left leased to this worker."""
        if not self._registered and self._loop.started:
            lanes.register(tx, self.owner)
            tx.after_commit(self._note_registration)
        if self._left_leases:
            lanes.release_own(tx, self.owner)
        until = tx.now + round(1000 * self._settings.lease)
        if self._gate is not None:
            return inbox.claim_admitted(tx, request, self._gate, owner=self.owner, until=until)
        return inbox.claim(tx, request, owner=self.owner, until=until)

    def _note_registration(self) -> None:
        self._registered = True

    def _adapt(self, total: int, took: float) -> None:
        """Claim more while handlers are quick, one while they are slow: others need lanes too."""
        if took > SLOW:
            self._size = 1
        elif took < QUICK and total >= self._size:
            self._size = min(self._size * 4, self._settings.claim_messages)

    def _handle_all(self, claimed: list[list[LeasedMessage]]) -> None:
        """Handle a claim, commit what came of it, and give back what was not begun."""
        self._held = {}
        for lane in claimed:
            self._held[lane[0].lane.lane_id] = lane[0].lane
        self._quick, self._logs_each = True, log.takes("debug")
        self._unbegun.extend(claimed)
        self._beaten, self._active = time.monotonic(), True
        try:
            self._handle_claimed()
        except BaseException:
            self._batch.abandon()
            raise
        finally:
            self._active = False
            self._batch.commit()
            self._quick = self._quick and not self._batch.lost
            self._held = {}
            if self._unbegun:
                self._give_back_rest()

    def _handle_claimed(self) -> None:
        """Handle the claim's lanes, each until it is done or a pause leaves it for later."""
        while self._unbegun and not self._loop.stopping.is_set() and not self._batch.lost:
            with self._beginning:
                lane = self._unbegun.popleft() if self._unbegun else []
            left = self._handle_lane(lane) if lane else lane
            if left:
                self._unbegun.appendleft(left)
                break

    def _delay_for(self, attempt: int) -> Millis:
        """Return the delay of a message whose commit failed although it had one of its own."""
        return self._policy.delay(attempt, self._rng)

    def _give_back_rest(self) -> None:
        """Give back what is left at the end of a round; later, where the file fails."""
        try:
            self._give_back(self._write)
        except OncewardError:
            self._batch.left_leases = True
        self._unbegun.clear()

    def _write(self, work: Callable[[StoreTransaction], None]) -> bool:
        self._db.write(work)
        return True

    def _give_back(self, write: Callable[[Callable[[StoreTransaction], None]], bool]) -> None:
        """Release the lanes that are not begun, so that other workers and processes take them."""
        with self._beginning:
            if not self._unbegun or not write(self._release_unbegun):
                return
            for messages in self._unbegun:
                self._held.pop(messages[0].lane.lane_id, None)
            self._unbegun.clear()
            self._size = 1
        self._exhausted = False
        self._db.notifier.notify("in")

    def _release_unbegun(self, tx: StoreTransaction) -> None:
        for messages in self._unbegun:
            lanes.release(tx, messages[0].lane, [m.seq for m in messages], broken=False)
        if self._gate is not None:
            self._gate.give_back(tx, {each.seq for lane in self._unbegun for each in lane})

    def _handle_lane(self, messages: list[LeasedMessage]) -> list[LeasedMessage]:
        """Handle a lane's messages in order; return those that a pause leaves for later."""
        now = self._db.now()
        prepared = [
            resolve_handler(self._agent, leased, now, self._policy) if known is None else known
            for leased, known in zip(
                messages, map(self._prepared.get, map(SAME, messages)), strict=True
            )
        ]
        for index, (leased, ready) in enumerate(zip(messages, prepared, strict=True)):
            if (self._loop.notified or not self._loop.started) and self._paused():
                return messages[index:]
            settlement = self._handle(leased, ready)
            if self._batch.lost:
                break
            last = self._loop.stopping.is_set()  # asked once: what is not ended is gone on with
            rest = len(messages) if last else index + 1
            events = self._events(leased, settlement) if self._hooks._hooks else []
            if self._batch.end(leased, settlement, rest=(messages, rest), events=events):
                self._batch.commit()
            if settlement is not HANDLED:
                self._exhausted = False
            if isinstance(settlement, RetryAt) or self._batch.lost or last:
                break
        return []

    def _paused(self) -> bool:
        """Return whether the file is paused; a pause notifies, so it is asked after those only."""
        self._loop.notified = self._exhausted = False
        disabled = SWITCH in os.environ and disabled_by_environment()
        return disabled or lanes.agenda(self._db.read).paused_at is not None

    def _handle(self, leased: LeasedMessage, ready: Prepared | Settlement) -> Settlement:
        self._took = None
        if leased.expires_at is not None and leased.expires_at <= self._db.now():
            return self._told(leased, Done("expired"))
        if self._hooks.observers and isinstance(ready, Prepared):
            return self._handle_observed(leased, ready)
        settlement = self._run(ready, leased) if isinstance(ready, Prepared) else ready
        return settlement if settlement is HANDLED else self._told(leased, settlement)

    def _handle_observed(self, leased: LeasedMessage, ready: Prepared) -> Settlement:
        """Handle a message in an attempt that observers see."""
        from onceward.observed import ObservedAttempt  # noqa: PLC0415 - rarely needed

        attempt = Attempt(
            agent=self._db.agent,
            session=leased.session,
            frames=(ready.frame,),
            number=leased.attempt,
        )
        with ObservedAttempt(self._hooks.observers, attempt) as observed:
            self._raised = None
            settlement = self._run(ready, leased)
            if settlement is not HANDLED:
                settlement = self._told(leased, settlement)
            observed.settle((settlement,), self._raised)
            self._raised = None
        return settlement

    def _told(self, leased: LeasedMessage, settlement: Settlement) -> Settlement:
        """
        Tell the caller of a dispatched task, in the same commit, how the task ended.

        Returns the settlement, or a retry where the outbox has no place for the result.
        """
        if isinstance(settlement, RetryAt) or requests.task_of(leased) is None:
            return settlement
        try:
            requests.tell(self._batch.join(), self._outbox, leased, requests.outcome_of(settlement))
        except OncewardError as error:
            self._batch.undo()
            due_at = self._db.now() + round(1000 * engine.MAX_IDLE_SECONDS)
            return RetryAt(due_at, str(error), counted=False)
        return settlement

    def _run(self, ready: Prepared, leased: LeasedMessage) -> Settlement:
        if self._gate is not None:
            self._gate.call(leased.seq)
        if self._guard is not None and (ended := self._refused(self._guard, ready, leased)):
            return ended
        context = Context(
            leased,
            ready.frame,
            ready.body,
            group=self._batch,
            outbox=self._outbox,
            extend=self._extend,
            steps=self._steps,
        )
        limit = ready.handler.rules.timeout or self._settings.handler_timeout
        self._run_now = RunningCall(time.monotonic(), limit, context)
        try:
            self._call(ready, leased, context)
        except Suspended as waiting:
            return self._suspend(ready, leased, context, waiting)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - each settles the message
            self._batch.undo()
            self._quick = False
            if self._run_now.stopped:
                return RetryAt(self._db.now(), self._run_now.stopped, counted=False)
            if self._hooks.observers:
                self._raised = error
            log_failure(error, self._db.agent, leased, ready.frame.type)
            return self._failed(error, ready, leased)
        finally:
            # A failure has measured the call.
            self._took = self._took or time.monotonic() - self._run_now.started
            self._quick = self._quick and self._took < CLAIM_WAITS
            self._run_now = None
            if context._transaction is not None or "_steps" in context.__dict__:
                context._close()
        if self._took > limit:
            return self._late(ready, leased, limit)
        if self._logs_each:
            self._log_return(leased, ready.frame.type)
        return HANDLED

    def _late(self, ready: Prepared, leased: LeasedMessage, limit: float) -> Settlement:
        """Undo a call that returned after its timeout, which has failed like any other."""
        self._batch.undo()
        error = TimeoutError(LATE.format(limit))
        self._raised = error
        log_failure(error, self._db.agent, leased, ready.frame.type)
        return self._failed(error, ready, leased)

    def _log_return(self, leased: LeasedMessage, kind: str) -> None:
        """Log that a handler returned; its commit is still to come."""
        fields = {
            "agent": self._db.agent,
            "session": leased.session,
            "message_id": leased.id,
            "type": kind,
            "attempt": leased.attempt,
        }
        log.write("debug", "handler returned", fields)

    def _suspend(
        self, ready: Prepared, leased: LeasedMessage, context: Context, waiting: Suspended
    ) -> Settlement:
        """Store that a handler waits, and what it has asked; it is called again from its start."""
        self._batch.undo()
        try:
            tx = self._batch.join()
            if "_requests" in context.__dict__:
                context._requests.keep(tx)
            due_at = waiting.until(tx)
        except OncewardError as error:
            self._batch.undo()
            return self._failed(error, ready, leased)
        return Waits(due_at, str(waiting), counted=False)

    def _failed(self, error: BaseException, ready: Prepared, leased: LeasedMessage) -> Settlement:
        took = self._measured()
        if isinstance(error, RequestFailed) and self._asked(error.message_id):
            # Each call would find the same failure.
            return Dead("rejected", error_text(error), raised=raised(error, took))
        now, policy, rng = self._db.now(), self._policy, self._rng
        return settlement_of(error, ready, leased, now=now, policy=policy, rng=rng, took=took)

    def _measured(self) -> float:
        """Return the seconds of the call that has just ended, measured once."""
        if self._took is None:
            assert self._run_now is not None  # noqa: S101 - it is forgotten after this
            self._took = time.monotonic() - self._run_now.started
        return self._took

    def _asked(self, message_id: str | None) -> bool:
        """Return whether the handler that runs now made a request, which its next call finds."""
        context = self._run_now.context.__dict__ if self._run_now is not None else {}
        return "_requests" in context and context["_requests"].has(message_id)

    def _refused(
        self, guard: CallGuard, ready: Prepared, leased: LeasedMessage
    ) -> Settlement | None:
        """Ask the guard whether a handler is called; return how its message ends instead."""
        note = guard.note(ready, leased)
        if note is None:
            return None
        alone = not (self._registered and self._quick)
        ended = self._batch.note(partial(guard.claim, note=note), alone=alone)
        if ended is None and self._batch.lost:
            return RetryAt(self._db.now(), CLAIM_LOST, counted=False)
        self._note = note if ended is None else None
        return ended

    def _call(self, ready: Prepared, leased: LeasedMessage, context: Context) -> None:
        # What the handler writes to its file is committed with its settlement.
        self._db.writer.thread_transactions.bind(self._batch)
        handled = CONTEXT.set(context)
        try:
            answer = call(ready, context, self._handler_loop)
            if "_steps" in context.__dict__ or "_requests" in context.__dict__:
                context._end_call()
            if requests.NAMES_CALLER in leased.frame and requests.task_of(leased) is not None:
                context._report(answer)
            elif answer is not None:
                context.reply(answer)
            if self._guard is not None and self._note is not None:
                self._guard.keep(self._batch.join(), self._note)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._raise_cause(error)
        finally:
            CONTEXT.reset(handled)
            self._note = None
            self._db.writer.thread_transactions.unbind()

    def _raise_cause(self, error: BaseException) -> NoReturn:
        """Raise what the messages of a call end with that *error* has ended."""
        run = self._run_now
        if run is not None and run.late and isinstance(error, CancelledError):
            raise TimeoutError(LATE.format(run.limit)) from error
        cause = cause_of(error, own_thread=self._loop.started)
        if cause is error:
            raise error
        raise cause from error

    def _extend(self, leased: LeasedMessage, seconds: Span) -> None:
        self._batch.write_outside(
            lambda tx: lanes.extend(tx, leased.lane, until=tx.now + millis("seconds", seconds))
        )

    def _events(self, leased: LeasedMessage, settlement: Settlement) -> list[Event]:
        if isinstance(settlement, Waits) or not self._hooks.wanted(kind_of(settlement)):
            return []
        agent, at, took = self._db.agent, self._db.now(), self._took
        return [settlement_event(leased, settlement, agent=agent, at=at, took=took)]

    # -- heartbeat --------------------------------------------------------------------------

    def _beat(self) -> float:
        """Have the keeper look after the claim that is handled; see ``EngineTask``."""
        if self._active:
            self._keeper.notify()
        return QUICK_TICK if self._quick else TICK

    def _keep(self) -> None:
        """Look after the claim that is handled, which may wait for its file."""
        if not (self._active or self._held):
            return
        now = time.monotonic()
        due = now - self._beaten >= max(0.05, self._settings.lease / 3)
        self._beaten = now if due else self._beaten
        with suppress(OncewardError):  # the file fails: the round that it is of says so
            self._look_after(due=due)

    def _look_after(self, *, due: bool) -> None:
        """Stop what is late, give back what waits, and prolong leases if that is *due*."""
        self._stop_late()
        self._stop_cancelled()
        if self._unbegun and self._is_slow():
            self._give_back(self._batch.heartbeat)
        self._batch.heartbeat(self._prolong if due else None)
        self._add_worker()

    def _add_worker(self) -> None:
        """Start a further worker, if there may be one, while a call takes time and others wait."""
        run = self._run_now
        if run is None or not self._may_grow or time.monotonic() - run.started < CLAIM_WAITS:
            return
        if lanes.agenda(self._db.read).ready:
            self._may_grow = self._grow()

    def _is_slow(self) -> bool:
        """Return whether the handler that runs now is no longer quick."""
        run = self._run_now
        return run is not None and time.monotonic() - run.started > QUICK

    def _stop_late(self) -> None:
        """Cancel a coroutine that exceeds its timeout; a function only loses its lease."""
        run = self._run_now
        if (
            run is not None
            and not run.late
            and run.context._cancel is not None
            and time.monotonic() - run.started > run.limit
        ):
            run.late = True
            run.context._cancel()

    def _stop_cancelled(self) -> None:
        """Cancel a coroutine whose message was cancelled; a function asks ``ctx.cancelled``."""
        run = self._run_now
        if run is None or run.stopped or run.context._cancel is None or not self._is_slow():
            return
        if run.context.cancelled:
            run.stopped = CANCELLED
            run.context._cancel()

    def _prolong(self, tx: StoreTransaction) -> None:
        """Extend the leases of this round, unless its handler has exceeded its timeout."""
        run = self._run_now
        if run is not None and time.monotonic() - run.started > run.limit:
            return
        for lane in list(self._held.values()):
            lanes.extend(tx, lane, until=tx.now + round(1000 * self._settings.lease))


def _only_types(agent: Handlers) -> tuple[str, ...] | None:
    if agent.unhandled == "dead":
        return None
    wild = [h.pattern for h in agent.handlers if "*" in h.pattern or "#" in h.pattern]
    if wild:
        msg = (
            f"agent {agent.name} leaves unhandled messages waiting, "
            f"so its handlers need exact types, not {wild[0]!r}"
        )
        raise InvalidArgument(msg)
    return tuple(h.pattern for h in agent.handlers)


class WorkerPool:
    """
    The workers of one agent; *gate* makes what admits messages to one of them.

    The setting ``workers`` starts that many. Without it there is one, and further ones are
    started when they are needed, up to what the handlers can use.
    """

    def __init__(
        self,
        deps: RuntimeDeps,
        agent: Handlers,
        loop: Loop,
        *,
        gate: Callable[[], ClaimGate] | None = None,
        guard: CallGuard | None = None,
    ) -> None:
        said = deps.settings.workers
        self._gate = gate
        self._spare = 0 if said is not None else pool_size(agent, None) - 1
        self._new = partial(Worker, deps, agent, loop, guard=guard, team=Team())
        if self._spare:
            self._new = partial(self._new, grow=self.grow)
        self._lock, self._name = Lock(), agent.name
        self.workers: list[Worker] = [self._make() for _ in range(said or 1)]
        """The workers that there are; further ones are added at the end."""

    def _make(self) -> Worker:
        return self._new() if self._gate is None else self._new(gate=self._gate())

    def grow(self) -> bool:
        """Start a further worker where there may be one; return whether there may be another."""
        with self._lock:
            if self._spare > 0:
                self._spare -= 1
                try:
                    worker = self._make()
                    worker.start()
                    self.workers.append(worker)
                except (OncewardError, OSError, RuntimeError) as error:  # no thread, no file left
                    log.failure("warning", "no further worker", error, agent=self._name)
                    self._spare = 0
            return self._spare > 0

    def end(self) -> None:
        """Start no further worker."""
        with self._lock:
            self._spare = 0


def pool_size(agent: Handlers, workers: int | None) -> int:
    """Return how many workers an agent has: as said, or as many as its handlers can use."""
    if workers is not None:
        return workers
    single = [each for each in agent.handlers if not each.rules.batch]
    coroutines = ASYNC_WORKERS if any(each.is_async for each in single) else 1
    return max(coroutines, *(each.rules.concurrency or 1 for each in agent.handlers))
