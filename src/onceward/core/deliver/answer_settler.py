"""Settle the answer to a parcel, in the transaction that is open."""

from __future__ import annotations

from onceward.core.deliver import parcels
from onceward.core.deliver.delivery_failures import DeliveryFailures
from onceward.core.deliver.parcel_packer import ParcelPacker
from onceward.core.deliver.parcels import InFlight, SettleOptions
from onceward.core.engine.deps import RuntimeDeps
from onceward.core.engine.event_emitter import EventEmitter
from onceward.file.transaction import StoreTransaction
from onceward.message.parcel import Answer


class AnswerSettler:
    """Turns answers into rows, and packs the parcel that follows in the same transaction."""

    def __init__(
        self,
        deps: RuntimeDeps,
        packer: ParcelPacker,
        failures: DeliveryFailures,
        released: set[str],
    ) -> None:
        self._db, self._settings = deps.db, deps.settings
        self._packer, self._failures, self._released = packer, failures, released
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self.renewed: set[str] = set()
        """Peers that answered with a fork since their delivery began; a second one is a failure."""

    def settle(
        self, tx: StoreTransaction, packed: InFlight, answer: Answer, *, streams: bool
    ) -> InFlight | None:
        """
        Settle an answer; return the next parcel, one without frames at the end.

        Returns None where the peer is left alone for a while. *streams* says that
        the peer is an inbox of ours.
        """
        if answer.verdict == "busy":
            self._busy(tx, packed, answer)
            return None
        if answer.verdict == "fork":
            return self._forked(tx, packed, answer)
        ask_at = tx.now + round(1000 * self._settings.ack_timeout)
        options = SettleOptions(self._settings, self._db.durability, ask_at, streams)
        settled = parcels.settle(tx, packed, answer, options)
        self._failures.missing_receipts(tx, packed, answer)
        self._emitter.settled(tx, settled)
        moved = settled.moved
        if moved.acked or moved.failed or moved.unanswered or moved.dropped:
            # a caller may wait for the outcome
            tx.after_commit(lambda: self._db.notifier.notify("in"))
        if settled.held and settled.idle and parcels.index_is_damaged(tx, packed):
            error = "nothing of an answered parcel could be settled: run onceward check"
            self._failures.back_off(tx, packed, error, unreachable=True)
            return None
        if settled.held:
            return self._packer.next(tx, settled.lease)
        self._released.add(settled.lease.name)
        return InFlight(settled.lease, None)

    def _busy(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> None:
        if answer.retry_after:
            error = "busy: the peer takes no more from us just now"
            self._failures.wait(tx, packed, error, answer.retry_after)
        else:
            self._failures.back_off(tx, packed, "busy: the peer's inbox is full", unreachable=True)

    def _forked(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> InFlight | None:
        if packed.lease.name in self.renewed:
            self._failures.back_off(tx, packed, "the peer takes no new epoch", unreachable=True)
            return None
        self.renewed.add(packed.lease.name)
        renewed = self._failures.forked(tx, packed, answer)
        return None if renewed is None else self._packer.next(tx, renewed)
