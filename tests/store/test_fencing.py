"""Fences: a worker that lost a lease changes nothing any more, verb by verb."""

import random
from collections.abc import Callable

import pytest

from onceward import Postbox
from onceward.db.transaction import StoreTransaction
from onceward.errors import LeaseLost
from onceward.model.retry import retry_policy
from onceward.model.settings import Settings
from onceward.model.states import Done
from onceward.store import inbox, lanes, peers
from onceward.store.inbox import ClaimRequest, LeasedMessage, SettledMessage

Open = Callable[..., Postbox]
SETTINGS = Settings()
FAR = 10**15


@pytest.fixture
def taken(opened: Open) -> tuple[Postbox, LeasedMessage]:
    """Return a postbox, and a message that one worker claimed and another one has by now."""
    box, peer = opened("a"), opened("b")
    peer.send("a", 1)
    peer.run_until_idle()
    [[late]] = box._db.write(
        lambda tx: inbox.claim(tx, ClaimRequest(messages=1), owner="late", until=tx.now - 1)
    )
    [[_]] = box._db.write(
        lambda tx: inbox.claim(tx, ClaimRequest(messages=1), owner="now", until=tx.now + FAR)
    )
    return box, late


def owner(box: Postbox) -> list[tuple[str]]:
    """Return who holds the only lane."""
    return box._db.read("SELECT owner FROM _onceward_lanes")


def test_a_late_worker_settles_nothing(taken: tuple[Postbox, LeasedMessage]) -> None:
    """Its verdict raises LeaseLost; the message waits, and the other one keeps the lane."""
    box, late = taken
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: inbox.settle(tx, [SettledMessage(late, Done())], {}))
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: lanes.settle(tx, late.lane, rest=[], due_at=None))

    assert [("now",)] == owner(box)
    assert 1 == box.stats()["inbox_processing"]


def test_a_late_worker_gives_nothing_back(taken: tuple[Postbox, LeasedMessage]) -> None:
    """Releasing or prolonging a lane that another worker has leaves it to that worker."""
    box, late = taken
    box._db.write(lambda tx: lanes.release(tx, late.lane, [late.seq], broken=True))
    kept = box._db.write(lambda tx: lanes.extend(tx, late.lane, until=tx.now))

    assert ([("now",)], False) == (owner(box), kept)


def test_a_held_peer_is_not_leased(box: Postbox) -> None:
    """Only one dispatcher has a peer at a time; after the lease has run out the next one may."""
    box.peers.register("b", "memory:b")
    first = box._db.write(lambda tx: peers.lease(tx, "b", owner="first", until=tx.now + FAR))
    second = box._db.write(lambda tx: peers.lease(tx, "b", owner="second", until=tx.now + FAR))

    assert (True, None) == (first is not None, second)


LATE_VERBS: dict[str, Callable[[StoreTransaction, peers.PeerLease], object]] = {
    "store": lambda tx, held: peers.store_parcel(tx, held, (1,), "x", until=FAR),
    "advance": lambda tx, held: peers.advance(tx, held, 1, "x", SETTINGS),
    "renew": lambda tx, held: peers.new_epoch(tx, held, "late"),
    "rest": lambda tx, held: peers.back_off(
        tx, held, "late", policy=retry_policy(SETTINGS), rng=random.Random(1), settings=SETTINGS
    ),
}


@pytest.mark.parametrize("verb", LATE_VERBS)
def test_a_late_dispatcher_changes_nothing(box: Postbox, verb: str) -> None:
    """Storing, prolonging, advancing, renewing and resting prove the lease in their statement."""
    box.peers.register("b", "memory:b")
    late = box._db.write(lambda tx: peers.lease(tx, "b", owner="late", until=tx.now - 1))
    box._db.write(lambda tx: peers.lease(tx, "b", owner="now", until=tx.now + FAR))
    assert late is not None
    before = box._db.read(
        "SELECT epoch, number, in_flight_seqs, owner, lease_at FROM _onceward_peers"
    )
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: LATE_VERBS[verb](tx, late))
    box._db.write(lambda tx: peers.release(tx, late))

    assert before == box._db.read(
        "SELECT epoch, number, in_flight_seqs, owner, lease_at FROM _onceward_peers"
    )
