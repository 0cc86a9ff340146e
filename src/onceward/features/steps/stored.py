"""Store the steps of a message, each separately, under the lease of the message."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from onceward.core.handle.call import CallHome
from onceward.errors import InvalidArgument, LeaseLost
from onceward.features.steps import awaited
from onceward.file.sql_parts import orphaned
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import StepState

OF_MESSAGE: Final = """
SELECT name, version, ordinal, state, attempts, arguments, media, result, error, due_at, bytes,
       awaits
  FROM _onceward_steps
 WHERE sender = ? AND message_id = ? AND scope = ?
 ORDER BY seq
"""
# The storing statement proves the lease: a late worker changes nothing.
STORE: Final = """
INSERT INTO _onceward_steps (sender, message_id, scope, name, version, ordinal, state, attempts,
                             arguments, media, result, error, bytes, awaits, due_at,
                             started_at, ended_at)
SELECT b.sender, b.id, :scope, :name, :version, :ordinal, :state, :attempts,
       :arguments, :media, :result, :error, :bytes, :awaits, :due_at, :started_at, :now
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.seq = :seq AND b.state = 'pending'
 WHERE l.lane_id = :lane AND l.token = :token AND l.owner = :owner
ON CONFLICT (sender, message_id, scope, name, version, ordinal) DO UPDATE
   SET state = excluded.state, attempts = excluded.attempts, arguments = excluded.arguments,
       media = excluded.media, result = excluded.result, error = excluded.error,
       bytes = excluded.bytes, due_at = excluded.due_at, ended_at = excluded.ended_at
 WHERE state <> 'done'
"""
HELD: Final = """
SELECT 1
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.seq = :seq AND b.state = 'pending'
 WHERE l.lane_id = :lane AND l.token = :token AND l.owner = :owner
"""
SHOWN: Final = """
SELECT seq, name, version, ordinal
  FROM _onceward_steps
 WHERE sender = :sender AND message_id = :id
 ORDER BY seq
"""
FORGET: Final = """
DELETE FROM _onceward_steps WHERE sender = :sender AND message_id = :id AND seq >= :first
"""
PRUNE: Final = orphaned("_onceward_steps", "started_at")


class StepName(NamedTuple):
    """The name of a step within its message; the ordinal counts from 1."""

    name: str
    version: str
    ordinal: int

    def __str__(self) -> str:
        """Return it in the form of error texts."""
        ordinal = f"#{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.name}{ordinal}" + (f" ({self.version})" if self.version else "")


class StepRecord(NamedTuple):
    """A stored step."""

    state: StepState
    attempts: int
    arguments: str
    """Digests of its arguments, as JSON by position or name."""
    media: str | None = None
    result: str | None = None
    """Its result as JSON."""
    error: str | None = None
    due_at: Millis | None = None
    """When its function may be called again."""
    bytes: int = 0
    awaits: str | None = None
    """Type of the message that it waits for."""


def of_message(read: Rows, sender: str, message_id: str, scope: str) -> dict[StepName, StepRecord]:
    """Return the stored steps of a message, or of a run that began with it."""
    rows = read(OF_MESSAGE, (sender, message_id, scope))
    return {StepName(*row[:3]): StepRecord(*row[3:]) for row in rows}


def store(
    tx: StoreTransaction, home: CallHome, name: StepName, record: StepRecord, started_at: Millis
) -> None:
    """
    Store the outcome of a step.

    Raises:
        LeaseLost: another worker handles the message; roll the transaction back.

    """
    lane, token, owner = home.lease[:3]
    bindings: dict[str, Any] = {
        "scope": home.scope,
        "seq": home.leased.seq,
        "lane": lane,
        "token": token,
        "owner": owner,
        "started_at": started_at,
        "now": tx.now,
    }
    bindings.update(zip(name._fields, name, strict=True))
    bindings.update(zip(record._fields, record, strict=True))
    if not tx.run(STORE, bindings):
        raise LeaseLost(f"the result of step {name} was not stored: another worker has the message")


def prove(tx: StoreTransaction, home: CallHome) -> None:
    """
    Prove that the lease of a call is held.

    Raises:
        LeaseLost: another worker handles the message; roll the transaction back.

    """
    lane, token, owner = home.lease[:3]
    bindings = {"seq": home.leased.seq, "lane": lane, "token": token, "owner": owner}
    if not tx.rows(HELD, bindings):
        raise LeaseLost(f"nothing was stored for message {home.leased.id}: another worker has it")


def forget(tx: StoreTransaction, *, sender: str, message_id: str, step: str | None) -> None:
    """
    Delete the steps of a message, all or from *step* on, so that they are called again.

    Raises:
        InvalidArgument: the message has no such step; nothing was deleted.

    """
    of = {"sender": sender, "id": message_id}
    first = 0
    if step is not None:
        known = {_shown(*row): seq for seq, *row in tx.rows(SHOWN, of)}
        if step not in known:
            told = ", ".join(known) or "none"
            raise InvalidArgument(f"message {message_id} has no step {step}: there are {told}")
        first = known[step]
    tx.run(FORGET, of | {"first": first})


def _shown(name: str, version: str, ordinal: int) -> str:
    return str(StepName(name, version, ordinal))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the steps whose messages no longer exist; return how many."""
    gone = tx.run(PRUNE, {"before": before, "limit": limit})
    return gone or awaited.prune(tx, before=before, limit=limit)
