"""Run messages through a batch handler: one claim, one call, one commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from onceward.core.end.received import SettledMessage
from onceward.core.handle.attempt import (
    MessageAttempt,
    Prepared,
    failure,
    find_handler,
    resolve_handler,
    tell,
)
from onceward.core.handle.call import HandlerDeps
from onceward.core.handle.claim import MESSAGE, ClaimRequest, Kind
from onceward.core.handle.commit_batch import CLAIM_WAITS, LaneRest
from onceward.core.handle.invoke import Loop, wait_after
from onceward.core.handle.signatures import Handler, Handlers
from onceward.core.handle.worker import Gates, Worker
from onceward.core.rows import claimable, handler_limits, lanes
from onceward.core.rows.claimable import ReadyLane
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run import engine_loop as engine
from onceward.core.run import recovery
from onceward.errors import Paused, Retry
from onceward.features.batches.context import BatchContext
from onceward.file.environment import disabled_by_environment
from onceward.file.in_flight import ALL_LEASED, NOTE, NOTES, CallNotes
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.events import Event
from onceward.message.frame import Frame
from onceward.message.vocabulary import HANDLED, Dead, RetryAt, Settlement

# How many messages of a batch handler may be claimed, and since when the first of them waits.
WAITING: Final = f"""
SELECT count(*), min(received_at)
  FROM (SELECT b.received_at
          FROM _onceward_lanes
         CROSS JOIN _onceward_inbox AS h ON h.seq = head_seq
         CROSS JOIN _onceward_inbox AS b
            ON b.lane_id = _onceward_lanes.lane_id AND b.state = 'pending'
         WHERE head_seq IS NOT NULL AND due_at IS NULL AND {claimable.ORDINARY}
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

    changed = unfinished = False
    """It changes no lanes but those that it leases."""

    def __init__(self, agent: Handlers, handler: Handler) -> None:
        self._agent, self._handler = agent, handler
        self._admitted = self._closed = False
        self._paused: frozenset[str] = frozenset()

    def read_ahead(self) -> bool:
        """Return False: a batch handler has no key."""
        return False

    def begin(self, tx: StoreTransaction, *, set_limits: bool) -> None:
        """Begin a batch; read which types are paused."""
        self._admitted = self._closed = False
        self._paused = handler_limits.paused(tx.rows) if set_limits else frozenset()

    def fits(self, kind: Kind) -> bool:
        """Return whether this handler handles a message now."""
        mine = find_handler(self._agent.handlers, *kind) is self._handler
        return mine and not handler_limits.is_paused(self._paused, *kind)

    def park(self, tx: StoreTransaction, heads: list[tuple[Any, ...]]) -> bool | None:
        """Park no lane: a batch handler has no key."""
        del tx, heads
        return False

    def order(
        self, tx: StoreTransaction, ready: list[ReadyLane], limit: int
    ) -> Iterable[ReadyLane]:
        """Return the ready lanes."""
        del tx, limit
        return ready

    def admit(
        self, tx: StoreTransaction, lane_id: int, rows: list[tuple[Any, ...]], *, alone: bool
    ) -> int:
        """Return how many rows of a lane belong to the batch."""
        del tx, lane_id
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


@dataclass(eq=False, kw_only=True)
class BatchAttempt(MessageAttempt):
    """One call with the messages of a batch, whose effects are committed together."""

    context: BatchContext
    each: Sequence[Prepared] = ()
    """The messages, prepared; ``ready`` has all their bodies."""

    @property
    def frames(self) -> Sequence[Frame]:
        """The frames of the messages."""
        return [each.frame for each in self.each]

    def keep(self, value: Any) -> Sequence[Settlement]:
        """Keep the writes; return the handler's outcome for each message."""
        self.context._end_call()
        if self.deps.db.foreign_keys:
            self.commits.check_foreign_keys()
        if value is not None:
            msg = "a batch handler must return None: answer with ctx.reply(message, body)"
            raise TypeError(msg)
        return [self._outcome(*call) for call in zip(self.leased, self.each, strict=True)]

    def _outcome(self, leased: LeasedMessage, prepared: Prepared) -> Settlement:
        """Return the handler's outcome for a message; by default it is processed."""
        key, batch = (leased.sender, leased.id), self.context
        if key in batch._rejected:
            return Dead("rejected", batch._rejected[key])
        if key not in batch._retried:
            return HANDLED
        after = batch._retried[key]
        retry = Retry(after=None if after is None else after / 1000)
        return self.after(retry, prepared, leased)

    def fail(self, error: BaseException) -> Sequence[Settlement]:
        """
        Return the settlements after the call raised; the messages of a batch are then tried alone.

        That call does not count as an attempt: each message keeps all its attempts, even if another
        one is at fault.
        """
        if len(self.leased) == 1 or isinstance(error, Paused):
            calls = zip(self.each, self.leased, strict=True)
            return [self.after(error, prepared, leased) for prepared, leased in calls]
        tx = self.commits.join()
        for leased in self.leased:
            lanes.isolate(tx, leased.lane.lane_id, leased.seq)
        policy = self.ready.handler.rules.retry or self.deps.policy
        wait, text = wait_after(error, 1, policy=policy, rng=self.deps.rng)
        again = RetryAt(self.deps.db.now() + wait, text, counted=False)
        return [again] * len(self.leased)


class BatchWorker(Worker):
    """A thread that claims up to ``batch`` messages of one handler and calls it once."""

    def __init__(self, deps: HandlerDeps, agent: Handlers, loop: Loop, *, handler: Handler) -> None:
        gates = Gates(partial(BatchGate, agent, handler), always=True)
        super().__init__(deps, agent, loop, gates=gates)
        self._handler, self._most = handler, handler.rules.batch or 1
        self._within = round(1000 * handler.rules.within)
        self._size = self._most

    # -- claiming ---------------------------------------------------------------------------

    def _idle_for(self, *, nothing_here: bool = False) -> float | None:
        idle = super()._idle_for(nothing_here=True)
        paused_at, ready, *_ = claimable.agenda(self._db.read)
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
        return not others and claimable.agenda(read).ready == claimable.ONLY_SUSPECTS

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
                ended[leased.seq] = failure(self._deps, found.error, found, leased)
            else:
                ready.append((leased, found))
        if ready:
            ended |= self._call_once(ready)
        told = tell(self._deps, self._batch, messages, [ended[each.seq] for each in messages])
        ended = {leased.seq: end for leased, end in zip(messages, told, strict=True)}
        took = None if self._attempt is None else self._attempt.took
        if self._batch.lost:
            return
        listed: list[tuple[SettledMessage, LaneRest, list[Event]]] = []
        for lane in claimed:  # the last message of a lane decides when the lane is claimed again
            for leased in sorted(lane, key=lambda each: isinstance(ended[each.seq], RetryAt)):
                end = ended[leased.seq]
                events = self._events(leased, end, took) if self._hooks._hooks else []
                listed.append((SettledMessage(leased, end), (lane, len(lane)), events))
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

    def _call_once(self, ready: list[tuple[LeasedMessage, Prepared]]) -> dict[int, Settlement]:
        """Call the handler with all bodies; return the settlement of each message, by sequence."""
        contexts = [self._context(leased, each.frame, each.body) for leased, each in ready]
        attempt = self._attempt = BatchAttempt(
            **self._calls,
            own_thread=self._loop.started,
            context=self._deps.complete(BatchContext)(
                contexts, group=self._batch, outbox=self._deps.outbox
            ),
            leased=[leased for leased, _ in ready],
            limit=self._handler.rules.timeout or self._settings.handler_timeout,
            ready=ready[0][1]._replace(body=[each.body for _, each in ready]),
            each=[each for _, each in ready],
        )
        ended = attempt.observed() if self._hooks.observers else attempt.run()
        self._quick = self._quick and not attempt.failed and (attempt.took or 0.0) < CLAIM_WAITS
        return {leased.seq: end for (leased, _), end in zip(ready, ended, strict=True)}


def batch_workers(deps: HandlerDeps, agent: Handlers, loop: Loop) -> list[BatchWorker]:
    """Return a worker for each batch handler of an agent."""
    batched = [each for each in agent.handlers if each.rules.batch is not None]
    return [BatchWorker(deps, agent, loop, handler=each) for each in batched]
