"""What a dispatcher does when a push does not arrive as it should: rest, spend, give up, open a new epoch."""

from __future__ import annotations

import random

from onceward.db.transaction import StoreTransaction
from onceward.model.events import (
    BreakerOpened,
    DeliveryFailed,
    PeerRolledBack,
    Retried,
    StreamForked,
)
from onceward.model.parcel import Answer
from onceward.model.retry import RetryPolicy
from onceward.model.settings import Settings
from onceward.runtime.event_emitter import EventEmitter
from onceward.store import dead_letters, outbox, parcels, peers, receipts
from onceward.store.parcels import InFlight
from onceward.store.peers import PeerLease


class DeliveryFailures:
    """Turns every way of failing into rows, inside the dispatcher's transaction."""

    def __init__(
        self, *, settings: Settings, policy: RetryPolicy, rng: random.Random, teller: EventEmitter
    ) -> None:
        self._settings, self._policy, self._rng, self._emitter = settings, policy, rng, teller

    def missing_receipts(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> None:
        """Frames that a partial answer left out, or that failed alone, rest with their lanes."""
        assert packed.parcel is not None  # noqa: S101 - it was pushed
        told = {r.id: r for r in answer.receipts}
        for carried in packed.parcel.frames:
            receipt = told.get(carried.id)
            if receipt is None or receipt.state == "busy":
                self._fail_alone(
                    tx,
                    carried.id,
                    packed.lease.name,
                    (receipt and receipt.reason) or "no receipt in the answer",
                )

    def _fail_alone(self, tx: StoreTransaction, message_id: str, peer: str, error: str) -> None:
        for seq, attempts in outbox.attempts_of(tx, message_id):
            if self._policy.exhausted(attempts + 1):
                buried = dead_letters.add_from_outbox(
                    tx, [seq], reason="max_retries_exceeded", error=error
                )
                self._emitter.dead_lettered(tx, [(i, p, "max_retries_exceeded") for i, p in buried])
                continue
            due_at = tx.now + self._policy.delay(attempts + 1, self._rng)
            parcels.block_lane(tx, message_id, error=error, due_at=due_at)
            self._emitter.emit(tx, Retried(
                agent=self._emitter.agent, at=tx.now, message_id=message_id, peer=peer, attempt=attempts + 1, error=error, due_at=due_at,
            ))  # fmt: skip

    def back_off(self, tx: StoreTransaction, packed: InFlight, error: str, *, nobody: bool) -> None:
        """Leave the peer alone for a while; an attempt that found *nobody* spends no budget unless settings say so."""
        held = packed.lease
        if not nobody or self._settings.count_unreachable_attempts:
            held = self._count_attempts(tx, held, error)
        rested = peers.back_off(
            tx, held, error, policy=self._policy, rng=self._rng, settings=self._settings
        )
        self._emitter.emit(
            tx,
            DeliveryFailed(
                agent=self._emitter.agent,
                at=tx.now,
                peer=held.name,
                error=error,
                due_at=rested.due_at,
            ),
        )
        if rested.opened:
            self._emitter.emit(
                tx,
                BreakerOpened(
                    agent=self._emitter.agent, at=tx.now, peer=held.name, due_at=rested.due_at
                ),
            )

    def wait(self, tx: StoreTransaction, packed: InFlight, after: int) -> None:
        """Come again when the peer says: it is well and takes no more of us just now, so nothing is spent and no breaker opens."""
        error, due_at = "busy: the peer takes no more from us just now", tx.now + after
        peers.defer(tx, packed.lease, error, due_at=due_at)
        self._emitter.emit(
            tx,
            DeliveryFailed(
                agent=self._emitter.agent,
                at=tx.now,
                peer=packed.lease.name,
                error=error,
                due_at=due_at,
            ),
        )

    def _count_attempts(self, tx: StoreTransaction, held: PeerLease, error: str) -> PeerLease:
        """Count the attempt against the budget of each message; give up those that have none left."""
        spent = parcels.count_attempts(tx, held, error)
        gone = [seq for seq, _, attempts in spent if self._policy.exhausted(attempts)]
        if not gone:
            return held
        buried = dead_letters.add_from_outbox(tx, gone, reason="max_retries_exceeded", error=error)
        self._emitter.dead_lettered(tx, [(i, p, "max_retries_exceeded") for i, p in buried])
        return peers.new_epoch(tx, held, "a parcel was given up: its budget is spent")

    def refused(self, tx: StoreTransaction, packed: InFlight, error: str) -> PeerLease:
        """Bury a parcel that the peer will never take, and open a new epoch without it."""
        buried = dead_letters.add_from_outbox(
            tx, packed.lease.parcel or (), reason="rejected", error=error
        )
        self._emitter.dead_lettered(tx, [(i, p, "rejected") for i, p in buried])
        receipts.delivered(tx, packed.lease.name, packed.paid_upto)
        return peers.new_epoch(tx, packed.lease, f"refused: {error}")

    def forked(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> PeerLease:
        """Our stream does not continue what the peer knows: one of the two files is not what it was."""
        held = packed.lease
        detail = f"we are at parcel {held.number + 1} of {held.epoch[:8]}, the peer at {answer.number} of {answer.epoch[:8] or 'none'}"
        stands = held.ordinal_of(answer.epoch, answer.number)
        settled = held.ordinal - 1 if held.number else held.base_parcel
        lost = 0 if stands and stands >= settled else outbox.resend(tx, held.name, after=stands)
        if lost:
            oldest = tx.rows(outbox.OLDEST, (held.name,))
            self._emitter.emit(tx, PeerRolledBack(
                agent=self._emitter.agent, at=tx.now, peer=held.name, resent=lost, retained_from=oldest[0][0] if oldest else None,
            ))  # fmt: skip
        self._emitter.emit(
            tx, StreamForked(agent=self._emitter.agent, at=tx.now, peer=held.name, detail=detail)
        )
        return peers.new_epoch(tx, held, f"fork: {detail}", stands=(answer.epoch, answer.number))
