"""
Reserve peers for carriers, and pack the next parcel of a reserved peer.

A parcel is packed in the commit of its messages, in that of the answer to the one before, or by the
loop. ``BusyPeers`` records which peers have an owner; the lease in the file proves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event, get_ident
from typing import Final

from onceward.core.deliver import parcels
from onceward.core.deliver.carriers import Carriers, Delivery, Share
from onceward.core.deliver.parcels import InFlight, ParcelGrowth, SenderInfo
from onceward.core.deliver.transport import Elsewhere, NotMade, Routes
from onceward.core.rows import peers
from onceward.core.rows.peers import PeerLease
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.errors import Unreachable
from onceward.file import file_checks, forks, identity
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import monotonic

PACK_WITH_SEND: Final = 4
"""Maximum peers whose parcels the commit of their messages packs; the loop packs the rest."""
Packed = dict[str, InFlight | None]
"""By peer, the parcel that the open commit packs; None for a reserved peer without one."""


@dataclass(eq=False, slots=True)
class Push:
    """A parcel that a thread pushes, and the transport's deadline."""

    thread: int
    packed: InFlight
    until: float
    """Deadline by the process's monotonic clock."""
    passed_on: bool = False
    """Whether another carrier settles its answer."""

    @property
    def peer(self) -> str:
        """The peer that it is pushed to."""
        return self.packed.lease.name


class BusyPeers:
    """
    The peers that are reserved for a carrier, or for the parcel of an open commit.

    Python may raise an interrupt after any call, so related values are written before the next
    call, or can be written again.
    """

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        """Set once no peer is reserved any more."""
        self._lock = forks.new_lock()
        """Held while a peer is reserved, left, or marked as hanging."""
        self._names: set[str] = set()
        """The peers that are reserved."""
        self._hanging: set[str] = set()
        """Those whose push was abandoned and has not returned: they are busy until it does."""
        self._released: set[str] = set()
        """Those that a carrier has released in the file and is about to leave."""
        self._following: dict[str, InFlight] = {}
        """Parcels that were packed for such peers; the same carrier continues with them."""
        self._left: set[str] = set()
        """Peers that may still be leased by us although no carrier pushes to them."""
        self._wanted: set[str] = set()
        """Those requested in the meantime: they may have more than their carrier knows."""
        self._later: set[str] = set()
        """Those whose delivery has left work for later, which the loop must plan."""
        self._pushes: dict[int, Push] = {}
        """The running pushes, by the thread of their carrier."""
        self._changed = Event()
        """Set whenever a peer was left."""

    # -- reserving ----------------------------------------------------------------------------

    @property
    def several(self) -> bool:
        """Whether more than one peer is reserved."""
        return len(self._names) > 1

    def reserve(self, name: str, packed: Packed | None = None) -> bool:
        """
        Reserve a peer for one carrier; return False if it has one or the dispatcher stops.

        *packed* gets its name first, because an interrupt may come after any call.
        """
        with self._lock:
            if name in self._names or self._stopping.is_set():
                self._wanted.add(name)
                return False
            self._released.discard(name)
            self._wanted.discard(name)
            if packed is not None:
                packed[name] = None
            self._names.add(name)
        return True

    def cancel(self, name: str) -> bool:
        """
        Cancel the reservation of a peer for which nothing was packed.

        Return whether the loop must look: it may have found the peer reserved.
        """
        self._names.discard(name)
        return name in self._wanted or name in self._left

    def all_reserved(self, names: set[str], packed: Packed) -> bool:
        """Return whether each of *names* still has a carrier, or a parcel in *packed*."""
        return names <= self._names | packed.keys()

    def pass_on(self, name: str, first: InFlight, passed: set[str]) -> bool:
        """
        Leave a parcel to the carrier that is about to end.

        If it has ended, reserve the peer, remove it from *passed* and return False.
        """
        with self._lock:
            if name in self._names:
                self._following[name] = first
                return True
            passed.discard(name)  # first: after an interrupt the next call must submit it
            self._names.add(name)
        return False

    # -- looking again ------------------------------------------------------------------------

    def is_wanted(self, name: str) -> bool:
        """Return whether a peer may have more than its carrier knows."""
        return name in self._wanted

    def serve(self, name: str) -> None:
        """Record that the open transaction sees all messages for a peer."""
        self._wanted.discard(name)

    def leave_for_later(self, name: str) -> None:
        """Record that a delivery leaves work that the loop must plan."""
        self._later.add(name)

    def needs_look(self, name: str) -> bool:
        """Return whether the loop must check, now that the carrier of a peer has left it."""
        needed = name in self._wanted or name in self._later or bool(self._left)
        self._wanted.discard(name)
        self._later.discard(name)
        return needed

    # -- leaving ------------------------------------------------------------------------------

    def release(self, name: str) -> None:
        """Record that the carrier of a peer has released it in the file and will soon leave it."""
        self._released.add(name)

    def is_released(self, name: str) -> bool:
        """Return whether the carrier of a peer is about to leave it."""
        return name in self._released

    def end(self, name: str) -> InFlight | None:
        """Return the parcel that was packed for the peer since; leave the peer if there is none."""
        with self._lock:
            self._released.discard(name)
            following = self._following.pop(name, None)
            if following is None:
                self._names.discard(name)
                self._hanging.discard(name)
        return following

    def forget(self, delivery: Delivery) -> None:
        """Leave a peer whose delivery has not begun; its lease is released later."""
        if delivery.first is not None:
            self._left.add(delivery.name)
        self._names.discard(delivery.name)
        self._changed.set()

    def leave(self, *names: str) -> None:
        """Record that peers may still be leased by us although no carrier pushes to them."""
        self._left.update(names)

    @property
    def any_left(self) -> bool:
        """Whether there are such peers."""
        return bool(self._left)

    @property
    def idle_left(self) -> list[str]:
        """The left peers without a carrier."""
        return sorted(self._left - (self._names - self._hanging))

    def given_back(self, names: list[str]) -> None:
        """Record that the leases of left peers have ended in the file."""
        self._left.difference_update(names)

    # -- pushes under way ---------------------------------------------------------------------

    def begin_push(self, packed: InFlight, limit: float) -> Push:
        """Record that this thread now calls a transport, which may take *limit* seconds."""
        thread = get_ident()
        push = self._pushes[thread] = Push(thread, packed, monotonic() + limit)
        return push

    def end_push(self) -> bool:
        """Record that the call has returned; return False if the push was abandoned."""
        with self._lock:
            return self._pushes.pop(get_ident(), None) is not None

    def pushes(self) -> list[Push]:
        """Return the running pushes."""
        return list(self._pushes.values())

    def pass_push(self, push: Push) -> bool:
        """Leave the peer of a push to another carrier; return False if it has just returned."""
        with self._lock:
            if self._pushes.get(push.thread) is not push:
                return False
            del self._pushes[push.thread]
            push.passed_on = True
        return True

    def give_up(self, push: Push) -> bool:
        """Abandon a push to run without a carrier; return False if it has just returned."""
        with self._lock:  # its thread leaves the peer only after that
            if self._pushes.get(push.thread) is not push:
                return False
            del self._pushes[push.thread]
            self._hanging.add(push.peer)
        return True

    # -- waiting ------------------------------------------------------------------------------

    def changed(self) -> None:
        """End a wait for a change: a peer was left."""
        if not self._changed.is_set():
            self._changed.set()

    def wait_for_a_change(self) -> None:
        """Wait briefly until a peer was left."""
        self._changed.clear()
        self._changed.wait(0.01)

    def wait_until_settled(self, deadline: float) -> None:
        """Wait until every carrier has ended or hangs, by the monotonic clock."""
        while self._names - self._hanging and monotonic() < deadline:
            self.wait_for_a_change()


class ParcelPacker:
    """
    Packs the parcels of one dispatcher; see ``Deliveries`` for what becomes of them.

    *wake* makes the dispatcher look for due work.
    """

    def __init__(
        self,
        deps: RuntimeDeps,
        routes: Routes,
        *,
        busy: BusyPeers,
        wake: Callable[[], None],
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
                if not self._busy.is_released(name):
                    continue  # its carrier checks for more before it ends
            first = self._pack_alone(tx, name)
            if first is None:
                tx.wakeups[self._db.writer.wake_dispatchers] = None
            elif first.parcel is not None:
                self._packed[name] = first
                self._busy.serve(name)

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
                    missed |= not self.submit(Delivery(name, share_of(first), first))
            elif name not in self._passed:
                missed |= self._busy.cancel(name)
            if not durable:  # an error in COMMIT does not say that the peer is not leased now
                self._busy.leave(name)
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
            self._busy.leave(name)
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
                held = parcels.drop_greeting(tx, held)
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
                held = parcels.drop_greeting(tx, held)
        packed = parcels.pack(
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


def share_of(first: InFlight) -> Share:
    """Return the share of the carriers that a peer gets: new, known, or failing."""
    if first.lease.failures:
        return "failing"
    return "known" if first.lease.number else "new"
