"""
Lease messages to workers that may not handle all of them now.

A lane whose head has to wait stays where it is: it is neither leased nor written, so
that a message that waits costs no commit, and lanes behind it are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, Protocol

from onceward.core.handle import lanes
from onceward.core.handle.inbox import ClaimRequest, LeasedMessage
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

READY_KINDS: Final = f"""
SELECT _onceward_lanes.lane_id, token, isolate_upto_seq, _onceward_lanes.session IS NULL,
       _onceward_lanes.rank, head_seq, h.type, h.topic
  FROM _onceward_lanes CROSS JOIN _onceward_inbox AS h ON h.seq = head_seq
 WHERE head_seq IS NOT NULL AND due_at IS NULL AND {lanes.ORDINARY}
   AND (_onceward_lanes.rank, head_seq) > (:rank, :seq)
 ORDER BY _onceward_lanes.rank, head_seq
 LIMIT :limit
"""
NEXT_KINDS: Final = """
SELECT seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at, type, topic
  FROM _onceward_inbox
 WHERE lane_id = :lane AND state = 'pending'
   AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
 ORDER BY seq LIMIT :limit
"""
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
MESSAGE: Final = len(LeasedMessage._fields) - 1
"""Columns of a row that make a leased message; type and topic follow."""
PAGE: Final = 10_000
"""Most lanes that are read at once."""
Kind = tuple[str, str | None]
"""Type and topic of a message."""


class ClaimGate(Protocol):
    """Decides which messages a worker may claim now."""

    def begin(self, now: Millis) -> None:
        """Forget what a claim before this one decided: it was rolled back, or its round ended."""

    def fits(self, kind: Kind) -> bool:
        """Return whether a message may be claimed now, as far as can be seen without the file."""

    def admit(self, tx: StoreTransaction, rows: list[tuple[Any, ...]], *, alone: bool) -> int:
        """
        Return how many of a lane's next rows (``NEXT_KINDS``) are claimed, from the first on.

        *alone* says that the row is claimed in isolation, as one that may kill its process.
        """

    def end(self, tx: StoreTransaction) -> None:
        """Write down, in the claim's transaction, what was admitted."""


def claim(
    tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate, *, owner: str, until: Millis
) -> list[list[LeasedMessage]]:
    """Lease lanes as ``inbox.claim`` does, and of each only what *gate* admits."""
    lanes.wake_due(tx)
    gate.begin(tx.now)
    claimed: list[list[LeasedMessage]] = []
    left = wanted.messages
    for lane_id, token, careful_to, shared in _ready(tx, wanted, gate):
        if left <= 0:
            break
        rows = _next(tx, wanted, lane_id, left)
        if shared and rows:
            rows = lanes.before_runs(tx, rows)
        alone = bool(rows) and rows[0][0] <= careful_to
        rows = rows[:1] if alone else rows
        rows = rows[: gate.admit(tx, rows, alone=alone)] if rows else rows
        if rows:
            seqs = [row[0] for row in rows]
            claimable = (lane_id, token, careful_to)
            held = lanes.lease(tx, claimable, seqs, owner=owner, until=until)
            claimed.append([LeasedMessage(held, *row[:MESSAGE]) for row in rows])
            left -= len(rows)
    gate.end(tx)
    return claimed


def _next(
    tx: StoreTransaction, wanted: ClaimRequest, lane_id: int, limit: int
) -> list[tuple[Any, ...]]:
    types = None if wanted.types is None else json.dumps(wanted.types)
    return tx.rows(NEXT_KINDS, {"lane": lane_id, "types": types, "limit": limit})


def _ready(
    tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate
) -> list[tuple[int, int, int, int]]:
    """Return the lanes to look at; their heads fit, unless other types may be passed over."""
    if wanted.types is not None:
        found = lanes.ready(tx, wanted.lanes)
    else:
        found = []
        for lane in _fitting(tx, wanted.lanes, gate):
            found.append(lane)
            if len(found) >= wanted.lanes:
                break
    return [lane[:4] for lane in lanes.in_turn(found, wanted.served)]


def _fitting(
    tx: StoreTransaction, limit: int, gate: ClaimGate
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the ready lanes whose heads fit, in pages that grow."""
    rank, seq, more = -1, 0, True
    while more:
        rows = tx.rows(READY_KINDS, {"rank": rank, "seq": seq, "limit": limit})
        for row in rows:
            rank, seq = row[4:6]
            if gate.fits(row[6:]):
                yield row[:5]
        more, limit = len(rows) == limit, min(10 * limit, PAGE)
