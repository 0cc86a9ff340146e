"""The dispatcher: outbox to transport. It leases a peer, not rows, so the order of a lane needs no further rule."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, Thread
from typing import Final, NamedTuple

from onceward.db import file_checks
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import LeaseLost, OncewardError, Refused, StoreClosed, Unreachable
from onceward.hooks import Hooks
from onceward.model.clock import Millis
from onceward.model.log import log
from onceward.model.parcel import Answer
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings
from onceward.runtime.delivery_failures import DeliveryFailures
from onceward.runtime.event_emitter import EventEmitter
from onceward.store import dead_letters, dead_owners, health, outbox, parcels, peers
from onceward.store.parcels import InFlight, SenderInfo, SettleOptions
from onceward.store.peers import PeerLease
from onceward.transports.base import Transport

CARRIERS: Final = 64
MAX_IDLE_SECONDS: Final = 1.0
WAKE_ROWS: Final = 1000

Route = Callable[[str, str | None], tuple[Transport, str]]
"""From a peer's name and registered url to the transport and the url; raises Unreachable where there is none."""


class _Agenda(NamedTuple):
    """What a look at the file found."""

    paused: bool
    """Whether the kill-switch forbids any attempt."""
    tasks: bool
    callers: list[str]
    """Peers that have something to be pushed now."""
    due: bool
    """Whether rows wait to be woken or buried."""
    next_at: Millis | None
    index_is_damaged: bool = False
    """Whether rows were due that could not be moved."""


class Dispatcher:
    """Pushes parcels to peers, several peers at a time, one parcel per peer."""

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        route: Route,
        hooks: Hooks,
        rng: random.Random,
        policy: RetryPolicy | None = None,
        errands: Callable[[], None] = lambda: None,
    ) -> None:
        self._db, self._settings, self._route, self._run_background_tasks = (
            db,
            settings,
            route,
            errands,
        )
        self._policy = policy or retry_policy(settings)
        self._emitter = EventEmitter(hooks, db.agent)
        self._failures = DeliveryFailures(
            settings=settings, policy=self._policy, rng=rng, teller=self._emitter
        )
        self.owner = file_checks.owner_name()
        self._flag, self._stopping = Flag(), Flag()
        self._reaper = dead_owners.DeadOwnerReaper(db, owners=peers.OWNERS, free=peers.FREE)
        self._busy: set[str] = set()
        self._renewed: set[str] = set()
        """Peers that answered a fork since they were last leased: a second one is a failure like any other."""
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._thread: Thread | None = None
        self._unlisten: Callable[[], None] = lambda: None

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start pushing in the background."""
        self._reaper.release_leases()
        self._pool = ThreadPoolExecutor(CARRIERS, thread_name_prefix="onceward-carrier")
        self._unlisten = self._db.notifier.listen(
            "out", self._flag.set, version=self._db.version, poll=self._settings.poll_interval
        )
        self._thread = Thread(
            target=self._run, name=f"onceward-dispatcher-{self._db.agent}", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Start no new push; wait up to *timeout* seconds for those under way to be settled."""
        self._stopping.set()
        self._flag.set()
        self._unlisten()
        if self._thread is not None:
            self._thread.join(timeout)
        deadline = time.monotonic() + timeout
        while self._busy and time.monotonic() < deadline:
            self._flag.wait(0.01)
            self._flag.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._busy, cancel_futures=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._flag.clear()
            with suppress(StoreClosed):
                wait = self._dispatch_due()
                if (
                    wait is not None and wait > MAX_IDLE_SECONDS
                ):  # somebody holds a peer: perhaps nobody any more
                    wait = MAX_IDLE_SECONDS
                    self._reaper.release_leases()
                self._flag.wait(wait)

    def _dispatch_due(self) -> float | None:
        """Hand every peer that has mail to a carrier; return how long nothing will be due."""
        try:
            agenda = self._plan()
            for name in agenda.callers:
                with self._lock:
                    if name in self._busy or self._pool is None or self._stopping.is_set():
                        continue
                    self._busy.add(name)
                self._pool.submit(self._deliver_safely, name)
            return self._idle_for(agenda)
        except StoreClosed:
            self._stopping.set()
            return 0.0
        except Exception as error:  # noqa: BLE001 - a dispatcher outlives every error of its file
            log.failure("warning", "dispatcher waits", error, agent=self._db.agent, seconds=1)
            return 1.0

    def run_due(self) -> int:
        """Push, on this thread, whatever is due now; return how many parcels went out."""
        return sum(map(self._keep_delivering, self._plan().callers))

    def _keep_delivering(self, name: str) -> int:
        with suppress(LeaseLost):  # somebody else pushes to this peer: it is in good hands
            return self.deliver_to_peer(name)
        return 0

    # -- looking ----------------------------------------------------------------------------

    def _agenda(self) -> _Agenda:
        now = self._db.now()
        [(paused_at, clock_at, errands, callers, *moments)] = self._db.read(outbox.AGENDA, (now,))
        self._db.time.observe_remote(clock_at)
        paused = disabled_by_environment() or paused_at is not None
        return _Agenda(
            paused=paused,
            tasks=bool(errands),
            callers=[] if paused else json.loads(callers),
            due=not paused and any(at is not None and at <= now for at in moments),
            next_at=min((at for at in moments if at is not None and at > now), default=None),
        )

    def _plan(self) -> _Agenda:
        """Wake what is due and return what there is to do."""
        agenda = self._agenda()
        if agenda.paused or not (agenda.tasks or agenda.due):
            return agenda
        if agenda.tasks:
            self._run_tasks()
        stuck = agenda.due and not self._db.write(self._wake)
        return self._agenda()._replace(index_is_damaged=stuck)

    def _run_tasks(self) -> None:
        """Do what the home asks for; mail does not wait for a directory that is in trouble."""
        try:
            self._run_background_tasks()
        except OncewardError as error:
            log.failure("warning", "background tasks wait", error, agent=self._db.agent)

    def _wake(self, tx: StoreTransaction) -> int:
        """Make ready or bury what is due, the oldest of it; return how many rows that were."""
        parcels.unblock_lane(tx)
        count, unanswered = outbox.requeue_due(tx, WAKE_ROWS, self._policy.exhausted)
        expired = [seq for (seq,) in tx.rows(outbox.EXPIRED, (tx.now, WAKE_ROWS))]
        for seqs, reason, error in (
            (expired, "expired", ""),
            (unanswered, "max_retries_exceeded", "stored, but never processed"),
        ):
            if seqs:
                buried = dead_letters.add_from_outbox(tx, seqs, reason=reason, error=error)
                self._emitter.dead_lettered(tx, [(i, p, reason) for i, p in buried])
                count += len(buried)
        return count

    def _idle_for(self, agenda: _Agenda) -> float | None:
        """Return how long there will be nothing to do: None until somebody rings."""
        if agenda.paused or agenda.index_is_damaged:
            return MAX_IDLE_SECONDS
        if agenda.due:  # more than one commit takes, or since we woke the others
            return 0.0
        if agenda.callers:  # a carrier that is done rings by itself
            return MAX_IDLE_SECONDS
        wait = (
            None if agenda.next_at is None else max(0.001, (agenda.next_at - self._db.now()) / 1000)
        )
        return (
            min(MAX_IDLE_SECONDS, wait or MAX_IDLE_SECONDS) if agenda.tasks else wait
        )  # the directory rings nobody: look there now and then

    # -- carrying ---------------------------------------------------------------------------

    def _deliver_safely(self, name: str) -> None:
        try:
            self.deliver_to_peer(name)
        except (LeaseLost, StoreClosed) as error:
            log.failure("debug", "delivery ended early", error, agent=self._db.agent, peer=name)
        except OncewardError as error:
            log.failure("warning", "delivery failed", error, agent=self._db.agent, peer=name)
            self._stopping.wait(
                MAX_IDLE_SECONDS
            )  # the file is in trouble, and nothing in it says when to come again
        except Exception as error:  # noqa: BLE001 - a carrier outlives every error of a transport
            log.failure("error", "delivery failed", error, agent=self._db.agent, peer=name)
            self._stopping.wait(MAX_IDLE_SECONDS)
        finally:
            with self._lock:
                self._busy.discard(name)
            self._flag.set()

    def deliver_to_peer(self, name: str) -> int:
        """Push to one peer until nothing is left for it; return how many parcels arrived."""
        self._renewed.discard(name)
        count, packed = 0, self._db.write(lambda tx: self._first(tx, name))
        while packed is not None and packed.parcel is not None:
            following = self._push(packed)
            count += following is not None
            if self._stopping.is_set():
                break
            packed = following
        if packed is not None and packed.parcel is not None:
            with suppress(OncewardError):
                held = packed.lease
                self._db.write(lambda tx: peers.release(tx, held))
        return count

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
            max_bytes = self._route(held.name, held.url)[0].features.max_bytes
        except Unreachable:
            max_bytes = self._settings.parcel_max_bytes
        packed = parcels.pack(
            tx,
            held,
            mine=SenderInfo(self._db.agent, self._db.durability),
            settings=self._settings,
            until=self._lease_until(tx.now),
            max_bytes=max_bytes,
        )
        self._emitter.dead_lettered(tx, packed.dead_lettered)
        if packed.parcel is None:
            peers.release(tx, packed.lease)
        return packed

    def _push(self, packed: InFlight) -> InFlight | None:
        """Deliver one parcel and settle it; return the next one packed in the same commit, None where the peer rests."""
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        try:
            transport, url = self._route(packed.lease.name, packed.lease.url)
            answer = transport.deliver(url, packed.parcel)
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._pack(tx, self._failures.refused(tx, packed, refusal))
            )
        except Exception as error:  # noqa: BLE001 - a dispatcher outlives every error of its file
            problem, nobody = f"{type(error).__name__}: {error}", isinstance(error, Unreachable)
            self._db.write(lambda tx: self._failures.back_off(tx, packed, problem, nobody=nobody))
            return None
        streams = transport.features.streams
        return self._db.write(lambda tx: self._settle(tx, packed, answer, streams=streams))

    def _settle(
        self, tx: StoreTransaction, packed: InFlight, answer: Answer, *, streams: bool
    ) -> InFlight | None:
        if answer.verdict == "busy" and answer.retry_after:
            self._failures.wait(tx, packed, answer.retry_after)
            return None
        if answer.verdict == "busy":
            self._failures.back_off(tx, packed, "busy: the peer's inbox is full", nobody=True)
            return None
        if answer.verdict == "fork" and packed.lease.name in self._renewed:
            self._failures.back_off(tx, packed, "the peer takes no new epoch", nobody=True)
            return None
        if answer.verdict == "fork":
            self._renewed.add(packed.lease.name)
            return self._pack(tx, self._failures.forked(tx, packed, answer))
        ask_at = tx.now + round(1000 * self._settings.ack_timeout)
        terms = SettleOptions(self._settings, self._db.durability, ask_at, streams)
        settled = parcels.settle(tx, packed, answer, terms)
        self._failures.missing_receipts(tx, packed, answer)
        self._emitter.settled(tx, settled)
        if settled.moved.acked or settled.moved.failed:
            tx.after_commit(
                lambda: self._db.notifier.notify("in")
            )  # somebody may wait for an outcome
        if settled.idle and parcels.index_is_damaged(tx, packed):
            self._failures.back_off(
                tx,
                packed,
                "nothing of an answered parcel could be settled: run onceward check",
                nobody=True,
            )
            return None
        return self._pack(tx, settled.lease)
