"""Deliver parcels: reserve a peer, pack, push, settle the answer, pack the next one."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from threading import Event
from typing import Final

from onceward.core.deliver import parcels
from onceward.core.deliver.carriers import BusyPeers, Carriers, Delivery, Packed, Push, Share
from onceward.core.deliver.parcels import (
    InFlight,
    ParcelGrowth,
    SenderInfo,
    SettleOptions,
)
from onceward.core.deliver.transport import Elsewhere, NotMade, Routes, Transport
from onceward.core.end import sent
from onceward.core.rows import dead_letters, outbox, peers, receipts
from onceward.core.rows.peers import Fork, PeerLease
from onceward.core.run import engine_loop as engine
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import CountedAttempt, EventEmitter, Settled
from onceward.errors import (
    ForeignHandle,
    LeaseLost,
    OncewardError,
    OutOfDescriptors,
    ParcelTooLarge,
    PushFailed,
    Refused,
    StoreClosed,
    Unreachable,
)
from onceward.file import file_checks, identity
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis, monotonic
from onceward.message.error_text import error_text
from onceward.message.events import (
    BreakerOpened,
    DeliveryFailed,
    ForkCause,
    PeerRolledBack,
    Retried,
    StreamForked,
)
from onceward.message.log import Level, log
from onceward.message.parcel import Answer, Receipt, encoded_size
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.vocabulary import Reason

PACK_WITH_SEND: Final = 4
"""Maximum peers whose parcels the commit of their messages packs; the loop packs the rest."""
SETTLE_WITHIN: Final = 0.05
"""Seconds that an answer waits to join another commit."""
PATIENCE: Final = 3
"""Consecutive forks that this file caused, after which the peer is paused between two of them."""
COPIED: Final = (
    "two copies of this agent's file, or two agents of the same name, push to the peer: stop or "
    "rename one of them"
)
CAUSES: Final[dict[ForkCause, str]] = {
    "own_file": "our file was restored or copied, or another agent of the same name pushes to "
    "the peer",
    "peer_file": "the peer's file was restored or recreated",
}
ID: Final = attrgetter("id")


class Deliveries:
    """
    The parcels of one dispatcher, each from the reservation of its peer to its settlement.

    A peer has one parcel at a time, and one owner of it:

    - the commit that packs it: ``pack`` reserves the peer, leases it and stores the parcel;
    - after the commit a carrier, to which ``hand_over`` gives it, or ``begin`` the peer if nothing
    is packed yet. A carrier that is about to leave continues with it: ``pass_on``;
    - that carrier while the transport pushes it, for ``deliver_timeout`` seconds. A longer push
    belongs to the watch: ``give_up_late`` backs off, and the carrier is replaced;
    - the transaction of the answer: it ends the parcel, and packs the next one for the same
      carrier or releases the peer, which ``end`` then leaves;
    - none, if an error kept the file from releasing it: the peer is recorded as left, and
    ``release_left`` releases it, so that the stored parcel is pushed again.

    ``BusyPeers`` records the owner of each peer; the lease proves at every change that a parcel is
    ours. *wake* makes the dispatcher look for due work.
    """

    def __init__(
        self,
        deps: RuntimeDeps,
        routes: Routes,
        *,
        policy: RetryPolicy,
        stopping: Event,
        wake: Callable[[], None],
    ) -> None:
        self._db, self._settings, self._routes = deps.db, deps.settings, routes
        self._stopping, self._wake = stopping, wake
        self.owner = file_checks.owner_name()
        """The name under which peers are leased."""
        self._lease_for = round(1000 * (deps.settings.deliver_timeout + deps.settings.lease))
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self._failures = DeliveryFailures(
            settings=deps.settings, policy=policy, rng=deps.rng, emitter=self._emitter
        )
        self._notify_others = partial(deps.db.notifier.notify_others, "out")
        self._growth = ParcelGrowth(
            deps.db.clock.monotonic, deps.settings.tuning.parcel_max_messages
        )
        self._busy = BusyPeers(stopping)
        self._carriers: Carriers | None = None
        """The threads that push in the background; None while callers' threads push."""
        self._packed: Packed = {}
        """Parcels that the commit of this turn packs."""
        self._passed: set[str] = set()
        """Peers that had a carrier when the commit of this turn was packed."""
        self._renewed: set[str] = set()
        """Peers that answered with a fork since their delivery began; a second one is a failure."""

    # -- life ---------------------------------------------------------------------------------

    def push_by(self, carriers: Carriers) -> None:
        """Also push the parcels that commits of this process have packed, on *carriers*."""
        self._carriers = carriers
        self._db.writer.packer = self

    def stop_packing(self) -> None:
        """Stop packing parcels in the commits of their messages."""
        if self._db.writer.packer is self:
            self._db.writer.packer = None

    def stop(self, deadline: float) -> None:
        """
        Begin no further delivery; wait until *deadline* for the running ones.

        The peers of those that take longer are released: their parcels are pushed again.
        """
        if self._carriers is not None:
            for delivery in self._carriers.stop():
                self._busy.forget(delivery)
        self._busy.wait_until_settled(deadline)
        for push in self._busy.pushes():
            if self._give_up(push):
                self._busy.leave(push.peer)
        with suppress(OncewardError):
            self.release_left()

    def wait_for_a_change(self) -> None:
        """Wait briefly until a carrier has left a peer."""
        self._busy.wait_for_a_change()

    # -- in the commit of a send: pack, and hand over -----------------------------------------

    def pack(self, tx: StoreTransaction) -> None:
        """
        Pack the parcels of peers that have nothing in flight, in the commit of their messages.

        The loop looks for all others.
        """
        if self._db.agent in tx.outgoing and self._deliver_own(tx):
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
                    missed |= not self._submit(Delivery(name, _share_of(first), first))
            elif name not in self._passed:
                missed |= self._busy.cancel(name)
            if not durable:  # an error in COMMIT does not say that the peer is not leased now
                self._busy.leave(name)
                missed = True
            del self._packed[name]
        self._passed.clear()
        if missed:
            self._wake()

    def _pack_alone(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """
        Pack the first parcel of a peer; return None if the loop must handle it.

        It needs no savepoint: an error leaves a leased peer, with or without its parcel, which the
        loop releases.
        """
        try:
            first = self._first(tx, name)
        except Exception:  # noqa: BLE001 - the loop gets it again, and reports it
            self._busy.leave(name)
            return None
        return None if first is None or first.parcel is None else first

    def _deliver_own(self, tx: StoreTransaction) -> bool:
        """Move messages of the agent to itself, in a savepoint; False: parcels must do it."""
        own = self._db.writer.own
        if own is None:
            return False
        try:
            with tx.nested():
                return own.deliver(tx)
        except Exception:  # noqa: BLE001 - the loop gets it again, and reports it
            return False

    # -- packing ------------------------------------------------------------------------------

    def _first(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """
        Lease a peer and pack its first parcel; None while it backs off, is leased, or paused.

        Raises:
            NotMade: its transport must first be created, outside the transaction.

        """
        if SWITCH in VARIABLES and disabled_by_environment():
            return None
        leased = peers.lease(tx, name, owner=self.owner, until=tx.now + self._lease_for)
        return None if leased is None else self._pack_leased(tx, leased)

    def _next(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        """Pack the next parcel of a leased peer; release the peer if there is none."""
        if identity.is_paused(tx.rows):
            peers.release(tx, held)
            return InFlight(held, None)
        return self._pack_leased(tx, held._replace(owed=1, ready=1))

    def _pack_leased(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        """Pack a parcel for a leased peer; the file is not paused. Release a peer without one."""
        limit = self._settings.tuning.parcel_max_messages
        if SWITCH in VARIABLES and disabled_by_environment():
            peers.release(tx, held)
            return InFlight(held, None)
        try:
            features = self._routes.features(held.name, held.url)
            max_bytes = features.max_bytes
            if features.network:
                limit = self._growth.limit(held.name)
        except Elsewhere:
            peers.release(tx, held)
            tx.wake(self._notify_others)
            return InFlight(held, None)
        except NotMade:
            peers.release(tx, held)
            raise
        except Unreachable:
            max_bytes = self._settings.tuning.parcel_max_bytes
        packed = parcels.pack(
            tx,
            held,
            mine=SenderInfo(self._db.agent, self._db.durability),
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

    # -- on a carrier, or on the caller's thread: push until the peer has everything ----------

    def begin(self, name: str, share: Share) -> None:
        """Give a peer to a carrier, unless it has one."""
        if self._busy.reserve(name):
            self._submit(Delivery(name, share))

    def _submit(self, delivery: Delivery) -> bool:
        """Give a delivery to a carrier; forget it and return False if there is none."""
        if self._carriers is not None and self._carriers.submit(delivery):
            return True
        self._busy.forget(delivery)
        return False

    def carry(self, delivery: Delivery) -> None:
        """
        Deliver to one peer on this carrier, until no more parcels are packed for it.

        It never raises. Afterwards the loop checks if it waits for the peer, or if the peer has
        messages now or later.
        """
        name, first, going_on = delivery.name, delivery.first, True
        if first is None:
            self._busy.leave_for_later(name)
        while going_on:
            try:
                self.deliver(name, first)
            except StoreClosed as error:
                log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
            except Exception:  # noqa: BLE001 - a carrier survives every error, and it was logged
                self._busy.leave_for_later(name)
                self._pause_peer()
            finally:
                first = self._busy.end(name)
                going_on = first is not None
        if self._busy.needs_look(name):
            self._wake()
        self._busy.changed()

    def _pause_peer(self) -> None:
        """Keep the peer busy briefly: without a writable file, no row says when to retry."""
        self._stopping.wait(engine.MAX_IDLE_SECONDS)

    def deliver(self, name: str, first: InFlight | None = None) -> int:
        """Push to one peer; store an error outside the push with the peer."""
        try:
            return self._deliver_all(name, first)
        except LeaseLost as error:  # another dispatcher pushes to this peer
            self._busy.leave_for_later(name)
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except StoreClosed:
            raise
        except Exception as error:
            level: Level = "warning" if isinstance(error, OncewardError) else "error"
            self._busy.leave_for_later(name)
            log.failure(level, "delivery failed", error, agent=self._db.agent, peer=name)
            if not self._told(name, error):
                self._busy.leave(name)
                raise
        return 0

    def _told(self, name: str, error: Exception) -> bool:
        """Record at the peer why pushes pause; return whether that was possible."""
        text = error_text(error)
        try:
            self._db.write(
                lambda tx: peers.note_error(
                    tx, name, text, owner=self.owner, due_at=tx.now + _pause()
                )
            )
        except OncewardError:
            return False
        return True

    def _deliver_all(self, name: str, packed: InFlight | None = None) -> int:
        """
        Push to one peer until it has everything; return how many parcels arrived.

        Begin with the parcel that the commit of its messages has *packed*, if there is one.
        """
        self._renewed.discard(name)
        count = 0
        if packed is None and name == self._db.agent:
            while not self._stopping.is_set() and self._db.write(self._deliver_own):
                count += 1
            if count:
                return count
        try:
            packed = packed or self._db.write(partial(self._first, name=name))
        except NotMade:
            packed = self._make_and_pack(name)
        while packed is not None and packed.parcel is not None:
            following = self._push(packed)
            count += following is not None
            if self._stopping.is_set():
                break
            packed = following
        if packed is None:
            self._busy.leave_for_later(name)
        if packed is not None and packed.parcel is not None:
            with suppress(OncewardError):
                held = packed.lease
                self._db.write(lambda tx: peers.release(tx, held))
        return count

    def _make_and_pack(self, name: str) -> InFlight | None:
        """Create the transport of a peer outside the transaction, then pack its first parcel."""
        with suppress(Unreachable):  # the push gets it again, and reports it
            self._routes.route(name, peers.url_of(self._db.read, name))
        return self._db.write(partial(self._first, name=name))

    def _push(self, packed: InFlight) -> InFlight | None:
        """Push one parcel and settle it; return the next one, or None if the peer backs off."""
        heard = self._db.notifier.remote_out
        try:
            transport, url = self._routes.route(packed.lease.name, packed.lease.url)
            if transport.features.network:
                answer = self._timed(transport, url, packed)
            else:
                answer = self._answer(transport, url, packed)
        except LeaseLost:
            raise
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._next(tx, self._failures.refused(tx, packed, refusal))
            )
        except ParcelTooLarge as error:
            limit = error.limit
            return self._db.write(
                lambda tx: self._next(tx, self._failures.too_large(tx, packed, limit))
            )
        except Exception as error:  # noqa: BLE001 - a carrier survives every error of a transport
            if _is_our_own(error):
                self._wait(packed, error)
            else:
                self._back_off(packed, error)
            return None
        settle = partial(
            self._settle, packed=packed, answer=answer, streams=transport.features.streams
        )
        try:
            return self._write_answer(packed, settle, heard)
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001 - the transport did not return an answer
            self._back_off(packed, error)
            return None

    def _timed(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """Call a network transport; parcels grow while the network is slow."""
        held = packed.lease
        push = partial(self._answer, transport, url, packed)
        return self._growth.timed(held.name, len(held.parcel or ()), push)

    def _answer(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """
        Call the transport.

        Raises:
            LeaseLost: it exceeded its time limit and was given up; its answer does not count.

        """
        assert packed.parcel is not None  # noqa: S101 - the caller checked
        if self._carriers is None:
            return transport.deliver(url, packed.parcel)
        self._busy.begin_push(packed, self._settings.deliver_timeout)
        try:
            return transport.deliver(url, packed.parcel)
        finally:
            if not self._busy.end_push():
                msg = f"the push to {packed.lease.name} returned after it was given up"
                raise LeaseLost(msg)

    def _wait(self, packed: InFlight, error: Exception) -> None:
        text = error_text(error)
        self._db.write(lambda tx: self._failures.wait(tx, packed, text, _pause()))

    def _back_off(self, packed: InFlight, error: Exception) -> None:
        """
        Stop pushing to the peer for a while, because a push to it failed.

        An error of the transport itself costs no message an attempt.
        """
        text = error_text(error)
        unreachable = not isinstance(error, PushFailed)
        if not isinstance(error, OncewardError):
            peer = packed.lease.name
            log.failure("error", "the transport failed", error, agent=self._db.agent, peer=peer)
        self._db.write(
            lambda tx: self._failures.back_off(tx, packed, text, unreachable=unreachable)
        )

    # -- settling -----------------------------------------------------------------------------

    def _write_answer(
        self,
        packed: InFlight,
        settle: Callable[[StoreTransaction], InFlight | None],
        heard: int,
    ) -> InFlight | None:
        """
        Commit the changes of an answer, if possible with the next commit of this process.

        The lease stays in the file until then; after a crash the same parcel is pushed again. A
        peer that has more does not wait for a commit: *heard* is the number of notices from other
        processes when its parcel was pushed.
        """
        if self._carriers is None or self._stopping.is_set() or self._busy.several:
            return self._db.write(settle)
        return self._db.write_with_next(
            settle,
            SETTLE_WITHIN,
            unless=lambda: (
                packed.more
                or self._busy.is_wanted(packed.lease.name)
                or heard != self._db.notifier.remote_out
            ),
        )

    def _settle(
        self, tx: StoreTransaction, packed: InFlight, answer: Answer, *, streams: bool
    ) -> InFlight | None:
        """
        Settle an answer; return the next parcel, one without frames at the end.

        Return None if the peer is not pushed to for a while. *streams*: the peer is an onceward
        inbox.
        """
        self._busy.serve(packed.lease.name)
        if answer.verdict == "busy":
            self._failures.busy(tx, packed, answer)
            return None
        if answer.verdict == "fork":
            return self._forked(tx, packed, answer)
        ask_at = tx.now + round(1000 * self._settings.ack_timeout)
        options = SettleOptions(self._settings, self._db.durability, ask_at, streams)
        settled = parcels.settle(tx, packed, answer, options)
        blocked = self._failures.missing_receipts(tx, packed, answer)
        self._emitter.settled(tx, settled)
        moved = settled.moved
        if moved.sent or blocked:
            self._busy.leave_for_later(settled.lease.name)
        if moved.ended:
            # a caller may wait for the outcome
            tx.after_commit(lambda: self._db.notifier.notify("in"))
        if settled.held:
            return self._follow(tx, packed, settled)
        self._busy.release(settled.lease.name)
        return InFlight(settled.lease, None)

    def _follow(self, tx: StoreTransaction, packed: InFlight, settled: Settled) -> InFlight | None:
        """Pack the parcel that follows a settled one."""
        following = self._pack_leased(tx, settled.lease)
        if settled.idle and parcels.repeats(packed, following):
            error = "no message of an answered parcel could be settled: run onceward check"
            self._failures.back_off(tx, packed, error, unreachable=True)
            return None
        if following.parcel is not None:
            # it has those of this transaction, or its ``more`` says that there are others
            tx.outgoing.pop(settled.lease.name, None)
        return following

    def _forked(self, tx: StoreTransaction, packed: InFlight, answer: Answer) -> InFlight | None:
        if packed.lease.name in self._renewed:
            self._failures.back_off(
                tx, packed, "the peer does not accept a new epoch", unreachable=True
            )
            return None
        self._renewed.add(packed.lease.name)
        renewed = self._failures.forked(tx, packed, answer)
        return None if renewed is None else self._next(tx, renewed)

    # -- giving up, and giving back -----------------------------------------------------------

    def give_up_late(self) -> float:
        """Give up hanging pushes; return the seconds until the next one may have to be given up."""
        if self._carriers is None:
            return engine.MAX_IDLE_SECONDS
        limit, now = self._settings.deliver_timeout, monotonic()
        next_at = now + limit  # also of a push that begins in the meantime
        for push in self._busy.pushes():
            if push.until > now:
                next_at = min(next_at, push.until)
            elif self._give_up(push):
                error = Unreachable(f"no answer within {limit} s; the push was given up")
                try:
                    self._back_off(push.packed, error)
                except OncewardError as failed:
                    log.failure(
                        "warning", "push given up", failed, agent=self._db.agent, peer=push.peer
                    )
                    self._busy.leave(push.peer)
        return max(0.01, next_at - now)

    def _give_up(self, push: Push) -> bool:
        """Abandon a push to run without a carrier; return False if it has just returned."""
        given_up = self._busy.give_up(push)
        if given_up and self._carriers is not None:
            self._carriers.give_up(push.thread)
        return given_up

    def release_left(self) -> None:
        """Release the peers that an error left leased; their parcels are pushed again."""
        if self._busy.any_left:
            names: list[str] = []
            try:
                self._db.write(partial(self._release_idle, names))
            except BaseException:
                self._busy.leave(*names)
                raise

    def _release_idle(self, names: list[str], tx: StoreTransaction) -> None:
        """
        Release the left peers without a carrier, and add them to *names*.

        They are forgotten in the turn to write: a commit that leaves one of them again comes later.
        """
        names += self._busy.idle_left
        self._busy.given_back(names)
        peers.release_own(tx, self.owner, names)


def _share_of(first: InFlight) -> Share:
    if first.lease.failures:
        return "failing"
    return "known" if first.lease.number else "new"


def _pause() -> Millis:
    """Return how long a peer is not pushed to after an error of this process."""
    return round(1000 * engine.MAX_IDLE_SECONDS)


def _is_our_own(error: Exception) -> bool:
    """Return whether a push failed because of this process: descriptors, memory, its sqlite3."""
    return isinstance(error, OutOfDescriptors | MemoryError | ForeignHandle) or (
        isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    )


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
        blocked_until = parcels.block_lane(tx, row.id, error=error, due_at=due_at)
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
        counted = parcels.count_attempts(tx, held, error, all_spend=all_spend)
        gone = [each.seq for each in counted if self._policy.exhausted(each.spent)]
        if not gone:
            return held, counted
        self._give_up(tx, gone, "attempts_spent", error, tried=False)
        left = [each for each in counted if each.seq not in gone]
        return peers.new_epoch(tx, held, "a parcel was given up: its budget is spent"), left

    def _give_up(
        self, tx: StoreTransaction, seqs: list[int], reason: Reason, error: str, *, tried: bool
    ) -> None:
        moved = dead_letters.add_from_outbox(tx, seqs, reason=reason, error=error, tried=tried)
        self._emitter.dead_lettered(tx, [(i, peer, reason) for i, peer in moved])

    def refused(self, tx: StoreTransaction, packed: InFlight, error: str) -> PeerLease:
        """Make dead letters of a parcel that the peer permanently refuses; open a new epoch."""
        self._give_up(tx, list(packed.lease.parcel or ()), "rejected", error, tried=True)
        receipts.delivered(tx, packed.lease.name, packed.paid_upto)
        return peers.new_epoch(tx, packed.lease, f"refused: {error}")

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

        One of the two files was restored or replaced. If it is the peer's, the messages that it has
        lost and that are retained here are sent again. If it is ours, and repeatedly, two copies of
        it are in use: then the peer is not pushed to for a while, and None is returned.
        """
        held = packed.lease
        fork = peers.judge_fork(held, answer.epoch, answer.number)
        self._resend(tx, held, fork)
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

    def _resend(self, tx: StoreTransaction, held: PeerLease, fork: Fork) -> None:
        """Send the messages again that a restored peer has lost, and report them."""
        stands = held.ordinal_of(fork.epoch, fork.number)
        lost = 0 if fork.own else sent.resend(tx, held.name, after=stands)
        if lost:
            self._emitter.emit(tx, PeerRolledBack(
                agent=self._agent, at=tx.now, peer=held.name, resent=lost,
                retained_from=outbox.oldest(tx, held.name),
            ))  # fmt: skip
