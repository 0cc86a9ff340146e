"""
Let the last message of a key win: it is handled when no other has come for a time.

A claim moves the messages of a handler with ``debounce`` from their lanes to the lane of their key,
drops the earlier ones of that lane, and lets it rest until the last one is old enough. So nothing
besides that message is stored, and a message of another key in the same lane does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.core.end import received
from onceward.core.rows import inbox, lanes
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

NO_SENDER: Final = ""
"""Sender of the lanes of keys: no agent has this name."""
LATER: Final = "debounced: a later message with the same key has come"
IS_OF_KEY: Final = f"SELECT 1 FROM _onceward_lanes WHERE lane_id = ? AND sender = '{NO_SENDER}'"
WAITING: Final = """
SELECT b.seq, b.received_at
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.lane_id = l.lane_id
 WHERE l.lane_id = ? AND b.state = 'pending'
   AND b.seq NOT IN (SELECT value FROM json_each(coalesce(l.leased_seqs, '[]')))
 ORDER BY b.seq
"""


def is_of_key(tx: StoreTransaction, lane_id: int) -> bool:
    """Return whether a lane is that of a key."""
    return bool(tx.rows(IS_OF_KEY, (lane_id,)))


def move(
    tx: StoreTransaction, lane: tuple[int, int], group: str, session: str, seqs: Sequence[int]
) -> int:
    """Move messages of a lane (with its rank) to the lane of their key, and return that lane."""
    lane_id, rank = lane
    target = lanes.open_lane(tx, NO_SENDER, group, rank, session=session)
    inbox.move(tx, target, seqs)
    lanes.set_heads(tx, [lane_id, target], moved=True)
    return target


def settle(tx: StoreTransaction, lane_id: int, span: Millis) -> bool:
    """Drop all waiting messages of a key except the last; return whether that is old enough."""
    waiting = tx.rows(WAITING, (lane_id,))
    received.end_unclaimed(tx, [seq for seq, _ in waiting[:-1]], "dropped", LATER)
    due_at = waiting[-1][1] + span if waiting else tx.now
    if due_at > tx.now:
        lanes.rest(tx, lane_id, due_at)
    return bool(waiting) and due_at <= tx.now
