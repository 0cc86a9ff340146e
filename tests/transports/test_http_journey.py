"""Messages between two homes over HTTP: sends, replies and outcomes, with TLS and without."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests.transports.over_http import LOOPBACK, Served, a_parcel, context, files_of, served

from onceward import Agent, Postbox
from onceward.errors import InvalidArgument, Unreachable
from onceward.testing import Controls
from onceward.testing.clock import ManualClock
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_listener import HttpListener
from onceward.transports.network.keys import Keys


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """Return two homes that share a key, Alice's and Bob's."""
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    return near, far


def test_a_request_and_its_reply_travel(homes: tuple[Path, Path]) -> None:
    """Two homes that serve each other: ``ask`` returns the reply, and the request is acked."""
    near, far = homes
    bob = Agent("bob")

    @bob.on("text")
    def answer(question: str) -> str:
        return f"{question} indeed"

    with (
        Postbox(near / "alice.db", agent="alice", listeners=[a := HttpListener(LOOPBACK)]) as alice,
        Postbox(far / "bob.db", agent=bob, listeners=[b := HttpListener(LOOPBACK)]) as box,
    ):
        alice.peers.add("bob", b.url)
        box.peers.add("alice", a.url)

        assert "so indeed" == alice.ask("bob", "so", reply=str, timeout=60)


def test_an_outcome_is_asked_for(homes: tuple[Path, Path]) -> None:
    """An agent that its peer cannot call learns of the end of its messages by pushing again."""
    (near, far), clock, server = homes, ManualClock(), HttpListener(LOOPBACK)
    with (
        Postbox(
            far / "bob.db",
            agent="bob",
            start=False,
            testing=Controls(clock=clock),
            listeners=[server],
        ) as bob,
        Postbox(
            near / "alice.db", agent="alice", start=False, testing=Controls(clock=clock)
        ) as alice,
    ):
        alice.peers.add("bob", server.url)
        sent = alice.send("bob", "hello")
        alice.run_until_idle()
        message = bob.receive()
        assert message is not None
        message.ack()
        clock.advance(60)
        alice.run_until_idle()

        assert ("hello", "acked") == (message.body, alice.state(sent))


def test_a_wrong_url_is_refused_when_it_is_registered(tmp_path: Path) -> None:
    """A url that cannot be a home's is not a peer's."""
    with (
        Postbox(tmp_path / "alice.db", agent="alice", start=False) as alice,
        pytest.raises(InvalidArgument, match="need https"),
    ):
        alice.peers.add("bob", "http://bob.example")


# -- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def authority() -> trustme.CA:
    """Return an authority of this test."""
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    """Return the file of the authority's certificate."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture
def over_tls(authority: trustme.CA, trusted: str, tmp_path: Path) -> Iterator[Served]:
    """Yield Bob, served over https to clients with a certificate of the authority."""
    certfile, keyfile = files_of(authority, tmp_path, "localhost")
    options = {"certfile": certfile, "keyfile": keyfile, "client_ca": trusted}
    with served(tmp_path, url="https://localhost:0", **options) as there:
        yield there


def test_parcels_travel_over_mutual_tls(
    over_tls: Served, authority: trustme.CA, trusted: str, tmp_path: Path
) -> None:
    """Both ends show certificates of an authority that the other end trusts."""
    certificate, key = files_of(authority, tmp_path, "alice.example")
    settings = {
        "http_ca": trusted,
        "http_certificate": certificate,
        "http_certificate_key": key,
    }

    answer = over_tls.transport(**settings).deliver(over_tls.url, a_parcel())

    assert ("accepted", ["hello"]) == (answer.verdict, over_tls.kept())


def test_a_client_without_a_certificate_is_not_heard(over_tls: Served, trusted: str) -> None:
    """A listener with ``client_ca`` answers no client that shows no certificate of it."""
    with pytest.raises(Unreachable, match="ONCEWARD_HTTP_CERTIFICATE"):
        over_tls.transport(http_ca=trusted).deliver(over_tls.url, a_parcel())

    assert [] == over_tls.kept()


def test_a_certificate_of_another_authority_is_not_trusted(over_tls: Served) -> None:
    """The system's authorities did not sign it: the reason names the setting that trusts it."""
    with pytest.raises(Unreachable, match=r"certificate: .* set ONCEWARD_HTTP_CA to the file"):
        over_tls.transport().deliver(over_tls.url, a_parcel())


def test_a_certificate_that_the_given_authority_has_not_signed(
    over_tls: Served, tmp_path: Path
) -> None:
    """Where ``http_ca`` is set already, the reason says that this file is the wrong one."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with pytest.raises(Unreachable, match=r"certificate: http_ca .*other\.pem has not signed"):
        over_tls.transport(http_ca=str(other)).deliver(over_tls.url, a_parcel())


def test_http_and_https_that_are_mixed_up_are_no_absent_server(
    over_tls: Served, trusted: str, tmp_path: Path
) -> None:
    """A server that speaks the other one of the two is told from a port without a server."""
    (tmp_path / "plain").mkdir()
    with served(tmp_path / "plain") as plain:
        wrong = {
            over_tls.url.replace("https:", "http:"): "it expects https",
            plain.url.replace("http:", "https:"): "does not speak https, perhaps http",
        }
        for url, words in wrong.items():
            with pytest.raises(Unreachable, match=f"url: the server .*{words}"):
                over_tls.transport(http_ca=trusted).ping(url, "bob")
    for url in wrong:
        if url.startswith("https:"):
            with pytest.raises(Unreachable, match="url: no server was reached there"):
                over_tls.transport(http_ca=trusted).ping(url, "bob")


def test_a_server_that_agrees_on_no_tls_in_time(over_tls: Served, trusted: str) -> None:
    """A port that takes a connection and says nothing is told from an answer that is late."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        patient = over_tls.transport(http_ca=trusted, deliver_timeout=0.2)
        with pytest.raises(Unreachable, match="url: the server does not speak https"):
            patient.deliver(url, a_parcel())


def test_a_certificate_for_another_name_is_not_trusted(
    authority: trustme.CA, trusted: str, tmp_path: Path
) -> None:
    """The name in the url must stand in the certificate."""
    certfile, keyfile = files_of(authority, tmp_path, "bob.example")
    with served(tmp_path, url="https://localhost:0", certfile=certfile, keyfile=keyfile) as there:
        transport = there.transport(http_ca=trusted)

        with pytest.raises(Unreachable, match="certificate"):
            transport.deliver(there.url, a_parcel())


def test_a_certificate_file_that_is_missing_is_named(homes: tuple[Path, Path]) -> None:
    """A setting that names no file delays messages with a reason, and a listener not to start."""
    near, _ = homes
    transport = HttpTransport(context(near, "alice", http_ca="/no/such/file"))
    with pytest.raises(Unreachable, match="No such file"):
        transport.deliver("https://127.0.0.1:1", a_parcel())
    transport.close()

    listener = HttpListener("https://127.0.0.1:0", certfile="/no/such/file")
    with pytest.raises(InvalidArgument, match="No such file"):
        listener.start()
