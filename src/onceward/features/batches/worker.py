"""Run messages through a batch handler: one claim, one call, one commit."""

from __future__ import annotations

import os
from concurrent.futures import CancelledError
from typing import Any, Final, cast

from onceward.core.end.received import SettledMessage
from onceward.core.handle.claim import MESSAGE, ClaimRequest, Kind
from onceward.core.handle.commit_batch import CLAIM_WAITS, LaneRest
from onceward.core.handle.context import Context
from onceward.core.handle.invoke import (
    Loop,
    Prepared,
    call,
    find_handler,
    log_failure,
    resolve_handler,
    wait_after,
)
from onceward.core.handle.signatures import Handler, Handlers
from onceward.core.handle.steps import CONTEXT, HandlerDeps
from onceward.core.handle.worker import RunningCall, Worker
from onceward.core.rows import lanes
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run import engine_loop as engine
from onceward.core.run import recovery
from onceward.core.send import requests
from onceward.core.send.requests import Suspended
from onceward.errors import OncewardError, Paused, Retry
from onceward.features.batches.context import BatchContext
from onceward.file import forks
from onceward.file.environment import disabled_by_environment
from onceward.file.in_flight import ALL_LEASED, NOTE, NOTES, CallNotes
from onceward.file.transaction import Rows, StoreTransaction
from onceward.hooks import Attempt
from onceward.message.clock import Millis, monotonic
from onceward.message.events import Event
from onceward.message.vocabulary import HANDLED, Dead, RetryAt, Settlement, Waits

# How many messages of a batch handler may be claimed, and since when the first of them waits.
WAITING: Final = f"""
SELECT count(*), min(received_at)
  FROM (SELECT b.received_at
          FROM _onceward_lanes
         CROSS JOIN _onceward_inbox AS h ON h.seq = head_seq
         CROSS JOIN _onceward_inbox AS b
            ON b.lane_id = _onceward_lanes.lane_id AND b.state = 'pending'
         WHERE head_seq IS NOT NULL AND due_at IS NULL AND {lanes.ORDINARY}
           AND (h.type = :pattern OR h.topic = :pattern OR :passes)
           AND (b.type = :pattern OR b.topic = :pattern)
         LIMIT :batch)
"""
ATTEMPT: Final = LeasedMessage._fields.index("attempt") - 1
"""Column of the attempt's number in a row of a claim."""


class BatchGate:
    """
    Admits the messages of one batch handler.

    A message that is retried, or claimed in isolation, is a batch of its own: if it fails again, or
    kills its process, it does not affect other messages.
    """

    def __init__(self, agent: Handlers, handler: Handler) -> None:
        self._agent, self._handler = agent, handler
        self._admitted = self._closed = False

    def begin(self, now: Millis) -> None:
        """Begin a batch."""
        del now
        self._admitted = self._closed = False

    def fits(self, kind: Kind) -> bool:
        """Return whether this handler handles a message."""
        return find_handler(self._agent.handlers, *kind) is self._handler

    def admit(self, tx: StoreTransaction, rows: list[tuple[Any, ...]], *, alone: bool) -> int:
        """Return how many rows of a lane belong to the batch."""
        del tx
        if self._closed or not self.fits(rows[0][MESSAGE:]):
            return 0
        if alone or rows[0][ATTEMPT] > 1:
            self._closed = not self._admitted
            return 0 if self._admitted else 1
        self._admitted = True
        for index, row in enumerate(rows):
            if row[ATTEMPT] > 1 or not self.fits(row[MESSAGE:]):
                return index
        return len(rows)

    def end(self, tx: StoreTransaction) -> None:
        """Do nothing: a batch has no rate."""

    def call(self, seq: int) -> None:
        """Do nothing: a batch is claimed as a whole."""

    def give_back(self, tx: StoreTransaction, seqs: set[int]) -> None:
        """Do nothing: a batch has no slot."""

    def leave(self) -> None:
        """Do nothing: a batch has no slot."""

    def wait(self, now: Millis) -> float | None:
        """Return None: only a commit brings more."""
        del now
        return None


class BatchWorker(Worker):
    """A thread that claims up to ``batch`` messages of one handler and calls it once."""

    def __init__(self, deps: HandlerDeps, agent: Handlers, loop: Loop, *, handler: Handler) -> None:
        super().__init__(deps, agent, loop, gate=BatchGate(agent, handler))
        self._handler, self._most = handler, handler.rules.batch or 1
        self._within = round(1000 * handler.rules.within)
        self._size = self._most

    # -- claiming ---------------------------------------------------------------------------

    def _idle_for(self, *, nothing_here: bool = False) -> float | None:
        idle = super()._idle_for(nothing_here=True)
        paused_at, ready, _ = lanes.agenda(self._db.read)
        if paused_at is not None or disabled_by_environment():
            return engine.MAX_IDLE_SECONDS
        if self._left_leases and not nothing_here:
            return 0.0
        wait = self._until_full(self._db.read) if ready else None
        if wait == 0.0 and nothing_here:  # other workers were faster, or runs serve them
            wait = engine.MAX_IDLE_SECONDS
        return min((each for each in (idle, wait) if each is not None), default=None)

    def _until_full(self, read: Rows) -> float | None:
        """Return the seconds until a batch is full or its first message has waited long enough."""
        passes = self._types is not None  # readers get the other types of a lane
        named = {"pattern": self._handler.pattern, "batch": self._most, "passes": passes}
        [(count, since)] = read(WAITING, named)
        if not count:
            return 0.0 if self._may_take_suspects(read) else None
        left = 0 if count >= self._most else since + self._within - self._db.now()
        return float(max(0, min(left, self._within)) / 1000)

    def _may_take_suspects(self, read: Rows) -> bool:
        """Return whether only messages that may have killed their process wait."""
        others = self._db.in_flight.busy - {self.owner}
        return not others and lanes.agenda(read).ready == lanes.ONLY_SUSPECTS

    def _claim(self, tx: StoreTransaction, request: ClaimRequest) -> list[list[LeasedMessage]]:
        """Claim a batch; if none is due, only wake the due lanes."""
        if not self._left_leases:
            recovery.wake_due(tx)
            if self._until_full(tx.rows) != 0.0:
                return []
        return super()._claim(tx, request)

    def _adapt(self, total: int, took: float) -> None:
        """Leave the size of a claim as it is."""

    # -- handling ---------------------------------------------------------------------------

    def _handle_claimed(self) -> None:
        """Handle the claim in one call; after a pause or a stop, leave it for later."""
        if self._loop.stopping.is_set() or self._paused():
            return
        with self._beginning:
            claimed = [*self._unbegun]
            self._unbegun.clear()
        self._handle_batch(claimed)

    def _give_back_rest(self) -> None:
        super()._give_back_rest()
        self._size = self._most

    def _handle_batch(self, claimed: list[list[LeasedMessage]]) -> None:
        """Call the handler once, and commit its effects and the settlement of each message."""
        now, messages = self._db.now(), [each for lane in claimed for each in lane]
        if self._notes is not None:
            self._note_batch(self._notes, messages)
        ended: dict[int, Settlement] = {}
        ready: list[tuple[LeasedMessage, Prepared]] = []
        for leased in messages:
            found = resolve_handler(self._agent, leased, now, self._policy)
            if not isinstance(found, Prepared):
                ended[leased.seq] = found
            elif found.error is not None:
                ended[leased.seq] = self._failed(found.error, found, leased)
            else:
                ready.append((leased, found))
        if ready:
            ended |= self._observed(ready)
        ended = self._told_all(messages, ended)
        if self._batch.lost:
            return
        listed: list[tuple[SettledMessage, LaneRest, list[Event]]] = []
        for lane in claimed:  # the last message of a lane decides when the lane is claimed again
            for leased in sorted(lane, key=lambda each: isinstance(ended[each.seq], RetryAt)):
                events = self._events(leased, ended[leased.seq]) if self._hooks._hooks else []
                settled = SettledMessage(leased, ended[leased.seq])
                listed.append((settled, (lane, len(lane)), events))
        self._batch.end_all(listed)

    def _note_batch(self, notes: CallNotes, messages: list[LeasedMessage]) -> None:
        """Note the call of a batch before it begins, as ``Worker`` notes the call of a message."""
        calls = [(each.lane.lane_id, each.lane.token, each.seq) for each in messages]
        if len(calls) > NOTES:  # then each lease names its messages
            self._batch.step_aside()
            calls = sorted({(lane, token, ALL_LEASED) for lane, token, _ in calls})
        notes.turn, notes.count = notes.turn + 1, min(NOTES, len(calls))
        noted = b"".join(NOTE.pack(notes.turn, *each) for each in calls[:NOTES])
        try:
            os.pwrite(notes.file.handle, noted, notes.at)
        except OSError as error:
            self._end_notes(error)

    def _observed(self, ready: list[tuple[LeasedMessage, Prepared]]) -> dict[int, Settlement]:
        """Call the handler, in an attempt for observers if there are any."""
        if not self._hooks.observers:
            return self._call_once(ready)
        from onceward.observed import ObservedAttempt  # noqa: PLC0415 - rarely needed

        attempt = Attempt(
            agent=self._db.agent,
            session=ready[0][0].session,
            frames=tuple(each.frame for _, each in ready),
            number=ready[0][0].attempt,
        )
        with ObservedAttempt(self._hooks.observers, attempt) as observed:
            self._raised = None
            ended = self._call_once(ready)
            observed.settle(tuple(ended.values()), self._raised)
            self._raised = None
        return ended

    def _call_once(self, ready: list[tuple[LeasedMessage, Prepared]]) -> dict[int, Settlement]:
        """Call the handler with all bodies; return the settlement of each message, by sequence."""
        contexts = [
            Context(
                leased,
                each.frame,
                each.body,
                group=self._batch,
                outbox=self._outbox,
                extend=self._extend,
                steps=self._steps,
            )
            for leased, each in ready
        ]
        batch = BatchContext(contexts, group=self._batch, outbox=self._outbox)
        limit = self._handler.timeout or self._settings.handler_timeout
        self._took = None
        self._run_now = RunningCall(monotonic(), limit, cast("Context", batch))
        try:
            self._call_handler([each.body for _, each in ready], ready[0][1], batch)
        except Suspended as waiting:
            return self._all_wait(waiting, ready)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - every error settles them
            self._batch.undo()
            self._quick, self._raised = False, error
            log_failure(error, self._db.agent, ready[0][0], ready[0][1].frame.type)
            return self._all_failed(error, ready)
        finally:
            # A failure has measured the call.
            self._took = self._took or monotonic() - self._run_now.started
            self._quick = self._quick and self._took < CLAIM_WAITS
            self._run_now = None
            batch._close()
        return {leased.seq: self._verdict(batch, leased, each) for leased, each in ready}

    def _call_handler(self, bodies: list[Any], first: Prepared, batch: BatchContext) -> None:
        # The handler's writes to its file are committed with the settlements.
        self._db.writer.thread_transactions.bind(self._batch)
        context = CONTEXT.set(batch)
        try:
            all_of = first._replace(body=bodies)
            answer = call(all_of, cast("Context", batch), self._handler_loop, self._watched)
            if forks.count != self._forks:
                forks.leave()
            batch._end_call()
            if self._db.foreign_keys:
                self._batch.check_foreign_keys()
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._raise_cause(error)
        finally:
            CONTEXT.reset(context)
            self._db.writer.thread_transactions.unbind()
        if answer is not None:
            msg = "a batch handler must return None: answer with ctx.reply(message, body)"
            raise TypeError(msg)

    def _all_wait(
        self, waiting: Suspended, ready: list[tuple[LeasedMessage, Prepared]]
    ) -> dict[int, Settlement]:
        """Return retries of all messages of a call, until a step of one may be called again."""
        self._batch.undo()
        again = Waits(waiting.until(self._batch.join()), str(waiting), counted=False)
        return dict.fromkeys((leased.seq for leased, _ in ready), again)

    def _all_failed(
        self, error: BaseException, ready: list[tuple[LeasedMessage, Prepared]]
    ) -> dict[int, Settlement]:
        """
        Return the settlements after a call raised; the messages of a batch are then tried alone.

        That call does not count as an attempt: each message keeps all its attempts, even if another
        one is at fault.
        """
        if len(ready) == 1 or isinstance(error, Paused):
            return {leased.seq: self._failed(error, each, leased) for leased, each in ready}
        tx = self._batch.join()
        for leased, _ in ready:
            lanes.isolate(tx, leased.lane.lane_id, leased.seq)
        policy = self._handler.rules.retry or self._policy
        wait, text = wait_after(error, 1, policy=policy, rng=self._rng)
        again = RetryAt(self._db.now() + wait, text, counted=False)
        return dict.fromkeys((leased.seq for leased, _ in ready), again)

    def _verdict(
        self, batch: BatchContext, leased: LeasedMessage, prepared: Prepared
    ) -> Settlement:
        """Return the handler's outcome for a message; by default it is processed."""
        key = (leased.sender, leased.id)
        if key in batch._rejected:
            return Dead("rejected", batch._rejected[key])
        if key not in batch._retried:
            return HANDLED
        after = batch._retried[key]
        retry = Retry(after=None if after is None else after / 1000)
        return self._failed(retry, prepared, leased)

    def _told_all(
        self, messages: list[LeasedMessage], ended: dict[int, Settlement]
    ) -> dict[int, Settlement]:
        """
        Send the callers of dispatched tasks their results, in the same commit.

        If the outbox has no capacity for a result, the whole batch is undone.
        """
        tasks = [
            each
            for each in messages
            if not isinstance(ended[each.seq], RetryAt) and requests.task_of(each) is not None
        ]
        try:
            for each in tasks:
                outcome = requests.outcome_of(ended[each.seq])
                requests.tell(self._batch.join(), self._outbox, each, outcome)
        except OncewardError as error:
            self._batch.undo()
            due_at = self._db.now() + round(1000 * engine.MAX_IDLE_SECONDS)
            return {each.seq: RetryAt(due_at, str(error), counted=False) for each in messages}
        return ended


def batch_workers(deps: HandlerDeps, agent: Handlers, loop: Loop) -> list[BatchWorker]:
    """Return a worker for each batch handler of an agent."""
    batched = [each for each in agent.handlers if each.rules.batch is not None]
    return [BatchWorker(deps, agent, loop, handler=each) for each in batched]
