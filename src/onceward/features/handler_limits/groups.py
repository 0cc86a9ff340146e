"""Admit messages of handlers with a key: by limits of each group, and by the turns of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import merge
from typing import Any, Final

from onceward.core.handle.claim import MESSAGE, Kind
from onceward.core.handle.signatures import Handler
from onceward.core.rows import claimable, inbox, lanes
from onceward.core.rows.claimable import ReadyLane
from onceward.features.handler_limits import debounce, rates, turns
from onceward.features.handler_limits.group_keys import GroupKeys
from onceward.features.handler_limits.limits import SEQ, AdmittedCall, HandlerLimits, WorkerGate
from onceward.features.handler_limits.turns import GroupTurn
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

PARKS: Final = 100
"""Lanes that one claim parks, or takes out of groups; their keys are read under the file's lock."""
FIRST: Final = 20
"""Claims in a row that only park lanes, so that a new group is known before others go on."""
READS: Final = 5
"""Bodies that a worker reads for their groups between two claims."""
PAGE: Final = 100
"""Messages of a lane that are moved at once to the lanes of their keys."""
SESSION: Final = 3
FRAME: Final = 4
"""Column of a message's frame in a row of a claim."""


class GroupGate(WorkerGate):
    """The gate of an agent of which a handler has a key."""

    def __init__(self, limits: HandlerLimits, keys: GroupKeys) -> None:
        super().__init__(limits)
        self._keys = keys
        self._lacking: list[tuple[Handler, str]] = []
        """Handlers and frames of the messages whose bodies must be read for their groups."""
        self._turns: dict[int, GroupTurn] = {}
        """The turns whose lanes this claim may lease, by head."""
        self._ended: list[int] = []
        """The turns that end with this claim, in their order."""
        self._running_of: dict[str, int] = {}
        """Running calls of the groups that this claim has looked at, its own included."""
        self._parked = self._rested = 0
        """How many lanes this claim has parked or moved, and how many turns rest."""
        self._parking = 0
        """How many claims in a row have only parked lanes."""
        self._side = 0
        """Whether ready lanes come before those of groups: claims alternate."""
        self._until: dict[str, Millis] = {}
        """When the next call of a bucket may begin that this claim found empty."""
        self._next_at: Millis | None = None
        """When the first group that rests may go on."""

    def wait(self, now: Millis) -> float | None:
        """Return the seconds until a claim may find messages again."""
        found, at = super().wait(now), self._next_at
        if at is None:
            return found
        left = max(0.0, (at - now) / 1000)
        return left if found is None else min(found, left)

    @property
    def changed(self) -> bool:
        """Whether the claim changed lanes, also if it leased none."""
        return self._parked + self._freed + self._rested > 0

    @property
    def unfinished(self) -> bool:
        """Whether the claim changed so many that it ended before it had looked at all lanes."""
        return self._parked >= PARKS or self._freed >= PARKS

    def begin(self, tx: StoreTransaction, *, set_limits: bool) -> None:
        """Forget the decisions of an earlier claim, which was rolled back; read set limits."""
        super().begin(tx, set_limits=set_limits)
        self._turns.clear()
        self._ended.clear()
        self._running_of.clear()
        self._until.clear()
        self._parked = self._rested = 0
        self._side = 1 - self._side

    def read_ahead(self) -> bool:
        """Read the bodies that the last claim lacked; return whether the groups are known now."""
        lacking, self._lacking = self._lacking, []
        return sum([self._keys.read(*each) for each in lacking[:READS]]) > 0

    def _group_of(self, handler: Handler, text: str) -> str | None:
        """Return the group of a message; None, and a note, if its body must be read first."""
        found = self._keys.group_of(handler, text)
        if found is None:
            self._lacking.append((handler, text))
        return found

    def fits(self, kind: Kind) -> bool:
        """Return whether a message may be claimed before its group is known."""
        handler = self._limits.handler_of(kind)
        grouped = handler is not None and handler.rules.is_grouped
        return not grouped and super().fits(kind)

    def park(self, tx: StoreTransaction, heads: list[tuple[Any, ...]]) -> bool | None:
        """Let the heads of handlers with a key wait for the turns of their groups."""
        open_ = [row for row in heads if not self._limits.is_paused(row[6:])]
        found = [(row, self._limits.handler_of(row[6:])) for row in open_]
        grouped = [(row, each) for row, each in found if each and each.rules.is_grouped]
        grouped = grouped[: PARKS - self._parked]
        if not grouped:
            return False
        moved = sum(self._debounce(tx, *each) for each in grouped if each[1].rules.debounce) > 0
        frames = turns.frames(tx, [row[5] for row, _ in grouped])
        keyed = [
            (row[0], row[4], self._group_of(each, frames[row[5]]))
            for row, each in grouped
            if not each.rules.debounce
        ]
        known = [(lane_id, rank, group) for lane_id, rank, group in keyed if group is not None]
        self._park(tx, known)
        self._parked += len(grouped) - (len(keyed) - len(known))
        return None if self._parked >= PARKS else moved

    def _park(self, tx: StoreTransaction, placed: list[tuple[int, int, str]]) -> None:
        """Let lanes (with rank and group) wait for the turns of their groups."""
        if placed:
            lanes.park(tx, [(lane_id, group) for lane_id, _, group in placed])
            turns.add(tx, list(dict.fromkeys((group, rank) for _, rank, group in placed)))

    def _debounce(self, tx: StoreTransaction, row: tuple[Any, ...], handler: Handler) -> bool:
        """Move the first messages of a lane to the lanes of their keys; return whether it did."""
        lane_id, shared, rank = row[0], row[3], row[4]
        if debounce.is_of_key(tx, lane_id):
            head = inbox.row(tx, row[5])
            if debounce.settle(tx, lane_id, handler.rules.debounce or 0):
                group = self._group_of(handler, head[FRAME])
                self._park(tx, [] if group is None else [(lane_id, rank, group)])
            return False
        rows = inbox.next_kinds(tx, lane_id, PAGE, None)
        rows = claimable.before_runs(tx, rows) if shared else rows
        places: dict[tuple[str, str], tuple[Handler, list[int]]] = {}
        for each in rows:
            found = self._limits.handler_of(each[MESSAGE:])
            if found is None or not found.rules.debounce:
                break
            group = self._group_of(found, each[FRAME])
            if group is None:
                break
            places.setdefault((group, each[SESSION]), (found, []))[1].append(each[SEQ])
        for (group, session), (found, seqs) in places.items():
            target = debounce.move(tx, (lane_id, rank), group, session, seqs)
            if debounce.settle(tx, target, found.rules.debounce or 0):
                self._park(tx, [(target, rank, group)])
            self._parked += len(seqs)
        return bool(places)

    def order(
        self, tx: StoreTransaction, ready: list[ReadyLane], limit: int
    ) -> Iterable[ReadyLane]:
        """Return ready lanes and first lanes of groups by rank, in alternation."""
        del limit
        if self._parked >= PARKS and self._parking < FIRST:
            self._parking += 1
            return ()
        self._parking = 0
        turns.wake(tx)
        plain = ((each[4], n, self._side, each) for n, each in enumerate(ready))
        groups = ((each[4], n, 0.5, each) for n, each in enumerate(self._offered(tx)))
        return (lane for *_, lane in merge(plain, groups))

    def _offered(self, tx: StoreTransaction) -> Iterator[ReadyLane]:
        """Yield the first lane of each group that may run now, after those that leave the group."""
        for turn in turns.ready(tx):
            first: GroupTurn | None = turn
            while first is not None and self._freed < PARKS:
                freed = self._freed
                yield from self._offer(tx, first)
                first = turns.again(tx, first) if self._freed > freed else None

    def _offer(self, tx: StoreTransaction, turn: GroupTurn) -> Iterator[ReadyLane]:
        """Yield the first lane of a group if it may run now."""
        if turn.lane_id is None:
            self._ended.append(turn.turn)
        elif not turn.ordinary:
            self._let_go(tx, turn.lane_id)
        elif self._may_run(tx, turn):
            self._turns[turn.head_seq] = turn
            yield turn.lane_id, turn.token, turn.careful_to, turn.shared, turn.rank

    def _may_run(self, tx: StoreTransaction, turn: GroupTurn) -> bool:
        handler = self._limits.keyed.get(turns.pattern_of(turn.group))
        if handler is None:  # other code has parked it
            self._left_lanes.add(turn.lane_id or 0)
            return True
        call = AdmittedCall(handler, rates.keyed_bucket(turn.group))
        if self._runs_enough(handler, turn.group, lambda: turn.running):
            return False
        self._read_calls_left(turn, call)
        if self._has_no_call_left(tx, call):
            at_once = tx.now + 1  # this claim has taken the last call
            turns.rest(tx, turn, self._until.get(call.bucket, at_once))
            self._rested += 1
            return False
        return True

    def _read_calls_left(self, turn: GroupTurn, call: AdmittedCall) -> None:
        """Note the calls that a group's bucket has left, as the row of its turn says."""
        rate = call.handler.rules.rate
        if rate is None or call.bucket in self._left:
            return
        left = float(rate.burst)
        if turn.tokens is not None and turn.filled_at is not None:
            left = rates.refilled(turn.tokens, turn.filled_at, rate, self._now)
        self._note_left(call, rate, self._limits.with_unused(call.bucket, rate, left))

    def _runs_enough(self, handler: Handler, group: str, running: Callable[[], int]) -> bool:
        """Return whether a group may have no further call; *running* counts those before this."""
        most = handler.rules.concurrency
        if most is None:
            return False
        if group not in self._running_of:
            self._running_of[group] = running()
        return self._waits(self._running_of[group] >= most)

    def _is_exhausted(self, call: AdmittedCall, next_at: Millis) -> None:
        if not call.handler.rules.is_grouped:
            super()._is_exhausted(call, next_at)
        self._until[call.bucket] = next_at

    def admit(
        self, tx: StoreTransaction, lane_id: int, rows: list[tuple[Any, ...]], *, alone: bool
    ) -> int:
        """Return how many rows of a lane to claim: one if its head has a group."""
        head = rows[0]
        turn, handler = self._turns.pop(head[SEQ], None), self._limits.handler_of(head[MESSAGE:])
        if self._limits.is_paused(head[MESSAGE:]):
            if turn is not None:
                self._let_go(tx, lane_id)
            return 0
        if handler is None or not handler.rules.is_grouped:
            found = super().admit(tx, lane_id, rows, alone=alone)
        else:
            found = self._admit_keyed(tx, lane_id, head, handler, turn)
        if turn is not None and found:
            self._ended.append(turn.turn)
        return found

    def _admit_keyed(
        self,
        tx: StoreTransaction,
        lane_id: int,
        head: tuple[Any, ...],
        handler: Handler,
        turn: GroupTurn | None,
    ) -> int:
        """Admit the head of a lane; without a turn it is one that may have killed its process."""
        group = self._group_of(handler, head[FRAME]) if turn is None else turn.group
        if group is None:
            return 0
        call = AdmittedCall(handler, rates.keyed_bucket(group))
        if turn is None and self._runs_enough(handler, group, partial(turns.running, tx, group)):
            return 0
        if not self._admits(tx, call):
            return 0
        if turn is None:
            lanes.park(tx, [(lane_id, group)])
        if handler.rules.concurrency is not None:
            self._of_groups = True
            before = 0 if turn is None else turn.running  # other code may have parked it
            self._running_of[group] = self._running_of.get(group, before) + 1
        self._waiting[head[SEQ]] = call
        return 1

    def end(self, tx: StoreTransaction) -> None:
        """Count the admitted calls, end their turns, and note when the first rest ends."""
        super().end(tx)
        if self._ended:
            turns.end(tx, self._ended)
        self._next_at = turns.next_due(tx)
