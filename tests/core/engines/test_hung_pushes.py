"""Pushes that take too long are given up: these and no others, and their peers are given back."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from onceward import Postbox
from onceward.core.deliver.carriers import Carriers, InFlight
from onceward.core.rows.peers import PeerLease
from onceward.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.deliver.delivery import Deliveries

LIMIT = 30.0
"""Seconds that a test waits for what happens at once."""
LATE = 0.0
"""Seconds that a push may take which is late at once."""


def parcel_for(peer: str) -> InFlight:
    """Return what is pushed to a peer."""
    lease = PeerLease(
        (1,), (), peer, None, 1, "e", 1, 0, "", 0, 0, "closed", 0, "", 0, 0, None, "owner"
    )
    return InFlight(lease, None)


@pytest.fixture
def deliveries(tmp_path: Path) -> Iterator[Deliveries]:
    """Return deliveries whose pushes are late at once, and carriers that run none."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        found = box._dispatcher._deliveries
        found._carriers = Carriers(1, lambda _: None)
        yield found


def test_a_push_that_began_meanwhile_is_not_given_up(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one late push is given up, another returns in time, and its carrier begins the next."""
    backed_off, went_on, kept = list[str](), Event(), list[bool]()
    steps = [Event() for _ in range(3)]

    def back_off(packed: InFlight, _: Exception) -> None:
        backed_off.append(packed.lease.name)
        steps[0].set()
        went_on.wait(LIMIT)

    monkeypatch.setattr(deliveries, "_back_off", back_off)
    busy = deliveries._busy

    def carry() -> None:
        busy.begin_push(parcel_for("slow"), LATE)
        steps[1].set()
        steps[0].wait(LIMIT)
        kept.append(busy.end_push())
        busy.begin_push(parcel_for("next"), LATE)
        went_on.set()
        steps[2].wait(LIMIT)
        kept.append(busy.end_push())

    busy.begin_push(parcel_for("hangs"), LATE)
    carrier = Thread(target=carry)
    carrier.start()
    steps[1].wait(LIMIT)
    deliveries.give_up_late()
    steps[2].set()
    carrier.join(LIMIT)

    assert (["hangs"], [True, True], {"hangs"}) == (backed_off, kept, busy._hanging)


def test_a_peer_whose_failure_could_not_be_written_is_given_back_later(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file takes no row just now, the peer is released before the next look."""

    def back_off(_: InFlight, __: Exception) -> None:
        msg = "the file is held by another process"
        raise Busy(msg)

    monkeypatch.setattr(deliveries, "_back_off", back_off)
    deliveries._busy.begin_push(parcel_for("hangs"), LATE)
    deliveries.give_up_late()

    assert ["hangs"] == deliveries._busy.idle_left
