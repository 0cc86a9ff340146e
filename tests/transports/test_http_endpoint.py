"""What comes to an endpoint is proved and bounded before it is taken; the rest leaves nothing."""

from __future__ import annotations

import errno
import gc
import gzip
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import trustme
from starlette.responses import Response
from starlette.routing import Route
from tests.transports.over_http import (
    LOOPBACK,
    Served,
    a_parcel,
    answer_of,
    context,
    head,
    raw,
    request_headers,
    served,
    whole_answer,
)
from tests.waiting import until

from onceward.errors import (
    Busy,
    InvalidArgument,
    OncewardError,
    ParcelTooLarge,
    Refused,
    Unreachable,
)
from onceward.message import wire
from onceward.message.parcel import Answer, Parcel
from onceward.message.wire import Notice, decode_notice, encode_notice
from onceward.serving import bound
from onceward.testing.clock import ManualClock
from onceward.transports.network import http_signing
from onceward.transports.network.http import HttpTransport, Reply
from onceward.transports.network.http_caller import Nonces
from onceward.transports.network.http_connections import HELD_AT_LEAST, Connections
from onceward.transports.network.http_endpoint import HttpEndpoint, HttpLimits
from onceward.transports.network.http_guard import GuardedLoop
from onceward.transports.network.http_listener import HttpListener
from onceward.transports.network.http_signing import Signed
from onceward.transports.network.keys import Keys

BODY = wire.encode_parcel(a_parcel())
HEALTHZ = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
NOT_TAKEN = b"not taken\n"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Served]:
    """Yield Bob, served on loopback."""
    with served(tmp_path) as found:
        yield found


def test_a_proved_parcel_is_taken(there: Served) -> None:
    """A signed parcel is kept, and its answer is signed for the same nonce."""
    headers = there.signed(BODY)

    response = there.post(BODY, headers)

    signed = Signed.read(response.headers)
    assert (200, ["hello"]) == (response.status_code, there.kept())
    assert signed is not None
    assert (headers["webhook-id"], "bob") == (signed.nonce, signed.sender)
    assert signed.proves(Keys(there.near).secrets("bob"), response.content)


@pytest.mark.parametrize(
    "changed",
    [
        {"onceward-from": "mallory"},
        {"onceward-from": "../alice"},
        {"onceward-from": ""},
        {"webhook-id": "short"},
        {"webhook-id": "x" * 65},
        {"webhook-id": "a.b" * 8},
        {"webhook-id": "f" * 32},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "9" * 13},
        {"webhook-timestamp": "now"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v1," + "A" * 2000},
        {"onceward-head": ""},
        {"onceward-head": "v1,AAAA"},
        {"onceward-head": "v1," + "A" * 2000},
        *({"onceward-from": name} for name in ("all", "broadcast", "directory", "ALL")),
    ],
)
def test_a_request_that_is_not_proved_leaves_nothing(
    there: Served, changed: dict[str, str]
) -> None:
    """Each header counts: with one changed the request is 401, and its body is not kept."""
    response = there.post(BODY, there.signed(BODY, **changed))

    assert (401, NOT_TAKEN, []) == (response.status_code, response.content, there.kept())


@pytest.mark.parametrize(
    "missing",
    ["onceward-from", "webhook-id", "webhook-timestamp", "webhook-signature", "onceward-head"],
)
def test_a_missing_header_is_refused(there: Served, missing: str) -> None:
    """A request without one of the headers is 401."""
    headers = there.signed(BODY)
    del headers[missing]

    assert (401, []) == (there.post(BODY, headers).status_code, there.kept())


def test_a_changed_body_is_refused(there: Served) -> None:
    """A flipped byte anywhere is not what was signed."""
    for at in range(0, len(BODY), 40):
        changed = BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]
        assert 401 == there.post(changed, there.signed(BODY)).status_code

    assert [] == there.kept()


def test_a_key_of_another_peer_proves_nothing(there: Served) -> None:
    """A known peer cannot push in another one's name, by header or by body."""
    secret = Keys(there.far).create("mallory")
    Keys(there.near).add("mallory", secret)
    theirs = Keys(there.near).secrets("mallory")

    by_header = request_headers(theirs, BODY)
    by_body = request_headers(theirs, BODY, sender="mallory")

    for headers in (by_header, by_body):
        assert 401 == there.post(BODY, headers).status_code
    assert [] == there.kept()


def test_a_parcel_for_another_agent_is_refused(there: Served) -> None:
    """The recipient in the body is the agent of the url; the answer tells no more than 401."""
    body = wire.encode_parcel(a_parcel(recipient="carl"))

    response = there.post(body, there.signed(body))

    assert (421, NOT_TAKEN, []) == (response.status_code, response.content, there.kept())


def test_an_agent_that_is_not_served_looks_like_a_wrong_key(there: Served) -> None:
    """A stranger cannot ask which agents there are."""
    response = there.post(BODY, there.signed(BODY), "/v1/agents/carl/parcels")

    assert (401, NOT_TAKEN) == (response.status_code, response.content)


@pytest.mark.parametrize(("off", "status"), [(-301, 401), (-299, 200), (299, 200), (301, 401)])
def test_times_outside_of_the_window_are_refused(tmp_path: Path, off: int, status: int) -> None:
    """A request may be signed up to five minutes before or after the recipient's present."""
    clock = ManualClock()
    clock.advance(1000)
    share, endpoint = Keys(tmp_path), HttpListener(LOOPBACK)
    secret = share.create("alice")
    listener = endpoint(context(tmp_path, "bob", clock=clock))
    listener.listen("bob", lambda _: Answer(verdict="accepted"))
    ahead = ManualClock()
    ahead.advance(1000 + off)
    (tmp_path / "near").mkdir()
    Keys(tmp_path / "near").add("bob", secret)
    near = HttpTransport(context(tmp_path / "near", "alice", clock=ahead))
    try:
        if status == 200:
            assert "accepted" == near.deliver(endpoint.url, a_parcel()).verdict
        else:
            with pytest.raises(Unreachable, match="401"):
                near.deliver(endpoint.url, a_parcel())
    finally:
        near.close()
        listener.close()


def test_a_replayed_request_is_refused(there: Served) -> None:
    """A request that was recorded and comes again is 401; the inbox has it once."""
    headers = there.signed(BODY)

    assert [200, 401] == [there.post(BODY, headers).status_code for _ in range(2)]
    assert ["hello"] == there.kept()


def test_a_nonce_is_remembered_as_long_as_its_time_is_taken() -> None:
    """The memory of nonces is bounded by the window and by a number for each sender."""
    nonces = Nonces()
    for number in range(10_010):
        assert nonces.add(Signed("alice", str(number), 1000, ""), 1000)

    assert not nonces.add(Signed("alice", "10", 1000, ""), 1000)
    assert nonces.add(Signed("alice", "9", 1000, ""), 1000)
    assert nonces.add(Signed("carl", "11", 1000, ""), 1000)
    assert nonces.add(Signed("alice", "new", 1301, ""), 1301)
    assert nonces.add(Signed("alice", "10009", 1000, ""), 1000)


def test_a_stranger_is_refused_before_the_body(there: Served) -> None:
    """The answer comes though not a byte of the announced body was sent."""
    with raw(there.url) as connection:
        headers = there.signed(BODY, **{"onceward-from": "mallory", "content-length": "1000000"})
        connection.sendall(head(headers))

        assert answer_of(connection).startswith(b"HTTP/1.1 401 ")


def _causes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return peer and cause of the requests that the log says were not taken."""
    rows = [getattr(each, "onceward", {}) for each in caplog.records]
    return [(row["peer"], row["why"]) for row in rows if "why" in row]


def test_the_operator_is_told_why(there: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The log of the home that serves says what is wrong; each answer is the same to strangers."""
    ours = Keys(there.far).list()[0].fingerprint
    asked = [
        (there.signed(BODY, **{"onceward-from": "mallory"}), "bob"),
        (there.signed(BODY), "carl"),
        (request_headers(Keys(there.near).secrets("bob"), BODY, at=1), "bob"),
        (there.signed(BODY, **{"onceward-head": "v1,AAAA"}), "bob"),
    ]
    found = [there.post(BODY, headers, f"/v1/agents/{name}/parcels") for headers, name in asked]
    told = _causes(caplog)
    agents = [getattr(each, "onceward", {}).get("agent") for each in caplog.records]

    assert ["bob", "carl", "bob", "bob"] == agents
    assert {(401, NOT_TAKEN)} == {(each.status_code, each.content) for each in found}
    assert ("mallory", "name or key: there is no key for it: onceward keys add mallory") == told[0]
    assert ("alice", "no such agent is served here") == told[1]
    assert "clock: the signature is outside the time window" in told[2][1]
    assert f"key: it is not signed with the key that is here, {ours}" in told[3][1]


def test_strangers_do_not_fill_the_log(there: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Any number of made-up names and agents cost one line of each kind."""
    for n in range(5):
        for path in ("/v1/agents/bob/parcels", f"/v1/agents/agent{n}/parcels"):
            there.post(BODY, there.signed(BODY, **{"onceward-from": f"stranger{n}"}), path)

    assert [("stranger0", True), ("stranger0", True)] == [
        (peer, "no" in why) for peer, why in _causes(caplog)
    ]


def test_a_key_that_others_read_is_not_used(there: Served) -> None:
    """A key whose mode was loosened proves nothing until it is mended."""
    (there.far / "keys" / "alice").chmod(0o644)

    assert 401 == there.post(BODY, there.signed(BODY)).status_code


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_nothing_is_inflated(there: Served, encoding: str) -> None:
    """A compressed body is refused before it is read, however small it looks."""
    bomb = gzip.compress(b"\0" * (64 << 20))

    headers = there.signed(bomb, **{"content-encoding": encoding})
    with raw(there.url) as connection:
        connection.sendall(head(headers | {"content-length": str(len(bomb))}))
        found = answer_of(connection)

    assert found.startswith(b"HTTP/1.1 415 ")
    assert [] == there.kept()


def test_another_media_type_is_refused(there: Served) -> None:
    """A body that is not a batch of CloudEvents by its own word is not read."""
    headers = there.signed(BODY, **{"content-type": "text/plain"})

    assert (415, []) == (there.post(BODY, headers).status_code, there.kept())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_parcel_is_told_the_limit(tmp_path: Path, *, chunked: bool) -> None:
    """A body beyond the limit is dropped, announced or not; the signed answer names the limit."""
    body = wire.encode_parcel(a_parcel("x" * 100_000))
    with served(tmp_path, limits=HttpLimits(parcel_bytes=50_000)) as there:
        headers = there.signed(body)
        if chunked:
            headers |= {"transfer-encoding": "chunked"}
            sent = head(headers) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            sent = head(headers | {"content-length": str(len(body))}) + body
        with raw(there.url) as connection:
            connection.sendall(sent)
            found = answer_of(connection)

        notice = decode_notice(found.split(b"\r\n\r\n", 1)[1])
        assert found.startswith(b"HTTP/1.1 413 ")
        assert ("too_large", 50_000, "bob") == (notice.kind, notice.limit, notice.sender)
        with pytest.raises(ParcelTooLarge) as caught:
            there.transport().deliver(there.url, a_parcel("x" * 100_000))
        assert 50_000 == caught.value.limit
        assert [] == there.kept()


def test_the_bytes_in_flight_are_bounded(tmp_path: Path) -> None:
    """While bodies take the budget another one is told to come again, and nothing of it is read."""
    with served(tmp_path, limits=HttpLimits(bytes_in_flight=1000)) as there:
        headers = there.signed(BODY) | {"content-length": "1001"}
        with raw(there.url) as connection:
            connection.sendall(head(headers))
            found = answer_of(connection)
        answer = there.transport().deliver(there.url, a_parcel("x" * 2000))

        assert found.startswith(b"HTTP/1.1 503 ")
        assert ("busy", True) == (answer.verdict, 1000 <= answer.retry_after <= 2000)
        assert 200 == there.post(BODY, there.signed(BODY)).status_code


def test_a_stranger_who_withholds_a_body_stops_no_pair(there: Served) -> None:
    """A head with the names of a pair takes no place: the pair's own parcel is taken beside it."""
    names = {"content-length": str(len(BODY)), "webhook-id": "f" * 32}
    with raw(there.url) as stranger:
        stranger.sendall(head(there.signed(BODY, **names)))
        told = answer_of(stranger)

        assert 200 == there.post(BODY, there.signed(BODY)).status_code
    assert told.startswith(b"HTTP/1.1 401 ")
    assert ["hello"] == there.kept()


@pytest.mark.parametrize(
    "changed",
    [
        {"content-type": "text/plain"},
        {"content-encoding": "gzip"},
        {"content-length": "999999999"},
    ],
)
@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_a_stranger_learns_no_names(there: Served, name: str, changed: dict[str, str]) -> None:
    """Without the key a pair that is known and one that is not get the same answer."""
    forged = request_headers([b"x" * 32], BODY, sender=name) | {"content-length": "1"} | changed
    with raw(there.url) as stranger:
        stranger.sendall(head(forged))
        found = answer_of(stranger)

    assert found.startswith(b"HTTP/1.1 401 ")
    assert found.endswith(NOT_TAKEN)


def test_names_that_are_known_cost_the_same_steps(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether peer or agent are known, a key is looked up and a signature is compared once."""
    steps: list[str] = []

    def noted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any) -> Any:
            steps.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, call)

    noted(Keys, "secrets")
    noted(http_signing, "verify")
    found = []
    for peer, agent in product(("alice", "mallory"), ("bob", "nobody")):
        steps.clear()
        forged = request_headers([b"x" * 32], BODY, sender=peer)
        with raw(there.url) as stranger:
            stranger.sendall(head(forged, f"/v1/agents/{agent}/parcels"))
            answer = answer_of(stranger)
        found.append((answer.startswith(b"HTTP/1.1 401 "), tuple(steps)))

    assert [(True, ("secrets", "verify"))] * 4 == found


def test_a_question_and_a_parcel_of_one_peer_have_places_of_their_own(there: Served) -> None:
    """While a peer's parcel is being read, its question for parcels is read, too."""
    question = encode_notice(Notice(kind="collect", sender="alice", recipient="bob")) + b"\n"
    with raw(there.url) as slow:
        slow.sendall(head(there.signed(BODY) | {"content-length": str(len(BODY))}))
        while there.server.endpoint._slots == set():
            pass
        asked = there.post(question, there.signed(question, "collect"), "/v1/agents/bob/collect")
        slow.sendall(BODY)
        first = slow.recv(65536)

    assert 200 == asked.status_code
    assert first.startswith(b"HTTP/1.1 200 ")


def test_a_peer_sends_one_parcel_at_a_time(there: Served) -> None:
    """A second body of the same sender from the same place is told to come again."""
    with raw(there.url) as slow:
        slow.sendall(head(there.signed(BODY) | {"content-length": str(len(BODY))}))
        while there.server.endpoint._slots == set():
            pass
        second = there.post(BODY, there.signed(BODY))
        slow.sendall(BODY)
        first = slow.recv(65536)

    assert (429, "1") == (second.status_code, second.headers["retry-after"])
    assert first.startswith(b"HTTP/1.1 200 ")
    assert set() == there.server.endpoint._slots


def test_a_slow_body_is_given_up(tmp_path: Path) -> None:
    """A body that does not arrive in time gives its place and its bytes back."""
    with served(tmp_path, limits=HttpLimits(body_timeout=0.05)) as there:
        with raw(there.url) as connection:
            connection.sendall(head(there.signed(BODY) | {"content-length": "1000"}) + b"[")
            found = answer_of(connection)

        assert found.startswith(b"HTTP/1.1 408 ")
        assert (set(), 0) == (there.server.endpoint._slots, there.server.endpoint._in_flight)
        assert 200 == there.post(BODY, there.signed(BODY)).status_code


@pytest.mark.parametrize("sent", [b"", b"POST /v1", head({"a": "b"})[:-2]])
def test_slow_heads_are_cut_off(tmp_path: Path, sent: bytes) -> None:
    """Connections without a whole head are closed in time, and hold no other up."""
    with served(tmp_path, limits=HttpLimits(header_timeout=0.05, connections=16)) as there:
        slow = [raw(there.url) for _ in range(8)]
        for connection in slow:
            connection.sendall(sent)
        found = [answer_of(connection) for connection in slow]
        for connection in slow:
            connection.close()

        assert [b""] * 8 == found
        assert 200 == there.post(BODY, there.signed(BODY)).status_code


def test_an_answer_that_is_not_read_is_given_up(tmp_path: Path) -> None:
    """A client that reads nothing on keeps neither its connection nor the rest of the answer."""
    with served(tmp_path, limits=HttpLimits(body_timeout=0.5)) as there:
        large = Route("/large", lambda _: Response(bytes(20_000_000)))
        there.server.endpoint.app.router.routes.append(large)
        with raw(there.url) as connection:
            connection.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(1)
            until(lambda: (found := there.server.connections()) is not None and not found.strangers)
            read = answer_of(connection)

        assert len(read) < 20_000_000
        assert 200 == there.post(BODY, there.signed(BODY)).status_code


def test_a_second_head_is_awaited_as_long_as_the_first(tmp_path: Path) -> None:
    """A kept connection that begins another head and stops is closed, too."""
    with (
        served(tmp_path, limits=HttpLimits(header_timeout=0.05)) as there,
        raw(there.url) as connection,
    ):
        connection.sendall(HEALTHZ)
        found = b""
        while not found.endswith(b"}"):
            found += connection.recv(65536)
        connection.sendall(b"GET /he")

        assert b"" == answer_of(connection)


def test_a_head_behind_a_request_is_awaited_as_long(tmp_path: Path) -> None:
    """The part of a head that came with the request before it starts the time."""
    with (
        served(tmp_path, limits=HttpLimits(header_timeout=0.05)) as there,
        raw(there.url) as connection,
    ):
        connection.settimeout(10)
        connection.sendall(HEALTHZ + b"GET /he")

        assert answer_of(connection).endswith(b"}")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /v1/agents/bob/parcels", b"405"),
        (b"POST /healthz", b"405"),
        (b"POST /nowhere", b"404"),
    ],
)
def test_a_body_that_is_not_wanted_is_not_awaited(
    there: Served, line: bytes, status: bytes
) -> None:
    """A request that is answered before its body has come ends its connection."""
    with raw(there.url) as connection:
        connection.settimeout(10)
        connection.sendall(line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\nx")

        assert answer_of(connection).startswith(b"HTTP/1.1 " + status)


def test_a_stranger_of_longest_standing_makes_room(tmp_path: Path) -> None:
    """Beyond the most of an address the oldest unproved connection is told to come again."""
    limits = HttpLimits(connections=4, connections_of_an_address=2)
    with served(tmp_path, limits=limits) as there:
        strangers = [raw(there.url) for _ in range(6)]
        told = [answer_of(each) for each in strangers[:4]]
        status = there.post(BODY, there.signed(BODY)).status_code
        found = there.server.connections()
        for each in strangers:
            each.close()

    assert [True] * 4 == [
        each.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in each for each in told
    ]
    assert 200 == status
    assert found is not None
    assert (4, 5) == (found.most, found.refused)


def test_a_resting_connection_makes_room(tmp_path: Path) -> None:
    """Where peers' connections rest, the one that has rested longest is closed for a new one."""
    limits = HttpLimits(connections=2, connections_of_an_address=2)
    with served(tmp_path, limits=limits) as there:
        length = {"content-length": str(len(BODY))}
        first, second = raw(there.url), raw(there.url)
        for connection in (first, second):
            connection.sendall(head(there.signed(BODY) | length) + BODY)
            assert whole_answer(connection).startswith(b"HTTP/1.1 200 ")
        third = there.post(BODY, there.signed(BODY)).status_code
        ended = answer_of(first)
        second.sendall(head(there.signed(BODY) | length) + BODY)
        going_on = whole_answer(second)
        found = there.server.connections()
        first.close()
        second.close()

    assert (200, b"") == (third, ended)
    assert going_on.startswith(b"HTTP/1.1 200 ")
    assert found is not None
    assert (0, 1) == (found.refused, found.displaced)


def test_a_stranger_with_many_connections_stops_no_pair(tmp_path: Path) -> None:
    """Beside 500 connections of a stranger at the same address each parcel of a pair is taken."""
    with ExitStack() as stack, served(tmp_path, limits=HttpLimits(connections=200)) as there:
        for _ in range(500):
            stack.enter_context(raw(there.url)).sendall(b"POST /v1")
        until(lambda: (found := there.server.connections()) is not None and found.refused == 350)
        pushed = a_parcel()
        sent = [there.transport().deliver(there.url, pushed).verdict for _ in range(20)]
        found = there.server.connections()

    assert ["accepted", *["duplicate"] * 19] == sent
    assert found is not None
    assert found.strangers <= 150


def test_connections_are_counted_before_tls(tmp_path: Path) -> None:
    """A stranger that never agrees on TLS takes no more connections than one that does."""
    authority, trusted = trustme.CA(), str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(trusted)
    issued, certfile = authority.issue_cert("localhost"), str(tmp_path / "bob.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(certfile)
    options = {"url": "https://localhost:0", "certfile": certfile, "keyfile": certfile}
    limits = HttpLimits(connections=20)
    with ExitStack() as stack, served(tmp_path, limits=limits, **options) as there:
        place = ("localhost", int(there.url.rpartition(":")[2]))
        for _ in range(50):
            stack.enter_context(socket.create_connection(place))
        until(lambda: (found := there.server.connections()) is not None and found.refused == 35)
        verdict = there.transport(http_ca=trusted).deliver(there.url, a_parcel()).verdict
        found = there.server.connections()

    assert "accepted" == verdict
    assert found is not None
    assert (14, 1) == (found.strangers, found.peers)


def _serve_silent_clients(tmp_path: Path) -> None:
    """Serve two clients that say nothing, one of them after it agreed on TLS, and stop."""
    certfile = str(tmp_path / "bob.pem")
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certfile)
    options = {"url": "https://localhost:0", "certfile": certfile, "keyfile": certfile}
    with ExitStack() as stack, served(tmp_path, limits=HttpLimits(), **options) as there:
        place = ("localhost", int(there.url.rpartition(":")[2]))
        silent, agreed = [stack.enter_context(socket.create_connection(place)) for _ in range(2)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stack.enter_context(context.wrap_socket(agreed))
        until(lambda: (found := there.server.connections()) is not None and found.strangers == 2)
        assert silent.fileno() >= 0


def test_a_listener_that_stops_ends_connections_over_tls(tmp_path: Path) -> None:
    """No client, before or after TLS, leaves its connection to the garbage collector."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _serve_silent_clients(tmp_path)
        gc.collect()

    assert [] == [str(each.message) for each in told if each.category is ResourceWarning]


def test_a_lack_of_files_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A loop tells once that connections wait for files, and goes on to tell the rest."""
    loop = GuardedLoop()
    for number in (errno.EMFILE, errno.ENFILE, errno.EMFILE, errno.EIO):
        loop.call_exception_handler({"message": "accept", "exception": OSError(number, "")})
    loop.close()

    assert ["connections wait for file descriptors: raise the limit (ulimit -n)", "accept"] == [
        each.message.splitlines()[0] for each in caplog.records
    ]


def test_the_question_that_was_held_longest_makes_room() -> None:
    """Where no further question has a place, peers have it in turn, each for some seconds."""
    counted, released = Connections(held=2), list[str]()
    asked = {name: _Asking() for name in "abc"}
    for name, each in asked.items():
        counted.add(each)
        counted.works(each)
        if name != "c":
            assert counted.hold(each, partial(released.append, name), 0.0)

    early = counted.hold(asked["c"], released.clear, HELD_AT_LEAST - 1), counted.stats().refused
    late = counted.hold(asked["c"], released.clear, HELD_AT_LEAST)

    assert (False, 1) == early
    assert (True, ["a"]) == (late, released)
    assert (2, 1, 1) == (counted.stats().held, counted.stats().peers, counted.stats().displaced)


class _Asking:
    """A connection of a peer that asks."""

    place = "192.0.2.1"

    def refuse(self) -> None: ...
    def leave(self) -> None: ...


def test_questions_are_counted_apart(tmp_path: Path) -> None:
    """A question that is held takes no connection's place; beyond the most it comes again."""
    question = (
        encode_notice(Notice(kind="collect", sender="alice", recipient="bob", limit=10_000)) + b"\n"
    )
    path = "/v1/agents/bob/collect"
    with served(tmp_path, limits=HttpLimits(connections=2, questions=1)) as there:
        length = {"content-length": str(len(question))}
        with raw(there.url) as held:
            held.sendall(head(there.signed(question, "collect") | length, path) + question)
            until(lambda: (found := there.server.connections()) is not None and found.held == 1)
            second = there.post(question, there.signed(question, "collect"), path)
            parcel = there.post(BODY, there.signed(BODY))

    assert (503, "1") == (second.status_code, second.headers["retry-after"])
    assert 200 == parcel.status_code


@pytest.mark.parametrize(
    "more",
    [{"x": "a" * 70_000}, {f"x{number}": "a" for number in range(10_000)}],
    ids=["one long header", "many headers"],
)
@pytest.mark.parametrize("before", [b"", HEALTHZ, HEALTHZ * 40], ids=["first", "second", "later"])
def test_a_large_head_is_refused(there: Served, more: dict[str, str], before: bytes) -> None:
    """
    A head of more than 16 KiB is cut off, even if it comes whole, in one read, and is signed.

    Behind another request, too.
    """
    answer = b""
    length = {"content-length": str(len(BODY))}
    with raw(there.url) as connection, suppress(OSError):
        connection.sendall(before + head(there.signed(BODY) | length | more) + BODY)
        answer = answer_of(connection)

    last = answer[answer.rfind(b"HTTP/1.1 ") :]
    assert [] == there.kept()
    assert not answer or last.startswith(b"HTTP/1.1 400 ")  # or the rest of the head was unread


def test_a_large_head_behind_a_body_is_refused(there: Served) -> None:
    """One read has the end of a body and a whole head behind it."""
    length, more = {"content-length": str(len(BODY))}, {"x": "a" * 70_000}
    ping = encode_notice(Notice(kind="ping", sender="alice", recipient="bob"))
    asked = there.signed(ping, "ping") | {"content-length": str(len(ping))}
    with raw(there.url) as connection:
        first = head(asked, "/v1/agents/bob/ping") + ping
        connection.sendall(first + head(there.signed(BODY) | length | more) + BODY)
        answer = answer_of(connection)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in answer
    assert [] == there.kept()


@pytest.mark.parametrize(
    "body",
    [
        b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, b"t: a\r\n" * 10_000),
        b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(BODY), b"x" * 70_000, BODY),
    ],
    ids=["trailers", "extension of a chunk"],
)
def test_what_surrounds_chunks_is_bounded(there: Served, body: bytes) -> None:
    """Trailers and extensions are ignored, so more than 16 KiB of them are refused."""
    with raw(there.url) as connection:
        connection.sendall(head(there.signed(BODY) | {"transfer-encoding": "chunked"}) + body)
        answer = answer_of(connection)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert [] == there.kept()


def test_requests_that_come_in_one_read_are_answered_in_order(there: Served) -> None:
    """Bodies of several reads among them; a request that comes twice is told apart as ever."""
    large = wire.encode_parcel(a_parcel("x" * 300_000))
    requests = [
        head(there.signed(body) | {"content-length": str(len(body))}) + body
        for body in (large, BODY)
    ]
    with raw(there.url) as connection:
        connection.sendall(b"".join([HEALTHZ, *requests, HEALTHZ, requests[1], HEALTHZ]))
        answer = answer_of(connection)

    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert [b"200", b"200", b"200", b"200", b"401"] == statuses  # which ends the connection


def test_a_body_that_is_no_parcel_is_refused(there: Served) -> None:
    """A proved body that cannot be read is 422, which its sender repeats: versions may differ."""
    body = BODY.replace(b'"version":1', b'"version":2')

    assert 422 == there.post(body, there.signed(body)).status_code
    with pytest.raises(Unreachable, match="401"):
        there.transport().deliver(there.url, replace(a_parcel(), sender="carl"))


def test_a_damaged_frame_is_pushed_again(there: Served) -> None:
    """A frame whose digest does not match is 422: the sender's file was damaged, or its memory."""
    pushed = a_parcel()
    frame = pushed.frames[0]._replace(digest=b"\0" * 16)

    with pytest.raises(Unreachable, match="422"):
        there.transport().deliver(there.url, replace(pushed, frames=(frame,)))


def _accepting(tmp_path: Path, error: Exception) -> tuple[HttpListener, HttpTransport]:
    """Return a server whose agent raises *error*, and a transport to it."""

    def accept(_: Parcel) -> Answer:
        raise error

    Keys(tmp_path).add("bob", Keys(tmp_path).create("alice"))
    server = HttpListener(LOOPBACK)
    server(context(tmp_path, "bob")).listen("bob", accept)
    return server, HttpTransport(context(tmp_path, "alice"))


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (Refused("never"), Refused, "never"),
        (Unreachable("damaged"), Unreachable, "422"),
        (ValueError("a bug"), Unreachable, "500"),
    ],
)
def test_errors_of_the_agent_are_told(
    tmp_path: Path, error: Exception, expected: type[OncewardError], words: str
) -> None:
    """A refusal is told signed and is final; everything else may be tried again."""
    server, transport = _accepting(tmp_path, error)
    try:
        with pytest.raises(expected, match=words):
            transport.deliver(server.url, a_parcel())
    finally:
        transport.close()
        server.stop()


def test_a_busy_file_is_told_as_busy(tmp_path: Path) -> None:
    """A file that cannot take the parcel now asks for a pause."""
    server, transport = _accepting(tmp_path, Busy("locked"))
    try:
        answer = transport.deliver(server.url, a_parcel())
        assert ("busy", True) == (answer.verdict, 1000 <= answer.retry_after <= 2000)
    finally:
        transport.close()
        server.stop()


def test_healthz_tells_nothing_but_that_it_is_up(there: Served) -> None:
    """The probe of an operator needs no key and names no agent."""
    with raw(there.url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

        assert b'{"status":"ok"}' == answer_of(connection).split(b"\r\n\r\n")[1]


def test_a_ping_is_answered_signed(there: Served) -> None:
    """A ping proves key, name and way, and tells how far the peer's clock is ahead."""
    assert abs(there.transport().ping(there.url, "bob")) < 60_000


def test_a_ping_compares_the_clocks_halfway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks agree, and the answer comes three seconds after the question."""
    clock = ManualClock()
    with served(tmp_path, clock=clock) as there:
        transport = HttpTransport(context(there.near, "alice", clock=clock))
        there.stack.callback(transport.close)
        monkeypatch.setattr(transport, "request", slow(transport.request, clock))

        assert 0 == transport.ping(there.url, "bob")


def slow(request: Callable[..., Reply], clock: ManualClock) -> Callable[..., Reply]:
    """Return a request that is on its way for 1.5 s, and its reply as long."""

    def asked(*given: object, **options: object) -> Reply:
        clock.advance(1.5)
        reply = request(*given, **options)
        clock.advance(1.5)
        return reply

    return asked


def test_a_signed_ping_is_no_parcel(there: Served) -> None:
    """What was signed for one path is not taken at the other."""
    ping = encode_notice(Notice(kind="ping", sender="alice", recipient="bob"))
    path = "/v1/agents/bob/ping"

    assert 401 == there.post(ping, there.signed(ping, "ping")).status_code
    assert 401 == there.post(BODY, there.signed(BODY), path).status_code
    assert 422 == there.post(ping, there.signed(ping)).status_code
    assert 422 == there.post(BODY, there.signed(BODY, "ping"), path).status_code
    assert [] == there.kept()


# -- the server --------------------------------------------------------------------------------


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """The socket names its protocol; without it asyncio sets no TCP_NODELAY."""
    with bound("127.0.0.1", 0) as listening:
        assert socket.IPPROTO_TCP == listening.proto


def test_two_agents_share_a_server(tmp_path: Path) -> None:
    """A server serves each postbox that was given it, until the last one closes."""
    server = HttpListener(LOOPBACK)
    accepted: list[str] = []
    Keys(tmp_path).add("carl", Keys(tmp_path).create("bob"))
    Keys(tmp_path).add("alice", Keys(tmp_path)._lines("bob")[0])
    listeners = [server(context(tmp_path, name)) for name in ("bob", "carl")]
    transport = HttpTransport(context(tmp_path, "alice"))

    def accept(pushed: Parcel) -> Answer:
        accepted.append(pushed.recipient)
        return Answer(verdict="accepted")

    for name, listener in zip(("bob", "carl"), listeners, strict=True):
        listener.listen(name, accept)
    for name in ("bob", "carl"):
        transport.deliver(server.url, a_parcel(recipient=name))
    listeners[0].close()
    listeners[0].close()
    with pytest.raises(Unreachable, match="401"):
        transport.deliver(server.url, a_parcel(recipient="bob"))
    transport.deliver(server.url, a_parcel(recipient="carl"))
    listeners[1].close()
    with pytest.raises(Unreachable):
        transport.deliver(server.url, a_parcel(recipient="carl"))
    transport.close()

    assert ["bob", "carl", "carl"] == accepted


def test_closing_waits_for_what_is_being_accepted(tmp_path: Path) -> None:
    """A parcel whose acceptance is under way is answered before ``close`` returns."""
    begun, go_on = Event(), Event()

    def accept(_: Parcel) -> Answer:
        begun.set()
        go_on.wait(60)
        return Answer(verdict="accepted")

    Keys(tmp_path).add("bob", Keys(tmp_path).create("alice"))
    server = HttpListener(LOOPBACK)
    listener = server(context(tmp_path, "bob"))
    listener.listen("bob", accept)
    transport = HttpTransport(context(tmp_path, "alice"))
    found: list[Answer] = []
    pusher = Thread(target=lambda: found.append(transport.deliver(server.url, a_parcel())))
    closer = Thread(target=listener.close)
    pusher.start()
    assert begun.wait(60)
    closer.start()
    go_on.set()
    closer.join()
    pusher.join()
    transport.close()

    assert ["accepted"] == [answer.verdict for answer in found]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://0.0.0.0:1", "behind_proxy"),
        ("https://127.0.0.1:1", "certificate"),
        ("ftp://127.0.0.1", "such as https://0.0.0.0:8443"),
        ("127.0.0.1:80", "such as https://0.0.0.0:8443"),
        ("http://127.0.0.1:99999", "out of range"),
        ("http://127.0.0.1/path", "such as https://0.0.0.0:8443"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(url: str, words: str) -> None:
    """A listener says at once which address it wants."""
    with pytest.raises(InvalidArgument, match=words):
        HttpListener(url)


def test_http_takes_no_certificate() -> None:
    """A certificate that would not be used is refused, so that no listener is plain by a slip."""
    with pytest.raises(InvalidArgument, match="http uses no certificate"):
        HttpListener("http://127.0.0.1:0", certfile="home.pem")


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The error names the file that is missing or no certificate; nothing is bound."""
    wrong = tmp_path / "home.pem"
    for content in (None, "no certificate"):
        if content is not None:
            wrong.write_text(content)
        listener = HttpListener("https://127.0.0.1:0", certfile=str(wrong))

        with pytest.raises(InvalidArgument, match=rf"the certificate {wrong} .* cannot be used"):
            listener(context(tmp_path, "carl")).listen("carl", lambda _: Answer(verdict="busy"))


def test_an_address_that_is_taken_is_an_error(there: Served, tmp_path: Path) -> None:
    """Two servers cannot have one port; the second one says so, and may be started later."""
    second = HttpListener(there.url)

    with pytest.raises(InvalidArgument, match="cannot listen at"):
        second(context(tmp_path, "carl")).listen("carl", lambda _: Answer(verdict="busy"))


def test_no_answer_leads_elsewhere(there: Served) -> None:
    """A path with a slash more is not there; the caller is not sent to a host of its choice."""
    found = there.post(BODY, there.signed(BODY, host="evil.example"), "/v1/agents/bob/parcels/")

    assert (404, None) == (found.status_code, found.headers.get("location"))


def test_an_endpoint_has_an_app_of_its_own() -> None:
    """The app lists what it serves, for mounting into another one."""
    paths = [getattr(route, "path", "") for route in HttpEndpoint().app.routes]

    of_agents = [f"/v1/agents/{{name}}/{verb}" for verb in ("parcels", "ping", "collect")]
    of_homes = ["/v1/home", "/v1/home/agents", "/v1/home/collect"]
    assert [*of_agents, *of_homes, "/healthz"] == paths
