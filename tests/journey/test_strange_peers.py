"""Parcels and peers that cannot be right: nothing of them is kept, and no other peer waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from onceward import Agent, errors
from onceward.core.deliver import parcels
from onceward.core.deliver.transport import Features
from onceward.message.parcel import ParcelFrame, Receipt
from onceward.testing.builders import build_frame, parcel

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward import Postbox
    from onceward.message.parcel import Parcel

BAD_NAMES = ["a/b", "../../x", "", "a b", "all", "x\x00", "x" * 200]
KEPT = """
SELECT (SELECT count(*) FROM onceward_inbox), (SELECT count(*) FROM onceward_peers),
       (SELECT count(*) FROM _onceward_sender_streams), (SELECT count(*) FROM _onceward_receipts)
"""


class Junk:
    """A transport whose answer is not one."""

    features = Features(schemes=frozenset({"junk"}))

    def deliver(self, url: str, parcel: Parcel) -> Any:
        """Return what no transport may return."""
        del url, parcel

    def close(self) -> None:
        """Release nothing."""


def agent(name: str) -> Agent:
    """Return an agent that handles all messages."""
    made = Agent(name)
    made.on("*")(lambda _: None)
    return made


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_parcel_from_a_name_that_is_none_is_refused_whole(world: World, name: str) -> None:
    """A sender whose name no agent can have leaves nothing in the file."""
    box = world.open("far")
    frame = build_frame("x", sender=name or "near", recipient="far")

    with pytest.raises(errors.Refused, match="sender"):
        box.accept(parcel(1, [frame], sender=name))

    assert [(0, 0, 0, 0)] == box.query(KEPT)


def test_a_parcel_for_another_agent_is_refused_whole(world: World) -> None:
    """Neither frames nor receipts of a parcel for another agent take effect."""
    box = world.open("far", hold_unknown=True)
    sent = box.send("near", "hello")

    with pytest.raises(errors.Refused, match="far, not 'other'"):
        box.accept(parcel(1, receipts=[Receipt(sent, "processed")], recipient="other"))

    assert "pending" == box.state(sent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"durability": "eternal"}, "durability 'eternal'"),
        ({"epoch": "\ud800"}, "surrogates"),
        ({"previous": "a\0b"}, "NUL"),
        ({"receipts": (Receipt("\ud800", "processed"),)}, "surrogates"),
        ({"receipts": (Receipt("1", "dead", "\ud800"),)}, "surrogates"),
        ({"frames": (ParcelFrame("\ud800", "{}", b""),)}, "surrogates"),
        ({"frames": (ParcelFrame("a\0b", "{}", b""),)}, "NUL"),
        ({"frames": (ParcelFrame("1", "\ud800", b""),)}, "surrogates"),
        ({"frames": (ParcelFrame(cast("Any", 1), "{}", b""),)}, "expected str"),
    ],
)
def test_a_parcel_of_impossible_values_is_refused_whole(
    world: World, change: dict[str, Any], said: str
) -> None:
    """Values that no sender of ours writes are refused for good, not told as a damaged file."""
    box = world.open("far")
    made = replace(parcel(1, [build_frame("x", sender="near", recipient="far")]), **change)

    with pytest.raises(errors.Refused, match=said):
        box.accept(made)

    assert [(0, 0, 0, 0)] == box.query(KEPT)


def test_a_file_that_owes_receipts_to_a_bad_name_serves_its_peers(world: World) -> None:
    """A peer whose name is not a file name is unreachable; messages to other peers go out."""
    shop, billing = world.open("shop"), world.open(agent("billing"))
    owe(shop, "a/b")
    message = shop.send("billing", {"n": 1})
    shop.run_until_idle()
    billing.run_until_idle()
    peer = shop.peers.get("a/b")

    assert "acked" == shop.state(message)
    assert peer is not None
    assert "no known url" in str(peer.last_error)


def test_an_answer_that_is_none_is_told_at_the_peer(world: World) -> None:
    """A transport that returns junk fails like one that raises; other peers have their turn."""
    shop, _ = world.open("shop", transports={"junk": Junk()}), world.open("billing")
    shop.peers.add("bad", "junk:x")
    shop.send("bad", 1)
    message = shop.send("billing", 2)
    shop.run_until_idle()
    peer = shop.peers.get("bad")

    assert "sent" == shop.state(message)
    assert peer is not None
    assert (1, "AttributeError") == (peer.failures, str(peer.last_error).partition(":")[0])


def test_an_error_of_our_file_at_one_peer_leaves_the_others_their_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one peer that cannot be read are told in ``peers`` and tried again after a pause."""
    tried: list[str] = []
    pack = parcels.next_parcel

    def packed(tx: Any, held: Any, **named: Any) -> Any:
        tried.append(held.name)
        if held.name == "bad":
            raise errors.StoreCorrupt("its rows are damaged")
        return pack(tx, held, **named)

    monkeypatch.setattr(parcels, "next_parcel", packed)
    shop, _ = world.open("shop", hold_unknown=True), world.open("billing")
    shop.send("bad", 1)
    message = shop.send("billing", 2)
    for _ in range(3):
        shop.run_until_idle()
    before = tried.count("bad")
    world.clock.forward(2)
    shop.run_until_idle()
    peer = shop.peers.get("bad")

    assert ("sent", 1, 2) == (shop.state(message), before, tried.count("bad"))
    assert peer is not None
    assert (0, "closed") == (peer.failures, peer.breaker)
    assert "StoreCorrupt: its rows are damaged" == peer.last_error


def test_an_error_that_cannot_be_told_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without threads the caller hears of a file that takes no writes at all."""
    shop = world.open("shop", hold_unknown=True)
    shop.send("bad", 1)

    def full(_: Any) -> None:
        raise errors.DiskFull("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(shop._db, "write", full)
        with pytest.raises(errors.DiskFull):
            shop.run_until_idle()


def owe(box: Postbox, peer: str) -> None:
    """Store a receipt for *peer*, as a parcel of an earlier version left it."""
    with box.begin() as tx:
        tx.execute(
            "INSERT INTO _onceward_receipts (peer, receipts, created_at) VALUES (?, ?, 1)",
            (peer, '[["x", "processed", null]]'),
        )
