"""
Run the threads that deliver to peers, so many for each kind of peer; record whose each peer is.

``BusyPeers`` reserves a peer for one carrier; the lease in the file proves it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event, get_ident
from typing import Final, Literal, NamedTuple

from onceward.core.rows.peers import PeerLease
from onceward.core.run.threads import engine_threads
from onceward.file import forks
from onceward.message.clock import monotonic
from onceward.message.parcel import Answer, Parcel
from onceward.message.vocabulary import Reason

Share = Literal["known", "new", "failing"]
"""Peers that answered last, peers that never answered, and peers whose last push failed."""
FAILING_MAX: Final = 8
"""Maximum carriers shared by the peers whose last push failed."""


Buried = tuple[tuple[str, str, Reason], ...]
"""(id, peer, reason) of messages that went to the dead letters instead."""


class InFlight(NamedTuple):
    """A parcel to push, its lease, and the messages that became dead letters while packing it."""

    lease: PeerLease
    parcel: Parcel | None
    paid_upto: int = 0
    dead_lettered: Buried = ()
    more: bool = True
    """Whether the peer may have more messages or receipts than the parcel."""

    @property
    def share(self) -> Share:
        """The share of the carriers that its peer gets."""
        if self.lease.failures:
            return "failing"
        return "known" if self.lease.number else "new"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A peer to push to; *first* is its parcel if a commit has packed and leased it."""

    name: str
    share: Share
    first: InFlight | None = None
    answer: Answer | None = None
    """The answer to that parcel, if another carrier has pushed it."""


Packed = dict[str, InFlight | None]
"""By peer, the parcel that the open commit packs; None for a reserved peer without one."""


@dataclass(eq=False, slots=True)
class Push:
    """A parcel that a thread pushes, and the transport's deadline."""

    thread: int
    packed: InFlight
    until: float
    """Deadline by the process's monotonic clock."""
    passed_on: bool = False
    """Whether another carrier settles its answer."""

    @property
    def peer(self) -> str:
        """The peer that it is pushed to."""
        return self.packed.lease.name


class BusyPeers:
    """
    The peers that are reserved for a carrier, or for the parcel of an open commit.

    Python may raise an interrupt after any call, so related values are written before the next
    call, or can be written again. The public sets change by one operation at a time.
    """

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        """Set once no peer is reserved any more."""
        self._lock = forks.new_lock()
        """Held while a peer is reserved, left, or marked as hanging."""
        self._names: set[str] = set()
        """The peers that are reserved."""
        self._hanging: set[str] = set()
        """Those whose push was abandoned and has not returned: they are busy until it does."""
        self.released: set[str] = set()
        """Those that a carrier has released in the file and is about to leave."""
        self._following: dict[str, InFlight] = {}
        """Parcels that were packed for such peers; the same carrier continues with them."""
        self.left: set[str] = set()
        """Peers that may still be leased by us although no carrier pushes to them."""
        self.wanted: set[str] = set()
        """Those requested in the meantime: they may have more than their carrier knows."""
        self.later: set[str] = set()
        """Those whose delivery has left work for later, which the loop must plan."""
        self._pushes: dict[int, Push] = {}
        """The running pushes, by the thread of their carrier."""
        self._changed = Event()
        """Set whenever a peer was left."""

    # -- reserving ----------------------------------------------------------------------------

    @property
    def several(self) -> bool:
        """Whether more than one peer is reserved."""
        return len(self._names) > 1

    def reserve(self, name: str, packed: Packed | None = None) -> bool:
        """
        Reserve a peer for one carrier; return False if it has one or the dispatcher stops.

        *packed* gets its name first, because an interrupt may come after any call.
        """
        with self._lock:
            if name in self._names or self._stopping.is_set():
                self.wanted.add(name)
                return False
            self.released.discard(name)
            self.wanted.discard(name)
            if packed is not None:
                packed[name] = None
            self._names.add(name)
        return True

    def cancel(self, name: str) -> bool:
        """
        Cancel the reservation of a peer for which nothing was packed.

        Return whether the loop must look: it may have found the peer reserved.
        """
        self._names.discard(name)
        return name in self.wanted or name in self.left

    def all_reserved(self, names: set[str], packed: Packed) -> bool:
        """Return whether each of *names* still has a carrier, or a parcel in *packed*."""
        return names <= self._names | packed.keys()

    def pass_on(self, name: str, first: InFlight, passed: set[str]) -> bool:
        """
        Leave a parcel to the carrier that is about to end.

        If it has ended, reserve the peer, remove it from *passed* and return False.
        """
        with self._lock:
            if name in self._names:
                self._following[name] = first
                return True
            passed.discard(name)  # first: after an interrupt the next call must submit it
            self._names.add(name)
        return False

    # -- looking again ------------------------------------------------------------------------

    def needs_look(self, name: str) -> bool:
        """Return whether the loop must check, now that the carrier of a peer has left it."""
        needed = name in self.wanted or name in self.later or bool(self.left)
        self.wanted.discard(name)
        self.later.discard(name)
        return needed

    # -- leaving ------------------------------------------------------------------------------

    def end(self, name: str) -> InFlight | None:
        """Return the parcel that was packed for the peer since; leave the peer if there is none."""
        with self._lock:
            self.released.discard(name)
            following = self._following.pop(name, None)
            if following is None:
                self._names.discard(name)
                self._hanging.discard(name)
        return following

    def forget(self, delivery: Delivery) -> None:
        """Leave a peer whose delivery has not begun; its lease is released later."""
        if delivery.first is not None:
            self.left.add(delivery.name)
        self._names.discard(delivery.name)
        self._changed.set()

    @property
    def idle_left(self) -> list[str]:
        """The left peers without a carrier."""
        return sorted(self.left - (self._names - self._hanging))

    # -- pushes under way ---------------------------------------------------------------------

    def begin_push(self, packed: InFlight, limit: float) -> Push:
        """Record that this thread now calls a transport, which may take *limit* seconds."""
        thread = get_ident()
        push = self._pushes[thread] = Push(thread, packed, monotonic() + limit)
        return push

    def end_push(self) -> bool:
        """Record that the call has returned; return False if the push was abandoned."""
        with self._lock:
            return self._pushes.pop(get_ident(), None) is not None

    def pushes(self) -> list[Push]:
        """Return the running pushes."""
        return list(self._pushes.values())

    def pass_push(self, push: Push) -> bool:
        """Leave the peer of a push to another carrier; return False if it has just returned."""
        with self._lock:
            if self._pushes.get(push.thread) is not push:
                return False
            del self._pushes[push.thread]
            push.passed_on = True
        return True

    def give_up(self, push: Push) -> bool:
        """Abandon a push to run without a carrier; return False if it has just returned."""
        with self._lock:  # its thread leaves the peer only after that
            if self._pushes.get(push.thread) is not push:
                return False
            del self._pushes[push.thread]
            self._hanging.add(push.peer)
        return True

    # -- waiting ------------------------------------------------------------------------------

    def changed(self) -> None:
        """End a wait for a change: a peer was left."""
        if not self._changed.is_set():
            self._changed.set()

    def wait_for_a_change(self) -> None:
        """Wait briefly until a peer was left."""
        self._changed.clear()
        self._changed.wait(0.01)

    def wait_until_settled(self, deadline: float) -> None:
        """Wait until every carrier has ended or hangs, by the monotonic clock."""
        while self._names - self._hanging and monotonic() < deadline:
            self.wait_for_a_change()


class Carriers:
    """
    At most *size* threads of the process that run deliveries, as long as there are any.

    Peers that never answered get at most half of them, peers whose last push failed a quarter and
    at most FAILING_MAX, so that some are left for peers that answer. A thread whose delivery hangs
    is abandoned: it ends when the delivery returns. Up to *size* abandoned threads are replaced;
    more count against the shares, and at least one carrier is left for peers that answered last.
    """

    def __init__(self, size: int, run: Callable[[Delivery], None]) -> None:
        self._size, self._run = size, run
        self._most = {
            "known": size,
            "new": max(1, size // 2),
            "failing": max(1, min(FAILING_MAX, size // 4)),
        }
        self._waiting: dict[Share, deque[Delivery]] = {
            "known": deque(),
            "new": deque(),
            "failing": deque(),
        }
        self._running: dict[int, Delivery] = {}
        self._hanging: set[int] = set()
        self._threads = 0
        self._tickets = set[object]()
        """One ticket for each requested thread that has not begun."""
        self._stopped = False
        self._lock = forks.new_lock()
        self._engine = engine_threads()

    def submit(self, delivery: Delivery) -> bool:
        """
        Run a delivery when its share has a free carrier.

        Return False once stopped, and if the system cannot start a thread.
        """
        with self._lock:
            if self._stopped:
                return False
            self._start()
            if self._threads:
                self._waiting[delivery.share].append(delivery)
            return self._threads > 0

    def _start(self) -> None:
        """
        Use one more thread, if the limit and the system allow it.

        It is counted before it is requested: after an interrupt the call is repeated, and of two
        threads with one ticket the second leaves at once.
        """
        if self._threads < self._size:
            ticket = object()
            self._threads += 1
            try:
                self._ask_for_thread(ticket)
            except BaseException:
                self._ask_for_thread(ticket)
                raise

    def _ask_for_thread(self, ticket: object) -> None:
        self._tickets.add(ticket)
        try:
            self._engine.run("onceward-carrier", partial(self._work, ticket))
        except RuntimeError:
            self._tickets.discard(ticket)
            self._threads -= 1

    def give_up(self, thread: int) -> None:
        """Replace a thread whose delivery hangs."""
        with self._lock:
            if self._running.pop(thread, None) is not None:
                self._hanging.add(thread)
                self._threads -= 1
                if any(self._waiting.values()):
                    self._start()

    def stop(self) -> list[Delivery]:
        """Begin no further delivery and wait for none; return those that had not begun."""
        with self._lock:
            self._stopped = True
            left = [delivery for queue in self._waiting.values() for delivery in queue]
            for queue in self._waiting.values():
                queue.clear()
        return left

    def _work(self, ticket: object) -> None:
        with self._lock:
            if ticket not in self._tickets:
                return
            self._tickets.discard(ticket)
        while (delivery := self._next()) is not None:
            try:
                self._run(delivery)
            finally:
                going_on = self._end()
            if not going_on:
                return

    def _next(self) -> Delivery | None:
        """Return a delivery whose share has a free carrier; else leave the thread."""
        with self._lock:
            found = self._take() if any(self._waiting.values()) else None
            if found is None:
                self._threads -= 1
            else:
                self._running[get_ident()] = found
            return found

    def _take(self) -> Delivery | None:
        busy: dict[Share, int] = {"known": 0, "new": 0, "failing": 0}
        for delivery in self._running.values():
            busy[delivery.share] += 1
        beyond = max(0, len(self._hanging) - self._size)
        for share, queue in self._waiting.items():
            most = max(share == "known", self._most[share] - beyond)
            if queue and busy[share] < most:
                return queue.popleft()
        return None

    def _end(self) -> bool:
        """End the delivery of this thread; return False if the thread was abandoned."""
        with self._lock:
            if get_ident() not in self._hanging:
                del self._running[get_ident()]
                return True
            self._hanging.discard(get_ident())
            if any(self._waiting.values()):  # its share may again have a free carrier
                self._start()
            return False
