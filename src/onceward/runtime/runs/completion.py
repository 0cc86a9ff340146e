"""Ends runs: what they consumed is settled, what they did not goes back, and their callers are told, all in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.db.transaction import Tx
from onceward.model.clock import Millis
from onceward.model.events import RunAborted, RunEnded
from onceward.model.queue_modes import QueuePolicy
from onceward.model.states import Again, Done, Settlement
from onceward.runtime import results
from onceward.runtime.event_emitter import Teller, ending
from onceward.runtime.fanout import Publisher
from onceward.runtime.results import End
from onceward.runtime.sender import Draft
from onceward.runtime.transaction import Transaction
from onceward.store import inbox, lanes, runs, session_queues
from onceward.store.inbox import Ended, Leased
from onceward.store.runs import OpenRun


@dataclass(slots=True)
class Effects:
    """What a run has said and not yet committed."""

    drafts: list[Draft] = field(default_factory=list)
    work: list[Callable[[Transaction], object]] = field(default_factory=list)


class Outcome(NamedTuple):
    """How a run ended: a verdict for each of its messages, in their order."""

    settlements: Sequence[Settlement]
    result: str | None = None
    """What the handler returned, as JSON."""
    cause: str | None = None


class Closing:
    """Knows how runs end, of their own or from outside."""

    def __init__(self, agent: str, *, sender: Publisher, teller: Teller, owner: str) -> None:
        self._agent, self._sender, self._teller, self._owner = agent, sender, teller, owner

    def commit(self, tx: Tx, run: OpenRun, effects: Effects) -> None:
        """
        Carry out what a run has said so far; the caller empties *effects* once that is committed.

        Raises:
            RunAborted: the run is not ours any more; roll the transaction back.

        """
        runs.prove(tx, run)
        for draft in effects.drafts:
            self._sender.put(tx, draft)
        for work in effects.work:
            yours = Transaction(tx, self._sender, run.session)
            work(yours)
            yours.finish()

    def finish(self, tx: Tx, run: OpenRun, messages: Sequence[Leased], outcome: Outcome) -> None:
        """
        End a run by its own verdicts: done, or failed with its messages waiting for another attempt.

        The caller has proved, in this transaction, that the run is its own.

        Raises:
            RunAborted, LeaseLost: the run is not ours any more; roll the transaction back.

        """
        again = next((s for s in outcome.settlements if isinstance(s, Again)), None)
        state = "done" if all(isinstance(s, Done) for s in outcome.settlements) else "failed"
        ended = [
            Ended(message, settlement)
            for message, settlement in zip(messages, outcome.settlements, strict=True)
        ]
        self.conclude(tx, ended, run=run, result=outcome.result)
        runs.end(tx, run, state, consumed=again is None, cause=outcome.cause, result=outcome.result)
        self._free(tx, run.session, messages[0], None if again is None else again.due_at)
        self._teller.tell(
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
    def _free(tx: Tx, session: str, leased: Leased, due_at: Millis | None) -> None:
        lanes.settle(tx, leased.lane, rest=[], due_at=due_at)
        if due_at is not None:
            tx.run(session_queues.REST, (due_at, session))

    def abort(
        self,
        tx: Tx,
        run: OpenRun,
        policy: QueuePolicy,
        cause: str,
        *,
        preempted: bool,
        counted: bool = False,
    ) -> None:
        """
        End a run from outside; from here on its holder can commit nothing.

        A preempted run that stored partial output has delivered its messages,
        if the policy says so; everything else goes back to the head, in order.
        *counted* says that the attempt counts against the budget.
        """
        held = runs.take_over(tx, run, self._owner)
        messages = session_queues.of_seqs(tx, run.seqs, held)
        delivered = preempted and policy.aborted == "deliver" and run.partial is not None
        if delivered:
            inbox.conclude(tx, [Ended(message, Done()) for message in messages])
            session_queues.explain(
                tx,
                [
                    (f"delivered to an aborted run: {cause}"[:500], message.seq)
                    for message in messages
                ],
            )
            self._tell_callers(tx, messages, [End("aborted", cause)] * len(messages), run)
        else:
            inbox.conclude(
                tx, [Ended(message, Again(tx.now, cause, counted=counted)) for message in messages]
            )
        runs.end(tx, run, "aborted", consumed=delivered, cause=cause)
        lanes.settle(tx, held, rest=[], due_at=None)
        self._teller.tell(
            tx,
            RunAborted(
                agent=self._agent,
                at=tx.now,
                session=run.session,
                run_id=run.id,
                cause=cause,
                consumed=delivered,
            ),
        )

    def conclude(
        self,
        tx: Tx,
        ended: Sequence[Ended],
        *,
        run: OpenRun | None = None,
        result: str | None = None,
    ) -> None:
        """Settle messages, and tell the callers of those that were dispatched tasks and have come to their end."""
        inbox.conclude(tx, ended)
        over = [each for each in ended if not isinstance(each.settlement, Again)]
        self._tell_callers(
            tx, [e.leased for e in over], [results.end_of(e.settlement, result) for e in over], run
        )
        self._teller.tell(
            tx, *(ending(e.leased, e.settlement, agent=self._agent, at=tx.now) for e in ended)
        )

    def _tell_callers(
        self, tx: Tx, messages: Sequence[Leased], ends: Sequence[End], run: OpenRun | None
    ) -> None:
        for leased, end in zip(messages, ends, strict=True):
            results.tell(tx, self._sender, leased, end, run)


def verdicts(
    messages: Sequence[Leased], judge: Callable[[Leased], Settlement]
) -> tuple[Settlement, ...]:
    """Return a verdict for each message of a failed run; together they wait for one moment, the latest."""
    found = [judge(each) for each in messages]
    latest = max((each.due_at for each in found if isinstance(each, Again)), default=0)
    return tuple(
        Again(latest, each.error, counted=each.counted) if isinstance(each, Again) else each
        for each in found
    )
