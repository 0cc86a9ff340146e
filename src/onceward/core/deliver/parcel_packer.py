"""Lease a peer and pack its next parcel, in the transaction that is open."""

from __future__ import annotations

from functools import partial

from onceward.core.deliver import parcels, peers
from onceward.core.deliver.parcel_growth import ParcelGrowth
from onceward.core.deliver.parcels import InFlight, SenderInfo
from onceward.core.deliver.peers import PeerLease
from onceward.core.deliver.routes import Elsewhere, Routes
from onceward.core.engine.deps import RuntimeDeps
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.upkeep import health
from onceward.errors import Unreachable
from onceward.file import file_checks
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis


class ParcelPacker:
    """Packs the parcels of one dispatcher, which leases peers under one name."""

    def __init__(self, deps: RuntimeDeps, routes: Routes) -> None:
        self._db, self._settings, self._routes = deps.db, deps.settings, routes
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self.owner = file_checks.owner_name()
        self._notify_others = partial(deps.db.notifier.notify_others, "out")
        self.growth = ParcelGrowth(deps.db.clock.monotonic, deps.settings.parcel_max_messages)

    def first(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """
        Lease a peer and pack its first parcel; None while it backs off or is another's.

        Raises:
            NotMade: its transport is still to be made, outside the transaction.

        """
        until = self._lease_until(tx.now)
        held = peers.lease(tx, name, owner=self.owner, until=until)
        if held is None and tx.run(peers.KNOW, (name,)):
            held = peers.lease(tx, name, owner=self.owner, until=until)
        return None if held is None else self.next(tx, held)

    def next(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        """Pack the next parcel of a leased peer; release the peer where there is none."""
        if disabled_by_environment() or health.paused(tx.rows):
            peers.release(tx, held)
            return InFlight(held, None)
        limit = self._settings.parcel_max_messages
        try:
            features = self._routes.features(held.name, held.url)
            max_bytes = features.max_bytes
            if features.network:
                limit = self.growth.limit(held.name)
        except Elsewhere:
            peers.release(tx, held)
            tx.wake(self._notify_others)
            return InFlight(held, None)
        except Unreachable:
            max_bytes = self._settings.parcel_max_bytes
        packed = parcels.pack(
            tx,
            held,
            mine=SenderInfo(self._db.agent, self._db.durability),
            settings=self._settings,
            until=self._lease_until(tx.now),
            max_bytes=max_bytes,
            limit=limit,
        )
        if packed.dead_lettered:
            self._emitter.dead_lettered(tx, packed.dead_lettered)
        if packed.parcel is None:
            peers.release(tx, packed.lease)
        return packed

    def _lease_until(self, now: Millis) -> Millis:
        return now + round(1000 * (self._settings.deliver_timeout + self._settings.lease))
