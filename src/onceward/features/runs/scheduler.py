"""Schedule the runs of sessions: enqueue arrivals, apply limits, preempt and begin runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from onceward.core.end.received import SettledMessage
from onceward.core.handle.signatures import Around
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run import recovery
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.errors import InvalidMessage, OncewardError
from onceward.features.runs import runs, session_queues
from onceward.features.runs.runs import EarlierRun, OpenRun, RunCompletion, Summary
from onceward.features.runs.session_queues import NewMessage, Queue
from onceward.file.connection import SQLError
from onceward.file.transaction import StoreTransaction
from onceward.message.body import decode
from onceward.message.clock import Millis
from onceward.message.events import Dropped, MessageBound, Overflowed, RunStarted
from onceward.message.frame import Frame
from onceward.message.log import log
from onceward.message.queue_modes import (
    PREEMPTING,
    WISH,
    WORKER_RESULT,
    DroppedItems,
    QueuedItem,
    QueuePolicy,
    batch_size,
    checked,
    glob,
    make_room,
    summary_line,
)
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.vocabulary import (
    QUEUE_MODES,
    Dead,
    Done,
    QueueMode,
    Reason,
    Settlement,
    reason_text,
    unreadable,
)

ARRIVALS: Final = 2000
"""Maximum arrivals that one pass enqueues."""
SESSION: Final = attrgetter("session")


class ReadMessage(NamedTuple):
    """A message with its decoded frame and body."""

    leased: LeasedMessage
    frame: Frame
    body: Any

    @property
    def thread(self) -> tuple[str, str | None] | None:
        """Recipient of a reply and its conversation; None for results of tasks."""
        if self.frame.type == WORKER_RESULT:
            return None  # it needs no reply, so it fits with any thread
        return self.frame.replyto or self.leased.sender, self.frame.correlationid


class StartedRun(NamedTuple):
    """A run that has begun, with its handler's input."""

    run: OpenRun
    handler: SessionHandler
    messages: list[ReadMessage]
    metadata: dict[str, Any]
    summary: Summary | None
    before: EarlierRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHandler:
    """The function that runs an agent's sessions of one pattern, and their queue settings."""

    pattern: str
    call: Callable[..., Any]
    options: Mapping[str, Any]
    """Fields of a queue policy; None if the home's setting applies."""
    types: Mapping[str, type]
    """Body classes by their types' wire names."""
    allow_override_from: tuple[str, ...]
    is_async: bool
    attempts: int | None = None
    timeout: float | None = None
    around: tuple[Sequence[Around], ...] = ()
    """Generator functions of its agents' ``around``, those of the outer agent first."""

    def wants(self, session: str) -> bool:
        """Return whether this handler serves sessions of this name."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), session) is not None


def handler_of(session: str, handlers: Iterable[SessionHandler]) -> SessionHandler | None:
    """Return the handler of a session: an exact name first, then the longest pattern."""
    found = [handler for handler in handlers if handler.wants(session)]
    return min(
        found, key=lambda h: (h.pattern != session, -len(h.pattern), h.pattern), default=None
    )


@dataclass(slots=True)
class SchedulePass:
    """Changes that one pass made."""

    started: list[StartedRun] = field(default_factory=list)
    moved: int = 0
    """Messages that entered a queue, or ended in it."""
    index_is_damaged: bool = False
    """Whether a session was skipped because of an error."""


class RunScheduler:
    """Enqueues, drops and binds the messages of sessions with runs, inside one transaction."""

    def __init__(
        self,
        deps: RuntimeDeps,
        handlers: Sequence[SessionHandler],
        completion: RunCompletion,
        *,
        owner: str,
        delay: Callable[[str], float],
    ) -> None:
        self._handlers, self._completion, self._owner = handlers, completion, owner
        self._agent, self._delay = deps.db.agent, delay
        self._settings, self._policy = deps.settings, deps.policy
        self._ids = deps.outbox.composer.mint
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self._home = home_policy(deps.settings)
        self.patterns = json.dumps([glob(handler.pattern) for handler in handlers])

    def register(self, tx: StoreTransaction) -> None:
        """Store which sessions runs serve: readers and workers skip their messages."""
        for handler in self._handlers:
            session_queues.register(
                tx,
                glob(handler.pattern),
                self._home.merged(**handler.options),
                handler.allow_override_from,
            )

    def queue(self, tx: StoreTransaction, session: str) -> Queue:
        """Return a session's queue settings: its own, its handler's, the home's, the default."""
        handler = handler_of(session, self._handlers)
        return session_queues.look_up(
            tx, session, self._home if handler is None else self._home.merged(**handler.options)
        )

    # -- one look ---------------------------------------------------------------------------

    def schedule(self, tx: StoreTransaction, slots: int, *, alone: bool = True) -> SchedulePass:
        """
        Enqueue arrivals, abort runs that are abandoned or preempted, begin up to *slots* runs.

        A run that may have killed its process begins if nothing else can, and only *alone*: while
        this process has no other run.

        All of it is one transaction, which may be repeated: after a crash either all of it
        happened, or none, and the next pass finds the previous state.
        """
        looked = SchedulePass()
        recovery.take_over(tx)
        recovery.wake_due(tx)
        for run in runs.abandoned(tx):
            if handler_of(run.session, self._handlers) is not None:
                self._isolated(tx, looked, run.session, partial(self._recover, tx, run))
        arrivals = session_queues.arrivals(tx, self.patterns, ARRIVALS)
        # They come by sequence, and a stable sort keeps that order within a session.
        for session, fresh in groupby(sorted(arrivals, key=SESSION), SESSION):
            admit = partial(self._admit, tx, session, list(fresh), looked)
            self._isolated(tx, looked, session, admit)
        self._start_runs(tx, looked, slots)
        if alone and not looked.started:
            self._start_runs(tx, looked, slots, suspects=True)
        return looked

    def next_run(self, tx: StoreTransaction) -> StartedRun | None:
        """Begin a run of the session that has waited longest; return None if none can begin."""
        looked = SchedulePass()
        self._start_runs(tx, looked, 1)
        return looked.started[0] if looked.started else None

    def _start_runs(
        self, tx: StoreTransaction, looked: SchedulePass, slots: int, *, suspects: bool = False
    ) -> None:
        if suspects:
            ready = session_queues.suspects(tx.rows, self.patterns)
        else:
            ready = session_queues.ready(tx, self.patterns, slots) if slots > 0 else []
        for lane_id, session, token in ready:
            start = partial(self._start_run, tx, session, (lane_id, token), looked)
            self._isolated(tx, looked, session, start)

    def _isolated(
        self, tx: StoreTransaction, looked: SchedulePass, session: str, work: Callable[[], None]
    ) -> None:
        """Do one session's part; undo it if it fails, so that it does not block the others."""
        started, moved = len(looked.started), looked.moved
        try:
            with tx.nested():
                work()
        except (OncewardError, SQLError) as error:
            if not tx.alive:
                raise
            del looked.started[started:]
            looked.moved, looked.index_is_damaged = moved, True
            log.failure(
                "warning", "session queue skipped for now", error,
                agent=self._agent, session=session,
            )  # fmt: skip

    def _recover(self, tx: StoreTransaction, run: OpenRun) -> None:
        cause = "its process died, or its lease ran out"
        self._completion.abort(
            tx, run, self.queue(tx, run.session).policy, cause, preempted=False, lost=True
        )

    # -- arrivals ---------------------------------------------------------------------------

    def _admit(
        self,
        tx: StoreTransaction,
        session: str,
        fresh: list[NewMessage],
        looked: SchedulePass,
    ) -> None:
        lane_id = session_queues.enqueue(tx, session, fresh)
        queue = self.queue(tx, session)
        gone = self._make_room(tx, session, lane_id, fresh, queue.policy)
        looked.moved += len(fresh)
        mode = self._mode_of(
            session, [each for each in fresh if each.seq not in gone], queue.policy
        )
        if mode in PREEMPTING and not queue.paused:
            self._preempt(tx, session, mode, fresh[-1], queue.policy)
            session_queues.steer(tx, session, mode)
        elif queue.goes_on_with or (queue.rest_at is not None and queue.rest_at > tx.now):
            return
        session_queues.hurry(tx, lane_id)

    def _mode_of(self, session: str, fresh: Sequence[NewMessage], policy: QueuePolicy) -> str:
        """Return the preempting mode of new messages, empty for none; ``queue`` never changes."""
        handler = handler_of(session, self._handlers)
        trusted: tuple[str, ...] = ()
        if handler is not None and policy.mode != "queue":
            trusted = (*handler.allow_override_from, self._agent)
        modes = [(each.frame and _requested_mode(each, trusted)) or policy.mode for each in fresh]
        return next((mode for mode in reversed(modes) if mode in PREEMPTING), "")

    def _preempt(
        self, tx: StoreTransaction, session: str, mode: str, by: NewMessage, policy: QueuePolicy
    ) -> None:
        run = runs.open_in(tx, session)
        if run is not None and not (mode == "steer" and policy.inject):
            self._completion.abort(tx, run, policy, f"{mode} by message {by.id}", preempted=True)

    def _make_room(
        self,
        tx: StoreTransaction,
        session: str,
        lane_id: int,
        fresh: Sequence[NewMessage],
        policy: QueuePolicy,
    ) -> set[int]:
        """Drop or refuse messages above the queue's cap; return the removed rows."""
        held, protected = session_queues.counts(tx, lane_id)
        if policy.cap is None or held <= policy.cap:
            return set()
        new = [QueuedItem(each.seq, each.protected) for each in fresh]
        held, protected = held - len(new), protected - sum(each.protected for each in new)
        gone = make_room(
            policy,
            held=held,
            protected=protected,
            fresh=new,
            oldest=lambda n: _oldest(tx, lane_id, n, {w.seq for w in new}),
        )
        self._drop(tx, session, lane_id, gone, policy)
        return {each.seq for each in (*gone.dropped, *gone.refused)}

    def _drop(
        self,
        tx: StoreTransaction,
        session: str,
        lane_id: int,
        gone: DroppedItems,
        policy: QueuePolicy,
    ) -> None:
        held = Lease(lane_id, 0, "", isolate=False)
        dropped = session_queues.of_seqs(tx, [each.seq for each in gone.dropped], held)
        refused = session_queues.of_seqs(tx, [each.seq for each in gone.refused], held)
        if not dropped and not refused:
            return
        full = f"the queue of session {session!r} is full at {policy.cap}"
        dropping = cast("Reason", policy.overflow)  # a dropping policy, if messages were dropped
        gave_way = Done("dropped", reason_text(dropping, full))
        self._completion.conclude(tx, [SettledMessage(each, gave_way) for each in dropped])
        self._completion.conclude(
            tx, [SettledMessage(each, Dead("overflow", full)) for each in refused]
        )
        session_queues.name_queue(tx, session, refused)
        lines = [(each, summary_line(each.sender, text_of(each.frame))) for each in dropped]
        session_queues.record_drops(tx, session, policy.overflow, lines)
        session_queues.update_head(tx, lane_id)
        about: dict[str, Any] = {"agent": self._agent, "at": tx.now}
        counts = Overflowed(**about, session=session, dropped=len(dropped), refused=len(refused))
        about |= {"scope": f"queue {session}", "policy": policy.overflow}
        each_of = (Dropped(**about, message_id=each.id, peer=each.sender) for each in dropped)
        self._emitter.emit(tx, counts, *each_of)

    # -- beginning a run --------------------------------------------------------------------

    def _start_run(
        self,
        tx: StoreTransaction,
        session: str,
        lane: tuple[int, int],
        looked: SchedulePass,
    ) -> None:
        queue, handler = self.queue(tx, session), handler_of(session, self._handlers)
        mode = queue.next_mode or queue.policy.mode
        due_at = self._due_at(tx, session, lane[0], queue)
        if due_at > tx.now or handler is None:
            session_queues.defer(tx, lane[0], due_at)
            return
        held = Lease(lane[0], lane[1] + 1, self._owner, isolate=True)
        most = 2 if mode in ("followup", "queue") else session_queues.ALL
        while True:
            rows = session_queues.next_messages(tx, held, queue, most)
            good, bad = self._sort_out(rows, handler, tx.now)
            if bad:
                self._completion.conclude(tx, bad)
                session_queues.update_head(tx, held.lane_id)
                looked.moved += len(bad)
            if good or not rows:
                break
        if good:
            waiting = len(rows)
            if queue.goes_on_with is not None:
                count, waiting = len(good), session_queues.counts(tx, held.lane_id)[0]
            else:
                count = batch_size(mode, [self._weigh(each, handler) for each in good])
            looked.started.append(
                self._begin(tx, handler, mode, held, good[:count], more=waiting > count)
            )

    def _due_at(self, tx: StoreTransaction, session: str, lane_id: int, queue: Queue) -> Millis:
        """Return when the next run may begin: after its call, backoff and debounce."""
        delay = self._delay(session)
        after_call = tx.now + max(1, round(1000 * delay)) if delay else 0
        if queue.goes_on_with is not None:
            return after_call
        if queue.next_mode is not None:
            return max(queue.rest_at or 0, after_call)
        count = session_queues.counts(tx, lane_id)[0] if queue.policy.mode == "collect" else 0
        return max(queue.policy.due_at(queue.waits, count), queue.rest_at or 0, after_call)

    def _sort_out(
        self, rows: Iterable[LeasedMessage], handler: SessionHandler, now: Millis
    ) -> tuple[list[ReadMessage], list[SettledMessage]]:
        good: list[ReadMessage] = []
        bad: list[SettledMessage] = []
        for leased in rows:
            before = leased.attempt - 1
            spent = before > 0 and exhausted(self._policy, handler, before)
            found = problem(leased, now, spent=spent) or read(leased, handler.types)
            if isinstance(found, ReadMessage):
                good.append(found)
            else:
                bad.append(SettledMessage(leased, found))
        return good, bad

    def _weigh(self, each: ReadMessage, handler: SessionHandler) -> QueuedItem:
        again = each.leased.attempt > 1 and exhausted(self._policy, handler, each.leased.attempt)
        return QueuedItem(each.leased.seq, thread=each.thread, last_attempt=again)

    def _begin(
        self,
        tx: StoreTransaction,
        handler: SessionHandler,
        mode: QueueMode,
        held: Lease,
        chosen: list[ReadMessage],
        *,
        more: bool,
    ) -> StartedRun:
        session = chosen[0].leased.session
        until = tx.now + round(1000 * self._settings.lease)
        bound = [each.leased for each in chosen]
        run = runs.begin(
            tx, run_id=self._ids(), session=session, mode=mode, held=held, messages=bound,
            until=until,
        )  # fmt: skip
        session_queues.begun(tx, session, more=more)
        self._emit_bound(tx, run, bound, began=True)
        return StartedRun(
            run,
            handler,
            chosen,
            metadata(mode, chosen),
            runs.summary(tx, run),
            runs.previous(tx, run),
        )

    def _emit_bound(
        self, tx: StoreTransaction, run: OpenRun, bound: Sequence[LeasedMessage], *, began: bool
    ) -> None:
        """Emit the messages of a run after the commit."""
        if not self._emitter.listening:
            return
        about: dict[str, Any] = {
            "agent": self._agent,
            "at": tx.now,
            "session": run.session,
            "run_id": run.id,
        }
        if began:
            self._emitter.emit(tx, RunStarted(**about, mode=run.mode, count=len(bound)))
        self._emitter.emit(
            tx, *(MessageBound(**about, message_id=each.id, peer=each.sender) for each in bound)
        )

    def inject(
        self, tx: StoreTransaction, run: OpenRun, handler: SessionHandler, known: Sequence[str]
    ) -> tuple[OpenRun, list[ReadMessage]]:
        """
        Bind the waiting messages to an open run.

        Raises:
            RunLost: the run was ended from outside.

        """
        runs.prove(tx, run)
        queue = self.queue(tx, run.session)
        held = Lease(run.lane_id, run.token, run.owner, isolate=True)
        rows = session_queues.waiting(tx, held, session_queues.ALL, placed=queue.reordered)
        good, bad = self._sort_out(rows, handler, tx.now)
        self._completion.conclude(tx, bad)
        session_queues.update_head(tx, run.lane_id)
        if not good:
            return run, []
        now = runs.add_messages(
            tx, run, [*known, *(each.leased.id for each in good)], [each.leased for each in good]
        )
        self._emit_bound(tx, run, [each.leased for each in good], began=False)
        return now, good


def _oldest(tx: StoreTransaction, lane_id: int, limit: int, but: set[int]) -> list[QueuedItem]:
    found = session_queues.oldest(tx, lane_id, limit)
    return [QueuedItem(seq) for seq in found if seq not in but]


def problem(leased: LeasedMessage, now: Millis, *, spent: bool) -> Settlement | None:
    """Return the settlement of a message that must not reach a run; None for others."""
    if (unfit := leased.undeliverable(now)) is not None:
        return unfit
    if spent:
        error = "its runs never finished: process killed or lease lost"
        return Dead("attempts_spent", error, tried=False)
    return None


def read(leased: LeasedMessage, models: Mapping[str, type]) -> ReadMessage | Settlement:
    """Return a message's frame and body, as the class of its type if there is one."""
    try:
        frame = Frame.accepted(leased.frame)
        if frame.dataref is not None:
            frame = frame.with_stored_body()
        body = decode(frame.data, frame.data_base64, models.get(frame.type), frame.datacontenttype)
        return ReadMessage(leased, frame, body)
    except InvalidMessage as error:
        return unreadable(error)


def _requested_mode(arrival: NewMessage, trusted: Sequence[str]) -> str | None:
    if f'"{WISH}"' not in arrival.frame or arrival.sender not in trusted:
        return None
    try:
        wish = json.loads(arrival.frame).get(WISH)
    except (ValueError, AttributeError):
        return None
    return wish if wish in QUEUE_MODES else None


def text_of(frame: str) -> str:
    """Return a stored frame's body as text, for a line of a summary."""
    try:
        body = json.loads(frame).get("data")
    except (ValueError, AttributeError):
        return "unreadable"
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def exhausted(policy: RetryPolicy, handler: SessionHandler, attempt: int) -> bool:
    """Return whether a message's *attempt*-th run was the last allowed one."""
    return policy.exhausted(attempt) if handler.attempts is None else attempt >= handler.attempts


def metadata(mode: str, messages: Sequence[ReadMessage]) -> dict[str, Any]:
    """Return the metadata about the batch of a run."""
    about = {
        "count": len(messages),
        "event_ids": [each.leased.id for each in messages],
        "strategy": "events",
    }
    if mode == "collect":
        return {"collect_batch": about}
    return {"queue_batch": {"mode": mode} | about} if mode in PREEMPTING else {}


def home_policy(settings: Settings) -> QueuePolicy:
    """Return the default queue policy of sessions."""
    fields: dict[str, Any] = {
        "mode": settings.queue_mode,
        "debounce": settings.queue_debounce,
        "cap": settings.queue_cap,
    }
    fields |= {"overflow": settings.queue_overflow, "aborted": settings.queue_aborted}
    return QueuePolicy().merged(**checked(fields))
