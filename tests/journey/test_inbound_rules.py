"""What a peer may name in the messages that it sends: types, channels, mailboxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.api.peers import PeerInfo
from onceward.errors import InvalidArgument
from onceward.message.frame import Frame
from onceward.message.parcel import Answer, Receipt
from onceward.testing.builders import build_frame, parcel
from onceward.transports import Accept

REFUSED = "rejected: not allowed here: "


class Doorway:
    """A listener that keeps the function that it is given."""

    accept: Accept

    def listen(self, name: str, accept: Accept) -> None:
        """Keep the function."""
        del name
        self.accept = accept

    def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
def door() -> Doorway:
    """Return the listener of the recipient."""
    return Doorway()


@pytest.fixture
def far(tmp_path: Path, door: Doorway) -> Iterator[Postbox]:
    """Yield the recipient."""
    with Postbox(tmp_path / "far.db", agent="far", start=False, listeners=[door]) as box:
        yield box


def frame(**named: Any) -> Frame:
    """Return a frame from near to far with these attributes."""
    return build_frame(1, sender="near", recipient="far").model_copy(update=named)


def told(answer: Answer) -> list[tuple[str, str | None]]:
    """Return state and reason of each receipt."""
    return [(receipt.state, receipt.reason) for receipt in answer.receipts]


NAMED = [
    ({"type": "_system.message.deadletter"}, "type '_system.message.deadletter'"),
    ({"topic": "_system.channel.closed"}, "topic '_system.channel.closed'"),
    ({"channel": "team"}, "channel 'team'"),
    ({"mailbox": "inbox"}, "mailbox 'inbox'"),
]


@pytest.mark.parametrize(("named", "what"), NAMED, ids=[what for _, what in NAMED])
def test_a_stranger_from_a_network_may_name_only_plain_types(
    far: Postbox, door: Doorway, named: dict[str, str], what: str
) -> None:
    """Its other messages are refused with a reason, alone; a peer needs no row for that."""
    frames = [frame(), frame(**named), frame(type="order")]

    answer = door.accept(parcel(1, frames))

    stored = ("stored", None)
    assert [stored, ("rejected", REFUSED + what), stored] == told(answer)
    assert 2 == far.file.stats()["inbox_pending"]


@pytest.mark.parametrize(("named", "what"), NAMED, ids=[what for _, what in NAMED])
def test_listeners_of_ones_own_are_judged_like_networks(
    far: Postbox, named: dict[str, str], what: str
) -> None:
    """``Peers.accept`` does not know where a parcel is from."""
    answer = far.accept(parcel(1, [frame(**named)]))

    assert [("rejected", REFUSED + what)] == told(answer)


def test_an_agent_of_the_home_may_name_everything(tmp_path: Path, far: Postbox) -> None:
    """A parcel that is written into the file is judged by no rule, unless there is one."""
    near = Postbox(tmp_path / "near.db", agent="near", start=False)
    with near:
        one = near.send("far", 1, type="_system.odd")
        near.run_until_idle()
        far.peers.allow("near", types=["order"])
        two = near.send("far", 1, type="_system.odd")
        near.run_until_idle()
        states = near.state(one), near.state(two)
        [letter] = near.dead_letters.list()

    assert ("sent", "dead") == states
    assert ("rejected", "not allowed here: type '_system.odd'") == (
        letter.reason,
        letter.last_error,
    )


def test_a_rule_names_what_is_allowed(far: Postbox, door: Doorway) -> None:
    """Patterns are those of topics; what none of them matches is refused."""
    far.peers.allow("near", types=["order.#", "_system.ping"], channels=["team"])
    frames = [
        frame(type="order"),
        frame(type="order.new", channel="team"),
        frame(type="_system.ping"),
        frame(type="json"),
        frame(type="order", channel="other"),
    ]

    answer = door.accept(parcel(1, frames))

    assert ["stored"] * 3 + ["rejected"] * 2 == [state for state, _ in told(answer)]


def test_a_message_that_was_stored_before_a_rule_is_answered_as_known(
    far: Postbox, door: Doorway
) -> None:
    """A parcel that comes again is a duplicate, whatever is allowed by now."""
    pushed = parcel(1, [frame(type="order")])
    door.accept(pushed)
    far.peers.allow("near", types=["other"])

    assert [("duplicate", None)] == told(door.accept(pushed))


def test_receipts_need_no_rule(far: Postbox, door: Doorway) -> None:
    """A peer that may send nothing still tells what became of our messages."""
    far.peers.allow("near", types=[])
    far.peers.add("near", "memory:nobody")
    sent = far.send("near", 1)
    door.accept(parcel(1, receipts=[Receipt(sent, "processed")]))

    assert "acked" == far.state(sent)


def test_a_rule_is_kept_and_seen(tmp_path: Path, far: Postbox) -> None:
    """It stays through openings and registrations; a wrong pattern changes nothing."""
    far.peers.allow("near", types=["order.*"], mailboxes=["inbox"])
    far.peers.add("near", "memory:near")
    with pytest.raises(InvalidArgument):
        far.peers.allow("near", types=["#.order"])

    def rule(peer: PeerInfo | None) -> object:
        found = peer and peer.inbound_rule
        return found and (found.types, found.channels, found.mailboxes)

    with Postbox(tmp_path / "far.db", start=False) as again:
        assert (("order.*",), (), ("inbox",)) == rule(again.peers.get("near"))
    assert [("near", '[["order.*"], [], ["inbox"]]')] == far.query(
        "SELECT name, inbound_rule FROM onceward_peers"
    )
