"""Run the engines of a postbox step by step on one thread, with the code that their threads run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Semaphore, Thread, get_ident
from typing import Any, Final

from onceward.api.postbox import Postbox
from onceward.core.deliver.carriers import Delivery
from onceward.core.handle.worker import Worker
from onceward.core.rows import holders, peers
from onceward.core.run import recovery
from onceward.core.run.arrival import Arrival
from onceward.errors import OncewardError
from onceward.features.batches.worker import BatchWorker
from onceward.file.group_commit import WriteRequest
from onceward.file.transaction import StoreTransaction
from onceward.message.parcel import Answer
from onceward.message.vocabulary import HANDLED, Settlement

MAX_ROUNDS: Final = 10_000
OWNERS: Final = ((peers.owners, peers.end_dead_owner), (holders.owners, recovery.end_dead_worker))
"""Owners of leases, and what ends those of one that has died."""


class _Ended(BaseException):
    """End the thread of a carrier whose process was killed."""


class _Carrier:
    """A thread that delivers to one peer, and runs only while its caller waits in ``go_on``."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._turn, self._back = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._killed = False
        self.ended = False
        """Whether its delivery has ended."""
        self.waits_for: WriteRequest[Any] | None = None
        """The settlement that it leaves to the next commit."""

    def go_on(self) -> None:
        """Run it until its delivery ends or its settlement waits; raise what ended it."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="onceward-stepped", daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_for(self, request: WriteRequest[Any]) -> None:
        """Let the caller of ``go_on`` go on; called on this thread."""
        self.waits_for = request
        self._back.release()
        self._turn.acquire()
        self.waits_for = None
        if self._killed:
            raise _Ended

    def kill(self) -> None:
        """End the thread where it waits."""
        self._killed = True
        with suppress(_Ended):
            self.go_on()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again by go_on
            self._error = error
        finally:
            self.ended = True
            self._back.release()


class SteppedEngines:
    """
    The engines of a postbox as if they were started, although nothing runs by itself.

    A commit packs the parcels of its messages, an answer waits for the next commit, a
    message to the agent itself is delivered in the commit that sends it, and a worker whose
    handlers are quick claims in the transaction that they share. *is_dead* tells of the owner
    of a lease whether its process has died. The same calls give the same run.
    """

    def __init__(
        self,
        box: Postbox,
        workers: Sequence[Worker] | None = None,
        *,
        is_dead: Callable[[str], bool],
    ) -> None:
        self._db, self._dispatcher = box._db, box._dispatcher
        self._deliveries = self._dispatcher._deliveries
        every = [each for each in box._engines if isinstance(each, Worker)]  # batch handlers', too
        self._workers = every if workers is None else workers
        self._is_dead = is_dead
        self._waiting: deque[Delivery] = deque()
        self._carriers: list[_Carrier] = []
        self._running: _Carrier | None = None
        self._deliveries.push_by(self)  # type: ignore[arg-type]  # has what they call
        self._dispatcher._loop.started = True
        self._deliveries._pause_peer = lambda: None  # type: ignore[method-assign]
        self._db.writer.queue.wait_for_turn_of_others = self._ride  # type: ignore[method-assign]
        box._receiver.workers = box._door.workers = self
        self.handled_on_arrival = 0
        """Messages that were handled in the commit that stored them."""
        for worker in self._workers:
            worker._loop.started = True
            worker._handle = partial(_handle, worker)  # type: ignore[method-assign]
            if isinstance(worker, BatchWorker):
                worker._call_once = partial(_call_once, worker)  # type: ignore[method-assign]

    def begin_alone(self) -> None:
        """Suspect what workers of earlier processes handled: no other process has the file open."""
        if holders.workers(self._db.read):
            self._db.write(recovery.end_workers)

    # -- what deliveries call of their carriers ------------------------------------------------

    def submit(self, delivery: Delivery) -> bool:
        """Keep a delivery for ``carry``."""
        self._waiting.append(delivery)
        return True

    def give_up(self, thread: int) -> None:
        """Do nothing: no delivery hangs."""

    def stop(self) -> list[Delivery]:
        """Return the deliveries that have not begun."""
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _ride(
        self, request: WriteRequest[Any], seconds: float, *, unless: Callable[[], bool]
    ) -> bool:
        """Stand in for the queue's ``wait_for_turn_of_others``; *hurry* stands for its seconds."""
        del seconds
        queue, carrier = self._db.writer.queue, self._running
        queue.check()
        if carrier is None:
            return False
        request.wakeup = Semaphore(0)
        with queue._mutex:
            queue._patient += (request,)
        if not unless():
            carrier.wait_for(request)
        return request.done or not queue._withdraw(request)

    # -- what receivers call of their workers --------------------------------------------------

    @property
    def may_take(self) -> bool:
        """Whether a worker would handle an arriving message."""
        return any(map(_takes, self._workers))

    def take(self, arrival: Arrival) -> Answer | None:
        """Let an idle worker handle an arriving message in the commit that stores it."""
        for worker in self._workers:
            if _takes(worker) and not worker._active:
                worker._handle_arrival(arrival)
                answer = arrival.wait()
                self.handled_on_arrival += answer is not None
                return answer
        return None

    # -- steps ----------------------------------------------------------------------------------

    def carry(self, *, hurry: bool) -> int:
        """
        Push what is due; return how many deliveries went on.

        Settlements that wait are committed alone if *hurry*, else they wait for a commit.
        """
        moved = 0
        for carrier in self._carriers[:]:
            request = carrier.waits_for
            if hurry or request is None or request.done or request.is_leader:
                self._go_on(carrier)
                moved += 1
        self._end_dead_owners()
        self._dispatcher._dispatch_due()
        while self._waiting:
            delivery = self._waiting.popleft()
            carrier = _Carrier(partial(self._deliveries.carry, delivery))
            self._carriers.append(carrier)
            self._go_on(carrier)
            moved += 1
        return moved

    def _go_on(self, carrier: _Carrier) -> None:
        outer, self._running = self._running, carrier
        try:
            carrier.go_on()
        finally:
            self._running = outer
            if carrier.ended:
                self._carriers.remove(carrier)

    def handle(self) -> int:
        """Let each worker handle one claim; return how many messages there were."""
        return sum(map(self.handle_by, self._workers))

    def handle_by(self, worker: Worker) -> int:
        """Let one worker handle one claim; return how many messages it had."""
        self._end_dead_owners()
        worker._loop.notified = True  # so that it asks whether the file is paused
        return worker.run_due()

    def beat(self) -> None:
        """Commit the claims that wait for too long, as heartbeats do while a handler runs."""
        hosts = self._db.writer.thread_transactions.hosts
        host = hosts.pop(get_ident(), None)  # a heartbeat's thread runs no handler
        try:
            for worker in self._workers:
                with suppress(OncewardError):
                    worker._batch.heartbeat()
        finally:
            if host is not None:
                hosts[get_ident()] = host

    def run_until_idle(self) -> int:
        """Push and handle until nothing is due and nothing waits for a commit."""
        moved = 0
        self._db.recover()
        for _ in range(MAX_ROUNDS):
            step = self.carry(hurry=True) + self.handle()
            moved += step
            if not step:
                break
        return moved

    def _end_dead_owners(self) -> None:
        """End what dead processes leased, as the engines' own checks do twice a second."""

        def end(tx: StoreTransaction) -> None:
            for owners, free in OWNERS:
                for owner in owners(tx.rows):
                    if self._is_dead(owner):
                        free(tx, owner)

        with suppress(OncewardError):
            found = [owner for owners, _ in OWNERS for owner in owners(self._db.read)]
            if any(map(self._is_dead, found)):
                self._db.write(end)

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Settle what waits and begin nothing more; the postbox is to be closed next."""
        loop = self._dispatcher._loop
        try:
            with suppress(OncewardError):
                self.carry(hurry=True)
            loop.stopping.set()
            for carrier in self._carriers[:]:
                self._go_on(carrier)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the threads of the carriers where they are, as the death of the process does."""
        self._dispatcher._loop.started = False
        self._deliveries._busy._names.clear()  # nothing waits for what will not end
        while self._carriers:
            with suppress(BaseException):
                self._carriers.pop().kill()


def _takes(worker: Worker) -> bool:
    """Return whether a worker handles what arrives; none has a record of its calls here."""
    parts = (worker._gate, worker._guard, worker._types)
    return worker._shares_claims and all(each is None for each in parts)


def _handle(worker: Worker, *message: Any) -> tuple[Settlement, float | None]:
    """Handle a message; every call that is well was quick, also on a slow machine."""
    quick = worker._quick
    settlement, took = Worker._handle(worker, *message)
    worker._quick = quick and (took is None or settlement == HANDLED)
    worker._slow.clear()
    return settlement, took


def _call_once(worker: BatchWorker, ready: list[Any]) -> dict[int, Settlement]:
    """Call a batch handler; every one that is well was quick, also on a slow machine."""
    quick = worker._quick
    ended = BatchWorker._call_once(worker, ready)
    worker._quick = quick and set(ended.values()) == {HANDLED}
    return ended
