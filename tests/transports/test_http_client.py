"""Only a signed answer settles a parcel; anything else that a network returns is not an answer."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.transports.over_http import Asked, Reply, a_parcel, context, scripted, served

from onceward.errors import (
    InvalidArgument,
    OncewardError,
    ParcelTooLarge,
    Refused,
    Unreachable,
    UnsupportedVersion,
)
from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.message.hosts import is_loopback
from onceward.message.parcel import Answer, Receipt
from onceward.message.wire import Notice, decode_notice, encode_notice
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_signing import new_nonce, signed_headers
from onceward.transports.network.http_urls import check_url
from onceward.transports.network.keys import Keys

SECRET = b"k" * 32
TAKEN = Answer(verdict="accepted")


@pytest.fixture
def near(tmp_path: Path) -> Iterator[HttpTransport]:
    """Yield Alice's transport; her key for Bob is the one that the scripts sign with."""
    Keys(tmp_path).add("bob", "whsec_" + "a2tr" * 10 + "a2s=")
    transport = HttpTransport(context(tmp_path, "alice", deliver_timeout=20))
    yield transport
    transport.close()


def signed(
    asked: Asked, body: bytes, *, secret: bytes = SECRET, sender: str = "bob", nonce: str = ""
) -> dict[str, str]:
    """Return the headers of Bob's answer to a request."""
    now = SystemClock().now() // 1000
    return signed_headers([secret], sender, nonce or asked.headers["webhook-id"], now, body)


def taken(asked: Asked, **changed: object) -> tuple[int, dict[str, str], bytes]:
    """Return the true answer to a parcel, or one with another verdict."""
    pushed = wire.decode_parcel(asked.body)
    told = tuple(Receipt(frame.id, "stored") for frame in pushed.frames)
    body = wire.encode_answer(replace(TAKEN, receipts=told, **changed), pushed)  # type: ignore[arg-type]
    return 200, signed(asked, body), body


def notice(kind: str, **fields: object) -> Callable[[Asked], bytes]:
    """Return the bytes of a notice of Bob to Alice."""
    return lambda _: encode_notice(
        Notice(**{"kind": kind, "sender": "bob", "recipient": "alice"} | fields)  # type: ignore[arg-type]
    )


def say(status: int, kind: str, **fields: object) -> Reply:
    """Return a signed notice as a reply."""

    def reply(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        body = notice(kind, **fields)(asked)
        return status, signed(asked, body), body

    return reply


def test_a_signed_answer_is_taken(near: HttpTransport) -> None:
    """The answer that Bob signed for this request is returned."""
    pushed = a_parcel()
    with scripted(taken) as url:
        answer = near.deliver(url, pushed)

    assert replace(TAKEN, receipts=(Receipt(pushed.last_id, "stored"),)) == answer


def test_a_request_names_its_agent_below_the_url(near: HttpTransport) -> None:
    """The recipient is added to the path of the home, which may be a mounted app."""
    paths: list[str] = []

    def reply(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        paths.append(asked.path)
        return taken(asked)

    with scripted(reply) as url:
        near.deliver(f"{url}/mounted/", a_parcel())

    assert ["/mounted/v1/agents/bob/parcels"] == paths


def _unsigned(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, taken(asked)[2]


def _other_secret(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    body = taken(asked)[2]
    return 200, signed(asked, body, secret=b"x" * 32), body


def _other_nonce(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    body = taken(asked)[2]
    return 200, signed(asked, body, nonce=new_nonce()), body


def _other_sender(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    body = taken(asked)[2]
    return 200, signed(asked, body, sender="carl"), body


def _flipped(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    _, headers, body = taken(asked)
    return 200, headers, body.replace(b"accepted", b"duplicat")


def _reflected(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    names = ("onceward-from", "webhook-id", "webhook-timestamp", "webhook-signature")
    return 200, {name: asked.headers[name] for name in names}, asked.body


def _own_words(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 200, signed(asked, asked.body), asked.body


def _as_gone(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 410, *taken(asked)[1:]


def _gzipped(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    _, headers, body = taken(asked)
    return 200, headers | {"content-encoding": "gzip"}, gzip.compress(body)


def _bomb(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 200, taken(asked)[1] | {"content-encoding": "gzip"}, gzip.compress(b"0" * (64 << 20))


def _endless(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 200, taken(asked)[1], b"0" * (1 << 20)


def _plain(status: int, **headers: str) -> Reply:
    return lambda _: (status, {k.replace("_", "-"): v for k, v in headers.items()}, b"{}")


@pytest.mark.parametrize(
    "reply",
    [
        _unsigned,
        _other_secret,
        _other_nonce,
        _other_sender,
        _flipped,
        _reflected,
        _own_words,
        _as_gone,
        _gzipped,
        _bomb,
        _endless,
        *(_plain(status) for status in (200, 204, 400, 401, 404, 410, 413, 421, 429, 500, 503)),
        _plain(302, location="http://127.0.0.1:1/"),
        _plain(307, location="/elsewhere"),
        _plain(503, retry_after="soon"),
        say(410, "pong"),
        say(200, "refused"),
        say(413, "too_large", limit=1 << 30),
        say(413, "too_large", limit=0),
        say(410, "refused", sender="carl"),
        say(410, "refused", recipient="carl"),
    ],
)
def test_nothing_but_a_signed_answer_settles(near: HttpTransport, reply: Reply) -> None:
    """Whatever is not the recipient's word on this request means that it was not reached."""
    with scripted(reply) as url, pytest.raises(Unreachable):
        near.deliver(url, a_parcel())


def test_a_recorded_answer_settles_nothing(near: HttpTransport) -> None:
    """An answer to an earlier request, replayed, is for another nonce."""
    recorded: list[tuple[int, dict[str, str], bytes]] = []

    def reply(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if not recorded:
            recorded.append(taken(asked))
        return recorded[0]

    pushed = a_parcel()
    with scripted(reply) as url:
        near.deliver(url, pushed)
        with pytest.raises(Unreachable, match="without a signature"):
            near.deliver(url, pushed)


def test_a_signed_refusal_is_final(near: HttpTransport) -> None:
    """A refusal that is signed for this request makes dead letters, with the peer's reason."""
    with (
        scripted(say(410, "refused", detail="closed for good")) as url,
        pytest.raises(Refused, match="closed for good"),
    ):
        near.deliver(url, a_parcel())


def test_a_ping_that_the_peer_cannot_read_says_which_side_to_upgrade(near: HttpTransport) -> None:
    """A ping is told of versions as a parcel is; a notice with other names tells nothing."""
    unread = "this needs onceward 9.0"
    with (
        scripted(say(422, "unread", detail=unread)) as url,
        pytest.raises(UnsupportedVersion, match=unread),
    ):
        near.ping(url, "bob")
    with (
        scripted(say(422, "unread", detail=unread, sender="carl")) as url,
        pytest.raises(Unreachable) as caught,
    ):
        near.ping(url, "bob")

    assert Unreachable is caught.type


def test_a_signed_limit_is_heeded(near: HttpTransport) -> None:
    """A limit below the size of what was pushed is told to the dispatcher."""
    with (
        scripted(say(413, "too_large", limit=500)) as url,
        pytest.raises(ParcelTooLarge) as caught,
    ):
        near.deliver(url, a_parcel("x" * 1000))

    assert 500 == caught.value.limit


@pytest.mark.parametrize(
    ("status", "after", "expected"),
    [(429, "7", 7000), (503, "7", 7000), (503, "999999", 60_000), (429, "9" * 50, 60_000)],
)
def test_a_busy_peer_is_left_alone(
    near: HttpTransport, status: int, after: str, expected: int
) -> None:
    """
    429 and 503 may ask for a pause without a signature, at most the longest delay.

    Senders that were refused in one moment come back within a second such pause.
    """
    with scripted(_plain(status, retry_after=after)) as url:
        answers = [near.deliver(url, a_parcel()) for _ in range(8)]

    pauses = [each.retry_after for each in answers]
    assert {("busy", ())} == {(each.verdict, each.receipts) for each in answers}
    assert expected <= min(pauses)
    assert max(pauses) <= min(2 * expected, 60_000)
    assert (len(set(pauses)) > 1) == (expected < 60_000)


def test_a_pause_until_a_moment(near: HttpTransport) -> None:
    """Retry-After may name a moment."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - of this test only

    moment = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    with scripted(_plain(503, retry_after=moment)) as url:
        answer = near.deliver(url, a_parcel())

    assert ("busy", 60_000) == (answer.verdict, answer.retry_after)


def test_a_trickling_answer_is_given_up(tmp_path: Path) -> None:
    """One deadline holds for the whole exchange, however often a byte comes."""
    Keys(tmp_path).create("bob")
    transport = HttpTransport(context(tmp_path, "alice", deliver_timeout=0.2))
    stop = Event()

    def trickle(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not stop.wait(0.01):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=trickle, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"no complete answer within 0\.2 s"):
            transport.deliver(url, a_parcel())
        stop.set()
        thread.join()
    transport.close()


def test_closing_ends_a_push(near: HttpTransport) -> None:
    """A push that waits for its answer ends when the transport is closed."""
    asked, go_on = Event(), Event()
    errors: list[OncewardError] = []

    def reply(request: Asked) -> tuple[int, dict[str, str], bytes]:
        asked.set()
        go_on.wait(60)
        return taken(request)

    def push(url: str) -> None:
        try:
            near.deliver(url, a_parcel())
        except OncewardError as error:
            errors.append(error)

    with scripted(reply) as url:
        pusher = Thread(target=push, args=(url,))
        pusher.start()
        assert asked.wait(60)
        near.close()
        pusher.join(60)
        go_on.set()
        with pytest.raises(Unreachable, match="closed"):
            near.deliver(url, a_parcel())

    assert [Unreachable] == list(map(type, errors))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """Without a key nothing is sent; the reason names the command that makes one."""
    transport = HttpTransport(context(tmp_path, "alice"))

    with pytest.raises(Unreachable, match="onceward keys new bob"):
        transport.deliver("http://127.0.0.1:1", a_parcel())
    transport.close()


def test_proxies_of_the_environment_are_not_used(
    near: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that the environment names would see every parcel: it is not asked."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with scripted(taken) as url:
        assert "accepted" == near.deliver(url, a_parcel()).verdict


def test_both_secrets_of_a_rotation_are_taken(tmp_path: Path) -> None:
    """Parcels pass while a key is being changed, whichever side begins."""
    with served(tmp_path) as there:
        transport = there.transport()
        near, far = Keys(there.near), Keys(there.far)

        def passes() -> bool:
            return abs(transport.ping(there.url, "bob")) < 60_000

        secret = near.rotate("bob")
        assert passes()
        far.add("alice", secret)
        assert passes()
        near.retire("bob")
        assert passes()
        far.retire("alice")
        assert passes()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:password@bob.example", "user name"),
        ("https://user@bob.example", "user name"),
        ("http://bob.example", "need https"),
        ("http://192.0.2.1:8080", "need https"),
        ("http://127.0.0.1.example", "need https"),
        ("http://[::2]", "need https"),
        ("https:", "a host"),
        ("https:///path", "a host"),
        ("https://:8443", "host is missing"),
        ("http:not a url at all", "space"),
        ("https://bob.example:0", "a host"),
        ("https://bob.example:99999", "range"),
        ("https://[::1", "url"),
        ("https://bob.example?x=1", "query"),
        ("https://bob.example#x", "query"),
        ("https://bob.example/../x", "address of the home"),
        ("https://bob.example//x", "address of the home"),
        ("https://bob.example/v1/agents/bob/parcels", "address of the home"),
        ("https://bob.example\\@evil.example", "character"),
        ("https://bob.example\n", "character"),
        ("https://bób.example", "character"),
        ("ftp://bob.example", "https://"),
    ],
)
def test_a_wrong_url_is_refused(url: str, words: str) -> None:
    """A url that cannot be a peer's is refused with the reason, and without its password."""
    with pytest.raises(InvalidArgument, match=words) as caught:
        check_url(url)

    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://bob.example",
        "https://bob.example:8443/mounted",
        "http://localhost:80",
        "http://127.9.9.9",
        "http://[::1]:8080",
        "http://cluster.internal",
    ],
)
def test_a_right_url_is_taken(url: str) -> None:
    """Any host over https, http to this machine and to hosts that a setting names."""
    check_url(url, plain_hosts=["cluster.internal"])


def test_only_this_machine_is_loopback() -> None:
    """Names that begin like a loopback address are other machines."""
    assert [True, False, False] == [
        is_loopback(host) for host in ("127.0.0.1", "127.0.0.1.nip.io", "128.0.0.1")
    ]


def test_notices_travel_and_nothing_else_does() -> None:
    """A notice comes out as it went in, its detail cut; other bytes are none."""
    told = Notice(kind="too_large", sender="a", recipient="b", limit=7, at=8, detail="ä" * 600)
    body = encode_notice(told)

    assert replace(told, detail="ä" * 500) == decode_notice(body)
    for other in (b"", b"{}", b"[]", body[:-1], body.replace(b"onceward.", b"onceward.x")):
        with pytest.raises(OncewardError):
            decode_notice(other)
    with pytest.raises(OncewardError):
        decode_notice(body.replace(b'"version":1', b'"version":1,"version":1'))
