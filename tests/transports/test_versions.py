"""Two releases at the ends of a network: nothing is lost, and the error says which to upgrade."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.transports.nats_server import nats_server
from tests.transports.over_http import LOOPBACK, a_parcel, served
from tests.waiting import until

from onceward import Postbox
from onceward.api.peers import Ping
from onceward.errors import Unreachable, UnsupportedVersion
from onceward.http import HttpListener
from onceward.message import wire
from onceward.message.parcel import OLDEST, Parcel
from onceward.message.protocol import VERSION, Speaks
from onceward.nats import NatsListener
from onceward.transports.network import nats
from onceward.transports.network.keys import Keys
from onceward.transports.network.poll import PollListener

encode = wire.encode_parcel
Pair = tuple[Postbox, Postbox]


def newer(parcel: Parcel) -> bytes:
    """Encode a parcel as a release that requires a member of its own."""
    return encode(parcel).replace(b'"version":', b'"requires":{"later":"0.7.0"},"version":', 1)


def of_another_version(parcel: Parcel) -> bytes:
    """Encode a parcel in a wire version that is not spoken here."""
    return encode(parcel).replace(b'"version":1', b'"version":2', 1)


def over_http(folder: Path, stack: ExitStack) -> Pair:
    """Return Alice, and Bob, who listens for her."""
    there = stack.enter_context(served(folder))
    alice = stack.enter_context(Postbox(there.near / "alice.db", agent="alice"))
    alice.peers.add("bob", there.url)
    return alice, there.bob


def over_nats(folder: Path, stack: ExitStack) -> Pair:
    """Return them at the two sides of a server."""
    server = stack.enter_context(nats_server(folder))
    listens = [NatsListener(server.url())]
    for home in ("far", "near"):
        (folder / home).mkdir()
    bob = stack.enter_context(Postbox(folder / "far" / "bob.db", agent="bob", listeners=listens))
    alice = stack.enter_context(Postbox(folder / "near" / "alice.db", agent="alice"))
    alice.peers.add("bob", server.url("bob"))
    return alice, bob


def over_poll(folder: Path, stack: ExitStack) -> Pair:
    """Return Alice, who listens, and Bob, who polls her."""
    near, far = folder / "near", folder / "far"
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    server = HttpListener(LOOPBACK)
    alice = stack.enter_context(Postbox(near / "alice.db", agent="alice", listeners=[server]))
    asking = PollListener(server.url, "alice")
    bob = stack.enter_context(Postbox(far / "bob.db", agent="bob", listeners=[asking]))
    alice.peers.add("bob", "poll:")
    return alice, bob


@pytest.fixture(params=[over_http, over_nats, over_poll], ids=["http", "nats", "poll"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Return Alice and Bob, reached in one of the ways."""
    with ExitStack() as stack:
        yield request.param(tmp_path, stack)


def write_parcels_as(patch: pytest.MonkeyPatch, encoding: Callable[[Parcel], bytes]) -> None:
    """Let every sender of this process encode its parcels in another way."""
    patch.setattr(wire, "encode_parcel", encoding)
    patch.setattr(nats, "encode_parcel", encoding)


def error_at(box: Postbox) -> str:
    """Return the last error of the pushes to Bob."""
    found = box.peers.get("bob")
    return "" if found is None or found.last_error is None else found.last_error


@pytest.mark.parametrize("encoding", [newer, of_another_version])
def test_a_message_waits_until_its_recipient_is_upgraded(
    pair: Pair, encoding: Callable[[Parcel], bytes]
) -> None:
    """The peer says what it lacks, the sender's file keeps the message, and it arrives once."""
    alice, bob = pair
    lacks = "0.7.0" if encoding is newer else "wire version 2"
    with pytest.MonkeyPatch.context() as patch:
        write_parcels_as(patch, encoding)
        sent = alice.send("bob", "hello")
        until(lambda: lacks in error_at(alice))
        assert alice.state(sent) in {"pending", "sending"}

    alice.peers.reset("bob")

    message = bob.receive(timeout=60)
    assert message is not None
    with message:
        assert "hello" == message.body
    assert None is bob.receive()


def test_a_ping_tells_the_peer_s_release(pair: Pair) -> None:
    """And the wire version that both speak; a poll is heard by the process that it asks."""
    alice, _ = pair

    found = until(lambda: pinged(alice))

    assert (Speaks.here().release, VERSION) == (found.release, found.wire_version)


def pinged(box: Postbox) -> Ping | None:
    """Return the answer of Bob; None before he listens."""
    with suppress(Unreachable):
        return box.peers.ping("bob")
    return None


def test_a_peer_that_speaks_no_common_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping says which side must be upgraded, and to what."""
    far_ahead = Speaks(release="9.1.0", oldest=8, newest=9)
    monkeypatch.setattr(Speaks, "here", lambda: far_ahead)
    with ExitStack() as stack:
        alice, _ = over_http(tmp_path, stack)

        with pytest.raises(UnsupportedVersion, match="upgrade this onceward") as told:
            alice.peers.ping("bob")

    assert "wire version 8" == told.value.needs
    assert "9.1.0" in str(told.value)


def test_a_peer_s_newer_version_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer says which newer version its writer reads; the next parcel may be in it."""
    with served(tmp_path) as there:
        transport = there.transport()
        monkeypatch.setattr(wire, "VERSION", 2)
        transport.deliver(there.url, a_parcel())

        said = transport.speaks("bob")
        assert said is not None
        assert 2 == said.newest
        assert OLDEST == transport._spoken.version("bob")
