"""Deliver parcels: push to a reserved peer, settle the answer, continue with the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Final

from onceward.core.deliver import failures, parcels
from onceward.core.deliver.carriers import BusyPeers, Carriers, Delivery, InFlight, Push, Share
from onceward.core.deliver.failures import DeliveryFailures
from onceward.core.deliver.parcels import ParcelPacker, SettleOptions
from onceward.core.deliver.transport import NotMade, Routes, Transport
from onceward.core.rows import peers
from onceward.core.run import engine_loop as engine
from onceward.core.run.arrival import ANSWERED
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter, Settled
from onceward.errors import (
    LeaseLost,
    OncewardError,
    ParcelTooLarge,
    PushFailed,
    Refused,
    StoreClosed,
    Unreachable,
)
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis, monotonic
from onceward.message.error_text import error_text
from onceward.message.log import Level, log
from onceward.message.parcel import Answer
from onceward.message.retry import RetryPolicy

SETTLE_WITHIN: Final = 0.05
"""Seconds that an answer waits to join another commit."""
SETTLE_ENDS_WITHIN: Final = 0.005
"""The same for an answer that ends messages: a caller may wait for that."""


class PassedOn(LeaseLost):
    """Another carrier settles the answer to a push, and continues with its peer."""


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
        self._hooks = deps.hooks
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self._failures = DeliveryFailures(
            settings=deps.settings, policy=policy, rng=deps.rng, emitter=self._emitter
        )
        self._busy = BusyPeers(stopping)
        self._packing = ParcelPacker(deps, routes, busy=self._busy, wake=wake)
        self.owner = self._packing.owner
        """The name under which peers are leased."""
        self._carriers: Carriers | None = None
        """The threads that push in the background; None while callers' threads push."""
        self._renewed: set[str] = set()
        """Peers that answered with a fork since their delivery began; a second one is a failure."""

    # -- life ---------------------------------------------------------------------------------

    def push_by(self, carriers: Carriers) -> None:
        """Also push the parcels that commits of this process have packed, on *carriers*."""
        self._carriers = self._packing.carriers = carriers
        self._db.writer.packer = self._packing

    def stop_packing(self) -> None:
        """Stop packing parcels in the commits of their messages."""
        if self._db.writer.packer is self._packing:
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
                self._busy.left.add(push.peer)
        with suppress(OncewardError):
            self.release_left()

    def wait_for_a_change(self) -> None:
        """Wait briefly until a carrier has left a peer."""
        self._busy.wait_for_a_change()

    # -- on a carrier, or on the caller's thread: push until the peer has everything ----------

    def begin(self, name: str, share: Share) -> None:
        """Give a peer to a carrier, unless it has one."""
        if self._busy.reserve(name):
            self._packing.submit(Delivery(name, share))

    def carry(self, delivery: Delivery) -> None:
        """
        Deliver to one peer on this carrier, until no more parcels are packed for it.

        It never raises. Afterwards the loop checks if it waits for the peer, or if the peer has
        messages now or later.
        """
        name, first, answer = delivery.name, delivery.first, delivery.answer
        going_on, passed_on = True, False
        if first is None:
            self._busy.later.add(name)
        while going_on:
            try:
                self.deliver(name, first, answer)
            except PassedOn:
                passed_on = True
            except StoreClosed as error:
                log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
            except Exception:  # noqa: BLE001 - a carrier survives every error, and it was logged
                self._busy.later.add(name)
                self._pause_peer()
            finally:
                first, answer = None if passed_on else self._busy.end(name), None
                going_on = first is not None
        if passed_on:
            return
        if self._busy.needs_look(name):
            self._wake()
        self._busy.changed()

    def _pause_peer(self) -> None:
        """Keep the peer busy briefly: without a writable file, no row says when to retry."""
        self._stopping.wait(engine.MAX_IDLE_SECONDS)

    def deliver(
        self, name: str, first: InFlight | None = None, answer: Answer | None = None
    ) -> int:
        """
        Push to one peer; store an error outside the push with the peer.

        *first* is the parcel to begin with, *answer* the answer to it if it was pushed already.
        """
        try:
            return self._deliver_all(name, first, answer)
        except PassedOn:
            raise
        except LeaseLost as error:  # another dispatcher pushes to this peer
            self._busy.later.add(name)
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except StoreClosed:
            raise
        except Exception as error:
            level: Level = "warning" if isinstance(error, OncewardError) else "error"
            self._busy.later.add(name)
            log.failure(level, "delivery failed", error, agent=self._db.agent, peer=name)
            if not self._told(name, error):
                self._busy.left.add(name)
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

    def _deliver_all(
        self, name: str, packed: InFlight | None = None, answer: Answer | None = None
    ) -> int:
        """
        Push to one peer until it has everything; return how many parcels arrived.

        Begin with the parcel that the commit of its messages has *packed*, if there is one, and
        with its *answer*, if there is one already.
        """
        self._renewed.discard(name)
        count = 0
        if packed is None and name == self._db.agent:
            while not self._stopping.is_set() and self._db.write(self._packing.deliver_own):
                count += 1
            if count:
                return count
        try:
            packed = packed or self._db.write(partial(self._packing.first, name=name))
        except NotMade:
            packed = self._make_and_pack(name)
        while packed is not None and packed.parcel is not None:
            following, answer = self._push(packed, answer), None
            count += following is not None
            if self._stopping.is_set():
                break
            packed = following
        if packed is None:
            self._busy.later.add(name)
        if packed is not None and packed.parcel is not None:
            with suppress(OncewardError):
                held = packed.lease
                self._db.write(lambda tx: peers.release(tx, held))
        return count

    def _make_and_pack(self, name: str) -> InFlight | None:
        """Create the transport of a peer outside the transaction, then pack its first parcel."""
        with suppress(Unreachable):  # the push gets it again, and reports it
            self._routes.route(name, peers.url_of(self._db.read, name))
        return self._db.write(partial(self._packing.first, name=name))

    def _push(self, packed: InFlight, answer: Answer | None = None) -> InFlight | None:
        """
        Push one parcel and settle it; return the next one, or None if the peer backs off.

        With an *answer* it was pushed already.
        """
        heard = self._db.notifier.remote_out
        try:
            transport, url = self._routes.route(packed.lease.name, packed.lease.url)
            if answer is not None:
                pass
            elif transport.features.network:
                answer = self._timed(transport, url, packed)
            else:
                answer = self._answer(transport, url, packed)
        except LeaseLost:
            raise
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._packing.next(tx, self._failures.refused(tx, packed, refusal))
            )
        except ParcelTooLarge as error:
            limit = error.limit
            return self._db.write(
                lambda tx: self._packing.next(tx, self._failures.too_large(tx, packed, limit))
            )
        except Exception as error:  # noqa: BLE001 - a carrier survives every error of a transport
            if failures.is_our_own(error):
                self._wait(packed, error)
            else:
                self._back_off(packed, error)
            return None
        settle = partial(
            self._settle, packed=packed, answer=answer, streams=transport.features.streams
        )
        try:
            return self._write_answer(packed, settle, answer, heard)
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001 - the transport did not return an answer
            self._back_off(packed, error)
            return None

    def _timed(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """Call a network transport; parcels grow while the network is slow."""
        held = packed.lease
        push = partial(self._answer, transport, url, packed)
        return self._packing.growth.timed(held.name, len(held.parcel or ()), push)

    def _answer(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """
        Call the transport.

        Raises:
            LeaseLost: it exceeded its time limit and was given up; its answer does not count.

        """
        assert packed.parcel is not None  # noqa: S101 - the caller checked
        if self._carriers is None:
            return transport.deliver(url, packed.parcel)
        push = self._busy.begin_push(packed, self._settings.deliver_timeout)
        before = ANSWERED.set(partial(self._answered, push))
        try:
            return transport.deliver(url, packed.parcel)
        finally:
            ANSWERED.reset(before)
            if not self._busy.end_push():
                if push.passed_on:
                    raise PassedOn
                msg = f"the push to {packed.lease.name} returned after it was given up"
                raise LeaseLost(msg)

    def _answered(self, push: Push, answer: Answer) -> None:
        """Settle the answer to a push on another carrier: a handler keeps this one's thread."""
        if self._carriers is not None and self._busy.pass_push(push):
            self._carriers.give_up(push.thread)
            self._packing.submit(Delivery(push.peer, push.packed.share, push.packed, answer))

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
        answer: Answer,
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
            SETTLE_ENDS_WITHIN if answer.ends else SETTLE_WITHIN,
            unless=lambda: (
                packed.more
                or packed.lease.name in self._busy.wanted
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
        self._busy.wanted.discard(packed.lease.name)
        if answer.takeover is not None:
            self._failures.hear_takeover(tx, packed.lease, answer)
        if answer.verdict == "busy":
            self._failures.busy(tx, packed, answer)
            return None
        if answer.verdict == "fork":
            return self._forked(tx, packed, answer)
        if answer.verdict == "superseded":
            self._failures.superseded(tx, packed)
            return None
        ask_at = tx.now + round(1000 * self._settings.ack_timeout)
        options = SettleOptions(self._settings, self._db.durability, ask_at, streams)
        settled = parcels.settle(tx, packed, answer, options)
        blocked = settled.lacking and self._failures.missing_receipts(tx, packed, answer)
        if self._hooks._hooks:
            self._emitter.settled(tx, settled)
        moved = settled.moved
        if moved.sent or blocked:
            self._busy.later.add(settled.lease.name)
        if moved.ended:
            # a caller may wait for the outcome
            tx.after_commit(lambda: self._db.notifier.notify("in"))
        if settled.held:
            return self._follow(tx, packed, settled)
        self._busy.released.add(settled.lease.name)
        return InFlight(settled.lease, None)

    def _follow(self, tx: StoreTransaction, packed: InFlight, settled: Settled) -> InFlight | None:
        """Pack the parcel that follows a settled one."""
        following = self._packing.pack_leased(tx, settled.lease)
        if settled.idle and failures.repeats(packed, following):
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
        return None if renewed is None else self._packing.next(tx, renewed)

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
                    self._busy.left.add(push.peer)
        return max(0.01, next_at - now)

    def _give_up(self, push: Push) -> bool:
        """Abandon a push to run without a carrier; return False if it has just returned."""
        given_up = self._busy.give_up(push)
        if given_up and self._carriers is not None:
            self._carriers.give_up(push.thread)
        return given_up

    def release_left(self) -> None:
        """Release the peers that an error left leased; their parcels are pushed again."""
        if self._busy.left:
            names: list[str] = []
            try:
                self._db.write(partial(self._release_idle, names))
            except BaseException:
                self._busy.left.update(names)
                raise

    def _release_idle(self, names: list[str], tx: StoreTransaction) -> None:
        """
        Release the left peers without a carrier, and add them to *names*.

        They are forgotten in the turn to write: a commit that leaves one of them again comes later.
        """
        names += self._busy.idle_left
        self._busy.left.difference_update(names)
        peers.release_own(tx, self.owner, names)


def _pause() -> Millis:
    """Return how long a peer is not pushed to after an error of this process."""
    return round(1000 * engine.MAX_IDLE_SECONDS)
