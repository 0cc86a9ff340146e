"""
Pack the next parcel of a reserved peer, and settle its messages by the answer.

A parcel is packed in the commit of its messages, in that of the answer to the one before, or by the
loop. The lease in the file proves whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from pydantic_core import to_json

from onceward.core.deliver.carriers import (
    Buried,
    BusyPeers,
    Carriers,
    Delivery,
    InFlight,
    Packed,
)
from onceward.core.deliver.failures import drop_greeting
from onceward.core.deliver.growth import ParcelGrowth
from onceward.core.deliver.transport import Elsewhere, NotMade, Routes
from onceward.core.end import sent
from onceward.core.rows import outbox, peers, senders
from onceward.core.rows.outbox import OutboxRow
from onceward.core.rows.peers import PeerLease
from onceward.core.rows.senders import PendingReceipts
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter, Settled
from onceward.errors import StoreCorrupt, Unreachable
from onceward.file import file_checks, identity
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.transaction import StoreTransaction
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
from onceward.message.vocabulary import Reason

RECEIPT_ROWS: Final = 200
PACK_WITH_SEND: Final = 4
"""Maximum peers whose parcels the commit of their messages packs; the loop packs the rest."""
SEQ: Final = attrgetter("seq")
STATE: Final = attrgetter("state")
STUCK: Final = (
    "skipped rows of the outbox are offered again: its index is damaged, recover a copy of the file"
)


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


def next_parcel(
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
    rejected = sent.reject(tx, held.name, told) if "rejected" in map(STATE, told) else ()
    after = peers.advance(tx, held, 1, parcel.last_id, terms.settings)
    told_weak = answer.durability if weak else None
    lacking = "busy" in map(STATE, told) or not set(map(sent.ID, told)).issuperset(
        map(sent.ID, parcel.frames)
    )
    return Settled(after.lease, moved, rejected, after.held, after.closed, told_weak, lacking)


class ParcelPacker:
    """
    Packs the parcels of one dispatcher; see ``Deliveries`` for what becomes of them.

    *wake* makes the dispatcher look for due work.
    """

    def __init__(
        self, deps: RuntimeDeps, routes: Routes, *, busy: BusyPeers, wake: Callable[[], None]
    ) -> None:
        self._db, self._settings, self._routes = deps.db, deps.settings, routes
        self._busy, self._wake = busy, wake
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self.carriers: Carriers | None = None
        """The threads that push in the background; None while callers' threads push."""
        self.owner = file_checks.owner_name()
        """The name under which peers are leased."""
        self._lease_for = round(1000 * (deps.settings.deliver_timeout + deps.settings.lease))
        self._notify_others = partial(deps.db.notifier.notify_others, "out")
        self.growth = ParcelGrowth(
            deps.db.clock.monotonic, deps.settings.tuning.parcel_max_messages
        )
        """How many messages the next parcel to a peer may hold."""
        self._packed: Packed = {}
        """Parcels that the commit of this turn packs."""
        self._passed: set[str] = set()
        """Peers that had a carrier when the commit of this turn was packed."""

    def pack(self, tx: StoreTransaction) -> None:
        """
        Pack the parcels of peers that have nothing in flight, in the commit of their messages.

        The loop looks for all others.
        """
        if self._db.agent in tx.outgoing and self.deliver_own(tx):
            del tx.outgoing[self._db.agent]
        if len(tx.outgoing) > PACK_WITH_SEND:
            tx.wakeups[self._db.writer.wake_dispatchers] = None
            return
        for name in list(tx.outgoing):
            if not self._busy.reserve(name, self._packed):
                self._passed.add(name)
                if name not in self._busy.released:
                    continue  # its carrier checks for more before it ends
            first = self._pack_alone(tx, name)
            if first is None:
                tx.wakeups[self._db.writer.wake_dispatchers] = None
            else:
                self._packed[name] = first
                self._busy.wanted.discard(name)

    def hand_over(self, *, durable: bool) -> None:
        """
        Give the packed parcels to carriers; leave them to the loop if there are none.

        A carrier that ends wakes the loop, which then finds the remaining parcels; one that has
        ended since the packing may have woken it before the commit. An answer that waits for a
        commit stops waiting if its peer has more.
        """
        missed = bool(self._passed) and not self._busy.all_reserved(self._passed, self._packed)
        if self._passed:
            self._db.writer.queue.hurry()
        while self._packed:
            name, first = next(iter(self._packed.items()))
            if durable and first is not None:
                if name not in self._passed or not self._busy.pass_on(name, first, self._passed):
                    missed |= not self.submit(Delivery(name, first.share, first))
            elif name not in self._passed:
                missed |= self._busy.cancel(name)
            if not durable:  # an error in COMMIT does not say that the peer is not leased now
                self._busy.left.add(name)
                missed = True
            del self._packed[name]
        self._passed.clear()
        if missed:
            self._wake()

    def submit(self, delivery: Delivery) -> bool:
        """Give a delivery to a carrier; forget it and return False if there is none."""
        if self.carriers is not None and self.carriers.submit(delivery):
            return True
        self._busy.forget(delivery)
        return False

    def _pack_alone(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """
        Pack the first parcel of a peer; return None if the loop must handle it.

        It needs no savepoint: an error leaves a leased peer, with or without its parcel, which the
        loop releases.
        """
        try:
            first = self.first(tx, name)
        except Exception:  # noqa: BLE001 - the loop gets it again, and reports it
            self._busy.left.add(name)
            return None
        return None if first is None or first.parcel is None else first

    def deliver_own(self, tx: StoreTransaction) -> bool:
        """Move messages of the agent to itself, in a savepoint; False: parcels must do it."""
        own = self._db.writer.own
        if own is None:
            return False
        try:
            with tx.nested():
                return own.deliver(tx)
        except Exception:  # noqa: BLE001 - the loop gets it again, and reports it
            return False

    def first(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """
        Lease a peer and pack its first parcel; None while it backs off, is leased, or paused.

        Raises:
            NotMade: its transport must first be created, outside the transaction.

        """
        if SWITCH in VARIABLES and disabled_by_environment():
            return None
        leased = peers.lease(tx, name, owner=self.owner, until=tx.now + self._lease_for)
        return None if leased is None else self.pack_leased(tx, leased)

    def next(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        """Pack the next parcel of a leased peer; release the peer if there is none."""
        if identity.is_paused(tx.rows):
            peers.release(tx, held)
            return InFlight(held, None)
        return self.pack_leased(tx, held._replace(owed=1, ready=1))

    def pack_leased(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        """Pack a parcel for a leased peer; the file is not paused. Release a peer without one."""
        limit = self._settings.tuning.parcel_max_messages
        if SWITCH in VARIABLES and disabled_by_environment():
            peers.release(tx, held)
            return InFlight(held, None)
        try:
            features = self._routes.features(held.name, held.url)
            max_bytes = features.max_bytes
            if features.network:
                limit = self.growth.limit(held.name)
            if held.greeting and not features.streams:
                held = drop_greeting(tx, held)
        except Elsewhere:
            peers.release(tx, held)
            tx.wake(self._notify_others)
            return InFlight(held, None)
        except NotMade:
            peers.release(tx, held)
            raise
        except Unreachable:
            max_bytes = self._settings.tuning.parcel_max_bytes
            if held.greeting and held.url is None:
                held = drop_greeting(tx, held)
        packed = next_parcel(
            tx,
            held,
            mine=SenderInfo(self._db.agent, self._db.durability, self._db.takeover),
            settings=self._settings,
            until=tx.now + self._lease_for,
            messages=limit,
            max_bytes=max_bytes,
        )
        if packed.dead_lettered:
            self._emitter.dead_lettered(tx, packed.dead_lettered)
        if packed.parcel is None:
            peers.release(tx, packed.lease)
        return packed
