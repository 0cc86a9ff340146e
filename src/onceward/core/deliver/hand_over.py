"""Pack parcels in the commit of their messages, and hand them over to carriers after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onceward.core.deliver.answer_settler import AnswerSettler
from onceward.core.deliver.busy_peers import BusyPeers, Packed
from onceward.core.deliver.carriers import Delivery, Share
from onceward.core.deliver.parcel_packer import ParcelPacker
from onceward.core.deliver.parcels import InFlight
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction

PACK_WITH_SEND: Final = 4
"""Most peers whose parcels are packed in the commit of their messages; the loop packs the rest."""


class HandOver:
    """The packer of a writer: from the commit of a send straight to a carrier."""

    def __init__(
        self,
        db: Database,
        busy: BusyPeers,
        packer: ParcelPacker,
        settler: AnswerSettler,
        *,
        submit: Callable[[Delivery], bool],
        wake: Callable[[], None],
    ) -> None:
        self._db, self._busy, self._packer, self._settler = db, busy, packer, settler
        self._submit, self._wake = submit, wake
        self._packed: Packed = {}
        """Parcels that the commit of this turn packs."""
        self._passed: set[str] = set()
        """Peers that had a carrier when the commit of this turn was packed."""

    def pack(self, tx: StoreTransaction) -> None:
        """
        Pack the parcels of peers that have nothing in flight, in the commit of their messages.

        The loop looks for all others.
        """
        if len(tx.outgoing) > PACK_WITH_SEND or disabled_by_environment():
            tx.wakeups[self._db.writer.wake_dispatchers] = None
            return
        for name in list(tx.outgoing):
            if not self._busy.reserve(name, self._packed):
                self._passed.add(name)
                if name not in self._busy.released:
                    continue  # its carrier looks for more before it ends
            first = self._pack_alone(tx, name)
            if first is None:
                tx.wakeups[self._db.writer.wake_dispatchers] = None
            elif first.parcel is not None:
                self._packed[name] = first

    def hand_over(self, *, durable: bool) -> None:
        """
        Give what the commit has packed to carriers; leave it to the loop where there is none.

        A carrier that ends wakes the loop, which then finds what it was not given; one that
        has ended since the packing may have woken it before the commit.
        """
        missed = not self._passed <= self._busy.names | self._packed.keys()
        while self._packed:
            name, first = next(iter(self._packed.items()))
            if durable and first is not None:
                if name not in self._passed or not self._busy.pass_on(name, first, self._passed):
                    missed |= not self._submit(Delivery(name, _share_of(first), first))
            elif name not in self._passed:
                self._busy.names.discard(name)
            if not durable:  # an error in COMMIT does not say that the peer is not leased now
                self._busy.left.add(name)
                missed = True
            del self._packed[name]
        self._passed.clear()
        if missed:
            self._wake()

    def _pack_alone(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """Pack the first parcel of a peer in a savepoint; None where the loop must look at it."""
        try:
            with tx.nested():
                first = self._packer.first(tx, name)
                if first is None or first.parcel is None:
                    return None
                return self._deliver_here(tx, first) if name == self._db.agent else first
        except Exception:  # noqa: BLE001 - the loop meets it again, and tells of it
            return None

    def _deliver_here(self, tx: StoreTransaction, packed: InFlight) -> InFlight | None:
        """
        Deliver a parcel of the agent to itself within the open transaction; return the next one.

        Packing, accepting and settling are the same steps as between two files.
        """
        if packed.lease.url is not None or not self._db.receivers:
            return packed
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        answer = self._db.receivers[-1](packed.parcel)
        return self._settler.settle(tx, packed, answer, streams=True)


def _share_of(first: InFlight) -> Share:
    if first.lease.failures:
        return "failing"
    return "known" if first.lease.number else "new"
