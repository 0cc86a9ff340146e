"""
Find who holds lanes: the leases of each owner, the registered workers, and calls left undone.

A worker is registered while it may handle messages whose claim is not committed yet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED

LANE_FIELDS: Final = "lane_id, token, owner, leased_seqs, isolate_upto_seq, late_at, sender"
LANES: Final = f"SELECT {LANE_FIELDS} FROM _onceward_lanes"
DUE: Final = f"{LANES} WHERE due_at <= ?"
LEASED: Final = f"{LANES} WHERE lane_id = ? AND owner IS NOT NULL"
LEASED_BY: Final = f"{LANES} WHERE due_at < {PARKED} AND owner = ?"
# Noted calls whose claim was never committed: their lane still has the token from before. A call
# with an id is of a message that was not stored then; it may be now, or have ended.
UNDONE: Final = """
SELECT l.lane_id, l.token, j.value ->> 3, b.seq
  FROM json_each(?) AS j
  JOIN _onceward_lanes AS l ON l.lane_id = j.value ->> 0 AND l.token = (j.value ->> 1) - 1
  LEFT JOIN _onceward_inbox AS b
    ON b.seq = CASE j.value ->> 3
               WHEN '' THEN j.value ->> 2
               ELSE (SELECT seq
                       FROM _onceward_inbox
                      WHERE sender = l.sender AND id = j.value ->> 3) END
 WHERE l.owner IS NULL AND coalesce(b.state, 'pending') = 'pending'
   AND CASE j.value ->> 3
       WHEN '' THEN b.lane_id = l.lane_id
       ELSE NOT EXISTS (SELECT 1
                          FROM _onceward_processed_messages AS p
                         WHERE p.sender = l.sender AND p.message_id = j.value ->> 3) END
"""
OWNERS: Final = f"""
SELECT owner FROM _onceward_lanes WHERE due_at < {PARKED} AND owner IS NOT NULL
UNION
SELECT owner FROM _onceward_workers
"""
REGISTER: Final = "INSERT INTO _onceward_workers (owner) VALUES (?) ON CONFLICT DO NOTHING"
UNREGISTER: Final = "DELETE FROM _onceward_workers WHERE owner = ?"
WORKERS: Final = "SELECT owner FROM _onceward_workers"


class LaneRow(NamedTuple):
    """A leased or backed-off lane."""

    lane_id: int
    token: int
    owner: str | None
    leased_seqs: str | None
    careful_to: int
    late_at: Millis | None
    """Since when its owner is known to be late; 0: since it gave the lane up."""
    sender: str | None

    @property
    def seqs(self) -> list[int]:
        """The messages of the lease."""
        return [int(seq) for seq in json.loads(self.leased_seqs or "[]")]


def due(tx: StoreTransaction) -> list[LaneRow]:
    """Return the lanes whose backoff or lease has run out."""
    return [LaneRow(*row) for row in tx.rows(DUE, (tx.now,))]


def lease_of(tx: StoreTransaction, lane_id: int) -> LaneRow | None:
    """Return the lease of a lane; None if no owner has it."""
    return next((LaneRow(*row) for row in tx.rows(LEASED, (lane_id,))), None)


def held_by(tx: StoreTransaction, owner: str) -> list[LaneRow]:
    """Return the lanes that an owner has leased."""
    return [LaneRow(*row) for row in tx.rows(LEASED_BY, (owner,))]


def undone(tx: StoreTransaction, calls: Sequence[object]) -> list[tuple[Any, ...]]:
    """
    Return (lane, token, id, sequence) of those noted calls whose claim was rolled back.

    The id is empty for a message that was stored then, the sequence None for one that is not yet.
    """
    return tx.rows(UNDONE, (json.dumps(calls),))


def register(tx: StoreTransaction, owner: str) -> None:
    """Record that *owner* may handle messages before it commits their claim."""
    tx.run(REGISTER, (owner,))


def unregister(tx: StoreTransaction, owner: str) -> bool:
    """Forget a worker without an uncommitted claim; return whether it was registered."""
    return tx.run(UNREGISTER, (owner,)) > 0


def owners(read: Rows) -> list[str]:
    """Return the owners of leases, and the registered workers."""
    return [owner for (owner,) in read(OWNERS, ())]


def workers(read: Rows) -> set[str]:
    """Return the registered workers."""
    return {owner for (owner,) in read(WORKERS, ())}
