"""
Claim messages: which lanes, in which order, how many messages of each, under which lease.

Order of the steps: recover what dead processes left, find claimable lanes (the most urgent and
oldest first, those that had their turn after the others of their rank, suspects last), read the
next messages of each, cut them (one at a time where one may have killed its process, those before
a session with runs, those that a gate admits), and lease the lane for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Protocol

from onceward.core.rows import claimable, inbox, lanes
from onceward.core.rows.claimable import ReadyLane
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run import recovery
from onceward.file.in_flight import HEADERS
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis

PAGE: Final = 500
LANES_PAGE: Final = 10_000
"""Maximum lanes that are read at once."""
SEQ: Final = itemgetter(0)
"""The sequence of a row of ``NEXT``."""
SAME_ROW: Final = itemgetter(0, 2, 7)
"""Sequence, id and attempt of a row of ``NEXT``: while they are unchanged, so is the rest."""
SAME: Final = attrgetter("seq", "id", "attempt")
"""The same of a leased message."""
RowKey = tuple[Any, ...]
"""Sequence, id and attempt of a message."""
MESSAGE: Final = len(LeasedMessage._fields) - 1
"""Columns of a row that form a leased message; type and topic follow."""
Kind = tuple[str, str | None]
"""Type and topic of a message."""


class ClaimRequest(NamedTuple):
    """The request of a worker for messages of ready lanes."""

    messages: int
    lanes: int = 100
    session: str | None = None
    types: tuple[str, ...] | None = None
    served: frozenset[int] = frozenset()
    """Lanes that have had their turn: others of their rank are claimed first."""
    noted: bool = False
    """Whether the owner notes each call that it begins."""
    set_limits: bool | None = None
    """
    Whether limits of handlers are set in the file, as its worker last read; None for a reader.

    While there are any, a worker claims through a gate only.
    """
    ahead: Mapping[RowKey, tuple[Any, ...]] | None = None
    """Rows that ``read_ahead`` found, by sequence, id and attempt."""


def read_ahead(read: Rows, wanted: ClaimRequest) -> list[tuple[Any, ...]]:
    """
    Return rows of the first lane that a claim would find now, without a lock.

    They prove nothing: the claim checks that each is still next. It does not return messages that
    must be claimed alone.
    """
    found = claimable.ready(read, wanted.lanes)
    for lane_id, _, careful_to, _, _ in claimable.in_turn(found, wanted.served)[:1]:
        rows = inbox.next_rows(read, lane_id, wanted.messages)
        return rows if rows and rows[0][0] > careful_to else []
    return []


def claim(
    tx: StoreTransaction, wanted: ClaimRequest, *, owner: str, until: Millis
) -> list[list[LeasedMessage]]:
    """
    Lease lanes and return their next messages, lane by lane, each in order.

    A lane whose last lease ran out is handed over one message at a time, to find a message that
    kills its worker without failing others.
    """
    claimed: list[list[LeasedMessage]] = []
    left = wanted.messages
    records = tx.in_flight
    with suppress(OSError):
        if records and os.pread(records.handle, HEADERS, 0) != records.alone:
            recovery.take_over(tx)
    limited = wanted.set_limits is not None
    found, due = (
        ([], True) if wanted.session else claimable.ready_or_due(tx, wanted.lanes, limited=limited)
    )
    if due or not found:
        found = _found_after_recovery(tx, wanted)
    if wanted.served and len(found) > 1:
        found = claimable.in_turn(found, wanted.served)
    for lane_id, token, careful_to, shared, *_ in found:
        if left <= 0:
            break
        if wanted.types is None:
            rows = inbox.next_rows(tx.rows, lane_id, left, wanted.ahead)
        else:
            rows = inbox.next_of(tx, lane_id, left, wanted.types)
        if shared and rows:
            rows = claimable.before_runs(tx, rows)
        if rows and rows[0][0] <= careful_to:
            rows = rows[:1]
        if rows:
            lane = (lane_id, token, careful_to)
            seqs, noted = list(map(SEQ, rows)), wanted.noted
            held = lanes.lease(tx, lane, seqs, owner=owner, until=until, noted=noted)
            claimed.append(list(starmap(partial(LeasedMessage, held), rows)))
            left -= len(rows)
    return claimed


def _found_after_recovery(tx: StoreTransaction, wanted: ClaimRequest) -> list[ReadyLane]:
    """Free the lanes that are due; return what ``ready`` does, nothing if the file is closed."""
    if claimable.is_closed(tx, limited=wanted.set_limits is not None):
        return []
    recovery.wake_due(tx)
    found = claimable.ready(tx.rows, wanted.lanes, wanted.session)
    if not found and not wanted.session:
        found = claimable.parked(tx.rows, wanted.lanes)
    return found or _suspects(tx, wanted.session)


def _suspects(tx: StoreTransaction, session: str | None = None, limit: int = 1) -> list[ReadyLane]:
    """
    Return lanes whose heads may have killed their process: claimed if no other is ready.

    None while another worker of this process is busy: its message would die with this one.
    """
    if tx.in_flight is not None and len(tx.in_flight.busy) > 1:
        return []
    return claimable.suspects(tx, limit, session)


class ClaimGate(Protocol):
    """Decides which messages a worker may claim now."""

    @property
    def changed(self) -> bool:
        """Whether the claim changed lanes, also if it leased none."""

    @property
    def unfinished(self) -> bool:
        """Whether the claim changed so many that it ended before it had looked at all lanes."""

    def read_ahead(self) -> bool:
        """
        Read the stored bodies that the last claim lacked, outside of a transaction.

        Return whether a claim can admit more messages now.
        """

    def begin(self, tx: StoreTransaction, *, set_limits: bool) -> None:
        """
        Forget the decisions of an earlier claim, which was rolled back or whose round ended.

        *set_limits*: read the limits that are set in the file.
        """

    def fits(self, kind: Kind) -> bool:
        """Return whether a message may be claimed now, without reading the file."""

    def park(self, tx: StoreTransaction, heads: list[tuple[Any, ...]]) -> bool | None:
        """
        Let heads of lanes (``READY_KINDS``) wait for the turns of their groups.

        Return whether lanes have other heads now; None if the claim shall look at no more.
        """

    def order(
        self, tx: StoreTransaction, ready: list[ReadyLane], limit: int
    ) -> Iterable[ReadyLane]:
        """Return the ready lanes and those of groups in the order in which they are claimed."""

    def admit(
        self, tx: StoreTransaction, lane_id: int, rows: list[tuple[Any, ...]], *, alone: bool
    ) -> int:
        """
        Return how many of a lane's next rows (``NEXT_KINDS``) are claimed, counted from the first.

        *alone*: the row is claimed in isolation, because it may kill its process.
        """

    def end(self, tx: StoreTransaction) -> None:
        """Store the admitted messages in the claim's transaction."""

    def call(self, seq: int) -> None:
        """Record that the handler of a message is called."""

    def give_back(self, tx: StoreTransaction, seqs: set[int]) -> None:
        """Undo the admission of messages in the commit that releases them."""

    def leave(self) -> None:
        """Undo all remaining admissions at the end of a round."""

    def wait(self, now: Millis) -> float | None:
        """Return the seconds until a claim may find messages again."""


def claim_admitted(
    tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate, *, owner: str, until: Millis
) -> list[list[LeasedMessage]]:
    """
    Lease lanes as ``claim`` does, but only the messages that *gate* admits.

    A lane whose head must wait is neither leased nor written, so a waiting message costs no commit,
    and later lanes are found.
    """
    recovery.take_over(tx)
    recovery.wake_due(tx)
    gate.begin(tx, set_limits=bool(wanted.set_limits))
    claimed: list[list[LeasedMessage]] = []
    left = wanted.messages
    lease = partial(_lease_admitted, tx, wanted, gate, owner=owner, until=until)
    for lane in gate.order(tx, _ready(tx, wanted, gate), left):
        if left <= 0:
            break
        if found := lease(lane[:4], left):
            claimed.append(found)
            left -= len(found)
    last = not (claimed or gate.unfinished)
    for suspect in _suspects(tx, limit=wanted.lanes) if last else ():
        if found := lease(suspect[:4], 1):
            claimed.append(found)
            break
    gate.end(tx)
    return claimed


def _lease_admitted(
    tx: StoreTransaction,
    wanted: ClaimRequest,
    gate: ClaimGate,
    lane: tuple[int, int, int, int],
    limit: int,
    *,
    owner: str,
    until: Millis,
) -> list[LeasedMessage]:
    """Lease one lane for its next messages that *gate* admits; return them."""
    lane_id, token, careful_to, shared = lane
    rows = inbox.next_kinds(tx, lane_id, limit, wanted.types)
    rows = claimable.before_runs(tx, rows) if shared and rows else rows
    alone = bool(rows) and rows[0][0] <= careful_to
    rows = rows[:1] if alone else rows
    rows = rows[: gate.admit(tx, lane_id, rows, alone=alone)] if rows else rows
    if not rows:
        return []
    free, seqs = (lane_id, token, careful_to), [row[0] for row in rows]
    held = lanes.lease(tx, free, seqs, owner=owner, until=until, noted=wanted.noted)
    return [LeasedMessage(held, *row[:MESSAGE]) for row in rows]


def _ready(tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate) -> list[ReadyLane]:
    """Return the lanes to read; their heads fit, unless other types may be skipped."""
    if wanted.types is not None:
        found = claimable.ready(tx.rows, wanted.lanes)
    else:
        found = []
        for lane in _fitting(tx, wanted.lanes, gate):
            found.append(lane)
            if len(found) >= wanted.lanes:
                break
    return claimable.in_turn(found, wanted.served)


def _fitting(
    tx: StoreTransaction, limit: int, gate: ClaimGate
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the ready lanes whose heads fit, in pages that grow."""
    rank, seq, more = -1, 0, True
    while more:
        rows = claimable.ready_kinds(tx, limit, after=(rank, seq))
        for row in rows:
            rank, seq = row[4:6]
            if gate.fits(row[6:]):
                yield row[:5]
        moved = gate.park(tx, rows)
        more = moved is not None and (moved or len(rows) == limit)
        limit = min(10 * limit, LANES_PAGE)


def find_in(
    read: Rows, channel: str, fits: Callable[[str | None], bool], *, by_rank: bool, now: Millis
) -> int | None:
    """
    Return a channel's next message whose topic fits, in order, without a lock.

    A message that may have killed its reader comes after all others.
    """
    for suspects in (False, True):
        named = {"channel": channel, "now": now, "suspects": suspects, "limit": PAGE}
        named |= {"rank": -1, "seq": 0}
        while rows := inbox.of_channel(read, named, by_rank=by_rank):
            for _, seq, topic in rows:
                if fits(topic):
                    return int(seq)
            named |= {"rank": rows[-1][0], "seq": rows[-1][1]}
    return None


def find_held(read: Rows, seq: int, held: Lease, attempt: int) -> LeasedMessage | None:
    """Return a message under its *attempt*-th lease; None if that has ended."""
    for *row, received_at in inbox.leased_row(read, seq, held[:3]):
        return LeasedMessage._make((held, *row, attempt, received_at))
    return None


def claim_one(
    tx: StoreTransaction, seq: int, *, owner: str, lease_for: Callable[[int], Millis]
) -> LeasedMessage | None:
    """Lease one message; return None if another worker was faster."""
    recovery.take_over(tx)
    recovery.wake_due(tx)
    for lane_id, token, careful_to, attempt in claimable.of_message(tx, seq):
        row = inbox.row(tx, seq)  # before the lease, which may count the attempt
        held = lanes.lease(
            tx, (lane_id, token, careful_to), [seq], owner=owner, until=tx.now + lease_for(attempt)
        )
        return LeasedMessage(held, *row)
    return None
