"""Store runs, each a lease of its session's messages, and end them in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.rows import inbox, lanes, limits
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run import recovery
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send import tasks
from onceward.core.send.add import Outbox
from onceward.core.send.block import Transaction
from onceward.core.send.tasks import TaskOutcome
from onceward.errors import RunLost
from onceward.features.runs import session_queues
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.events import RunAborted, RunEnded, RunLeft
from onceward.message.ids import RepeatableIds
from onceward.message.queue_modes import QueuePolicy
from onceward.message.vocabulary import (
    Done,
    QueueMode,
    RetryAt,
    RunState,
    Settlement,
    Waits,
    reason_text,
)

OPEN: Final = """
INSERT INTO _onceward_runs (id, session, mode, lane_id, token, owner, bound, event_ids, began_with,
                            started_at)
VALUES (:id, :session, :mode, :lane, :token, :owner, :bound, :ids, json_array_length(:bound),
        :now)
RETURNING seq
"""
SUMMARY: Final = """
SELECT line, count(*) OVER () FROM _onceward_drops WHERE run_seq = ? ORDER BY seq DESC LIMIT 200
"""
BEFORE: Final = """
SELECT id, state, coalesce(cause, ''), event_ids, consumed, bound, began_with
  FROM _onceward_runs
 WHERE session = :session
   AND seq = (SELECT max(seq) FROM _onceward_runs WHERE session = :session AND seq < :run)
   AND (state IN ('aborted', 'waiting') OR (state = 'failed' AND consumed = 0))
"""
# A run that ended without stored output does not hide the output of the run before it.
PARTIAL: Final = """
SELECT partial FROM _onceward_runs
 WHERE session = :session
   AND seq < :run
   AND partial IS NOT NULL
   AND seq > coalesce((SELECT seq
                         FROM _onceward_runs
                        WHERE session = :session AND seq < :run
                          AND (state = 'done' OR (state = 'failed' AND consumed = 1))
                        ORDER BY seq DESC LIMIT 1), 0)
 ORDER BY seq DESC LIMIT 1
"""
OURS: Final = """
 WHERE seq = :run AND state = 'open' AND token = :token
   AND EXISTS (SELECT 1
                 FROM _onceward_lanes
                WHERE lane_id = :lane AND token = :token AND owner = :owner)
"""
CHECKPOINT: Final = f"UPDATE _onceward_runs SET partial = :partial, checkpoint_at = :now {OURS}"
PROVE: Final = f"SELECT 1 FROM _onceward_runs {OURS}"
MORE: Final = f"UPDATE _onceward_runs SET bound = :bound, event_ids = :ids {OURS}"
END: Final = """
UPDATE _onceward_runs
   SET state = :state, consumed = :consumed, result = :result, cause = :cause, ended_at = :now
 WHERE seq = :run AND state = 'open' AND token = :token
"""
FIELDS: Final = "r.seq, r.id, r.session, r.mode, r.lane_id, r.token, r.owner, r.bound, r.partial"
OPEN_RUNS: Final = f"SELECT {FIELDS} FROM _onceward_runs AS r WHERE r.state = 'open'"
OF_SESSION: Final = f"{OPEN_RUNS} AND session = ?"
BY_ID: Final = f"{OPEN_RUNS} AND id = ?"
CANCELLED: Final = "one of its messages was cancelled"
BOUND_TO: Final = """
SELECT DISTINCT r.id
  FROM _onceward_inbox AS b JOIN _onceward_runs AS r ON r.seq = b.run_seq AND r.state = 'open'
 WHERE b.seq IN (SELECT value FROM json_each(?)) AND b.state = 'pending'
"""
CALL_ENDS_WITHIN: Final = 10_000
"""Maximum milliseconds that the lane waits for the call; a returning call releases it at once."""
LOST: Final = f"""
SELECT {FIELDS}
  FROM _onceward_runs AS r LEFT JOIN _onceward_lanes AS l ON l.lane_id = r.lane_id
 WHERE r.state = 'open' AND (l.lane_id IS NULL OR l.owner IS NULL OR l.token <> r.token)
"""
STILL: Final = "SELECT id FROM _onceward_runs WHERE state = 'open' AND owner = ?"
LEAVE: Final = """
UPDATE _onceward_runs SET left_at = ? WHERE seq = ? AND state = 'aborted' AND left_at IS NULL
"""
RETURNED: Final = """
UPDATE _onceward_runs SET returned_at = ?
 WHERE seq = ? AND left_at IS NOT NULL AND returned_at IS NULL
"""
LEFT: Final = "SELECT owner FROM _onceward_runs WHERE left_at IS NOT NULL AND returned_at IS NULL"
NAMES: Final = """
SELECT b.sender, b.id
  FROM json_each(?) AS j JOIN _onceward_inbox AS b ON b.seq = j.value
 ORDER BY j.key
"""
PRUNE: Final = """
DELETE FROM _onceward_runs
 WHERE seq IN (SELECT seq
                 FROM _onceward_runs
                WHERE ended_at < ? AND ended_at IS NOT NULL
                ORDER BY ended_at, seq LIMIT ?)
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """
    Messages that a full queue dropped before this run.

    ``lines`` has one line per message; if there are very many, only the newest.
    """

    count: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as text to prepend."""
        return "\n".join(
            [
                f"{self.count} earlier messages were dropped because the queue was full:",
                *(f"- {each}" for each in self.lines),
            ]
        )


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The row of the previous run of a session."""

    id: str
    state: RunState
    cause: str
    event_ids: tuple[str, ...]
    consumed: bool
    partial: Any
    began_with: tuple[int, ...]
    """The inbox rows that it began with."""


class OpenRun(NamedTuple):
    """The row of a run that has not ended."""

    seq: int
    id: str
    session: str
    mode: QueueMode
    lane_id: int
    token: int
    owner: str
    bound: str
    partial: str | None

    @property
    def seqs(self) -> list[int]:
        """The inbox rows that it is bound to."""
        return [int(seq) for seq in json.loads(self.bound)]

    @property
    def lease(self) -> Lease:
        """Its lease of its session's queue."""
        return Lease(self.lane_id, self.token, self.owner, isolate=True)

    @property
    def named(self) -> dict[str, object]:
        """The bindings that prove that a write is the run's own."""
        return {"run": self.seq, "token": self.token, "lane": self.lane_id, "owner": self.owner}


def begin(
    tx: StoreTransaction,
    *,
    run_id: str,
    session: str,
    mode: QueueMode,
    held: Lease,
    messages: Sequence[LeasedMessage],
    until: Millis,
) -> OpenRun:
    """
    Lease a session's queue by *held*, bind messages to a new run, and count their attempt.

    Raises:
        LeaseLost: another worker now serves this session.

    """
    lane_id, token, owner = held[:3]
    seqs = [each.seq for each in messages]
    bound = json.dumps(seqs)
    named = {
        "id": run_id,
        "session": session,
        "mode": mode,
        "lane": lane_id,
        "token": token,
        "owner": owner,
        "bound": bound,
        "ids": json.dumps([each.id for each in messages]),
        "now": tx.now,
    }
    free = lane_id, token - 1, 0
    lanes.lease(tx, free, seqs, owner=owner, until=until, noted=True, isolate=max(seqs))
    [(seq,)] = tx.rows(OPEN, named)
    inbox.bind(tx, seq, bound)
    limits.give_drops(tx, seq, session)
    return OpenRun(seq, run_id, session, mode, lane_id, token, owner, bound, None)


def summary(tx: StoreTransaction, run: OpenRun) -> Summary | None:
    """Return the messages that were dropped before a run, or None."""
    rows = tx.rows(SUMMARY, (run.seq,))
    return Summary(rows[0][1], tuple(text for text, _ in reversed(rows))) if rows else None


def previous(tx: StoreTransaction, run: OpenRun) -> EarlierRun | None:
    """Return the session's last run if it was aborted, or failed and is retried."""
    named = {"session": run.session, "run": run.seq}
    for run_id, state, cause, event_ids, consumed, bound, first in tx.rows(BEFORE, named):
        partial = next((json.loads(text) for (text,) in tx.rows(PARTIAL, named)), None)
        ids, seqs = tuple(json.loads(event_ids)), tuple(json.loads(bound)[:first])
        return EarlierRun(run_id, state, cause, ids, bool(consumed), partial, seqs)
    return None


def names(read: Rows, seqs: Sequence[int]) -> list[tuple[str, str]]:
    """Return the senders and ids of a run's messages that are in the inbox."""
    return [(sender, message_id) for sender, message_id in read(NAMES, (json.dumps(seqs),))]


def add_messages(
    tx: StoreTransaction, run: OpenRun, ids: Sequence[str], messages: Sequence[LeasedMessage]
) -> OpenRun:
    """
    Add messages to an open run; *ids* are the ids of all its messages afterwards.

    Raises:
        RunLost: the run is no longer ours.

    """
    seqs = run.seqs + [each.seq for each in messages]
    bound = json.dumps(seqs)
    if not tx.run(MORE, run.named | {"bound": bound, "ids": json.dumps(list(ids))}):
        raise aborted_error(run)
    lanes.take_more(tx, run.lease, seqs)
    inbox.bind(tx, run.seq, bound)
    return run._replace(bound=bound)


def prove(tx: StoreTransaction, run: OpenRun) -> None:
    """Raise RunLost unless the run is open under our lease; it then stays so until COMMIT."""
    if not tx.rows(PROVE, run.named):
        raise aborted_error(run)


def is_open(db: Database, run: OpenRun) -> bool:
    """Return whether a run is open under its lease now."""
    return bool(db.read(PROVE, run.named))


def checkpoint(tx: StoreTransaction, run: OpenRun, partial: str) -> None:
    """Store partial output; raise RunLost if its lease is not held."""
    if not tx.run(CHECKPOINT, run.named | {"partial": partial, "now": tx.now}):
        raise aborted_error(run)


def aborted_error(run: OpenRun) -> RunLost:
    """Return the error for a handler whose run was ended from outside."""
    return RunLost(
        f"run {run.id} of session {run.session!r} was ended from outside: it can commit nothing "
        "more"
    )


def take_over(tx: StoreTransaction, run: OpenRun, owner: str) -> Lease:
    """Take over a run's lease; this statement fences its previous owner off."""
    held = lanes.seize(tx, run.lane_id, owner, run.seqs, until=tx.now)
    return held or run.lease._replace(owner=owner)


def call_returned(tx: StoreTransaction, run: OpenRun) -> None:
    """Release the lane of an aborted run, because its call has returned."""
    _let_go(tx, run)
    tx.run(RETURNED, (tx.now, run.seq))


def leave(tx: StoreTransaction, run: OpenRun) -> bool:
    """
    Release the lane of an aborted run although its call has not returned, and store that.

    Return False if it is already stored, or if the run was not aborted.
    """
    _let_go(tx, run)
    return tx.run(LEAVE, (tx.now, run.seq)) > 0


def _let_go(tx: StoreTransaction, run: OpenRun) -> None:
    lanes.let_go(tx, run.lease._replace(token=run.token + 1))
    session_queues.hurry(tx, run.lane_id)


def still_open(read: Rows, owner: str) -> set[str]:
    """Return the ids of the runs that *owner* holds."""
    return {run_id for (run_id,) in read(STILL, (owner,))}


def calls_left(db: Database) -> int:
    """Return how many aborted calls still run in live processes."""
    return sum(not file_checks.is_dead(owner) for (owner,) in db.ask(LEFT))


def end(
    tx: StoreTransaction,
    run: OpenRun,
    state: RunState,
    *,
    consumed: bool,
    cause: str | None = None,
    result: str | None = None,
) -> None:
    """
    End a run; unbind its unconsumed messages and its summary.

    Raises:
        RunLost: it has already ended.

    """
    named = {
        "state": state,
        "consumed": int(consumed),
        "result": result,
        "cause": cause,
        "now": tx.now,
        "run": run.seq,
        "token": run.token,
    }
    if not tx.run(END, named):
        raise aborted_error(run)
    if not consumed:
        inbox.unbind(tx, run.seq, run.bound)
        limits.take_back_drops(tx, run.seq)


def open_in(tx: StoreTransaction, session: str) -> OpenRun | None:
    """Return the session's open run."""
    rows = tx.rows(OF_SESSION, (session,))
    return OpenRun(*rows[0]) if rows else None


def by_id(tx: StoreTransaction, run_id: str) -> OpenRun | None:
    """Return an open run by its id."""
    rows = tx.rows(BY_ID, (run_id,))
    return OpenRun(*rows[0]) if rows else None


def abandoned(tx: StoreTransaction) -> list[OpenRun]:
    """Return open runs whose lease ran out or was taken: their owners are dead or late."""
    return [OpenRun(*row) for row in tx.rows(LOST)]


def abort_bound(tx: StoreTransaction, seqs: list[int]) -> tuple[()]:
    """Abort the runs of messages; their other messages go back to the head, in order."""
    for (run_id,) in tx.rows(BOUND_TO, (json.dumps(seqs),)):
        run = by_id(tx, run_id)
        if run is None:
            continue
        held = take_over(tx, run, file_checks.owner_name())
        again = RetryAt(tx.now, CANCELLED, counted=False)
        messages = session_queues.of_seqs(tx, run.seqs, held)
        received.apply_settlements(tx, [SettledMessage(each, again) for each in messages])
        end(tx, run, "aborted", consumed=False, cause=CANCELLED)
        lanes.hold(tx, held, run.owner, until=tx.now + CALL_ENDS_WITHIN)
    return ()


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of runs that ended long ago; return how many."""
    return tx.run(PRUNE, (before, limit))


@dataclass(slots=True)
class PendingEffects:
    """Messages and work of a run that are not committed yet."""

    drafts: list[OutgoingMessage] = field(default_factory=list)
    work: list[Callable[[Transaction], object]] = field(default_factory=list)
    ids: RepeatableIds | None = None
    """The ids of what the work sends; None for new ones."""


class RunOutcome(NamedTuple):
    """How a run ended: a settlement for each of its messages, in order."""

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
        outbox: Outbox,
        emitter: EventEmitter,
        owner: str,
        grace: float = 0.0,
    ) -> None:
        self._agent, self._outbox, self._emitter, self._owner = agent, outbox, emitter, owner
        self._grace: Millis = round(1000 * grace)

    def commit(self, tx: StoreTransaction, run: OpenRun, effects: PendingEffects) -> None:
        """
        Write the effects of a run; the caller empties *effects* once they are committed.

        Raises:
            RunLost: the run was ended from outside; roll the transaction back.

        """
        prove(tx, run)
        for draft in effects.drafts:
            self._outbox.add(tx, draft)
        for number, work in enumerate(effects.work):
            ids = None if effects.ids is None else effects.ids.within(str(number))
            yours = Transaction(tx, self._outbox, run.session, ids=ids)
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
        End a run by its outcome: done, or waiting or failed with its messages left for another.

        The caller has proved in this transaction that it holds the run.

        Raises:
            RunLost, LeaseLost: the run was ended from outside; roll the transaction back.

        """
        again = next((s for s in outcome.settlements if isinstance(s, RetryAt)), None)
        done = {type(s) for s in outcome.settlements} <= {Done}
        state: RunState = "done" if done else "waiting" if isinstance(again, Waits) else "failed"
        ended = [
            SettledMessage(message, settlement)
            for message, settlement in zip(messages, outcome.settlements, strict=True)
        ]
        self.conclude(tx, ended, run=run, result=outcome.result, took=outcome.took)
        end(tx, run, state, consumed=again is None, cause=outcome.cause, result=outcome.result)
        self._free(tx, run.session, messages, again)
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
        tx: StoreTransaction, session: str, messages: Sequence[LeasedMessage], again: RetryAt | None
    ) -> None:
        due_at = None if again is None else again.due_at
        lanes.settle(tx, messages[0].lane, rest=[], due_at=due_at)
        if isinstance(again, Waits):
            session_queues.go_on_with(tx, session, [each.seq for each in messages])
        elif due_at is not None:
            session_queues.rest(tx, session, due_at)

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
        End a run from outside; then its holder can commit nothing.

        A preempted run that stored partial output has delivered its messages, if the policy says
        so; all others go back to the head, in order. The session begins no run until the call has
        returned or is abandoned. *lost*: the lease ran out, so the attempt counts against the
        budget, and there is no call to wait for.
        """
        held = take_over(tx, run, self._owner)
        messages = session_queues.of_seqs(tx, run.seqs, held)
        delivered = preempted and policy.aborted == "deliver" and run.partial is not None
        if delivered:
            self._deliver(tx, run, messages, cause)
        else:
            again = RetryAt(tx.now, cause, counted=lost)
            received.apply_settlements(tx, [SettledMessage(message, again) for message in messages])
        end(tx, run, "aborted", consumed=delivered, cause=cause)
        if lost:
            lanes.settle(tx, held, rest=[], due_at=recovery.rests_until(tx, held.lane_id))
        else:
            # A coroutine gets the grace twice; a call that returns or is abandoned releases the
            # lane.
            lanes.hold(tx, held, run.owner, until=tx.now + 2 * self._grace)
        self._emitter.emit(tx, RunAborted(
            agent=self._agent, at=tx.now, session=run.session, run_id=run.id, cause=cause,
            consumed=delivered,
        ))  # fmt: skip

    def leave(self, tx: StoreTransaction, run: OpenRun) -> None:
        """Store that an aborted call has not returned within the grace."""
        if leave(tx, run):
            event = RunLeft(agent=self._agent, at=tx.now, session=run.session, run_id=run.id)
            self._emitter.emit(tx, event)

    def _deliver(
        self, tx: StoreTransaction, run: OpenRun, messages: Sequence[LeasedMessage], cause: str
    ) -> None:
        """End the messages of an aborted run as processed; send results to tasks' callers."""
        done = Done(reason=reason_text("delivered to an aborted run", cause)[:500])
        received.apply_settlements(tx, [SettledMessage(message, done) for message in messages])
        for message in messages:
            tasks.tell(tx, self._outbox, message, TaskOutcome("aborted", cause), run)

    def conclude(
        self,
        tx: StoreTransaction,
        ended: Sequence[SettledMessage],
        *,
        run: OpenRun | None = None,
        result: str | None = None,
        took: float | None = None,
    ) -> None:
        """Settle messages; send the callers of ended tasks their results."""
        received.apply_settlements(tx, ended)
        for leased, settlement in ended:
            if tasks.NAMES_CALLER in leased.frame and not isinstance(settlement, RetryAt):
                end = tasks.outcome_of(settlement, result)
                tasks.tell(tx, self._outbox, leased, end, run)
        self._emitter.lease_ended(tx, ended, took)


def settlements(
    messages: Sequence[LeasedMessage], settle: Callable[[LeasedMessage], Settlement]
) -> tuple[Settlement, ...]:
    """Return a settlement for each message of a failed run; all retries get the latest due time."""
    found = [settle(each) for each in messages]
    latest = max((each.due_at for each in found if isinstance(each, RetryAt)), default=0)
    return tuple(
        replace(each, due_at=latest) if isinstance(each, RetryAt) else each for each in found
    )


FIRST_MESSAGE: Final = """
SELECT b.sender, b.id
  FROM _onceward_runs AS r JOIN _onceward_inbox AS b ON b.seq = r.bound ->> '$[0]'
 WHERE r.seq = ?
"""


def first_message(read: Rows, run: int) -> list[tuple[str, str]]:
    """Return sender and id of a run's first message; nothing if it was pruned."""
    return read(FIRST_MESSAGE, (run,))
