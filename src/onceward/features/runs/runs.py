"""Store runs: each binds messages of a session to one call of its handler, under a lease."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from onceward.core.handle.inbox import LeasedMessage
from onceward.core.handle.lanes import Lease
from onceward.errors import LeaseLost, RunAborted
from onceward.features.runs import session_queues
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import QueueMode, RunState

LEASE: Final = """
UPDATE _onceward_lanes
   SET owner = :owner, token = token + 1, due_at = :until, leased_seqs = :bound,
       isolate_upto_seq = max(isolate_upto_seq, :last)
 WHERE lane_id = :lane AND token = :token AND owner IS NULL
"""
BIND: Final = """
UPDATE _onceward_inbox SET run_seq = :run, attempts = attempts + 1
 WHERE seq IN (SELECT value FROM json_each(:bound)) AND state = 'pending' AND run_seq IS NULL
"""
OPEN: Final = """
INSERT INTO _onceward_runs (id, session, mode, lane_id, token, owner, bound, event_ids, started_at)
VALUES (:id, :session, :mode, :lane, :token, :owner, :bound, :ids, :now)
RETURNING seq
"""
LINES: Final = """
UPDATE _onceward_drops SET run_seq = ?
 WHERE policy = 'summarize' AND scope = 'queue' AND session = ? AND run_seq IS NULL
"""
SUMMARY: Final = """
SELECT line, count(*) OVER () FROM _onceward_drops WHERE run_seq = ? ORDER BY seq DESC LIMIT 200
"""
UNTOLD: Final = "UPDATE _onceward_drops SET run_seq = NULL WHERE run_seq = ?"
BEFORE: Final = """
SELECT id, state, coalesce(cause, ''), event_ids, consumed FROM _onceward_runs
 WHERE session = :session
   AND seq = (SELECT max(seq) FROM _onceward_runs WHERE session = :session AND seq < :run)
   AND (state = 'aborted' OR (state = 'failed' AND consumed = 0))
"""
# A run that is ended before it has stored anything does not hide what the run before it stored.
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
CLAIM_MORE: Final = """
UPDATE _onceward_lanes
   SET leased_seqs = ?, isolate_upto_seq = max(isolate_upto_seq, ?)
 WHERE lane_id = ? AND token = ? AND owner = ?
"""
END: Final = """
UPDATE _onceward_runs
   SET state = :state, consumed = :consumed, result = :result, cause = :cause, ended_at = :now
 WHERE seq = :run AND state = 'open' AND token = :token
"""
UNBIND: Final = """
UPDATE _onceward_inbox
   SET run_seq = NULL
 WHERE seq IN (SELECT value FROM json_each(:bound)) AND run_seq = :run AND state = 'pending'
"""
OF_SESSION: Final = """
SELECT seq, id, session, mode, lane_id, token, owner, bound, partial
  FROM _onceward_runs
 WHERE session = ? AND state = 'open'
"""
BY_ID: Final = """
SELECT seq, id, session, mode, lane_id, token, owner, bound, partial
  FROM _onceward_runs
 WHERE id = ? AND state = 'open'
"""
LOST: Final = """
SELECT r.seq, r.id, r.session, r.mode, r.lane_id, r.token, r.owner, r.bound, r.partial
  FROM _onceward_runs AS r LEFT JOIN _onceward_lanes AS l ON l.lane_id = r.lane_id
 WHERE r.state = 'open' AND (l.lane_id IS NULL OR l.owner IS NULL OR l.token <> r.token)
"""
STILL: Final = "SELECT id FROM _onceward_runs WHERE state = 'open' AND owner = ?"
TAKE_OVER: Final = """
UPDATE _onceward_lanes
   SET owner = :owner, token = token + 1, due_at = :now, leased_seqs = :bound
 WHERE lane_id = :lane
RETURNING token
"""
# The lane of an aborted run stays leased, for no message, until its call has returned.
HOLD: Final = """
UPDATE _onceward_lanes
   SET head_seq = (SELECT min(seq)
                     FROM _onceward_inbox
                    WHERE lane_id = _onceward_lanes.lane_id AND state = 'pending'),
       owner = :holder, leased_seqs = '[]', due_at = :until
 WHERE lane_id = :lane AND token = :token AND owner = :owner
"""
LET_GO: Final = """
UPDATE _onceward_lanes SET owner = NULL, leased_seqs = NULL, due_at = NULL
 WHERE lane_id = ? AND token = ? AND owner = ? AND leased_seqs = '[]'
"""
LEAVE: Final = """
UPDATE _onceward_runs SET left_at = ? WHERE seq = ? AND state = 'aborted' AND left_at IS NULL
"""
RETURNED: Final = """
UPDATE _onceward_runs SET returned_at = ?
 WHERE seq = ? AND left_at IS NOT NULL AND returned_at IS NULL
"""
LEFT: Final = "SELECT owner FROM _onceward_runs WHERE left_at IS NOT NULL AND returned_at IS NULL"
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

    ``lines`` has one line per message; of very many only the newest.
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
    """The row of the run just before another one of its session."""

    id: str
    state: RunState
    cause: str
    event_ids: tuple[str, ...]
    consumed: bool
    partial: Any


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
    def named(self) -> dict[str, object]:
        """The bindings that prove a write is the run's own."""
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
    Lease a session's queue as *held* says, bind messages to a new run, and count their attempt.

    Raises:
        LeaseLost: another worker serves this session by now.

    """
    lane_id, token, owner, _ = held
    seqs = [each.seq for each in messages]
    bound = json.dumps(seqs)
    if not tx.run(
        LEASE,
        {
            "owner": owner,
            "until": until,
            "bound": bound,
            "last": max(seqs),
            "lane": lane_id,
            "token": token - 1,
        },
    ):
        msg = f"the queue of {session!r} was leased in between"
        raise LeaseLost(msg)
    named = {
        "id": run_id,
        "session": session,
        "mode": mode,
        "lane": lane_id,
        "token": token,
        "owner": owner,
        "bound": bound,
    }
    [(seq,)] = tx.rows(
        OPEN, named | {"ids": json.dumps([each.id for each in messages]), "now": tx.now}
    )
    tx.run(BIND, {"run": seq, "bound": bound})
    tx.run(LINES, (seq, session))
    return OpenRun(seq, run_id, session, mode, lane_id, token, owner, bound, None)


def summary(tx: StoreTransaction, run: OpenRun) -> Summary | None:
    """Return what was dropped before a run, None where nothing was."""
    rows = tx.rows(SUMMARY, (run.seq,))
    return Summary(rows[0][1], tuple(text for text, _ in reversed(rows))) if rows else None


def previous(tx: StoreTransaction, run: OpenRun) -> EarlierRun | None:
    """Return the session's last run if it was aborted, or failed and is tried again."""
    named = {"session": run.session, "run": run.seq}
    for run_id, state, cause, event_ids, consumed in tx.rows(BEFORE, named):
        partial = next((json.loads(text) for (text,) in tx.rows(PARTIAL, named)), None)
        ids = tuple(json.loads(event_ids))
        return EarlierRun(run_id, state, cause, ids, bool(consumed), partial)
    return None


def add_messages(
    tx: StoreTransaction, run: OpenRun, ids: Sequence[str], messages: Sequence[LeasedMessage]
) -> OpenRun:
    """
    Add messages to an open run; *ids* are those of all its messages then.

    Raises:
        RunAborted: the run is not ours any more.

    """
    seqs = run.seqs + [each.seq for each in messages]
    bound = json.dumps(seqs)
    if not tx.run(MORE, run.named | {"bound": bound, "ids": json.dumps(list(ids))}):
        raise aborted_error(run)
    tx.run(CLAIM_MORE, (bound, max(seqs), run.lane_id, run.token, run.owner))
    tx.run(BIND, {"run": run.seq, "bound": bound})
    return run._replace(bound=bound)


def prove(tx: StoreTransaction, run: OpenRun) -> None:
    """Raise RunAborted unless the run is open under our lease, as it then is until COMMIT."""
    if not tx.rows(PROVE, run.named):
        raise aborted_error(run)


def is_open(db: Database, run: OpenRun) -> bool:
    """Return whether a run is open under its lease at this moment."""
    return bool(db.read(PROVE, run.named))


def checkpoint(tx: StoreTransaction, run: OpenRun, partial: str) -> None:
    """Store partial output; raise RunAborted where its lease does not hold."""
    if not tx.run(CHECKPOINT, run.named | {"partial": partial, "now": tx.now}):
        raise aborted_error(run)


def aborted_error(run: OpenRun) -> RunAborted:
    """Return the error for a handler whose run was ended from outside."""
    return RunAborted(
        f"run {run.id} of session {run.session!r} was ended from outside:"
        " nothing more of it can be committed"
    )


def take_over(tx: StoreTransaction, run: OpenRun, owner: str) -> Lease:
    """Take a run's lease over; its previous owner is fenced off from this statement on."""
    rows = tx.rows(
        TAKE_OVER, {"owner": owner, "now": tx.now, "bound": run.bound, "lane": run.lane_id}
    )
    return Lease(run.lane_id, rows[0][0] if rows else run.token, owner, isolate=True)


def hold(tx: StoreTransaction, held: Lease, holder: str, until: Millis) -> None:
    """Lease a lane, until *until* at the latest, to the owner of the call that was aborted."""
    named = {"holder": holder, "until": until}
    tx.run(HOLD, named | {"lane": held.lane_id, "token": held.token, "owner": held.owner})


def call_returned(tx: StoreTransaction, run: OpenRun) -> None:
    """Let the lane of an aborted run go, now that its call has returned."""
    _let_go(tx, run)
    tx.run(RETURNED, (tx.now, run.seq))


def leave(tx: StoreTransaction, run: OpenRun) -> bool:
    """
    Let the lane of an aborted run go, though its call has not returned, and store that.

    Returns False where it was stored before, or where the run was not aborted.
    """
    _let_go(tx, run)
    return tx.run(LEAVE, (tx.now, run.seq)) > 0


def _let_go(tx: StoreTransaction, run: OpenRun) -> None:
    tx.run(LET_GO, (run.lane_id, run.token + 1, run.owner))
    tx.run(session_queues.HURRY, (run.lane_id,))


def calls_left(db: Database) -> int:
    """Return how many aborted calls still run in processes that live."""
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
    End a run; unconsumed messages, and the summary it was given, are unbound again.

    Raises:
        RunAborted: it has ended already.

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
        tx.run(UNBIND, {"run": run.seq, "bound": run.bound})
        tx.run(UNTOLD, (run.seq,))


def open_in(tx: StoreTransaction, session: str) -> OpenRun | None:
    """Return the session's open run."""
    rows = tx.rows(OF_SESSION, (session,))
    return OpenRun(*rows[0]) if rows else None


def by_id(tx: StoreTransaction, run_id: str) -> OpenRun | None:
    """Return an open run by its id."""
    rows = tx.rows(BY_ID, (run_id,))
    return OpenRun(*rows[0]) if rows else None


def abandoned(tx: StoreTransaction) -> list[OpenRun]:
    """Return open runs whose lease ran out or was taken: the owners are dead or too late."""
    return [OpenRun(*row) for row in tx.rows(LOST)]


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of runs that ended long ago; return how many."""
    return tx.run(PRUNE, (before, limit))
