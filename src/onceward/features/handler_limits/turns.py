"""
Let groups of messages take turns: those of a handler with a key, by the key of each message.

Invariant: each lane that is parked for a group has a row of that group and rank. A claim parks the
lanes whose heads have a key, then leases the first lane of the groups in the order of their turns,
one message of each group, and gives those groups their next turns. So a claim reads as many rows as
it leases, however many messages wait; groups that run as often as allowed wait, and there are
at most as many of them as running calls. A group that has reached its rate rests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from onceward.core.rows.claimable import ORDINARY
from onceward.features.handler_limits import rates
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED

PAGE: Final = 50
SEPARATOR: Final = "\t"
"""Stands between the pattern of a handler, which cannot hold one, and the key."""
ADD: Final = """
INSERT INTO _onceward_turns (group_name, rank)
SELECT value ->> 0, value ->> 1 FROM json_each(?)
 WHERE true
    ON CONFLICT (group_name, rank) DO NOTHING
"""
# Groups that had their turns come after all others, in the order of the list.
NEXT: Final = """
INSERT OR REPLACE INTO _onceward_turns (group_name, rank)
SELECT group_name, rank
  FROM json_each(?) AS ended CROSS JOIN _onceward_turns ON turn = ended.value
"""
EMPTY: Final = f"""
DELETE FROM _onceward_turns AS t
 WHERE turn IN (SELECT value FROM json_each(?))
   AND NOT EXISTS (SELECT 1
                     FROM _onceward_lanes
                    WHERE group_name = t.group_name AND due_at = {PARKED} AND rank = t.rank)
"""
REST: Final = """
UPDATE _onceward_turns SET due_at = :due_at, rests_since_at = :now
 WHERE group_name = :group AND rank = :rank
"""
# Rests of a clock that was set back are over, too.
WAKE: Final = """
UPDATE _onceward_turns SET due_at = NULL, rests_since_at = NULL
 WHERE due_at <= :now OR rests_since_at > :now
"""
NEXT_DUE: Final = "SELECT min(due_at) FROM _onceward_turns WHERE due_at IS NOT NULL"
FRAMES: Final = """
SELECT seq, frame FROM _onceward_inbox WHERE seq IN (SELECT value FROM json_each(?))
"""
LAST: Final = "SELECT max(turn) FROM _onceward_turns"
RUNNING: Final = f"""
SELECT count(*) FROM _onceward_lanes AS r
 WHERE r.group_name = :group AND r.due_at < {PARKED} AND r.owner IS NOT NULL
"""
READY: Final = f"""
SELECT t.rank, t.turn, t.group_name, _onceward_lanes.lane_id, token, isolate_upto_seq,
       _onceward_lanes.session IS NULL, head_seq, {ORDINARY},
       (SELECT count(*) FROM _onceward_lanes AS r
         WHERE r.group_name = t.group_name AND r.due_at < {PARKED} AND r.owner IS NOT NULL),
       tokens, filled_at
  FROM _onceward_turns AS t
  LEFT JOIN _onceward_rate_limits AS b ON b.name = '{rates.GROUPS}:' || t.group_name
  LEFT JOIN _onceward_lanes ON lane_id = (
       SELECT lane_id FROM _onceward_lanes
        WHERE group_name = t.group_name AND due_at = {PARKED} AND rank = t.rank
        ORDER BY head_seq LIMIT 1)
 WHERE t.due_at IS NULL AND (t.rank, t.turn) > (:rank, :turn) AND t.turn <= :last
 ORDER BY t.rank, t.turn
 LIMIT :limit
"""


class GroupTurn(NamedTuple):
    """The turn of a group, and its first lane; without a lane the group is empty."""

    rank: int
    turn: int
    group: str
    lane_id: int | None
    token: int
    careful_to: int
    shared: int
    head_seq: int
    ordinary: int
    """Whether no session with runs takes the head."""
    running: int
    """How many workers of the file, in any process, have a lane of the group."""
    tokens: float | None
    """Calls that were left in the bucket of the group; None if it has none."""
    filled_at: Millis | None


def name_of(pattern: str, key: str) -> str:
    """Return the name of a handler's group."""
    return f"{pattern}{SEPARATOR}{key}"


def pattern_of(group: str) -> str:
    """Return the pattern of the handler of a group."""
    return group.partition(SEPARATOR)[0]


def add(tx: StoreTransaction, groups: Sequence[tuple[str, int]]) -> None:
    """Give groups a turn after all others, unless they have one."""
    tx.run(ADD, (json.dumps(groups),))


def frames(tx: StoreTransaction, seqs: Sequence[int]) -> dict[int, str]:
    """Return the frames of messages, by sequence."""
    return dict(tx.rows(FRAMES, (json.dumps(seqs),)))


def ready(tx: StoreTransaction) -> Iterator[GroupTurn]:
    """Yield the groups that do not rest, each once, the most urgent first, then by turn."""
    [(last,)] = tx.rows(LAST, ())
    after = {"rank": -1, "turn": 0}
    while last is not None:
        rows = tx.rows(READY, after | {"last": last, "limit": PAGE})
        for row in rows:
            turn = GroupTurn(*row)
            after = {"rank": turn.rank, "turn": turn.turn}
            yield turn
        if len(rows) < PAGE:
            return


def again(tx: StoreTransaction, turn: GroupTurn) -> GroupTurn | None:
    """Return a turn with the lane that is its group's first now; None if the group rests."""
    named = {"rank": turn.rank, "turn": turn.turn - 1, "last": turn.turn, "limit": 1}
    return next((GroupTurn(*row) for row in tx.rows(READY, named)), None)


def end(tx: StoreTransaction, ended: Sequence[int]) -> None:
    """End the turns of groups whose first lanes are leased, or gone."""
    tx.run(EMPTY, (json.dumps(ended),))
    tx.run(NEXT, (json.dumps(ended),))


def rest(tx: StoreTransaction, turn: GroupTurn, due_at: Millis) -> None:
    """Let a group rest until its next call is allowed."""
    tx.run(REST, {"group": turn.group, "rank": turn.rank, "due_at": due_at, "now": tx.now})


def wake(tx: StoreTransaction) -> None:
    """End the rests that are over."""
    tx.run(WAKE, {"now": tx.now})


def next_due(tx: StoreTransaction) -> Millis | None:
    """Return when the first rest ends; None without one."""
    [(due_at,)] = tx.rows(NEXT_DUE, ())
    return None if due_at is None else int(due_at)


def running(tx: StoreTransaction, group: str) -> int:
    """Return how many workers of the file, in any process, have a lane of a group."""
    [(count,)] = tx.rows(RUNNING, {"group": group})
    return int(count)
