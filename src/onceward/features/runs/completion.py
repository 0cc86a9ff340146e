"""End runs in one transaction: settle their messages, put others back, tell their callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle import inbox, lanes
from onceward.core.handle.inbox import LeasedMessage, SettledMessage
from onceward.core.requests import results
from onceward.core.requests.results import TaskOutcome
from onceward.core.send.block import Transaction
from onceward.core.send.outbox import OutgoingMessage
from onceward.core.send.sender import Sender
from onceward.features.runs import runs, session_queues
from onceward.features.runs.runs import OpenRun
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.events import RunEnded, RunLeft, RunWasAborted
from onceward.message.queue_modes import QueuePolicy
from onceward.message.reasons import reason_text
from onceward.message.states import Done, RetryAt, Settlement
from onceward.message.vocabulary import RunState


@dataclass(slots=True)
class PendingEffects:
    """Messages and work of a run that are not committed yet."""

    drafts: list[OutgoingMessage] = field(default_factory=list)
    work: list[Callable[[Transaction], object]] = field(default_factory=list)


class RunOutcome(NamedTuple):
    """How a run ended: a settlement for each of its messages, in their order."""

    settlements: Sequence[Settlement]
    result: str | None = None
    """Return value of the handler, as JSON."""
    cause: str | None = None
    took: float | None = None
    """Seconds that the handler ran."""


class RunCompletion:
    """Ends runs, by their own outcome or from outside."""

    def __init__(
        self,
        agent: str,
        *,
        sender: Sender,
        emitter: EventEmitter,
        owner: str,
        grace: float = 0.0,
    ) -> None:
        self._agent, self._sender, self._emitter, self._owner = agent, sender, emitter, owner
        self._grace: Millis = round(1000 * grace)

    def commit(self, tx: StoreTransaction, run: OpenRun, effects: PendingEffects) -> None:
        """
        Write the effects of a run; the caller empties *effects* once they are committed.

        Raises:
            RunAborted: the run was ended from outside; roll the transaction back.

        """
        runs.prove(tx, run)
        for draft in effects.drafts:
            self._sender.add(tx, draft)
        for work in effects.work:
            yours = Transaction(tx, self._sender, run.session)
            work(yours)
            yours._finish()

    def finish(
        self,
        tx: StoreTransaction,
        run: OpenRun,
        messages: Sequence[LeasedMessage],
        outcome: RunOutcome,
    ) -> None:
        """
        End a run by its outcome: done, or failed with its messages left for another attempt.

        The caller has proved, in this transaction, that it holds the run.

        Raises:
            RunAborted, LeaseLost: the run was ended from outside; roll the transaction back.

        """
        again = next((s for s in outcome.settlements if isinstance(s, RetryAt)), None)
        done = {type(s) for s in outcome.settlements} <= {Done}
        state: RunState = "done" if done else "failed"
        ended = [
            SettledMessage(message, settlement)
            for message, settlement in zip(messages, outcome.settlements, strict=True)
        ]
        self.conclude(tx, ended, run=run, result=outcome.result, took=outcome.took)
        runs.end(tx, run, state, consumed=again is None, cause=outcome.cause, result=outcome.result)
        self._free(tx, run.session, messages[0], None if again is None else again.due_at)
        self._emitter.emit(
            tx,
            RunEnded(
                agent=self._agent,
                at=tx.now,
                session=run.session,
                run_id=run.id,
                state=state,
                cause=outcome.cause or "",
            ),
        )

    @staticmethod
    def _free(
        tx: StoreTransaction, session: str, leased: LeasedMessage, due_at: Millis | None
    ) -> None:
        lanes.settle(tx, leased.lane, rest=[], due_at=due_at)
        if due_at is not None:
            tx.run(session_queues.REST, (due_at, session))

    def abort(
        self,
        tx: StoreTransaction,
        run: OpenRun,
        policy: QueuePolicy,
        cause: str,
        *,
        preempted: bool,
        lost: bool = False,
    ) -> None:
        """
        End a run from outside; from now on its holder can commit nothing.

        A preempted run that stored partial output has delivered its messages,
        if the policy says so; all others go back to the head, in order. The
        session begins no run until the call has returned or is left.
        *lost* says that the lease ran out: the attempt counts against the budget,
        and no call is waited for.
        """
        held = runs.take_over(tx, run, self._owner)
        messages = session_queues.of_seqs(tx, run.seqs, held)
        delivered = preempted and policy.aborted == "deliver" and run.partial is not None
        if delivered:
            self._deliver(tx, run, messages, cause)
        else:
            again = RetryAt(tx.now, cause, counted=lost)
            inbox.apply_settlements(tx, [SettledMessage(message, again) for message in messages])
        runs.end(tx, run, "aborted", consumed=delivered, cause=cause)
        if lost:
            lanes.settle(tx, held, rest=[], due_at=None)
        else:
            # A coroutine gets the grace twice; a call that returns or is left lets the lane go.
            runs.hold(tx, held, run.owner, tx.now + 2 * self._grace)
        self._emitter.emit(tx, RunWasAborted(
            agent=self._agent, at=tx.now, session=run.session, run_id=run.id, cause=cause,
            consumed=delivered,
        ))  # fmt: skip

    def leave(self, tx: StoreTransaction, run: OpenRun) -> None:
        """Store that an aborted call has not returned within the grace."""
        if runs.leave(tx, run):
            event = RunLeft(agent=self._agent, at=tx.now, session=run.session, run_id=run.id)
            self._emitter.emit(tx, event)

    def _deliver(
        self, tx: StoreTransaction, run: OpenRun, messages: Sequence[LeasedMessage], cause: str
    ) -> None:
        """End the messages of an aborted run as processed; tell the callers of tasks."""
        done = Done(reason=reason_text("delivered to an aborted run", cause)[:500])
        inbox.apply_settlements(tx, [SettledMessage(message, done) for message in messages])
        for message in messages:
            results.tell(tx, self._sender, message, TaskOutcome("aborted", cause), run)

    def conclude(
        self,
        tx: StoreTransaction,
        ended: Sequence[SettledMessage],
        *,
        run: OpenRun | None = None,
        result: str | None = None,
        took: float | None = None,
    ) -> None:
        """Settle messages; tell the callers of those that are dispatched tasks and have ended."""
        inbox.apply_settlements(tx, ended)
        for leased, settlement in ended:
            if results.NAMES_CALLER in leased.frame and not isinstance(settlement, RetryAt):
                end = results.outcome_of(settlement, result)
                results.tell(tx, self._sender, leased, end, run)
        self._emitter.lease_ended(tx, ended, took)


def settlements(
    messages: Sequence[LeasedMessage], settle: Callable[[LeasedMessage], Settlement]
) -> tuple[Settlement, ...]:
    """Return a settlement for each message of a failed run; all retries are due at the latest."""
    found = [settle(each) for each in messages]
    latest = max((each.due_at for each in found if isinstance(each, RetryAt)), default=0)
    return tuple(
        RetryAt(latest, each.error, counted=each.counted) if isinstance(each, RetryAt) else each
        for each in found
    )
