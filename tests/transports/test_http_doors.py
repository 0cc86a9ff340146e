"""What a listener answers to requests that no sender of ours makes: it refuses, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from tests.transports.over_http import Served, a_parcel, answer_of, head, raw, served
from tests.waiting import until

from onceward.http import HttpLimits
from onceward.message import wire
from onceward.message.wire import Notice, encode_notice

BODY: Final = wire.encode_parcel(a_parcel())
LENGTH: Final = {"content-length": str(len(BODY))}
CHUNKED: Final = {"transfer-encoding": "chunked"}
QUESTION: Final = encode_notice(Notice(kind="collect", sender="alice", recipient="bob", limit=50))
Request = Callable[[Served], bytes]
"""Returns the bytes of a request."""


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Served]:
    """Serve Bob, with little patience for bodies."""
    with served(tmp_path, limits=HttpLimits(body_timeout=1.0)) as made:
        yield made


def signed(
    body: bytes = BODY, verb: str = "parcels", more: Mapping[str, str] | None = None
) -> Request:
    """Return a request that is signed; *more* headers are not."""
    headers = {"content-length": str(len(body)), **(more or {})}
    return lambda there: head(there.signed(body, verb) | headers, f"/v1/agents/bob/{verb}") + body


def chunked(body: bytes) -> Request:
    """Return a signed request with a body as it is written here."""
    return lambda there: head(there.signed(BODY) | CHUNKED) + body


def twice(name: str, value: str, *, first: bool) -> Request:
    """Return a signed request with a header of that name before or behind its own."""

    def request(there: Served) -> bytes:
        whole, line = head(there.signed(BODY) | LENGTH), f"{name}: {value}\r\n".encode()
        top, _, rest = whole.partition(b"\r\n")
        return (top + b"\r\n" + line + rest if first else whole[:-2] + line + b"\r\n") + BODY

    return request


def plain(text: bytes) -> Request:
    """Return bytes that need no signature."""
    return lambda _: text


def changed(old: bytes, new: bytes) -> Request:
    """Return a signed request whose bytes were changed."""
    return lambda there: signed()(there).replace(old, new)


REFUSED: Final[dict[str, tuple[int, Request]]] = {
    "TLS at a plain port": (400, plain(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20)),
    "a header without a colon": (400, plain(b"GET / HTTP/1.1\r\nhost: x\r\nbad\r\n\r\n")),
    "a zero byte in a header": (400, plain(b"GET / HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n")),
    "a zero byte in a path": (400, changed(b"/parcels", b"/par\0cels")),
    "no host": (400, changed(b"host: x\r\n", b"")),
    "two hosts": (400, changed(b"host: x\r\n", b"host: x\r\nhost: y\r\n")),
    "HTTP/2": (400, plain(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
    "a path of bytes that are no text": (401, changed(b"/bob/", b"/%ff%fe/")),
    "a path of half a character": (401, changed(b"/bob/", b"/%ed%a0%80/")),
    "a path with a line's end": (401, changed(b"/bob/", b"/bob%0d%0a/")),
    "400 digits of length": (400, signed(more={"content-length": "9" * 400})),
    "19 digits of length": (413, signed(more={"content-length": "9" * 19})),
    "a negative length": (400, signed(more={"content-length": "-1"})),
    "a length with a sign": (400, signed(more={"content-length": "+5"})),
    "two lengths": (400, signed(more={"content-length": "5, 6"})),
    "a length below the body's": (401, signed(more={"content-length": "5"})),
    "a length above the body's": (408, signed(more={"content-length": "1000"})),
    "a length of nothing": (401, signed(more={"content-length": "0"})),
    "a length beside chunks": (408, signed(more=CHUNKED)),
    "gzip on the way": (400, signed(more={"transfer-encoding": "gzip"})),
    "gzip of the body": (415, signed(more={"content-encoding": "gzip"})),
    "gzip behind a type": (415, twice("content-encoding", "gzip", first=False)),
    "a chunk of 2^76 bytes": (408, chunked(b"f" * 19 + b"\r\n" + BODY)),
    "a chunk of less than nothing": (400, chunked(b"-1\r\n" + BODY)),
    "a chunk that ends": (408, chunked(b"%x\r\n" % len(BODY) + BODY[:10])),
    "a time of 400 digits": (401, signed(more={"webhook-timestamp": "9" * 400})),
    "a time before all times": (401, signed(more={"webhook-timestamp": "-5"})),
    "a time in parts": (401, signed(more={"webhook-timestamp": "1.5"})),
    "another number behind the signed one": (401, twice("webhook-id", "f" * 32, first=True)),
    "another sender before the signed one": (401, twice("onceward-from", "carl", first=True)),
    "another head before the signed one": (401, twice("onceward-head", "v1,AAAA", first=True)),
    "a signature of many": (401, signed(more={"webhook-signature": "v1,AAAA " * 200})),
    "a signature that is no text": (401, signed(more={"webhook-signature": "v1,\xff\xff"})),
    "a poll of another verb": (
        401,
        lambda there: head(there.signed(QUESTION, "ping"), "/v1/agents/bob/collect"),
    ),
    "a poll without a question": (422, signed(b"", "collect")),
    "a poll of deep lists": (422, signed(b"[" * 100_000, "collect")),
    "a poll that waits less than nothing": (
        422,
        signed(QUESTION.replace(b'"limit":50', b'"limit":-5'), "collect"),
    ),
    "a poll that waits for ever": (
        422,
        signed(QUESTION.replace(b'"limit":50', b'"limit":' + b"9" * 30), "collect"),
    ),
    "a poll at a time beyond all": (
        422,
        signed(QUESTION.replace(b'"at":', b'"at":' + b"9" * 22), "collect"),
    ),
    "a poll of another peer": (401, signed(QUESTION.replace(b"alice", b"carl"), "collect")),
    "a poll at another agent": (421, signed(QUESTION.replace(b'"bob', b'"carl'), "collect")),
    "a poll with too long an answer": (413, signed(QUESTION + b"\n" * 9_000_000, "collect")),
    "a parcel of deep lists": (422, signed(b"[" * 100_000)),
    "a parcel of large numbers": (
        422,
        signed(BODY.replace(b'"version":1', b'"version":' + b"9" * 5000)),
    ),
    "a parcel of no number": (422, signed(BODY.replace(b'"version":1', b'"version":NaN'))),
    "a ping of 100 kB": (413, signed(b"[" * 100_000, "ping")),
}


@pytest.mark.parametrize(("status", "request_of"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_no_sender_makes_is_refused(
    there: Served, status: int, request_of: Request
) -> None:
    """It ends its connection, takes no place, and leaves nothing in the file."""
    with raw(there.url) as connection:
        connection.sendall(request_of(there))
        answer = answer_of(connection)
    endpoint = there.server.endpoint
    until(lambda: not endpoint._slots)

    assert f"HTTP/1.1 {status} ".encode() == answer[answer.rfind(b"HTTP/1.1") :][:13]
    assert ([], 0) == (there.kept(), endpoint._in_flight)
    assert 200 == there.post(BODY, there.signed(BODY)).status_code


@pytest.mark.parametrize(
    "request_of",
    [
        chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
        signed(more={"content-length": f"{len(BODY)}, {len(BODY)}"}),
        signed(more={"content-length": f"000{len(BODY)}"}),
        signed(more={"expect": "100-continue"}),
        twice("onceward-head", "v1,AAAA", first=False),
        signed(more={"connection": "upgrade", "upgrade": "h2c"}),
    ],
    ids=["one byte a chunk", "one length twice", "zeros", "expect", "a header behind", "upgrade"],
)
def test_an_odd_request_that_is_proved_is_taken(there: Served, request_of: Request) -> None:
    """A proxy may write a request in another way; of headers of one name the first one counts."""
    with raw(there.url) as connection:
        connection.sendall(request_of(there) + b"no head\r\n\r\n")  # ends the connection
        answer = answer_of(connection)

    assert b"HTTP/1.1 200 " in answer
    assert ["hello"] == there.kept()
