"""Decide what a push that failed, or an answer that refuses, means for its messages and peer."""

from __future__ import annotations

import errno
import json
import random
from operator import attrgetter
from typing import Final

from onceward.core.deliver.carriers import InFlight
from onceward.core.end import sent
from onceward.core.rows import outbox, peers, senders
from onceward.core.rows.peers import PeerLease
from onceward.core.run.event_emitter import CountedAttempt, EventEmitter
from onceward.errors import ForeignHandle, OutOfDescriptors
from onceward.file import identity
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.events import (
    BreakerOpened,
    DeliveryFailed,
    ForkCause,
    PeerRolledBack,
    Retried,
    StreamForked,
)
from onceward.message.parcel import Answer, Receipt, encoded_size
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.vocabulary import Reason

PATIENCE: Final = 3
"""Consecutive forks that this file caused, after which the peer is paused between two of them."""
COPIED: Final = (
    "two copies of this agent's file, or two agents of the same name, push to the peer: stop or "
    "rename one of them"
)
TAKEN_OVER: Final = "superseded: another machine has taken over this agent"
ID: Final = attrgetter("id")
CAUSES: Final[dict[ForkCause, str]] = {
    "own_file": "our file was restored or copied, or another agent of the same name pushes to "
    "the peer",
    "peer_file": "the peer's file was restored or recreated",
}


def is_our_own(error: Exception) -> bool:
    """Return whether a push failed because of this process: descriptors, memory, its sqlite3."""
    return isinstance(error, OutOfDescriptors | MemoryError | ForeignHandle) or (
        isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    )


def repeats(packed: InFlight, following: InFlight) -> bool:
    """Return whether a parcel has rows of the answered one: the index lists them as pending."""
    return not set(packed.lease.parcel or ()).isdisjoint(following.lease.parcel or ())


class DeliveryFailures:
    """Stores every kind of failure in rows, inside the dispatcher's transaction."""

    def __init__(
        self, *, settings: Settings, policy: RetryPolicy, rng: random.Random, emitter: EventEmitter
    ) -> None:
        self._settings, self._policy, self._rng = settings, policy, rng
        self._emitter, self._agent = emitter, emitter.agent

    def missing_receipts(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> bool:
        """
        Block the lanes of frames that failed individually; return whether there may be such frames.

        A frame without a receipt after another frame of its lane counts as not delivered.
        """
        assert packed.parcel is not None  # noqa: S101 - it was pushed
        told, refused = dict[str, Receipt](), dict[str, Receipt]()
        for receipt in answer.receipts:
            (refused if receipt.state == "busy" else told)[receipt.id] = receipt
        if told.keys() >= set(map(ID, packed.parcel.frames)):
            return False
        lanes: dict[tuple[str, int], Millis | None] = {}
        for row in outbox.in_parcel(tx, packed.lease.parcel or ()):
            if row.id in told or row.state != "pending":
                lanes.setdefault(row.ordering, None)
            elif row.id in refused or row.ordering not in lanes:
                error = refused[row.id].reason if row.id in refused else None
                error = error or "the answer has no receipt for it"
                lanes[row.ordering] = self._fail_alone(tx, row, packed.lease.name, error)
            else:
                outbox.hold_back(tx, row.seq, due_at=lanes[row.ordering])
        return True

    def _fail_alone(
        self, tx: StoreTransaction, row: outbox.ParcelRow, peer: str, error: str
    ) -> Millis | None:
        """Return until when the lane of a message is blocked; None if it was given up."""
        attempt = row.attempts + 1
        spent = attempt - row.free_attempts
        if self._policy.exhausted(spent):
            self._give_up(tx, [row.seq], "attempts_spent", error, tried=True)
            return None
        due_at = tx.now + self._policy.delay(spent, self._rng)
        blocked_until = outbox.block_lane(tx, row.id, error=error, due_at=due_at)
        bump(tx, retries=1)
        self._emitter.emit(tx, Retried(
            agent=self._agent, at=tx.now, message_id=row.id, peer=peer,
            attempt=attempt, error=error, due_at=due_at,
        ))  # fmt: skip
        return blocked_until

    def back_off(
        self, tx: StoreTransaction, packed: InFlight, error: str, *, unreachable: bool
    ) -> None:
        """
        Stop pushing to the peer for a while.

        With *unreachable* the peer did not receive the parcel, so no message's budget is spent
        unless the setting ``count_unreachable_attempts`` is on.
        """
        held, left = packed.lease, list[CountedAttempt]()
        if not unreachable or self._settings.count_unreachable_attempts:
            held, left = self._count_attempts(tx, held, error)
        backoff = peers.back_off(
            tx, held, error, policy=self._policy, rng=self._rng, settings=self._settings
        )
        self._failed(tx, held.name, error, backoff.due_at)
        self._emitter.retried(tx, held.name, left, error=error, due_at=backoff.due_at)
        if backoff.opened:
            opened = BreakerOpened(
                agent=self._agent, at=tx.now, peer=held.name, due_at=backoff.due_at
            )
            self._emitter.emit(tx, opened)

    def busy(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> None:
        """Stop pushing to the peer because it is busy."""
        if answer.retry_after:
            error = "busy: the peer accepts no more from us at present"
            self.wait(tx, packed, error, answer.retry_after)
        else:
            self.back_off(tx, packed, "busy: the peer's inbox is full", unreachable=True)

    def hear_takeover(self, tx: StoreTransaction, held: PeerLease, answer: Answer) -> None:
        """Store the takeover that an answer tells: of this file, or the one of the peer's file."""
        told = str(answer.takeover)
        if answer.verdict == "superseded":
            identity.supersede(tx, told)
        elif told > (held.takeover or ""):
            identity.note_takeover(tx, held.name, told)

    def superseded(self, tx: StoreTransaction, packed: InFlight) -> None:
        """Stop, because the peer knows another machine that has taken over."""
        self.back_off(tx, packed, TAKEN_OVER, unreachable=True)

    def wait(self, tx: StoreTransaction, packed: InFlight, error: str, after: int) -> None:
        """
        Push again after *after* milliseconds, which a busy peer asked for or we need.

        The peer works, so no budget is spent and no circuit breaker opens.
        """
        due_at = tx.now + after
        peers.defer(tx, packed.lease, error, due_at=due_at)
        self._failed(tx, packed.lease.name, error, due_at)

    def _failed(self, tx: StoreTransaction, peer: str, error: str, due_at: Millis) -> None:
        failed = DeliveryFailed(agent=self._agent, at=tx.now, peer=peer, error=error, due_at=due_at)
        self._emitter.emit(tx, failed)

    def _count_attempts(
        self, tx: StoreTransaction, held: PeerLease, error: str
    ) -> tuple[PeerLease, list[CountedAttempt]]:
        """Count the attempt of each message; give up those whose budget is spent."""
        all_spend = self._settings.count_unreachable_attempts
        counted = count_attempts(tx, held, error, all_spend=all_spend)
        gone = [each.seq for each in counted if self._policy.exhausted(each.spent)]
        if not gone:
            return held, counted
        self._give_up(tx, gone, "attempts_spent", error, tried=False)
        left = [each for each in counted if each.seq not in gone]
        return peers.new_epoch(tx, held, "a parcel was given up: its budget is spent"), left

    def _give_up(
        self, tx: StoreTransaction, seqs: list[int], reason: Reason, error: str, *, tried: bool
    ) -> None:
        moved = sent.bury(tx, seqs, reason=reason, error=error, tried=tried)
        self._emitter.dead_lettered(tx, [(i, peer, reason) for i, peer in moved])

    def refused(self, tx: StoreTransaction, packed: InFlight, error: str) -> PeerLease:
        """Make dead letters of a parcel that the peer permanently refuses; open a new epoch."""
        self._give_up(tx, list(packed.lease.parcel or ()), "rejected", error, tried=True)
        senders.remove_receipts(tx, packed.lease.name, packed.paid_upto)
        held = drop_greeting(tx, packed.lease)
        return peers.new_epoch(tx, held, f"refused: {error}")

    def too_large(self, tx: StoreTransaction, packed: InFlight, limit: int) -> PeerLease:
        """
        Give up a parcel that is too large for the transport; send its messages in smaller ones.

        If the parcel is already within the reported limit, half its size is tried.
        """
        assert packed.parcel is not None  # noqa: S101 - it was pushed
        size = encoded_size(packed.parcel)
        most = limit if 0 < limit < size else size // 2
        held = peers.limit_parcels(tx, packed.lease, most)
        if held.parcel is None:
            return held  # receipts have no number
        return peers.new_epoch(
            tx, held, f"the transport to the peer accepts parcels of at most {most} bytes"
        )

    def forked(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> PeerLease | None:
        """
        Open a new epoch because our stream does not continue the peer's record.

        One of the two files was restored or replaced, or both. The messages that the peer has lost
        and that are retained here are sent again. If it is our file, and repeatedly, two copies of
        it are in use: then the peer is not pushed to for a while, and None is returned.
        """
        from onceward.core.deliver.fork import judge_fork  # noqa: PLC0415 - rare

        held = packed.lease
        fork = judge_fork(held, answer)
        if fork.lacks_after is not None:
            self._resend(tx, held.name, fork.lacks_after)
        detail = (
            f"we are at parcel {held.number + 1} of {held.epoch[:8]}, "
            f"the peer at {answer.number} of {answer.epoch[:8] or 'none'}"
        )
        cause: ForkCause = "own_file" if fork.own else "peer_file"
        detail += f"; {CAUSES[cause]}"
        self._emitter.emit(tx, StreamForked(
            agent=self._agent, at=tx.now, peer=held.name, cause=cause, detail=detail,
        ))  # fmt: skip
        fresh = peers.new_epoch(tx, held, f"fork: {detail}", fork=fork)
        repeated = fresh.own_forks - PATIENCE if fork.own else 0
        if repeated <= 0:
            return fresh
        due_at = tx.now + self._policy.delay(repeated, self._rng)
        peers.defer(tx, fresh, COPIED, due_at=due_at)
        self._failed(tx, held.name, COPIED, due_at)
        return None

    def _resend(self, tx: StoreTransaction, peer: str, after: int) -> None:
        """Send the messages again that a restored peer has lost, and report them."""
        if lost := sent.resend(tx, peer, after=after):
            self._emitter.emit(tx, PeerRolledBack(
                agent=self._agent, at=tx.now, peer=peer, resent=lost,
                retained_from=outbox.oldest(tx, peer),
            ))  # fmt: skip


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


def drop_greeting(tx: StoreTransaction, held: PeerLease) -> PeerLease:
    """Greet a peer no more, because no greeting can reach it."""
    if held.greeting is not None:
        identity.drop_greeting(tx, held.fence)
    return held._replace(greeting=None)
