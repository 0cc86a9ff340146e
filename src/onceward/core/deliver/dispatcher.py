"""Look what has to be pushed to which peer, and give each such peer to a carrier."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from onceward.core.accept import receipts
from onceward.core.deliver import parcels, peers
from onceward.core.deliver.answer_settler import AnswerSettler
from onceward.core.deliver.busy_peers import BusyPeers
from onceward.core.deliver.carriers import Carriers, Delivery, Share
from onceward.core.deliver.delivery_failures import DeliveryFailures
from onceward.core.deliver.hand_over import HandOver
from onceward.core.deliver.hung_pushes import PushesUnderWay
from onceward.core.deliver.parcel_packer import ParcelPacker
from onceward.core.deliver.pusher import Pusher
from onceward.core.deliver.routes import Routes
from onceward.core.engine import engine_loop as engine
from onceward.core.engine.deps import RuntimeDeps
from onceward.core.engine.engine_loop import EngineLoop
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle.dead_owners import DeadOwnerReaper
from onceward.core.send import outbox
from onceward.core.upkeep import dead_letters
from onceward.errors import OncewardError
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.log import log
from onceward.message.retry import RetryPolicy, retry_policy
from onceward.message.vocabulary import Reason

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
        background_tasks: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._db, self._settings = deps.db, deps.settings
        self._routes, self._background_tasks = routes, background_tasks
        self._policy = policy or retry_policy(deps.settings)
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        reaper = DeadOwnerReaper(deps.db, owners=peers.OWNERS, free=peers.end_dead_owner)
        self._loop = EngineLoop(
            deps.db, "dispatcher", self._dispatch_due, reaper=reaper, watch=self._watch
        )
        self._busy = BusyPeers(self._loop.stopping)
        failures = DeliveryFailures(
            settings=deps.settings, policy=self._policy, rng=deps.rng, emitter=self._emitter
        )
        self._packer = ParcelPacker(deps, routes)
        self.owner = self._packer.owner
        settler = AnswerSettler(deps, self._packer, failures, self._busy.released)
        self._pusher = Pusher(
            deps,
            routes,
            packer=self._packer,
            settler=settler,
            failures=failures,
            busy=self._busy,
        )
        self._hand_over = HandOver(
            deps.db, self._busy, self._packer, settler, submit=self._submit, wake=self._notify
        )
        self._carriers: Carriers | None = None

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start pushing in the background."""
        self.push_by(Carriers(self._settings.carriers, self._carry))
        self._loop.start("out", poll=self._settings.poll_interval)

    def push_by(self, carriers: Carriers) -> None:
        """Push by *carriers* from now on, also what commits of this process have packed."""
        self._carriers = carriers
        self._pusher.under_way = PushesUnderWay(
            self._settings.deliver_timeout,
            agent=self._db.agent,
            busy=self._busy,
            replace=carriers.give_up,
            back_off=self._pusher.back_off,
        )
        self._db.writer.packer = self._hand_over

    def stop(self, timeout: float) -> None:
        """
        Start no new push; wait up to *timeout* seconds until those under way are settled.

        The peers of those that take longer are given back: their parcels are pushed again.
        """
        if self._db.writer.packer is self._hand_over:
            self._db.writer.packer = None
        self._loop.stopping.set()
        self._db.writer.queue.hurry()
        deadline = time.monotonic() + timeout
        self._loop.stop(timeout)
        if self._carriers is not None:
            for delivery in self._carriers.stop():
                self._busy.forget(delivery)
        self._busy.wait_until_settled(deadline)
        if self._pusher.under_way is not None:
            self._busy.left.update(self._pusher.under_way.give_up_all())
        if self._busy.left:
            with suppress(OncewardError):
                self._release_left()

    def push_owed(self, timeout: float) -> None:
        """Wait up to *timeout* seconds until the receipts that can be pushed are pushed."""
        deadline = time.monotonic() + timeout
        while self._loop.started and self._owes() and time.monotonic() < deadline:
            self._db.writer.queue.hurry()
            self._notify()
            self._busy.wait_for_a_change()

    def _owes(self) -> bool:
        try:
            if self._loop.stopping.is_set() or self._agenda().paused:
                return False
            return bool(self._db.read(receipts.WAIT, (self._db.now(), self._elsewhere()))[0][0])
        except OncewardError:
            return False

    def _watch(self) -> float:
        """Give up the pushes that hang; return the seconds until one may have to be."""
        under_way = self._pusher.under_way
        return engine.MAX_IDLE_SECONDS if under_way is None else under_way.give_up_late()

    def _notify(self) -> None:
        self._loop.notified.set()

    # -- giving peers to carriers -----------------------------------------------------------

    def _dispatch_due(self) -> float | None:
        """Give every peer that has messages to a carrier; return the seconds until more is due."""
        agenda = self._plan()
        for name, share in agenda.callers.items():
            if self._busy.reserve(name):
                self._submit(Delivery(name, share))
        return self._idle_for(agenda)

    def _submit(self, delivery: Delivery) -> bool:
        """Give a delivery to a carrier; return False, and forget it, where there is none."""
        if self._carriers is not None and self._carriers.submit(delivery):
            return True
        self._busy.forget(delivery)
        return False

    def _carry(self, delivery: Delivery) -> None:
        """Deliver to one peer on this carrier, until nothing was packed for it meanwhile."""
        name, first, going_on = delivery.name, delivery.first, True
        while going_on:
            try:
                self._pusher.deliver_safely(name, first)
            finally:
                first = self._busy.end(name)
                going_on = first is not None
        self._notify()
        self._busy.changed.set()

    def run_due(self) -> int:
        """
        Push, on this thread, what is due now; return how many parcels arrived.

        An error at one peer is told at that peer. One that the file does not take
        is raised.
        """
        return sum(map(self._pusher.deliver, self._plan().callers))

    # -- looking ----------------------------------------------------------------------------

    def _elsewhere(self) -> str:
        """Return, in JSON, the schemes of peers that other processes deliver to."""
        placed = self._routes.placed
        return json.dumps([scheme for scheme, each in placed.items() if not each.here()])

    def _agenda(self) -> _Agenda:
        now = self._db.now()
        elsewhere = self._elsewhere() if self._routes.placed else "[]"
        bindings = now, elsewhere, self._db.time.wall
        [(paused_at, clock_at, tasks, callers, *moments)] = self._db.read(outbox.AGENDA, bindings)
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
        if self._busy.left:
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
        self._busy.left.difference_update(self._db.write(self._release_idle))

    def _release_idle(self, tx: StoreTransaction) -> list[str]:
        """Release the left peers that no carrier has, and return them."""
        names = self._busy.idle_left
        tx.many(peers.RELEASE_OWN, [(name, self._packer.owner) for name in names])
        return names

    def _run_tasks(self) -> None:
        """Do the background tasks; an error, as of the directory, delays no message."""
        for run in self._background_tasks:
            try:
                run()
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
