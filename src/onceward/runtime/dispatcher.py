"""Push the messages of an outbox to their peers: lease a peer, push its parcels, settle each."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, get_ident
from typing import Final, NamedTuple

from onceward.db import file_checks
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import (
    LeaseLost,
    OncewardError,
    OutOfDescriptors,
    ParcelTooLarge,
    Refused,
    StoreClosed,
    Unreachable,
)
from onceward.model.clock import Millis
from onceward.model.log import Level, log
from onceward.model.parcel import Answer
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.vocabulary import Reason
from onceward.runtime import engine
from onceward.runtime.carriers import Carriers, Delivery, Share
from onceward.runtime.delivery_failures import DeliveryFailures
from onceward.runtime.deps import RuntimeDeps
from onceward.runtime.engine import EngineLoop
from onceward.runtime.event_emitter import EventEmitter
from onceward.runtime.routes import NotMade, Routes
from onceward.store import dead_letters, health, outbox, parcels, peers, receipts
from onceward.store.dead_owners import DeadOwnerReaper
from onceward.store.parcels import InFlight, SenderInfo, SettleOptions
from onceward.store.peers import PeerLease
from onceward.transports.base import Transport

SETTLE_WITHIN: Final = 0.05
"""Seconds that an answer waits for a commit that is made anyway."""
PACK_WITH_SEND: Final = 4
"""Most peers whose parcels are packed in the commit of their messages; the loop packs the rest."""
WAKE_ROWS: Final = 1000
"""Most rows that one commit makes ready or gives up."""


class _Agenda(NamedTuple):
    """The work that a look at the file found."""

    paused: bool
    """Whether a pause or the environment forbids any attempt."""
    tasks: bool
    """Whether background tasks of channels are to be done."""
    callers: dict[str, Share]
    """Peers that have something to be pushed now, by name, longest due first."""
    due: bool
    """Whether rows are due to be woken or to become dead letters."""
    next_at: Millis | None
    """When the next row is due."""
    index_is_damaged: bool = False
    """Whether rows were due that could not be moved."""


class _Push(NamedTuple):
    """A parcel under way, and until when its transport may take, by the process's clock."""

    packed: InFlight
    until: float


class Dispatcher:
    """
    Pushes parcels to peers, several peers at a time, one parcel per peer.

    It leases the peer, not its rows, so the order of a lane needs no further rule.
    """

    def __init__(
        self,
        deps: RuntimeDeps,
        *,
        routes: Routes,
        policy: RetryPolicy | None = None,
        background_tasks: Callable[[], None] = lambda: None,
    ) -> None:
        self._db, self._settings, self._routes = deps.db, deps.settings, routes
        self._background_tasks = background_tasks
        self._mine = SenderInfo(deps.db.agent, deps.db.durability)
        self._policy = policy or retry_policy(deps.settings)
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        self._failures = DeliveryFailures(
            settings=deps.settings, policy=self._policy, rng=deps.rng, emitter=self._emitter
        )
        self.owner = file_checks.owner_name()
        reaper = DeadOwnerReaper(deps.db, owners=peers.OWNERS, free=peers.end_dead_owner)
        self._loop = EngineLoop(
            deps.db, "dispatcher", self._dispatch_due, reaper=reaper, watch=self._watch
        )
        self._busy: set[str] = set()
        self._renewed: set[str] = set()
        """Peers that answered with a fork since they were leased; a second fork is a failure."""
        self._released: set[str] = set()
        """Peers that a carrier has released and is about to leave."""
        self._following: dict[str, InFlight] = {}
        """Parcels that were packed for such peers; the same carrier goes on with them."""
        self._left: set[str] = set()
        """Peers that may still be leased to us although no carrier pushes to them."""
        self._packed: dict[str, InFlight | None] = {}
        """Parcels that the commit of this turn packs; None for a reserved peer without one."""
        self._passed: set[str] = set()
        """Peers that had a carrier when the commit of this turn was packed."""
        self._lock = Lock()
        self._pushes: dict[int, _Push] = {}
        """Pushes under way, by the thread of their carrier."""
        self._hanging: set[str] = set()
        """Peers whose push was given up and has not returned: they are busy until it does."""
        self._ended = Event()
        self._carriers: Carriers | None = None

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start pushing in the background."""
        self._carriers = Carriers(self._settings.carriers, self._deliver_safely)
        self._loop.start("out", poll=self._settings.poll_interval)
        self._db.writer.packer = self

    def stop(self, timeout: float) -> None:
        """
        Start no new push; wait up to *timeout* seconds until those under way are settled.

        The peers of those that take longer are given back: their parcels are pushed again.
        """
        if self._db.writer.packer is self:
            self._db.writer.packer = None
        self._loop.stopping.set()
        self._db.writer.queue.hurry()
        deadline = time.monotonic() + timeout
        self._loop.stop(timeout)
        if self._carriers is not None:
            for delivery in self._carriers.stop():
                self._forget(delivery)
        while self._busy - self._hanging and time.monotonic() < deadline:
            self._ended.clear()
            self._ended.wait(0.01)
        for thread, push in list(self._pushes.items()):
            if self._give_up(thread):
                self._left.add(push.packed.lease.name)
        if self._left:
            with suppress(OncewardError):
                self._release_left()

    def push_owed(self, timeout: float) -> None:
        """Wait up to *timeout* seconds until the receipts that can be pushed are pushed."""
        deadline = time.monotonic() + timeout
        while self._loop.started and self._owes() and time.monotonic() < deadline:
            self._db.writer.queue.hurry()
            self._loop.notified.set()
            self._ended.clear()
            self._ended.wait(0.01)

    def _owes(self) -> bool:
        try:
            if self._loop.stopping.is_set() or self._agenda().paused:
                return False
            return bool(self._db.read(receipts.WAIT, (self._db.now(),))[0][0])
        except OncewardError:
            return False

    def _forget(self, delivery: Delivery) -> None:
        """Leave a peer whose delivery has not begun; its lease is given back later."""
        if delivery.first is not None:
            self._left.add(delivery.name)
        self._busy.discard(delivery.name)
        self._ended.set()

    def _watch(self) -> float:
        """Give up the pushes that hang; return the seconds until one may have to be."""
        now, limit = time.monotonic(), self._settings.deliver_timeout
        for thread, push in list(self._pushes.items()):
            if push.until <= now and self._give_up(thread):
                error = Unreachable(f"no answer within {limit} s; the push was given up")
                try:
                    self._back_off(push.packed, error)
                except OncewardError as failed:
                    log.failure("warning", "push given up", failed, agent=self._db.agent)
        ends = [push.until for push in list(self._pushes.values())]
        return max(0.01, min(ends, default=now + limit) - now)

    def _give_up(self, thread: int) -> bool:
        """Let a push go on without a carrier; return False where it has just returned."""
        with self._lock:
            push = self._pushes.pop(thread, None)
            if push is None:
                return False
            self._hanging.add(push.packed.lease.name)
        if self._carriers is not None:
            self._carriers.give_up(thread)
        return True

    def _dispatch_due(self) -> float | None:
        """Give every peer that has messages to a carrier; return the seconds until more is due."""
        agenda = self._plan()
        for name, share in agenda.callers.items():
            if self._reserve(name):
                self._submit(Delivery(name, share))
        return self._idle_for(agenda)

    def _submit(self, delivery: Delivery) -> bool:
        """Give a delivery to a carrier; return False, and forget it, where there is none."""
        if self._carriers is not None and self._carriers.submit(delivery):
            return True
        self._forget(delivery)
        return False

    def _reserve(self, name: str, packed: dict[str, InFlight | None] | None = None) -> bool:
        """
        Reserve a peer for one carrier; False where it has one, or the dispatcher stops.

        *packed* gets its name first, for an interrupt may come after any call.
        """
        with self._lock:
            if name in self._busy or self._loop.stopping.is_set():
                return False
            self._released.discard(name)
            if packed is not None:
                packed[name] = None
            self._busy.add(name)
        return True

    def pack(self, tx: StoreTransaction) -> None:
        """
        Pack the parcels of peers that have nothing in flight, in the commit of their messages.

        The loop looks for all others.
        """
        if len(tx.outgoing) > PACK_WITH_SEND or disabled_by_environment():
            tx.wakeups[self._db.writer.wake_dispatchers] = None
            return
        for name in list(tx.outgoing):
            if not self._reserve(name, self._packed):
                self._passed.add(name)
                if name not in self._released:
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
        missed = not self._passed <= self._busy | self._packed.keys()
        while self._packed:
            name, first = next(iter(self._packed.items()))
            if durable and first is not None:
                if name not in self._passed or not self._pass_on(name, first):
                    missed |= not self._submit(Delivery(name, _share_of(first), first))
            elif name not in self._passed:
                self._busy.discard(name)
            if not durable:  # an error in COMMIT does not say that the peer is not leased now
                self._left.add(name)
                missed = True
            del self._packed[name]
        self._passed.clear()
        if missed:
            self._loop.notified.set()

    def _pass_on(self, name: str, first: InFlight) -> bool:
        """Leave a parcel to the carrier that is about to end; reserve the peer if it has ended."""
        with self._lock:
            if name in self._busy:
                self._following[name] = first
                return True
            self._passed.discard(name)  # first: after an interrupt the next call must submit it
            self._busy.add(name)
        return False

    def _pack_alone(self, tx: StoreTransaction, name: str) -> InFlight | None:
        """Pack the first parcel of a peer in a savepoint; None where the loop must look at it."""
        try:
            with tx.nested():
                first = self._first(tx, name)
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
        return self._settle(tx, packed, answer, streams=True)

    def run_due(self) -> int:
        """
        Push, on this thread, what is due now; return how many parcels arrived.

        An error at one peer is told at that peer. One that the file does not take
        is raised.
        """
        return sum(map(self._deliver, self._plan().callers))

    # -- looking ----------------------------------------------------------------------------

    def _agenda(self) -> _Agenda:
        now = self._db.now()
        [(paused_at, clock_at, tasks, callers, *moments)] = self._db.read(outbox.AGENDA, (now,))
        self._db.time.observe_remote(clock_at)
        paused = disabled_by_environment() or paused_at is not None
        due, next_at = False, None
        for at in moments:
            if at is not None and at <= now:
                due = True
            elif at is not None and (next_at is None or at < next_at):
                next_at = at
        return _Agenda(
            paused=paused,
            tasks=bool(tasks),
            callers={} if paused else json.loads(callers),
            due=due and not paused,
            next_at=next_at,
        )

    def _plan(self) -> _Agenda:
        """Wake what is due; return what there is to do after that."""
        if self._left:
            self._release_left()
        agenda = self._agenda()
        if agenda.paused or not (agenda.tasks or agenda.due):
            return agenda
        if agenda.tasks:
            self._run_tasks()
        stuck = agenda.due and not self._db.write(self._wake)
        return self._agenda()._replace(index_is_damaged=stuck)

    def _release_left(self) -> None:
        """Release the peers that an error had left leased; their parcels are pushed again."""
        self._left.difference_update(self._db.write(self._release_idle))

    def _release_idle(self, tx: StoreTransaction) -> list[str]:
        """Release the left peers that no carrier has, and return them."""
        names = sorted(self._left - (self._busy - self._hanging))
        tx.many(peers.RELEASE_OWN, [(name, self.owner) for name in names])
        return names

    def _run_tasks(self) -> None:
        """Do the background tasks of channels; an error of the directory delays no message."""
        try:
            self._background_tasks()
        except OncewardError as error:
            log.failure("warning", "background tasks wait", error, agent=self._db.agent)

    def _wake(self, tx: StoreTransaction) -> int:
        """Make ready or give up the oldest rows that are due; return how many there were."""
        parcels.unblock_lane(tx)
        count, unanswered = outbox.requeue_due(tx, WAKE_ROWS, self._policy.exhausted)
        expired = [seq for (seq,) in tx.rows(outbox.EXPIRED, (tx.now, WAKE_ROWS))]
        over: tuple[tuple[list[int], Reason, str], ...] = (
            (expired, "expired", ""),
            (unanswered, "max_retries_exceeded", "stored, but never processed"),
        )
        for seqs, reason, error in over:
            if seqs:
                moved = dead_letters.add_from_outbox(tx, seqs, reason=reason, error=error)
                self._emitter.dead_lettered(tx, [(i, peer, reason) for i, peer in moved])
                count += len(moved)
        return count

    def _idle_for(self, agenda: _Agenda) -> float | None:
        """Return the seconds until more is due: None for not before a notification."""
        if agenda.paused or agenda.index_is_damaged:
            return engine.MAX_IDLE_SECONDS
        if agenda.due:  # more rows than one commit takes, or due since the others were woken
            return 0.0
        if agenda.callers:  # a carrier that is done notifies the loop
            return engine.MAX_IDLE_SECONDS
        wait = None
        if agenda.next_at is not None:
            wait = max(0.001, (agenda.next_at - self._db.now()) / 1000)
        if agenda.tasks:  # the directory sends no notifications, so its tasks are polled
            return min(engine.MAX_IDLE_SECONDS, wait or engine.MAX_IDLE_SECONDS)
        return wait

    # -- delivering -------------------------------------------------------------------------

    def _deliver_safely(self, delivery: Delivery) -> None:
        name, first, going_on = delivery.name, delivery.first, True
        while going_on:
            try:
                self._deliver(name, first)
            except StoreClosed as error:
                log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
            except Exception:  # noqa: BLE001 - a carrier outlives every error, and it was logged
                self._pause_peer()
            finally:
                first = self._end_of_delivery(name)
                going_on = first is not None
        self._loop.notified.set()
        self._ended.set()

    def _end_of_delivery(self, name: str) -> InFlight | None:
        """Return the parcel that was packed for the peer meanwhile; let go of the peer if none."""
        with self._lock:
            self._released.discard(name)
            following = self._following.pop(name, None)
            if following is None:
                self._busy.discard(name)
                self._hanging.discard(name)
        return following

    def _deliver(self, name: str, first: InFlight | None = None) -> int:
        """Push to one peer; an error that is none of a push is told at the peer."""
        try:
            return self.deliver_to_peer(name, first)
        except LeaseLost as error:  # another dispatcher pushes to this peer
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except StoreClosed:
            raise
        except Exception as error:
            level: Level = "warning" if isinstance(error, OncewardError) else "error"
            log.failure(level, "delivery failed", error, agent=self._db.agent, peer=name)
            if not self._told(name, error):
                self._left.add(name)
                raise
        return 0

    def _told(self, name: str, error: Exception) -> bool:
        """Record at the peer why it is left alone for a moment; say whether that was possible."""
        text = f"{type(error).__name__}: {error}"
        try:
            self._db.write(
                lambda tx: peers.note_error(
                    tx, name, text, owner=self.owner, due_at=tx.now + _pause()
                )
            )
        except OncewardError:
            return False
        return True

    def _pause_peer(self) -> None:
        """Keep the peer busy for a moment: where the file takes no row, none says when to retry."""
        self._loop.stopping.wait(engine.MAX_IDLE_SECONDS)

    def deliver_to_peer(self, name: str, packed: InFlight | None = None) -> int:
        """
        Push to one peer until it has everything; return how many parcels arrived.

        Begins with the parcel that the commit of its messages has *packed*, if there is one.
        """
        self._renewed.discard(name)
        count = 0
        try:
            packed = packed or self._db.write(partial(self._first, name=name))
        except NotMade:
            packed = self._make_and_pack(name)
        while packed is not None and packed.parcel is not None:
            following = self._push(packed)
            count += following is not None
            if self._loop.stopping.is_set():
                break
            packed = following
        if packed is not None and packed.parcel is not None:
            with suppress(OncewardError):
                held = packed.lease
                self._db.write(lambda tx: peers.release(tx, held))
        return count

    def _make_and_pack(self, name: str) -> InFlight | None:
        """Make the transport of a peer outside the transaction, then pack its first parcel."""
        rows = self._db.read(peers.URL, (name,))
        with suppress(Unreachable):  # the push meets it again, and tells of it
            self._routes.route(name, rows[0][0] if rows else None)
        return self._db.write(partial(self._first, name=name))

    def _first(self, tx: StoreTransaction, name: str) -> InFlight | None:
        until = self._lease_until(tx.now)
        held = peers.lease(tx, name, owner=self.owner, until=until)
        if held is None and tx.run(peers.KNOW, (name,)):
            held = peers.lease(tx, name, owner=self.owner, until=until)
        return None if held is None else self._pack(tx, held)

    def _lease_until(self, now: Millis) -> Millis:
        return now + round(1000 * (self._settings.deliver_timeout + self._settings.lease))

    def _pack(self, tx: StoreTransaction, held: PeerLease) -> InFlight:
        if disabled_by_environment() or health.paused(tx):
            peers.release(tx, held)
            return InFlight(held, None)
        try:
            max_bytes = self._routes.features(held.name, held.url).max_bytes
        except Unreachable:
            max_bytes = self._settings.parcel_max_bytes
        packed = parcels.pack(
            tx,
            held,
            mine=self._mine,
            settings=self._settings,
            until=self._lease_until(tx.now),
            max_bytes=max_bytes,
        )
        if packed.dead_lettered:
            self._emitter.dead_lettered(tx, packed.dead_lettered)
        if packed.parcel is None:
            peers.release(tx, packed.lease)
        return packed

    def _push(self, packed: InFlight) -> InFlight | None:
        """Push one parcel and settle it; return the next one, None where the peer backs off."""
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        try:
            transport, url = self._routes.route(packed.lease.name, packed.lease.url)
            answer = self._answer(transport, url, packed)
        except LeaseLost:
            raise
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._pack(tx, self._failures.refused(tx, packed, refusal))
            )
        except ParcelTooLarge as error:
            limit = error.limit
            return self._db.write(
                lambda tx: self._pack(tx, self._failures.too_large(tx, packed, limit))
            )
        except Exception as error:  # noqa: BLE001 - a carrier outlives every error of a transport
            if _is_our_own(error):
                self._wait(packed, error)
            else:
                self._back_off(packed, error)
            return None
        streams = transport.features.streams
        try:
            return self._write_answer(
                packed, partial(self._settle, packed=packed, answer=answer, streams=streams)
            )
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001 - the transport returned what is no answer
            self._back_off(packed, error)
            return None

    def _answer(self, transport: Transport, url: str, packed: InFlight) -> Answer:
        """
        Call the transport.

        Raises:
            LeaseLost: it took longer than it may and was given up; its answer does not count.

        """
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        if not self._loop.started:
            return transport.deliver(url, packed.parcel)
        until = time.monotonic() + self._settings.deliver_timeout
        self._pushes[get_ident()] = _Push(packed, until)
        try:
            return transport.deliver(url, packed.parcel)
        finally:
            if self._pushes.pop(get_ident(), None) is None:
                msg = f"the push to {packed.lease.name} returned after it was given up"
                raise LeaseLost(msg)

    def _write_answer(
        self, packed: InFlight, settle: Callable[[StoreTransaction], InFlight | None]
    ) -> InFlight | None:
        """
        Commit what an answer changes, with the next commit of this process where none hurries.

        The lease stays in the file meanwhile; after a crash the same parcel is pushed again.
        """
        if not self._loop.started or self._loop.stopping.is_set() or len(self._busy) > 1:
            return self._db.write(settle)
        return self._db.write_with_next(
            settle,
            SETTLE_WITHIN,
            unless=partial(parcels.more_waits, self._db.read, packed.lease, packed.paid_upto),
        )

    def _wait(self, packed: InFlight, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._db.write(lambda tx: self._failures.wait(tx, packed, text, _pause()))

    def _back_off(self, packed: InFlight, error: Exception) -> None:
        text, unreachable = f"{type(error).__name__}: {error}", isinstance(error, Unreachable)
        self._db.write(
            lambda tx: self._failures.back_off(tx, packed, text, unreachable=unreachable)
        )

    def _settle(
        self, tx: StoreTransaction, packed: InFlight, answer: Answer, *, streams: bool
    ) -> InFlight | None:
        if answer.verdict == "busy" and answer.retry_after:
            error = "busy: the peer takes no more from us just now"
            self._failures.wait(tx, packed, error, answer.retry_after)
            return None
        if answer.verdict == "busy":
            self._failures.back_off(tx, packed, "busy: the peer's inbox is full", unreachable=True)
            return None
        if answer.verdict == "fork" and packed.lease.name in self._renewed:
            self._failures.back_off(tx, packed, "the peer takes no new epoch", unreachable=True)
            return None
        if answer.verdict == "fork":
            self._renewed.add(packed.lease.name)
            renewed = self._failures.forked(tx, packed, answer)
            return None if renewed is None else self._pack(tx, renewed)
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
            return self._pack(tx, settled.lease)
        self._released.add(settled.lease.name)
        return InFlight(settled.lease, None)


def _pause() -> Millis:
    """Return how long a peer is left alone after an error of our own side."""
    return round(1000 * engine.MAX_IDLE_SECONDS)


def _share_of(first: InFlight) -> Share:
    if first.lease.failures:
        return "failing"
    return "known" if first.lease.number else "new"


def _is_our_own(error: Exception) -> bool:
    """Return whether a push failed for lack of descriptors or memory in this process."""
    return isinstance(error, OutOfDescriptors | MemoryError) or (
        isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    )
