"""Pushes that take too long are given up: these and no others, and their peers are given back."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

from onceward.core.deliver.busy_peers import BusyPeers
from onceward.core.deliver.hung_pushes import PushesUnderWay
from onceward.core.deliver.parcels import InFlight
from onceward.core.deliver.peers import PeerLease
from onceward.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 30.0
"""Seconds that a test waits for what happens at once."""


def parcel_for(peer: str) -> InFlight:
    """Return what is pushed to a peer."""
    lease = PeerLease(
        peer, None, 1, "e", 1, 0, "", 0, (1,), 0, "closed", 0, "", 0, (), 0, None, "owner"
    )
    return InFlight(lease, None)


def under_way(back_off: Callable[[InFlight, Exception], None]) -> tuple[PushesUnderWay, BusyPeers]:
    """Return pushes each of which is late at once."""
    busy = BusyPeers(Event())
    return PushesUnderWay(
        0.0, agent="a", busy=busy, replace=lambda _: None, back_off=back_off
    ), busy


def test_a_push_that_began_meanwhile_is_not_given_up() -> None:
    """While one late push is given up, another returns in time, and its carrier begins the next."""
    backed_off, went_on, kept = list[str](), Event(), list[bool]()
    steps = [Event() for _ in range(3)]

    def back_off(packed: InFlight, _: Exception) -> None:
        backed_off.append(packed.lease.name)
        steps[0].set()
        went_on.wait(LIMIT)

    pushes, busy = under_way(back_off)

    def carry() -> None:
        pushes.begin(parcel_for("slow"))
        steps[1].set()
        steps[0].wait(LIMIT)
        kept.append(pushes.end())
        pushes.begin(parcel_for("next"))
        went_on.set()
        steps[2].wait(LIMIT)
        kept.append(pushes.end())

    pushes.begin(parcel_for("hangs"))
    carrier = Thread(target=carry)
    carrier.start()
    steps[1].wait(LIMIT)
    pushes.give_up_late()
    steps[2].set()
    carrier.join(LIMIT)

    assert (["hangs"], [True, True], {"hangs"}) == (backed_off, kept, busy.hanging)


def test_a_peer_whose_failure_could_not_be_written_is_given_back_later() -> None:
    """Where the file takes no row just now, the peer is released before the next look."""

    def back_off(_: InFlight, __: Exception) -> None:
        msg = "the file is held by another process"
        raise Busy(msg)

    pushes, busy = under_way(back_off)
    pushes.begin(parcel_for("hangs"))
    pushes.give_up_late()

    assert ["hangs"] == busy.idle_left
