"""The dispatcher: outbox to transport. It leases a peer, not rows, so the order of a lane needs no further rule."""

from __future__ import annotations

import json
import logging
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
from onceward.db.transaction import Tx
from onceward.errors import LeaseLost, OncewardError, Refused, StoreClosed, Unreachable
from onceward.hooks import Hooks
from onceward.model.clock import Millis
from onceward.model.parcel import Answer
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings, disabled
from onceward.runtime.delivery_failures import Setbacks
from onceward.runtime.event_emitter import Teller
from onceward.store import dead_letters, dead_owners, health, outbox, parcels, peers
from onceward.store.parcels import Mine, Packed, Terms
from onceward.store.peers import Lease
from onceward.transports.base import Transport

_log = logging.getLogger("onceward")
CARRIERS: Final = 64
GLANCE: Final = 1.0
WAKE_ROWS: Final = 1000

Route = Callable[[str, str | None], tuple[Transport, str]]
"""From a peer's name and registered url to the transport and the url; raises Unreachable where there is none."""


class _Agenda(NamedTuple):
    """What a look at the file found."""

    frozen: bool
    """Whether the kill-switch forbids any attempt."""
    errands: bool
    callers: list[str]
    """Peers that have something to be pushed now."""
    due: bool
    """Whether rows wait to be woken or buried."""
    next_at: Millis | None
    stuck: bool = False
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
        self._db, self._settings, self._route, self._errands = db, settings, route, errands
        self._policy = policy or retry_policy(settings)
        self._teller = Teller(hooks, db.agent)
        self._setbacks = Setbacks(
            settings=settings, policy=self._policy, rng=rng, teller=self._teller
        )
        self.owner = file_checks.owner_name()
        self._flag, self._stopping = Flag(), Flag()
        self._heirs = dead_owners.Heirs(db, owners=peers.OWNERS, free=peers.FREE)
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
        self._heirs.look()
        self._pool = ThreadPoolExecutor(CARRIERS, thread_name_prefix="onceward-carrier")
        self._unlisten = self._db.bell.listen(
            "out", self._flag.set, version=self._db.version, poll=self._settings.safety_poll
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
                wait = self._look()
                if (
                    wait is not None and wait > GLANCE
                ):  # somebody holds a peer: perhaps nobody any more
                    wait = GLANCE
                    self._heirs.look()
                self._flag.wait(wait)

    def _look(self) -> float | None:
        """Hand every peer that has mail to a carrier; return how long nothing will be due."""
        try:
            agenda = self._find()
            for name in agenda.callers:
                with self._lock:
                    if name in self._busy or self._pool is None or self._stopping.is_set():
                        continue
                    self._busy.add(name)
                self._pool.submit(self._carry_safely, name)
            return self._idle_for(agenda)
        except StoreClosed:
            self._stopping.set()
            return 0.0
        except Exception as error:  # noqa: BLE001 - a dispatcher outlives every error of its file
            _log.warning("dispatcher of %s rests for a second: %s", self._db.agent, error)
            return 1.0

    def pump(self) -> int:
        """Push, on this thread, whatever is due now; return how many parcels went out."""
        return sum(map(self._carry_on, self._find().callers))

    def _carry_on(self, name: str) -> int:
        with suppress(LeaseLost):  # somebody else pushes to this peer: it is in good hands
            return self.carry(name)
        return 0

    # -- looking ----------------------------------------------------------------------------

    def _agenda(self) -> _Agenda:
        now = self._db.now()
        [(frozen_at, clock_at, errands, callers, *moments)] = self._db.read(outbox.AGENDA, (now,))
        self._db.time.hear(clock_at)
        frozen = disabled() or frozen_at is not None
        return _Agenda(
            frozen=frozen,
            errands=bool(errands),
            callers=[] if frozen else json.loads(callers),
            due=not frozen and any(at is not None and at <= now for at in moments),
            next_at=min((at for at in moments if at is not None and at > now), default=None),
        )

    def _find(self) -> _Agenda:
        """Wake what is due and return what there is to do."""
        agenda = self._agenda()
        if agenda.frozen or not (agenda.errands or agenda.due):
            return agenda
        if agenda.errands:
            self._run_errands()
        stuck = agenda.due and not self._db.write(self._wake)
        return self._agenda()._replace(stuck=stuck)

    def _run_errands(self) -> None:
        """Do what the home asks for; mail does not wait for a directory that is in trouble."""
        try:
            self._errands()
        except OncewardError as error:
            _log.warning("errands of %s wait: %s", self._db.agent, error)

    def _wake(self, tx: Tx) -> int:
        """Make ready or bury what is due, the oldest of it; return how many rows that were."""
        parcels.unhold(tx)
        count, unanswered = outbox.wake(tx, WAKE_ROWS, self._policy.exhausted)
        expired = [seq for (seq,) in tx.rows(outbox.EXPIRED, (tx.now, WAKE_ROWS))]
        for seqs, reason, error in (
            (expired, "expired", ""),
            (unanswered, "max_retries_exceeded", "stored, but never processed"),
        ):
            if seqs:
                buried = dead_letters.bury_out(tx, seqs, reason=reason, error=error)
                self._teller.buried(tx, [(i, p, reason) for i, p in buried])
                count += len(buried)
        return count

    def _idle_for(self, agenda: _Agenda) -> float | None:
        """Return how long there will be nothing to do: None until somebody rings."""
        if agenda.frozen or agenda.stuck:
            return GLANCE
        if agenda.due:  # more than one commit takes, or since we woke the others
            return 0.0
        if agenda.callers:  # a carrier that is done rings by itself
            return GLANCE
        wait = (
            None if agenda.next_at is None else max(0.001, (agenda.next_at - self._db.now()) / 1000)
        )
        return (
            min(GLANCE, wait or GLANCE) if agenda.errands else wait
        )  # the directory rings nobody: look there now and then

    # -- carrying ---------------------------------------------------------------------------

    def _carry_safely(self, name: str) -> None:
        try:
            self.carry(name)
        except (LeaseLost, StoreClosed) as error:
            _log.info("carrying to %s was broken off: %s", name, error)
        except OncewardError as error:
            _log.info("carrying to %s was broken off: %s", name, error)
            self._stopping.wait(
                GLANCE
            )  # the file is in trouble, and nothing in it says when to come again
        except Exception:  # noqa: BLE001 - a carrier outlives every error of a transport
            _log.exception("carrying to %s failed", name)
            self._stopping.wait(GLANCE)
        finally:
            with self._lock:
                self._busy.discard(name)
            self._flag.set()

    def carry(self, name: str) -> int:
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

    def _first(self, tx: Tx, name: str) -> Packed | None:
        until = self._lease_until(tx.now)
        held = peers.lease(tx, name, owner=self.owner, until=until)
        if held is None and tx.run(peers.KNOW, (name,)):
            held = peers.lease(tx, name, owner=self.owner, until=until)
        return None if held is None else self._pack(tx, held)

    def _lease_until(self, now: Millis) -> Millis:
        return now + round(1000 * (self._settings.deliver_timeout + self._settings.lease))

    def _pack(self, tx: Tx, held: Lease) -> Packed:
        if disabled() or health.frozen(tx):
            peers.release(tx, held)
            return Packed(held, None)
        try:
            max_bytes = self._route(held.name, held.url)[0].features.max_bytes
        except Unreachable:
            max_bytes = self._settings.parcel_bytes
        packed = parcels.pack(
            tx,
            held,
            mine=Mine(self._db.agent, self._db.durability),
            settings=self._settings,
            until=self._lease_until(tx.now),
            max_bytes=max_bytes,
        )
        self._teller.buried(tx, packed.buried)
        if packed.parcel is None:
            peers.release(tx, packed.lease)
        return packed

    def _push(self, packed: Packed) -> Packed | None:
        """Deliver one parcel and settle it; return the next one packed in the same commit, None where the peer rests."""
        assert packed.parcel is not None  # noqa: S101 - the caller looked
        try:
            transport, url = self._route(packed.lease.name, packed.lease.url)
            answer = transport.deliver(url, packed.parcel)
        except Refused as error:
            refusal = str(error)
            return self._db.write(
                lambda tx: self._pack(tx, self._setbacks.refused(tx, packed, refusal))
            )
        except Exception as error:  # noqa: BLE001 - a dispatcher outlives every error of its file
            problem, nobody = f"{type(error).__name__}: {error}", isinstance(error, Unreachable)
            self._db.write(lambda tx: self._setbacks.rest(tx, packed, problem, nobody=nobody))
            return None
        streams = transport.features.streams
        return self._db.write(lambda tx: self._settle(tx, packed, answer, streams=streams))

    def _settle(self, tx: Tx, packed: Packed, answer: Answer, *, streams: bool) -> Packed | None:
        if answer.verdict == "busy" and answer.retry_after:
            self._setbacks.wait(tx, packed, answer.retry_after)
            return None
        if answer.verdict == "busy":
            self._setbacks.rest(tx, packed, "busy: the peer's inbox is full", nobody=True)
            return None
        if answer.verdict == "fork" and packed.lease.name in self._renewed:
            self._setbacks.rest(tx, packed, "the peer takes no new epoch", nobody=True)
            return None
        if answer.verdict == "fork":
            self._renewed.add(packed.lease.name)
            return self._pack(tx, self._setbacks.forked(tx, packed, answer))
        ask_at = tx.now + round(1000 * self._settings.ack_timeout)
        terms = Terms(self._settings, self._db.durability, ask_at, streams)
        settled = parcels.settle(tx, packed, answer, terms)
        self._setbacks.unanswered(tx, packed, answer)
        self._teller.settled(tx, settled)
        if settled.moved.acked or settled.moved.failed:
            tx.after(lambda: self._db.bell.ring("in"))  # somebody may wait for an outcome
        if settled.idle and parcels.stuck(tx, packed):
            self._setbacks.rest(
                tx,
                packed,
                "nothing of an answered parcel could be settled: run onceward check",
                nobody=True,
            )
            return None
        return self._pack(tx, settled.lease)
