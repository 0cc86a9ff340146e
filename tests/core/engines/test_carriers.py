"""Carriers: how many threads peers get that answer, that never answered, and that failed last."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, get_ident

import pytest

from onceward.core.deliver.carriers import Carriers, Delivery, Share
from onceward.core.run.threads import EngineThreads

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""


class Peers:
    """Deliveries that hang until they are let go, and carriers that run them."""

    def __init__(self, size: int) -> None:
        self.go, self.reached = Event(), Event()
        self.begun: list[str] = []
        self.threads: dict[str, int] = {}
        self.expected = 0
        self._lock = Lock()
        self.carriers = Carriers(size, self._run)

    def _run(self, delivery: Delivery) -> None:
        with self._lock:
            self.begun.append(delivery.name)
            self.threads[delivery.name] = get_ident()
            if len(self.begun) == self.expected:
                self.reached.set()
        if not delivery.name.startswith("quick"):
            assert self.go.wait(LIMIT)

    def submit(self, share: Share, *names: str, begins: int) -> list[str]:
        """Submit deliveries; return the names that began, once *begins* have in all."""
        self.reached.clear()
        self.expected = begins
        for name in names:
            self.carriers.submit(Delivery(name, share))
        if len(self.begun) < begins:
            assert self.reached.wait(LIMIT)
        return list(self.begun)


@pytest.mark.parametrize(
    ("share", "size", "most"), [("failing", 64, 8), ("failing", 16, 4), ("new", 64, 32)]
)
def test_peers_that_do_not_answer_leave_carriers_for_others(
    share: Share, size: int, most: int
) -> None:
    """However many of them there are, a peer that answers is delivered to at once."""
    peers = Peers(size)
    dead = peers.submit(share, *map(str, range(1000)), begins=most)
    begun = peers.submit("known", "quick", begins=most + 1)
    left = peers.carriers.stop()
    peers.go.set()

    assert (most, [*dead, "quick"], 1000 - most) == (len(dead), begun, len(left))


def test_one_carrier_serves_every_kind() -> None:
    """With a single carrier nothing is kept back, and nothing waits for ever."""
    peers = Peers(1)
    peers.submit("failing", "quick 1", begins=1)
    peers.submit("new", "quick 2", begins=2)

    assert ["quick 1", "quick 2", "quick 3"] == peers.submit("known", "quick 3", begins=3)


def test_a_delivery_that_hangs_is_replaced() -> None:
    """A carrier that is given up makes room for another one, and ends when it returns."""
    peers = Peers(1)
    peers.submit("known", "hangs", begins=1)
    peers.carriers.submit(Delivery("quick", "known"))
    peers.carriers.give_up(peers.threads["hangs"])
    begun = peers.submit("known", "quick again", begins=3)
    peers.go.set()

    assert ["hangs", "quick", "quick again"] == begun


@pytest.mark.parametrize("share", ["failing", "new"])
def test_deliveries_that_hang_keep_no_carrier_from_others(share: Share) -> None:
    """A hung delivery has its own thread; the next peers of its share begin, up to a bound."""
    size, peers = 4, Peers(4)
    hung = size + peers.carriers._most[share]
    for n in range(hung):
        peers.submit(share, f"hangs {n}", begins=n + 1)
        peers.carriers.give_up(peers.threads[f"hangs {n}"])
    peers.carriers.submit(Delivery("quick waits", share))
    begun = peers.submit("known", "quick", begins=hung + 1)
    left = peers.carriers.stop()
    peers.go.set()

    assert (hung + 1, "quick") == (len(begun), begun[-1])
    assert ["quick waits"] == [each.name for each in left]


def test_nothing_begins_after_the_stop() -> None:
    """Deliveries that have not begun come back, later ones are refused."""
    peers = Peers(1)
    peers.submit("known", "hangs", begins=1)
    waiting = Delivery("waits", "known")
    peers.carriers.submit(waiting)
    left = peers.carriers.stop()
    refused = peers.carriers.submit(Delivery("late", "known"))
    peers.go.set()

    assert ([waiting], False, ["hangs"]) == (left, refused, peers.begun)


def test_what_waits_behind_a_delivery_that_hangs_begins_without_another() -> None:
    """Giving up the only carrier starts a new one for the delivery that was submitted before."""
    peers = Peers(1)
    peers.submit("known", "hangs", begins=1)
    peers.reached.clear()
    peers.expected = 2
    peers.carriers.submit(Delivery("quick", "known"))
    peers.carriers.give_up(peers.threads["hangs"])
    begun = peers.reached.wait(60.0)
    peers.go.set()

    assert (True, ["hangs", "quick"]) == (begun, peers.begun)


@pytest.mark.parametrize("exception", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_while_a_thread_is_started_costs_no_carrier(
    monkeypatch: pytest.MonkeyPatch, exception: type[BaseException], *, started: bool
) -> None:
    """An interrupt before or after the call: the thread finds nothing, the next one works."""
    works, begun, interrupts = [], list[str](), [exception]

    def run(_: object, name: str, work: Callable[[], None]) -> None:
        if started or not interrupts:
            works.append(work)
        if interrupts:
            raise interrupts.pop()

    def run_started() -> None:
        while works:
            works.pop()()

    monkeypatch.setattr(EngineThreads, "run", run)
    carriers = Carriers(1, lambda delivery: begun.append(delivery.name))
    with pytest.raises(exception):
        carriers.submit(Delivery("bob", "known"))
    run_started()
    submitted = carriers.submit(Delivery("bob", "known"))
    run_started()

    assert (True, ["bob"]) == (submitted, begun)
