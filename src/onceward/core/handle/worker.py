"""Run inbox messages through an agent's handlers: claim lanes, call handlers, settle."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from onceward.core.handle import claim
from onceward.core.handle.attempt import (
    STOPPED,
    CallOf,
    HandlerAttempt,
    MessageAttempt,
    Prepared,
    resolve_handler,
    tell,
)
from onceward.core.handle.call import HandlerDeps
from onceward.core.handle.claim import SAME, SAME_ROW, ClaimGate, ClaimRequest, RowKey
from onceward.core.handle.commit_batch import CLAIM_LOST, CLAIM_WAITS, HandlerCommitBatch
from onceward.core.handle.context import Context
from onceward.core.handle.invoke import Loop
from onceward.core.handle.signatures import Handler, Handlers
from onceward.core.rows import claimable, holders, lanes
from onceward.core.rows.lanes import NO_LEASE, Lease, LeasedMessage
from onceward.core.run import engine_loop as engine
from onceward.core.run import recovery
from onceward.core.run.arrival import Arrival
from onceward.core.run.engine_loop import EngineLoop, Team, lane_reaper
from onceward.core.run.event_emitter import kind_of, settlement_event
from onceward.core.run.threads import DOZE, QUICK_TICK, TICK, engine_threads
from onceward.errors import InvalidArgument, OncewardError
from onceward.file import file_checks, forks
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.in_flight import NOTE, NOTE_OF_ARRIVAL, NOTES, CallNotes
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis, monotonic
from onceward.message.events import Event
from onceward.message.log import log
from onceward.message.parcel import Answer
from onceward.message.retry import RetryPolicy
from onceward.message.vocabulary import HANDLED, Done, RetryAt, Settlement, Waits

QUICK: Final = 0.05
"""
Seconds below which a claim is called quick, so that the next one is larger.

During a longer call the lanes that its worker has not begun are released.
"""
SLOW: Final = 0.5
"""Seconds above which a claim is called slow, so that the next one has a single message."""
LANES: Final = 100
"""Maximum lanes that one claim examines."""
MANY: Final = 16
"""Size of a claim from which the next one is read and decoded before the lock is taken."""
ASYNC_WORKERS: Final = 8
"""Default maximum of an agent's concurrent coroutines."""


class CallGuard(Protocol):
    """Decides by a stored note of each message whether its handler is called."""

    def note(self, ready: Prepared, leased: LeasedMessage) -> Any:
        """Return the note of a message; None if its handler is always called."""

    def claim(self, tx: StoreTransaction, note: Any) -> Settlement | None:
        """Write a note before the call, in a separate commit; return the settlement, if any."""

    def keep(self, tx: StoreTransaction, note: Any) -> None:
        """Keep a note, in the commit of the handler's writes."""


def _stay(most: int) -> bool:
    """Stop starting workers."""
    del most
    return False


class Gates(NamedTuple):
    """Makes the gates of an agent's workers."""

    make: Callable[[], ClaimGate]
    always: bool
    """Whether they need one although no limit is set in the file."""


class Worker:
    """
    One thread that claims lanes and runs their messages through the agent's handlers.

    A lane is leased to one worker at a time: its messages keep their order, and
    none is handled by two. ``commit_batch`` says who holds its transaction when.
    """

    _many = False
    """Whether the last claim had many messages and used the rows that were read ahead."""
    _notes: CallNotes | None = None
    """Where this worker notes its calls; None if it has no record."""
    _entered = False
    """Whether it has asked for a record."""
    _registered = False
    """Whether this worker is registered to handle messages of an open claim."""
    _logs_each = False
    """Whether a log line per message would be written."""
    _active = False
    """Whether a claim is being handled, during which the keeper beats."""
    _beaten = 0.0
    """When the leases were last prolonged."""
    _quick = False
    """Whether the last round's handlers succeeded, faster than an open claim waits."""
    _exhausted = False
    """Whether the round has ended all messages that were ready, without a new notification."""
    _due_at: Millis | None = None
    """When the first backed-off or leased lane was due as the round began."""
    _left_leases = False
    """Whether an error may have left leases that this worker no longer works on."""
    _attempt: HandlerAttempt | None = None
    """The last attempt of the round, which may still run."""
    _here: Arrival | None = None
    """An arriving message that this look handles for its carrier."""
    may_grow = False
    """Whether the pool may start one more worker."""
    _limited: int | None = None
    """The highest concurrency that the file sets for a handler; None if it sets no limit."""
    _applied: int | None = None
    """The same, as of the last round."""

    def __init__(
        self,
        deps: HandlerDeps,
        agent: Handlers,
        loop: Loop,
        *,
        gates: Gates | None = None,
        guard: CallGuard | None = None,
        grow: Callable[[int], bool] = _stay,
        team: Team | None = None,
    ) -> None:
        self._db, self._settings, self._hooks = deps.db, deps.settings, deps.hooks
        self._deps, self._policy, self._agent = deps, deps.policy, agent
        self.owner = file_checks.owner_name()
        self._batch = HandlerCommitBatch(
            deps.db,
            share_for=deps.settings.tuning.share_commit_for,
            rest_for=self._delay_for,
            told=deps.hooks.emit,
        )
        self._calls = CallOf(deps=deps, commits=self._batch, loop=loop)
        self._context = partial(deps.complete(Context), group=self._batch, deps=deps)
        self._types = _only_types(agent)
        self._tries_once = _tries_once(agent, deps.policy)
        self._gate = gates.make() if gates is not None and gates.always else None
        self._set_gate = None if gates is None or gates.always else gates.make
        """Makes the gate while limits of handlers are set in the file; None if it has one."""
        self._guard = guard
        self._grow = grow
        """Start another worker, given how many a set limit allows; return False for the last."""
        reaper = lane_reaper(deps.db)
        self._loop = EngineLoop(
            deps.db, "worker", self._look, reaper=reaper, beat=self._beat, team=team
        )
        self._keeper = EngineLoop(deps.db, "keeper", self._keep)
        self._size = 1
        self._prepared: dict[RowKey, Prepared | Settlement | None] = {}
        """Messages that were decoded before their claim, by sequence, id and attempt."""
        self._served: frozenset[int] = frozenset()
        """Lanes that had a turn although more messages may wait in them: others come first."""
        self._held: dict[int, Lease] = {}
        self._arrivals: deque[Arrival] = deque()
        """Arriving messages that the next look handles as they are stored."""
        self._slow = set[int]()  # handlers whose last call took longer than an open claim waits
        self._unbegun: deque[list[LeasedMessage]] = deque()
        self._beginning = forks.new_lock()
        """Held while a lane is begun, or while unstarted ones are released."""
        self._rounds = forks.new_lock()
        """Held during a round: the loop's thread and callers of ``run_due`` take turns."""

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start claiming in the background."""
        self._keeper.start(delay=math.inf)
        self._loop.start("in", poll=self._settings.tuning.poll_interval)

    def stop(self, timeout: float) -> None:
        """
        Stop claiming; wait up to *timeout* seconds for the running handler, release the rest.

        A handler that takes longer keeps the worker registered until it ends. If the file is closed
        before that, the next process that finds this one dead claims its possible messages alone.
        """
        self._loop.stop(timeout)
        if not self._loop.busy:
            self._keeper.stop(timeout)
        self._unregister()

    def cancel(self) -> bool:
        """
        Cancel the coroutine that still runs after ``stop``; return whether there is one.

        Its message is released. A function cannot be cancelled.
        """
        attempt = self._running
        return attempt is not None and attempt.stop(STOPPED)

    def join(self, timeout: float) -> None:
        """Wait after ``stop`` up to *timeout* seconds for the handler that still runs."""
        self.stop(timeout)

    def _unregister(self) -> None:
        if self._held:
            return
        if self._registered:
            with suppress(OncewardError):
                self._db.write(partial(holders.unregister, owner=self.owner))
        self._leave()

    def _enter(self) -> None:
        """Take a record for the notes of this worker's calls, before its first claim."""
        self._entered = True
        lease = round(1000 * self._settings.lease) if self._loop.started else 0
        self._notes = self._db.in_flight.enter(self.owner, "call", lease)

    def _forsake(self) -> None:
        """Leave the record and the leases as those of a dead process; go on under a new name."""
        self._db.in_flight.busy.discard(self.owner)
        self._db.in_flight.forsake(self.owner)
        self._notes, self._entered, self._registered = None, False, False
        self.owner = file_checks.owner_name()

    def _leave(self) -> None:
        """Free the record: no call runs, and no claim is open."""
        if self._notes is not None:
            self._notes, self._entered = None, False
            self._db.in_flight.leave(self.owner)

    @property
    def may_take(self) -> bool:
        """
        Whether it could handle an arriving message if it were idle.

        It notes its calls: without that, the next process would not know of one that ended it.
        """
        for each in (self._gate, self._guard, self._types):
            if each is not None:
                return False
        return self._notes is not None and self._shares_claims

    def offer(self, arrival: Arrival) -> bool:
        """Take an arriving message for the next look, if this worker is idle and quick."""
        busy = self._arrivals or self._rounds.locked() or self._loop.stopping.is_set()
        if busy or not self.may_take:
            return False
        if arrival.may_be_handled_here:
            look = partial(self._look_here, arrival)
            if engine_threads().run_here(self._loop, look):
                return True
        self._arrivals.append(arrival)
        self._loop.notify()
        return True

    def _look_here(self, arrival: Arrival) -> float | None:
        """Look for the carrier of an arriving message, on its thread."""
        self._here = arrival
        return self._loop.run()

    def _look(self) -> float | None:
        arrival, self._here = self._here, None
        here = arrival is not None
        if arrival is None and self._arrivals:
            arrival = self._arrivals.popleft()
        if arrival is not None and self._handle_arrival(arrival, here=here):
            return self._until_due()
        wait = self._idle_for()
        if wait == 0.0:
            with self._rounds:
                if not self._entered:
                    self._enter()
                found = self.round()
            if self._loop.stopping.is_set():  # ``stop`` may have timed out
                self._unregister()
            if not found:
                return self._idle_for(nothing_here=True)
            if self._exhausted:
                return self._until_due()
        return wait

    def _handle_arrival(self, arrival: Arrival, *, here: bool = False) -> bool:
        """
        Handle an arriving message as it is stored; return whether nothing else may be due.

        *here*: this thread carries it too.
        """
        if not self._rounds.acquire(blocking=False):  # ``run_due`` handles a claim
            arrival.tell(None)
            return False
        try:
            begun = arrival.begin(here=here)
            found = self.round(arrival) if begun else 0
            return found > 0 and self._exhausted and not self._arrivals
        finally:
            self._rounds.release()
            arrival.tell(None)

    def _until_due(self) -> float | None:
        """Return the seconds until a lane is due; None if none is backed off or leased."""
        return None if self._due_at is None else max(0.0, (self._due_at - self._db.now()) / 1000)

    def _idle_for(self, *, nothing_here: bool = False) -> float | None:
        """
        Return the seconds until messages can be claimed; None: not before a notification.

        *nothing_here*: a claim has just found nothing, so ready messages are for readers or other
        workers; a commit that changes this notifies.
        """
        paused_at, ready, self._due_at, parked, limited = claimable.agenda(self._db.read)
        self._limited = limited
        if disabled_by_environment() or paused_at is not None:
            return engine.MAX_IDLE_SECONDS
        if ready == claimable.ONLY_SUSPECTS and self._db.in_flight.busy:
            ready = 0  # the worker that is busy looks for them after its round
        ready = ready or parked
        if (ready or self._left_leases) and not nothing_here:
            return 0.0
        if ready and self._types is None and self._gate is None:
            return 0.01  # other workers were quicker, or a limit was just set
        wait = self._until_due()
        if self._gate is None or not ready:
            return wait
        token = self._gate.wait(self._db.now())
        return token if wait is None or (token is not None and token < wait) else wait

    # -- working ----------------------------------------------------------------------------

    def run_due(self) -> int:
        """
        Handle one claim of ready messages on this thread; return their number.

        It is 0 while another thread handles a claim, and after ``stop``.
        """
        if self._loop.stopping.is_set() or not self._rounds.acquire(blocking=False):
            return 0
        try:
            if self._idle_for() != 0.0:
                return 0
            if not self._entered:
                self._enter()
            return self.round()
        finally:
            self._rounds.release()

    def round(self, arrival: Arrival | None = None) -> int:
        """
        Claim ready messages, handle and settle them; return how many were claimed.

        With *arrival*, handle its message instead; return 0 if it must be accepted as usual.
        """
        self._batch.lost = False  # before the claim, which may also be lost
        if self._limited != self._applied:
            self._apply_set_limits()
        try:
            total = self._claim_due() if arrival is None else self._claim_arrival(arrival)
        except Exception:
            self._left_leases = True
            raise
        except BaseException:  # it ends the thread, as a kill does
            self._forsake()
            raise
        finally:
            self._db.in_flight.busy.discard(self.owner)
            self._prepared.clear()
            if self._gate is not None:
                self._gate.leave()
        self._left_leases, self._batch.left_leases = self._batch.left_leases, False
        self._exhausted = self._exhausted and not (self._left_leases or self._batch.lost)
        return total

    def _apply_set_limits(self) -> None:
        """Claim through a gate while the file sets limits; allow as many workers as they do."""
        self._applied = self._limited
        self.may_grow = self.may_grow or (self._applied is not None and self._grow is not _stay)
        if self._set_gate is not None:
            self._gate = None if self._applied is None else self._gate or self._set_gate()

    def _claim_due(self) -> int:
        """Claim and handle ready messages; return how many."""
        request = ClaimRequest(
            messages=self._size,
            lanes=LANES if self._types is None else -1,
            types=self._types,
            served=self._served,
            noted=self._notes is not None,
            set_limits=self._limited is not None,
        )
        if self._many and self._shares_claims and self._gate is None and self._types is None:
            request = self._read_ahead(request)
        work = partial(self._claim, request=request)
        if self._gate is not None:
            self._gate.read_ahead()
        claimed = self._batch.claim(work) if self._shares_claims else self._db.write(work)
        if not claimed and self._gate is not None:
            claimed = self._claim_again(work, self._gate)
        total = sum(map(len, claimed))
        if total >= self._size:  # its last lane may have more, and now waits for the others
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
        return total

    def _claim_again(
        self, work: Callable[[StoreTransaction], list[list[LeasedMessage]]], gate: ClaimGate
    ) -> list[list[LeasedMessage]]:
        """
        Repeat a claim that leased nothing, while it has not looked at all lanes.

        A shared one that changed lanes was rolled back with these changes, and is repeated, too.
        """
        claimed: list[list[LeasedMessage]] = []
        lost = gate.changed and self._shares_claims
        while not claimed and (gate.read_ahead() or lost or gate.unfinished):
            claimed, lost = self._db.write(work), False
        return claimed

    def _claim_arrival(self, arrival: Arrival) -> int:
        """Handle the message of an arrival, if it has a handler that is quick; return 1 if so."""
        if SWITCH in VARIABLES and disabled_by_environment():
            return 0
        ready = resolve_handler(self._agent, arrival.message(), self._db.now(), self._policy)
        if not isinstance(ready, Prepared) or not self._is_quick(ready):
            return 0
        claimed = self._batch.claim(partial(self._open, arrival=arrival), arrival)
        if claimed:
            self._prepared[SAME(claimed[0][0])] = ready
            self._exhausted = True
            self._handle_all(claimed)
        return len(claimed)

    def _is_quick(self, ready: Prepared) -> bool:
        """
        Return whether a handler may be called before its message is stored.

        The reads of a coroutine use other threads, which would not see its message.
        """
        handler = ready.handler
        slow = handler.is_async or handler.rules.batch or id(handler) in self._slow
        return ready.error is None and not slow

    def _open(self, tx: StoreTransaction, arrival: Arrival) -> list[list[LeasedMessage]]:
        self._db.in_flight.busy.add(self.owner)
        until = tx.now + round(1000 * self._settings.lease)
        leased = arrival.open(tx, owner=self.owner, until=until)
        return [] if leased is None else [[leased]]

    def _read_ahead(self, request: ClaimRequest) -> ClaimRequest:
        """Read and decode the messages of the next claim before other writers have to wait."""
        rows, now = claim.read_ahead(self._db.read, request), self._db.now()
        for row in rows:
            leased, ready = LeasedMessage(NO_LEASE, *row), None
            if '"dataref"' not in leased.frame:  # its body is read when it is handled
                ready = resolve_handler(self._agent, leased, now, self._policy)
            self._prepared[SAME_ROW(row)] = ready
        return request._replace(ahead=dict(zip(self._prepared, rows, strict=True)))

    def _has_all_of(self, claimed: list[list[LeasedMessage]]) -> bool:
        """Return whether a claim that is not full has all ready messages of its lanes."""
        for lane in claimed:
            if lane[0].lane.isolate:
                return False
        return self._types is None and self._gate is None and len(claimed) < LANES

    def _is_ahead(self, claimed: list[list[LeasedMessage]]) -> bool:
        """Return whether a claim got the rows that were read ahead, and no other worker did."""
        return SAME(claimed[0][0]) in self._prepared

    @property
    def _shares_claims(self) -> bool:
        """
        Whether a claim is committed with the effects of its handlers.

        Only while they are quick, and if the heartbeat can commit it alone in case one is not. A
        worker that dies before that leaves its row in the file: the messages that may have killed
        it are then claimed alone and counted first.
        """
        return self._registered and self._quick and not self._left_leases

    def _claim(self, tx: StoreTransaction, request: ClaimRequest) -> list[list[LeasedMessage]]:
        """Claim messages, after releasing the lanes that an error left leased to this worker."""
        self._db.in_flight.busy.add(self.owner)
        if not self._registered and self._loop.started:
            holders.register(tx, self.owner)
            tx.after_commit(self._note_registration)
        if self._left_leases:
            recovery.release_own(tx, self.owner)
        until = tx.now + round(1000 * self._settings.lease)
        if self._gate is not None:
            return claim.claim_admitted(tx, request, self._gate, owner=self.owner, until=until)
        return claim.claim(tx, request, owner=self.owner, until=until)

    def _note_registration(self) -> None:
        self._registered = True

    def _adapt(self, total: int, took: float) -> None:
        """Claim more while handlers are quick, one while they are slow: others need lanes too."""
        if took > SLOW:
            self._size = 1
        elif took < QUICK and total >= self._size:
            self._size = min(self._size * 4, self._settings.tuning.claim_messages)

    def _handle_all(self, claimed: list[list[LeasedMessage]]) -> None:
        """Handle a claim, commit the results, and release lanes that were not begun."""
        self._held = {}
        for lane in claimed:
            self._held[lane[0].lane.lane_id] = lane[0].lane
        self._quick, self._logs_each = True, log.takes("debug")
        self._unbegun.extend(claimed)
        self._beaten, self._active = monotonic(), True
        try:
            self._handle_claimed()
        except BaseException:
            self._batch.abandon()
            raise
        finally:
            self._active, self._attempt = False, None
            if self._exhausted:
                self._loop.end_soon()
            self._batch.commit()
            self._quick = self._quick and not self._batch.lost
            self._held = {}
            if self._unbegun:
                self._give_back_rest()

    def _handle_claimed(self) -> None:
        """Handle the claim's lanes, each until its end or until a pause."""
        while self._unbegun and not self._loop.stopping.is_set() and not self._batch.lost:
            with self._beginning:
                lane = self._unbegun.popleft() if self._unbegun else []
            left = self._handle_lane(lane) if lane else lane
            if left:
                self._unbegun.appendleft(left)
                break

    def _delay_for(self, attempt: int) -> Millis:
        """Return the delay of a message whose own commit failed."""
        return self._policy.delay(attempt, self._deps.rng)

    def _give_back_rest(self) -> None:
        """Release the remaining lanes at the end of a round; later, if the file fails."""
        try:
            self._give_back(self._write)
        except OncewardError:
            self._batch.left_leases = True
        self._unbegun.clear()

    def _write(self, work: Callable[[StoreTransaction], None]) -> bool:
        self._db.write(work)
        return True

    def _give_back(self, write: Callable[[Callable[[StoreTransaction], None]], bool]) -> None:
        """Release lanes that were not begun, so that other workers and processes can take them."""
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
        """Handle a lane's messages in order; return the rest after a pause."""
        now, known = self._db.now(), self._prepared
        for index, leased in enumerate(messages):
            if (self._loop.notified or not self._loop.started) and self._paused():
                return messages[index:]
            if self._notes is not None:
                self._note_call(self._notes, leased)
            ready = (known and known.get(SAME(leased))) or resolve_handler(
                self._agent, leased, now, self._policy
            )
            settlement, took = self._handle(leased, ready)
            if self._batch.lost:
                break
            last = self._loop.stopping.is_set()  # checked once: unfinished messages are continued
            rest = len(messages) if last else index + 1
            events = self._events(leased, settlement, took, ready) if self._hooks._hooks else []
            spent = leased.attempt > 1 or self._tries_once
            due = self._batch.end(leased, settlement, rest=(messages, rest), events=events)
            if due or (spent and self._was_last(leased, ready)):
                self._batch.commit()
            if settlement is not HANDLED:
                self._exhausted = False
            if isinstance(settlement, RetryAt) or self._batch.lost or last:
                break
        return []

    def _note_call(self, notes: CallNotes, leased: LeasedMessage) -> None:
        """Note a call before it begins; if that fails, commit its claim, which then counts it."""
        lane, arrival = leased.lane, self._batch.arrival
        if notes.count >= NOTES:
            self._batch.commit()
        if not self._batch._ended:  # all calls that were noted before are settled
            notes.turn, notes.count = notes.turn + 1, 0
        call = (notes.turn, lane.lane_id, lane.token, leased.seq)
        if arrival is None:
            note = NOTE.pack(*call)
        else:
            note = NOTE_OF_ARRIVAL.pack(*call, UUID(arrival.id).bytes)
        try:
            os.pwrite(notes.file.handle, note, notes.at + notes.count * NOTE.size)
            notes.count += 1
        except OSError as error:
            self._end_notes(error)

    def _end_notes(self, error: OSError) -> None:
        """Go on without notes: a committed claim counts its calls instead."""
        log.failure("warning", "calls are not noted", error, agent=self._db.agent)
        self._leave()
        self._entered = True
        self._batch.step_aside()

    def _was_last(self, leased: LeasedMessage, ready: Prepared | Settlement) -> bool:
        """
        Return whether a message may not be called again.

        It is committed at once: the death of its process in a later call would end it unhandled.
        """
        if not isinstance(ready, Prepared):
            return False
        most = ready.handler.rules.attempts
        if most is not None:
            return leased.attempt >= most
        policy = ready.handler.rules.retry or self._policy
        return policy.exhausted(leased.attempt)

    def _paused(self) -> bool:
        """Return whether the file is paused; read only after notifications, which a pause sends."""
        self._loop.notified = self._exhausted = False
        disabled = SWITCH in VARIABLES and disabled_by_environment()
        return disabled or claimable.agenda(self._db.read).paused_at is not None

    def _handle(
        self, leased: LeasedMessage, ready: Prepared | Settlement
    ) -> tuple[Settlement, float | None]:
        """Return the settlement of a message, and the seconds of its call if there was one."""
        if leased.expires_at is not None and leased.expires_at <= self._db.now():
            return self._told(leased, Done("expired")), None
        if not isinstance(ready, Prepared):
            return self._told(leased, ready), None
        if self._gate is not None:
            self._gate.call(leased.seq)
        noted = None
        if self._guard is not None and (note := self._guard.note(ready, leased)) is not None:
            if (refused := self._refused(self._guard, note)) is not None:
                return self._told(leased, refused), None
            noted = partial(self._guard.keep, note=note)
        attempt = self._attempt = MessageAttempt(
            **self._calls,
            own_thread=self._loop.started,
            context=self._context(leased, ready.frame, ready.body),
            leased=(leased,),
            limit=ready.handler.rules.timeout or self._settings.handler_timeout,
            ready=ready,
            noted=noted,
        )
        [settlement] = attempt.observed() if self._hooks.observers else attempt.run()
        took = attempt.took or 0.0
        self._quick = self._quick and not attempt.failed and took < CLAIM_WAITS
        if took >= CLAIM_WAITS:
            self._slow.add(id(ready.handler))
        elif self._slow:
            self._slow.discard(id(ready.handler))
        if took > TICK:  # beats may be rare since that call
            self._loop.beat_soon()
        if settlement is HANDLED and self._logs_each:
            self._log_return(leased, ready.frame.type)
        return settlement, took

    def _told(self, leased: LeasedMessage, settlement: Settlement) -> Settlement:
        """Tell the caller of a dispatched task how it ended without a call."""
        [told] = tell(self._deps, self._batch, (leased,), (settlement,))
        return told

    def _refused(self, guard: CallGuard, note: Any) -> Settlement | None:
        """Ask the guard whether to call a handler; return its message's settlement otherwise."""
        alone = not (self._registered and self._quick)
        ended = self._batch.note(partial(guard.claim, note=note), alone=alone)
        if ended is None and self._batch.lost:
            return RetryAt(self._db.now(), CLAIM_LOST, counted=False)
        return ended

    def _log_return(self, leased: LeasedMessage, kind: str) -> None:
        """Log that a handler returned; its commit follows."""
        fields = {
            "agent": self._db.agent,
            "session": leased.session,
            "message_id": leased.id,
            "type": kind,
            "attempt": leased.attempt,
        }
        log.write("debug", "handler returned", fields)

    def _events(
        self,
        leased: LeasedMessage,
        settlement: Settlement,
        took: float | None,
        ready: Prepared | Settlement | None = None,
    ) -> list[Event]:
        if isinstance(settlement, Waits) or not self._hooks.wanted(kind_of(settlement)):
            return []
        frame = ready.frame if isinstance(ready, Prepared) else None
        agent, at = self._db.agent, self._db.now()
        return [settlement_event(leased, settlement, agent=agent, at=at, took=took, frame=frame)]

    # -- heartbeat --------------------------------------------------------------------------

    @property
    def _running(self) -> HandlerAttempt | None:
        """The attempt whose call runs now."""
        attempt = self._attempt
        return attempt if attempt is not None and attempt.took is None else None

    def _beat(self) -> float:
        """
        Make the keeper beat while a claim is handled; see ``EngineTask``.

        Beats are frequent while a call may still be quick, and rare once it takes long: its timeout
        and its leases are due by the clock, and other due work notifies.
        """
        if self._active:
            self._keeper.notify()
        attempt = self._running
        if attempt is None or (took := attempt.running_for) < TICK:
            return QUICK_TICK if self._quick else TICK
        if took < DOZE:
            return TICK
        left = attempt.limit - took
        return max(TICK, min(DOZE, self._settings.lease / 6, left if left > 0 else DOZE))

    def _keep(self) -> float | None:
        """Beat for the current claim; this may wait for its file."""
        if not (self._active or self._held):
            return None
        now = monotonic()
        due = now - self._beaten >= max(0.05, self._settings.lease / 3)
        self._beaten = now if due else self._beaten
        try:
            return self._look_after(due=due)
        except OncewardError:  # the file fails: its round reports that
            return None

    def _look_after(self, *, due: bool) -> float | None:
        """
        Stop late calls, release waiting lanes, and prolong leases if *due*.

        Return the seconds until another lane is due, for which a worker may be missing.
        """
        attempt = self._running
        slow = attempt is not None and attempt.running_for > QUICK
        if attempt is not None:
            attempt.stop_late()
            if slow:
                attempt.stop_cancelled()
        if self._unbegun and slow:
            self._give_back(self._batch.heartbeat)
        self._batch.heartbeat(self._prolong if due else None)
        return self._add_worker()

    def _add_worker(self) -> float | None:
        """
        Start another worker, if allowed, while a call takes time and others wait.

        Return the seconds until more may wait, if it is known.
        """
        attempt = self._running
        if attempt is None or not self.may_grow or attempt.running_for < CLAIM_WAITS:
            return None
        _, ready, due_at, parked, limited = claimable.agenda(self._db.read)
        if ready or parked:
            self.may_grow = self._grow(limited or 0)
        return None if due_at is None else max(TICK, (due_at - self._db.now()) / 1000)

    def _prolong(self, tx: StoreTransaction) -> None:
        """Extend the leases of this round, unless its handler has exceeded its timeout."""
        attempt = self._running
        if attempt is not None and attempt.overdue:
            for lane in list(self._held.values()):
                lanes.give_up(tx, lane)
            return
        for lane in list(self._held.values()):
            lanes.extend(tx, lane, until=tx.now + round(1000 * self._settings.lease))


def _tries_once(agent: Handlers, policy: RetryPolicy) -> bool:
    """Return whether the first attempt of a message may be its last."""
    rules = [each.rules for each in agent.handlers]
    return policy.exhausted(1) or any(each.retry or each.attempts == 1 for each in rules)


def _only_types(agent: Handlers) -> tuple[str, ...] | None:
    if agent.unhandled == "dead":
        return None
    wild = [h.pattern for h in agent.handlers if "*" in h.pattern or "#" in h.pattern]
    if wild:
        msg = (
            f"agent {agent.name} leaves unhandled messages waiting, so its handlers need exact "
            f"types instead of {wild[0]!r}"
        )
        raise InvalidArgument(msg)
    return tuple(h.pattern for h in agent.handlers)


class WorkerPool:
    """
    The workers of one agent; *gates* makes the gate of each.

    The setting ``workers`` starts that many. Without it there is one, and more are started when
    needed, up to the number that the handlers can use.
    """

    def __init__(
        self,
        deps: HandlerDeps,
        agent: Handlers,
        loop: Loop,
        *,
        gates: Gates | None = None,
        guard: CallGuard | None = None,
    ) -> None:
        said = deps.settings.workers
        self._most = 0 if said is not None else pool_size(agent.handlers, None)
        """How many workers there may be, unless a set limit allows more; 0: no more start."""
        self._new = partial(Worker, deps, agent, loop, gates=gates, guard=guard, team=Team())
        if self._most:
            self._new = partial(self._new, grow=self.grow)
        self._lock, self._name = forks.new_lock(), agent.name
        self.workers: list[Worker] = [self._make() for _ in range(said or 1)]
        """The existing workers; new ones are appended."""

    def _make(self) -> Worker:
        worker = self._new()
        worker.may_grow = self._most > 1
        return worker

    def grow(self, most: int = 0) -> bool:
        """
        Start another worker if allowed; return whether there may be one more.

        *most* is the highest concurrency that is set in the file.
        """
        with self._lock:
            if self._may_grow(most):
                try:
                    worker = self._make()
                    worker.start()
                    self.workers.append(worker)
                except (OncewardError, OSError, RuntimeError) as error:  # no thread, no file left
                    log.failure("warning", "no further worker", error, agent=self._name)
                    self._most = 0
            return self._may_grow(most)

    def _may_grow(self, most: int) -> bool:
        return self._most > 0 and len(self.workers) < max(self._most, most)

    @property
    def may_take(self) -> bool:
        """Whether a worker may be idle, and its calls quick."""
        return any(worker.may_take for worker in self.workers)

    def take(self, arrival: Arrival) -> Answer | None:
        """
        Have an idle worker handle an arriving message as it is stored; return the parcel's answer.

        Return None if none can, or if it proved to be unusual: then nothing was stored, and the
        parcel must be accepted as usual.
        """
        engine_threads().wake_held()
        for worker in self.workers:
            if worker.offer(arrival):
                return arrival.wait()
        return None

    def end(self) -> None:
        """Stop starting workers."""
        with self._lock:
            self._most = 0


def pool_size(handlers: Sequence[Handler], workers: int | None) -> int:
    """Return the number of workers: the setting, or as many as the handlers can use."""
    if workers is not None:
        return workers
    single = [each for each in handlers if not each.rules.batch]
    coroutines = ASYNC_WORKERS if any(each.is_async for each in single) else 1
    keyed = any(each.rules.key and each.rules.concurrency for each in single)
    several = ASYNC_WORKERS if keyed else coroutines
    return max(several, *(each.rules.concurrency or 1 for each in handlers))
