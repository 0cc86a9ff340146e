"""Fences: a worker that lost a lease changes nothing any more, verb by verb."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import apsw
import pytest

from onceward import Message, Postbox
from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.handle import claim
from onceward.core.handle.claim import ClaimRequest
from onceward.core.rows import lanes, peers
from onceward.core.rows.lanes import LeasedMessage
from onceward.errors import LeaseLost, StoreError
from onceward.file.transaction import StoreTransaction
from onceward.message.settings import Settings
from onceward.message.vocabulary import Done

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
        lambda tx: claim.claim(tx, ClaimRequest(messages=1), owner="late", until=tx.now - 1)
    )
    [[_]] = box._db.write(
        lambda tx: claim.claim(tx, ClaimRequest(messages=1), owner="now", until=tx.now + FAR)
    )
    return box, late


def owner(box: Postbox) -> list[tuple[str]]:
    """Return who holds the only lane."""
    return box._db.read("SELECT owner FROM _onceward_lanes")


def test_a_late_worker_settles_nothing(taken: tuple[Postbox, LeasedMessage]) -> None:
    """Its verdict raises LeaseLost; the message waits, and the other one keeps the lane."""
    box, late = taken
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: received.settle(tx, [SettledMessage(late, Done())], {}))
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: lanes.settle(tx, late.lane, rest=[], due_at=None))

    assert [("now",)] == owner(box)
    assert 1 == box.file.stats()["inbox_processing"]


def test_a_late_worker_gives_nothing_back(taken: tuple[Postbox, LeasedMessage]) -> None:
    """Releasing or prolonging a lane that another worker has leaves it to that worker."""
    box, late = taken
    box._db.write(lambda tx: lanes.release(tx, late.lane, [late.seq], broken=True))
    kept = box._db.write(lambda tx: lanes.extend(tx, late.lane, until=tx.now))

    assert ([("now",)], False) == (owner(box), kept)


def test_messages_of_a_lease_that_nothing_settled_are_claimed_alone(opened: Open) -> None:
    """One of them may have ended its process; which one, the owner has not noted."""
    box, peer = opened("a"), opened("b")
    peer.send_many([("a", n) for n in range(4)])
    peer.run_until_idle()

    def claimed(most: int) -> list[list[LeasedMessage]]:
        wanted = ClaimRequest(messages=most)
        return box._db.write(lambda tx: claim.claim(tx, wanted, owner="x", until=tx.now - 1))

    found = [claimed(most) for most in (3, 4, 4)]

    assert [3, 1, 1] == [len(messages) for [messages] in found]
    assert [(3,)] == box._db.read("SELECT isolate_upto_seq FROM _onceward_lanes")


def test_a_held_peer_is_not_leased(box: Postbox) -> None:
    """Only one dispatcher has a peer at a time; after the lease has run out the next one may."""
    box.peers.add("b", "memory:b")
    first = box._db.write(lambda tx: peers.lease(tx, "b", owner="first", until=tx.now + FAR))
    second = box._db.write(lambda tx: peers.lease(tx, "b", owner="second", until=tx.now + FAR))

    assert (True, None) == (first is not None, second)


def test_a_paused_file_leases_no_peer(box: Postbox) -> None:
    """A commit that would pack a parcel asks nothing else: the pause is judged by the lease."""
    box.peers.add("b", "memory:b")
    box.file.pause()
    paused = box._db.write(lambda tx: peers.lease(tx, "b", owner="x", until=tx.now + FAR))
    box.file.resume()
    resumed = box._db.write(lambda tx: peers.lease(tx, "b", owner="x", until=tx.now + FAR))

    assert (None, True) == (paused, resumed is not None)


LATE_VERBS: dict[str, Callable[[StoreTransaction, peers.PeerLease], object]] = {
    "store": lambda tx, held: peers.store_parcel(tx, held, (1,), "x", until=FAR),
    "advance": lambda tx, held: peers.advance(tx, held, 1, "x", SETTINGS),
    "renew": lambda tx, held: peers.new_epoch(tx, held, "late"),
    "rest": lambda tx, held: peers.back_off(
        tx, held, "late", policy=SETTINGS.delivery_policy, rng=random.Random(1), settings=SETTINGS
    ),
}


@pytest.mark.parametrize("verb", LATE_VERBS)
def test_a_late_dispatcher_changes_nothing(box: Postbox, verb: str) -> None:
    """Storing, prolonging, advancing, renewing and resting prove the lease in their statement."""
    box.peers.add("b", "memory:b")
    leased = box._db.write(lambda tx: peers.lease(tx, "b", owner="late", until=tx.now - 1))
    box._db.write(lambda tx: peers.lease(tx, "b", owner="now", until=tx.now + FAR))
    assert leased is not None
    before = box._db.read(
        "SELECT epoch, number, in_flight_seqs, owner, lease_at FROM _onceward_peers"
    )
    with pytest.raises(LeaseLost):
        box._db.write(lambda tx: LATE_VERBS[verb](tx, leased))
    box._db.write(lambda tx: peers.release(tx, leased))

    assert before == box._db.read(
        "SELECT epoch, number, in_flight_seqs, owner, lease_at FROM _onceward_peers"
    )


ENDS: dict[str, Callable[[Message[Any]], object]] = {
    "ack": lambda message: message.ack(),
    "drop": lambda message: message.drop(),
    "reject": lambda message: message.reject("bad"),
}
BLOCKS: dict[str, Callable[[Postbox], AbstractContextManager[object]]] = {
    "alone": lambda _: nullcontext(),
    "in a block": lambda box: box.begin(),
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("end", ENDS)
def test_what_the_schema_refuses_a_late_reader_is_a_lost_lease(
    opened: Open, monkeypatch: pytest.MonkeyPatch, end: str, block: str
) -> None:
    """Even if no fence stopped it, a message that another reader has ended is not ended twice."""
    box, peer = opened("a"), opened("b")
    peer.send("a", 1)
    peer.run_until_idle()
    late = box.receive()
    assert late is not None
    box._db.write(lambda tx: received.settle(tx, [SettledMessage(late._lease, Done())], {}))
    before = box._db.read("SELECT * FROM _onceward_inbox")
    monkeypatch.setattr(lanes, "settle", lambda *_, **__: None)
    with pytest.raises(LeaseLost, match="another") as told, BLOCKS[block](box):
        ENDS[end](late)

    assert isinstance(told.value.__cause__, apsw.ConstraintError)
    assert before == box._db.read("SELECT * FROM _onceward_inbox")


def test_a_row_of_ours_that_is_there_already_is_an_error_of_ours(box: Postbox) -> None:
    """A message whose id is in the outbox is not stored twice, and the error names the row."""
    first = box.send("b", 1)
    columns = [name for _, name, *_ in box._db.read("PRAGMA table_info(_onceward_outbox)")][1:]
    listed = ", ".join(columns)
    twice = f"INSERT INTO _onceward_outbox ({listed}) SELECT {listed} FROM _onceward_outbox"
    with pytest.raises(StoreError, match=r"_onceward_outbox\.id"):
        box._db.write(lambda tx: tx.run(twice))

    assert "pending" == box.state(first)


@pytest.mark.parametrize("block", BLOCKS)
def test_what_the_schema_of_the_user_refuses_stays_an_error_of_sqlite(
    box: Postbox, block: str
) -> None:
    """A constraint of a table of the user's raises what SQLite raises, as in a plain file."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE t (x UNIQUE)")
    with pytest.raises(apsw.ConstraintError, match=r"t\.x"), BLOCKS[block](box), box.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1), (1)")
