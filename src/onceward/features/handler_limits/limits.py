"""Apply the limits of handlers: concurrent calls, and the rate of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from onceward.core.handle.attempt import find_handler
from onceward.core.handle.claim import MESSAGE, Kind
from onceward.core.handle.signatures import Handler, Handlers
from onceward.core.rows import claimable, handler_limits, lanes
from onceward.core.rows.claimable import ReadyLane
from onceward.core.rows.handler_limits import SetLimit
from onceward.features.handler_limits import rates
from onceward.features.handler_limits.rates import bucket
from onceward.file import forks
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.handler_options import PLAIN_RULES
from onceward.message.times import Rate
from onceward.message.vocabulary import PARKED

KINDS: Final = 4096
"""Maximum types and topics whose handler is cached."""
LEASED: Final = f"""
SELECT DISTINCT l.owner, b.type, b.topic
  FROM _onceward_lanes AS l, json_each(l.leased_seqs) AS j
  JOIN _onceward_inbox AS b ON b.seq = j.value
 WHERE l.due_at < {PARKED} AND l.owner IS NOT NULL
"""
PARKED_LANES: Final = 100
"""Lanes of other code's groups that a claim looks at, of which it may lease none."""
LOOK_AGAIN: Final = 1.0
"""Seconds until a worker retries for a slot of another one, whose end notifies but for a kill."""
SEQ: Final = 0
"""Column of a message's sequence in a row of a claim."""


class HandlerLimits:
    """
    The running calls by handler, shared by the workers of one postbox.

    A call has a slot from the claim of its message. The rate of calls is counted in the file.
    *alone* returns the handlers of which only one in total runs at a time. *free* is called when a
    slot is free, with whether a worker of this postbox has requested one. A limit that is set in
    the file takes the place of the declared one; each claim compares the rows of its transaction.
    """

    def __init__(
        self,
        agent: Handlers,
        *,
        alone: Callable[[Sequence[Handler]], frozenset[str]],
        free: Callable[[bool], object],
    ) -> None:
        self._declared, self._find_alone, self._free = agent.handlers, alone, free
        self._lock = forks.new_lock()
        self._set: list[SetLimit] = []
        """The limits that the file sets, as of the last claim."""
        self._use(agent.handlers)
        self._taken = Counter[str]()
        self._missed = False
        """Whether a worker was refused since a slot became free."""
        self._next_at: dict[str, Millis] = {}
        """For handlers that have reached their rate, by bucket: when the next call is allowed."""
        self._unused = Counter[str]()
        """Calls that were counted in the file but not made, by bucket."""

    def follow(self, tx: StoreTransaction, *, set_limits: bool) -> None:
        """Apply the limits and pauses that the file sets at a claim, if they have changed."""
        if not (set_limits or self._set):
            return
        found = handler_limits.all_of(tx.rows)
        if found == self._set:
            return
        by_name = {each.name: each for each in found}
        paused = [each.name for each in found if each.paused]
        self._use([_limited(each, by_name.get(each.pattern)) for each in self._declared], paused)
        with self._lock:
            self._set = found
            self._next_at.clear()
        declared = {each.pattern: each.rules for each in self._declared}
        for each in found:
            if each.paused or each.name in declared:
                rules = declared.get(each.name, PLAIN_RULES)
                handler_limits.note_applied(tx, each.name, rules.rate, rules.concurrency)

    def _use(self, handlers: Sequence[Handler], paused: Sequence[str] = ()) -> None:
        """Find handlers among these, which have their present limits."""
        self.handler_of = lru_cache(KINDS)(lambda kind: find_handler(handlers, *kind))
        self.is_paused = lru_cache(KINDS)(lambda kind: handler_limits.is_paused(paused, *kind))
        """Whether the file pauses the type or topic of a message."""
        self.keyed = {each.pattern: each for each in handlers if each.rules.is_grouped}
        """The handlers whose limits apply to each group, by pattern."""
        self._alone = self._find_alone(handlers)

    def places(self, handler: Handler) -> tuple[str, int | None]:
        """Return the name under which calls of a handler are counted, and their maximum."""
        if handler.rules.concurrency is not None and not handler.rules.is_grouped:
            return handler.pattern, handler.rules.concurrency
        return ("", 1) if handler.pattern in self._alone else (handler.pattern, None)

    def has_place(self, name: str, most: int) -> bool:
        """Return whether a call may begin; a refused worker is notified of the next free slot."""
        with self._lock:
            found = self._taken[name] < most
            self._missed |= not found
        return found

    def take_place(self, name: str, most: int) -> bool:
        """Take a slot; return False if there is none."""
        with self._lock:
            if self._taken[name] >= most:
                self._missed = True
                return False
            self._taken[name] += 1
        return True

    def miss(self) -> None:
        """Notify a worker of this postbox when a call ends."""
        with self._lock:
            self._missed = True

    def tell_workers(self) -> None:
        """Notify the workers of this file that they may claim more."""
        self._free(True)  # noqa: FBT003 - of a callback

    def leave(self, names: set[str], *, of_groups: bool = False) -> None:
        """Release slots, and those of groups; notify the workers that wait for one."""
        if not (names or of_groups):
            return
        with self._lock:
            self._taken.subtract(names)
            missed, self._missed = self._missed, False
        self._free(missed)

    def exhausted(self, bucket: str, now: Millis) -> bool:
        """Return whether a handler is known to have no call left until a later time."""
        return self._next_at.get(bucket, 0) > now

    def calls_left(self, tx: StoreTransaction, bucket: str, rate: Rate) -> float:
        """Return how many calls may begin now; below 1 means none."""
        return self.with_unused(bucket, rate, rates.left(tx, bucket, rate))

    def with_unused(self, bucket: str, rate: Rate, left: float) -> float:
        """Add the calls that were counted in the file but not made."""
        with self._lock:
            return min(rate.burst, left + self._unused.get(bucket, 0))

    def wait_until(self, bucket: str, next_at: Millis) -> None:
        """Remember when the next call of a handler may begin."""
        with self._lock:
            self._next_at[bucket] = next_at

    def count(self, tx: StoreTransaction, calls: Sequence[tuple[str, Rate, int]]) -> None:
        """Count calls in the file, less those that were counted earlier but not made."""
        with self._lock:
            left = [(name, rate, n - self._unused.pop(name, 0)) for name, rate, n in calls]
        if left:
            rates.take(tx, left)

    def keep_unused(self, bucket: str, calls: int) -> None:
        """Keep calls that were counted but not made for the next claim."""
        with self._lock:
            self._unused[bucket] += calls
            self._next_at.pop(bucket, None)

    def forget_waits(self, now: Millis) -> None:
        """Forget the handlers that have a call left again."""
        with self._lock:
            self._next_at = {each: at for each, at in self._next_at.items() if at > now}

    def wait(self, now: Millis) -> float | None:
        """Return the seconds until a handler has a call left again; None if none waits."""
        with self._lock:
            first = min(self._next_at.values(), default=None)
        return None if first is None else max(0.0, (first - now) / 1000)


def _limited(handler: Handler, found: SetLimit | None) -> Handler:
    """Return a handler with the limits that are set for it."""
    if found is None or handler.rules.batch is not None:
        return handler
    rate, concurrency = found.rate or handler.rules.rate, found.concurrency
    concurrency = handler.rules.concurrency if concurrency is None else concurrency
    return replace(handler, rules=replace(handler.rules, rate=rate, concurrency=concurrency))


class AdmittedCall(NamedTuple):
    """A call of a handler, and the bucket of its rate."""

    handler: Handler
    bucket: str


class WorkerGate:
    """Decides which messages one worker claims, and holds their slots until its round ends."""

    def __init__(self, limits: HandlerLimits) -> None:
        self._limits = limits
        self._now: Millis = 0
        self._held: set[str] = set()
        """Names of the slots that this worker has; it makes one call at a time."""
        self._waiting: dict[int, AdmittedCall] = {}
        """Claimed messages that have not begun, by sequence."""
        self._left: dict[str, int] = {}
        """Calls that this claim may still admit, by bucket."""
        self._counted = False
        """Whether the calls of ``_waiting`` are committed in the file."""
        self._running: str | None = None
        """Name of the running call's slot."""
        self._of_groups = False
        """Whether this worker has calls that count for the concurrency of their groups."""
        self._leased: Counter[str] | None = None
        """Workers of this file with leases, by the pattern of the handler."""
        self._missed = False
        """Whether this claim found a handler's slots taken, in any postbox of the file."""
        self._left_lanes: set[int] = set()
        """Lanes that wait for turns of groups of other code."""
        self._freed = 0
        """How many lanes this claim has taken out of their groups."""

    @property
    def changed(self) -> bool:
        """Whether the claim changed lanes, also if it leased none."""
        return self._freed > 0

    @property
    def unfinished(self) -> bool:
        """Whether the claim changed so many that it ended before it had looked at all lanes."""
        return False

    def wait(self, now: Millis) -> float | None:
        """Return the seconds until a claim may find messages again."""
        rated = self._limits.wait(now)
        if not self._missed:
            return rated
        return LOOK_AGAIN if rated is None else min(LOOK_AGAIN, rated)

    # -- a claim ----------------------------------------------------------------------------

    def read_ahead(self) -> bool:
        """Return False: no handler has a key."""
        return False

    def begin(self, tx: StoreTransaction, *, set_limits: bool) -> None:
        """Forget the decisions of an earlier claim, which was rolled back; read set limits."""
        self._counted = False
        self.leave()
        self._left, self._now, self._leased, self._missed = {}, tx.now, None, False
        self._left_lanes, self._freed = set(), 0
        self._limits.forget_waits(tx.now)
        self._limits.follow(tx, set_limits=set_limits)

    def fits(self, kind: Kind) -> bool:
        """Return whether a message may be claimed, without reading the file."""
        if self._limits.is_paused(kind):
            return False
        handler = self._limits.handler_of(kind)
        if handler is None:
            return True
        if handler.rules.batch is not None:  # for its own worker
            return False
        name, most = self._limits.places(handler)
        if most is not None and name not in self._held and not self._limits.has_place(name, most):
            return False
        return not self._limits.exhausted(bucket(handler.pattern), self._now)

    def park(self, tx: StoreTransaction, heads: list[tuple[Any, ...]]) -> bool | None:
        """Park no lane: no handler has a key."""
        del tx, heads
        return False

    def order(
        self, tx: StoreTransaction, ready: list[ReadyLane], limit: int
    ) -> Iterable[ReadyLane]:
        """Return the ready lanes; without any, those that wait for turns of other code's groups."""
        left = [] if ready else claimable.parked(tx.rows, max(limit, PARKED_LANES))
        self._left_lanes = {lane_id for lane_id, *_ in left}
        return ready or left

    def admit(
        self, tx: StoreTransaction, lane_id: int, rows: list[tuple[Any, ...]], *, alone: bool
    ) -> int:
        """Return how many rows of a lane to claim; their calls then have a slot."""
        del alone
        found = self._admitted(tx, rows)
        if lane_id in self._left_lanes:
            first = self._limits.handler_of(rows[0][MESSAGE:])
            if first is not None and first.rules.batch is not None:
                self._let_go(tx, lane_id)  # to the worker of that handler, which knows no groups
        return found

    def _let_go(self, tx: StoreTransaction, lane_id: int) -> None:
        """Take a lane out of its group, because of its head."""
        lanes.free(tx, [lane_id])
        self._freed += 1
        tx.after_commit(self._limits.tell_workers)

    def _admitted(self, tx: StoreTransaction, rows: list[tuple[Any, ...]]) -> int:
        for index, row in enumerate(rows):
            if self._limits.is_paused(row[MESSAGE:]):
                return index
            handler = self._limits.handler_of(row[MESSAGE:])
            if handler is None:
                continue
            call = AdmittedCall(handler, bucket(handler.pattern))
            if handler.rules.is_grouped or not self._admits(tx, call):
                return index
            self._waiting[row[SEQ]] = call
        return len(rows)

    def _admits(self, tx: StoreTransaction, call: AdmittedCall) -> bool:
        handler = call.handler
        if handler.rules.batch is not None or self._has_no_call_left(tx, call):
            return False
        name, most = self._limits.places(handler)
        if most is not None and name not in self._held:
            if self._is_taken(tx, handler) or not self._limits.take_place(name, most):
                return False
            self._held.add(name)
        if handler.rules.rate is not None:
            self._left[call.bucket] -= 1
        return True

    def _has_no_call_left(self, tx: StoreTransaction, call: AdmittedCall) -> bool:
        """Return whether a bucket is empty; note when its next call may begin."""
        rate = call.handler.rules.rate
        if rate is None:
            return False
        if call.bucket not in self._left:
            self._note_left(call, rate, self._limits.calls_left(tx, call.bucket, rate))
        return self._left[call.bucket] < 1

    def _note_left(self, call: AdmittedCall, rate: Rate, left: float) -> None:
        self._left[call.bucket] = int(left)
        if left < 1:
            self._is_exhausted(call, self._now + rates.wait(rate, left))

    def _is_exhausted(self, call: AdmittedCall, next_at: Millis) -> None:
        self._limits.wait_until(call.bucket, next_at)

    def _is_taken(self, tx: StoreTransaction, handler: Handler) -> bool:
        """
        Return whether workers of this file, in any process, have all slots of a handler.

        A worker has one from its claim to the end of its lease, which a kill also ends; it makes
        one call at a time. None of its leases is left when it claims again.
        """
        most = handler.rules.concurrency
        if most is None or handler.rules.is_grouped:
            return False
        if self._leased is None:
            owners: set[tuple[str, str]] = set()
            for owner, *kind in tx.rows(LEASED):
                found = self._limits.handler_of((kind[0], kind[1]))
                if found is not None:
                    owners.add((owner, found.pattern))
            self._leased = Counter(pattern for _, pattern in owners)
        taken = self._leased[handler.pattern] >= most
        return self._waits(taken)

    def _waits(self, taken: bool) -> bool:  # noqa: FBT001 - passed on
        """Note whether slots are taken: the end of a call notifies this worker then."""
        if taken:
            self._missed = True
            self._limits.miss()
        return taken

    def end(self, tx: StoreTransaction) -> None:
        """Count the calls that the claim admits."""
        self._limits.count(tx, _rated(self._waiting.values()))
        tx.after_commit(self._note_counted)

    def _note_counted(self) -> None:
        self._counted = True

    # -- a round ----------------------------------------------------------------------------

    def call(self, seq: int) -> None:
        """Record that the handler of a message is called."""
        call = self._waiting.pop(seq, None)
        self._running = None if call is None else self._limits.places(call.handler)[0]

    def give_back(self, tx: StoreTransaction, seqs: set[int]) -> None:
        """Release the slots and counted calls of messages, in the commit that releases them."""
        given_back = _rated([each for seq, each in self._of() if seq in seqs])
        self._limits.count(tx, [(name, rate, -calls) for name, rate, calls in given_back])
        tx.after_commit(lambda: self._forget(seqs))

    def _of(self) -> list[tuple[int, AdmittedCall]]:
        """Return the messages that have not begun; the heartbeat calls it while handlers begin."""
        return list(self._waiting.items())

    def _forget(self, seqs: set[int]) -> None:
        for seq in seqs:
            self._waiting.pop(seq, None)
        needed = {self._limits.places(call.handler)[0] for _, call in self._of()}
        over = self._held - needed - {self._running}
        self._held -= over
        self._limits.leave(over)

    def leave(self) -> None:
        """Release everything at the end of a round."""
        for name, _, calls in _rated(self._waiting.values()) if self._counted else ():
            self._limits.keep_unused(name, calls)
        self._waiting, self._running, self._counted = {}, None, False
        held, self._held = self._held, set()
        of_groups, self._of_groups = self._of_groups, False
        self._limits.leave(held, of_groups=of_groups)


def _rated(calls: Iterable[AdmittedCall]) -> list[tuple[str, Rate, int]]:
    """Return bucket and rate of the calls with a rate, and how often each occurs."""
    found = [(each.bucket, each.handler.rules.rate) for each in calls]
    rated = Counter((name, rate) for name, rate in found if rate is not None)
    return [(name, rate, count) for (name, rate), count in rated.items()]
