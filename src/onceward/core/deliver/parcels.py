"""Pack outbox rows into parcels for a push, and settle rows by its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, cast

from pydantic_core import to_json

from onceward.core.end import sent
from onceward.core.rows import outbox, peers, senders
from onceward.core.rows.outbox import OutboxRow
from onceward.core.rows.peers import PeerLease
from onceward.core.rows.senders import PendingReceipts
from onceward.core.run.event_emitter import CountedAttempt, Settled
from onceward.errors import StoreCorrupt
from onceward.file import identity
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.parcel import (
    ENVELOPE,
    FRAME,
    RECEIPT,
    RECEIPTS_MAX,
    STRENGTH,
    Answer,
    Durability,
    Parcel,
    ParcelFrame,
    Receipt,
    downgrade,
    receipt_bytes,
)
from onceward.message.settings import Settings
from onceward.message.vocabulary import Reason, reason_of

BLOCK: Final = """
INSERT INTO _onceward_blocked_lanes (recipient, lane, rank, head_seq, due_at)
SELECT recipient, lane, rank, seq, ?
  FROM _onceward_outbox
 WHERE id = ?
ON CONFLICT (recipient, lane, rank) DO UPDATE
   SET due_at = max(due_at, excluded.due_at), head_seq = min(head_seq, excluded.head_seq)
RETURNING due_at
"""
UNBLOCK: Final = "DELETE FROM _onceward_blocked_lanes WHERE due_at <= ?"
RECEIPT_ROWS: Final = 200
MOST: Final = 10_000
"""Maximum messages of a parcel over a slow network."""
SEQ: Final = attrgetter("seq")
STATE: Final = attrgetter("state")
STALE: Final[Reason] = "stale"
"""The refusal of a peer that cannot find out whether it knows the message."""
STUCK: Final = (
    "skipped rows of the outbox are offered again: its index is damaged, recover a copy of the file"
)


Buried = tuple[tuple[str, str, Reason], ...]
"""(id, peer, reason) of messages that went to the dead letters instead."""


class InFlight(NamedTuple):
    """A parcel to push, its lease, and the messages that became dead letters while packing it."""

    lease: PeerLease
    parcel: Parcel | None
    paid_upto: int = 0
    dead_lettered: Buried = ()
    more: bool = True
    """Whether the peer may have more messages or receipts than the parcel."""


class SenderInfo(NamedTuple):
    """The sending agent, and its durability class."""

    agent: str
    durability: Durability
    takeover: str | None = None


@dataclass(slots=True)
class _Choice:
    rows: list[OutboxRow] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)
    oversize: list[int] = field(default_factory=list)
    parked: list[tuple[Millis, int]] = field(default_factory=list)
    scanned: int = 0

    @property
    def aside(self) -> set[int]:
        """Rows that must not be offered again."""
        return {*self.expired, *self.corrupt, *self.oversize, *(seq for _, seq in self.parked)}


def pack(
    tx: StoreTransaction,
    held: PeerLease,
    *,
    mine: SenderInfo,
    settings: Settings,
    until: Millis,
    messages: int,
    max_bytes: int,
) -> InFlight:
    """
    Return the next parcel for the leased peer: the stored one, or a new one, which is stored.

    A new one has at most *messages* and about ``parcel_max_bytes``, or less if the peer has a lower
    limit. None is larger than *max_bytes* with its receipts and envelope.

    Raises:
        LeaseLost: another dispatcher pushes to this peer.

    """
    owed = senders.pending_receipts(tx, held.name, RECEIPT_ROWS) if held.owed else senders.NOTHING
    # The bytes left for the envelope; a new epoch may still be opened.
    room = max_bytes if held.max_bytes is None else min(max_bytes, held.max_bytes)
    texts = mine.agent, mine.agent, held.name, held.epoch, held.last_id, held.base_epoch
    room -= ENVELOPE + len(to_json((texts, held.unsettled, owed.stream_position, held.greeting)))
    room -= len(to_json((mine.takeover, held.takeover)))
    told = _told_bytes(owed.receipts) if owed.receipts else 0
    rows: list[OutboxRow] = []
    buried: Buried = ()
    if held.parcel is not None:
        held, rows = _stored(tx, held, held.parcel)
    more = bool(rows)
    if not rows and held.ready:
        wanted = min(settings.tuning.parcel_max_bytes, room - min(told, room // 2))
        held, rows, buried, more = _fresh(tx, held, messages, until=until, most=room, wanted=wanted)
    if owed.receipts:
        more |= len(owed.receipts) >= RECEIPT_ROWS
        room -= sum(map(_frame_bytes, rows))
        if told > room or len(owed.receipts) > RECEIPTS_MAX:
            owed, more = _cut(tx, held.name, owed, room, alone=not rows), True
    if not (rows or owed.receipts or held.greeting):
        return InFlight(held, None, dead_lettered=buried)
    return InFlight(held, _parcel(held, mine, rows, owed), owed.upto, buried, more)


def _stored(
    tx: StoreTransaction, held: PeerLease, parcel: tuple[int, ...]
) -> tuple[PeerLease, list[OutboxRow]]:
    """Return the rows of the stored parcel; open a new epoch if it is incomplete."""
    rows = outbox.by_seq(tx, parcel)
    if len(rows) != len(parcel) or any(_unfit(tx, row) for row in rows):
        return peers.new_epoch(tx, held, "a parcel was given up"), []
    return held, rows


def drop_greeting(tx: StoreTransaction, held: PeerLease) -> PeerLease:
    """Greet a peer no more, because no greeting can reach it."""
    if held.greeting is not None:
        identity.drop_greeting(tx, held.fence)
    return held._replace(greeting=None)


class _Fresh(NamedTuple):
    """The rows of a new parcel, and the lease after they were chosen."""

    lease: PeerLease
    rows: list[OutboxRow]
    buried: Buried
    more: bool
    """Whether the peer may have more."""


def _parcel(
    held: PeerLease, mine: SenderInfo, rows: Sequence[OutboxRow], owed: PendingReceipts
) -> Parcel:
    frames: list[ParcelFrame] = []
    for row in rows:
        again = bool(row.pushed) or row.seq <= held.redelivered_upto_seq
        frames.append(row.carried(again=again))
    return Parcel(
        sender=mine.agent,
        durability=mine.durability,
        recipient=held.name,
        epoch=held.epoch,
        number=held.number + 1,
        previous=held.last_id,
        base_position=held.base_position if held.base_epoch else None,
        unsettled=() if held.number else held.unsettled[: -1 if rows else None],
        frames=tuple(frames),
        receipts=owed.receipts,
        stream_position=owed.stream_position,
        greeting=held.greeting,
        takeover=mine.takeover,
        known_takeover=held.takeover,
    )


def _frame_bytes(row: OutboxRow) -> int:
    return FRAME + len(to_json(row.id)) + len(row.frame.encode()) + row.body_bytes


def _told_bytes(told: tuple[Receipt, ...]) -> int:
    return len(to_json(told)) + RECEIPT * len(told)


def _cut(
    tx: StoreTransaction, peer: str, owed: PendingReceipts, room: int, *, alone: bool
) -> PendingReceipts:
    """
    Return the first receipts that fit; the others come with later parcels.

    A receipt that does not fit alone is deleted: its sender will ask for the outcome.
    """
    count = 0
    for receipt in owed.receipts[:RECEIPTS_MAX]:
        room -= receipt_bytes(receipt)
        if room < 0:
            break
        count += 1
    cut = senders.first_receipts(tx, owed, peer, count=count or int(alone), limit=RECEIPT_ROWS)
    if count:
        return cut
    if alone:
        senders.remove_receipts(tx, peer, cut.upto)
    return senders.NOTHING


def _unfit(tx: StoreTransaction, row: OutboxRow) -> bool:
    return row.expired(tx.now) or not row.intact


def _fresh(
    tx: StoreTransaction,
    held: PeerLease,
    limit: int,
    *,
    until: Millis,
    most: int,
    wanted: int,
) -> _Fresh:
    """Choose the rows of the next parcel and store it; make dead letters of oversized messages."""
    buried, aside = list[tuple[str, str, Reason]](), set[int]()
    while True:
        choice = _choose(tx, held, limit, most=most, wanted=wanted)
        too_large = f"the transport to {held.name} accepts no frame of more than {most} bytes"
        unfit: tuple[tuple[list[int], Reason, str], ...] = (
            (choice.expired, "expired", ""),
            (choice.corrupt, "corrupt", ""),
            (choice.oversize, "too_large", too_large),
        )
        for seqs, reason, error in unfit:
            if seqs:
                with tx.nested():  # the commit of a send continues if this fails
                    moved = sent.bury(tx, seqs, reason=reason, error=error)
                buried += [(message_id, peer, reason) for message_id, peer in moved]
        if choice.parked:
            outbox.park(tx, choice.parked)
        if choice.rows or choice.scanned < limit:
            break
        if not aside.isdisjoint(again := choice.aside):
            raise StoreCorrupt(STUCK)
        aside |= again
    if choice.rows:
        held = peers.store_parcel(
            tx, held, tuple(map(SEQ, choice.rows)), choice.rows[-1].id, until=until
        )
    more = choice.scanned > len(choice.rows) or choice.scanned == limit
    return _Fresh(held, choice.rows, tuple(buried), more)


def _choose(
    tx: StoreTransaction, held: PeerLease, limit: int, *, most: int, wanted: int
) -> _Choice:
    """
    Choose rows of at most *wanted* bytes together, or a single one of at most *most*.

    A larger frame is skipped.
    """
    choice, total = _Choice(), 0
    for row in outbox.ready(tx, held.name, limit):
        choice.scanned += 1
        if row.expires_at is not None and row.expired(tx.now):
            choice.expired.append(row.seq)
        elif not row.intact:
            choice.corrupt.append(row.seq)
        elif row.blocked_until is not None:
            choice.parked.append((row.blocked_until, row.seq))
        else:
            own = FRAME + len(to_json(row.id)) + len(row.frame.encode())
            if row.beside:
                own += row.body_bytes
            if own > most:
                choice.oversize.append(row.seq)
            elif choice.rows and total + own > wanted:
                break
            else:
                choice.rows.append(row)
                total += own
    return choice


class SettleOptions(NamedTuple):
    """Options of a settlement besides the answer."""

    settings: Settings
    durability: Durability
    ask_at: Millis
    streams: bool


def settle(tx: StoreTransaction, packed: InFlight, answer: Answer, terms: SettleOptions) -> Settled:
    """
    Settle the rows of a parcel that the peer accepted or knew already; release an idle peer.

    Raises:
        LeaseLost: another dispatcher pushes to this peer; the answer is discarded, the peer repeats
        it.

    """
    parcel, held = packed.parcel, packed.lease
    assert parcel is not None  # noqa: S101 - only pushed parcels have answers
    if packed.paid_upto:
        senders.remove_receipts(tx, held.name, packed.paid_upto)
    if not parcel.frames:
        after = peers.advance(tx, held, 0, held.last_id, terms.settings)
        return Settled(after.lease, sent.NOTHING_MOVED, (), after.held, after.closed)
    weak = (
        STRENGTH.get(answer.durability, -1) < STRENGTH[terms.durability]
        and not terms.settings.accept_weaker
    )
    told = [downgrade(r) for r in answer.receipts] if weak else list(answer.receipts)
    # A plain function reports no later outcome, so stored is final.
    stored_ends = (terms.settings.ack == "stored" or not terms.streams) and not weak
    moved = sent.settle(
        tx, held.name, told, ask_at=terms.ask_at, stored_ends=stored_ends, parcel=held.ordinal
    )
    if answer.room is not None:
        peers.note_room(tx, held.name, answer.room)
    rejected = _reject(tx, held.name, told) if "rejected" in map(STATE, told) else ()
    after = peers.advance(tx, held, 1, parcel.last_id, terms.settings)
    told_weak = answer.durability if weak else None
    lacking = "busy" in map(STATE, told) or not set(map(sent.ID, told)).issuperset(
        map(sent.ID, parcel.frames)
    )
    return Settled(after.lease, moved, rejected, after.held, after.closed, told_weak, lacking)


def _reject(tx: StoreTransaction, peer: str, told: list[Receipt]) -> tuple[tuple[str, Reason], ...]:
    """Make dead letters of refused messages; keep the peer's own reason as details."""
    done: list[tuple[str, Reason]] = []
    for receipt in told:
        if receipt.state != "rejected":
            continue
        said = receipt.reason or "rejected"
        reason = reason_of(said)
        detail = said.partition(": ")[2] if reason else said
        seqs = tx.rows(
            "SELECT seq FROM _onceward_outbox WHERE id = ? AND recipient = ?", (receipt.id, peer)
        )
        if seqs and sent.bury(
            tx,
            [s for (s,) in seqs],
            reason=reason or "rejected",
            error=detail,
            unknown=reason != STALE,
            tried=True,
        ):
            done.append((receipt.id, reason or "rejected"))
    return tuple(done)


def block_lane(tx: StoreTransaction, message_id: str, *, error: str, due_at: Millis) -> Millis:
    """Back off one message that failed individually, with its lane; return until when."""
    # not before an older message of the lane
    [(lane_due_at,)] = tx.rows(BLOCK, (due_at, message_id))
    outbox.fail_one(tx, message_id, error, due_at=lane_due_at)
    bump(tx, retries=1)
    return cast("Millis", lane_due_at)


def unblock_lane(tx: StoreTransaction) -> None:
    """Release the lanes whose heads are due again."""
    tx.run(UNBLOCK, (tx.now,))


def repeats(packed: InFlight, following: InFlight) -> bool:
    """Return whether a parcel has rows of the answered one: the index lists them as pending."""
    return not set(packed.lease.parcel or ()).isdisjoint(following.lease.parcel or ())


def count_attempts(
    tx: StoreTransaction, held: PeerLease, error: str, *, all_spend: bool
) -> list[CountedAttempt]:
    """
    Count an attempt for each message of the parcel in flight, and return them unordered.

    Unless *all_spend*, a message that the peer has already stored spends no budget.
    """
    if held.parcel is None:
        return []
    named = {"error": error[:500], "seqs": json.dumps(held.parcel), "all": all_spend}
    counted = [CountedAttempt(*row) for row in outbox.spend(tx, named)]
    bump(tx, retries=len(counted))
    return counted


class _Pace(NamedTuple):
    limit: int
    answered_at: float


class ParcelGrowth:
    """
    Decides how many messages the next parcel to each network peer may hold.

    Twice as many as the last one, while an exchange takes longer than both ends need to store a
    parcel: the rest is network time. Half as many, down to *base*, otherwise. The recipient is
    assumed to be as quick as this process, which settles one parcel and packs the next between two
    pushes.
    """

    def __init__(self, monotonic: Callable[[], float], base: int) -> None:
        self._now, self._base = monotonic, base
        self._paces: dict[str, _Pace] = {}

    def limit(self, name: str) -> int:
        """Return how many messages the next parcel to *name* may hold."""
        pace = self._paces.get(name)
        return self._base if pace is None else pace.limit

    def timed(self, name: str, messages: int, push: Callable[[], Answer]) -> Answer:
        """Push a parcel of so many messages, and adapt to the time that it takes."""
        begun, before = self._now(), self._paces.get(name)
        answer = push()
        ended, limit = self._now(), self.limit(name)
        if before is not None and messages >= limit:
            packing = begun - before.answered_at
            grows = ended - begun > 2 * packing
            limit = min(2 * limit, MOST) if grows else max(limit // 2, self._base)
        self._paces[name] = _Pace(max(limit, self._base), ended)
        return answer
