"""
Frames: a written frame parses, is a valid CloudEvents 1.0 event and means the same to all.

Text that is not a frame is refused.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from onceward.errors import InvalidMessage
from onceward.message import frame
from onceward.message.frame import REMEMBERED, Frame, digest, key_ends, session_and_type

Write = Callable[..., str]
LONG = "x" * REMEMBERED
BASE = {"specversion": "1.0", "id": "1", "source": "urn:onceward:a", "type": "t", "recipient": "b"}
FULL: dict[str, Any] = {
    "session": "run 42",
    "topic": "a.b",
    "rank": 0,
    "ordering_key": "lane ü",
    "correlation_id": "c",
    "causation_id": "0190-0",
    "reply_to": "a",
    "expires_at": 1_767_225_660_001,
    "key": "k\"'",
    "headers": {"tenant": "é", "count": -(2**31), "flag": True},
}


def text_of(**changes: object) -> str:
    """Return a minimal frame with some attributes changed."""
    return json.dumps(BASE | changes)


def test_a_full_frame_says_what_was_meant(write: Write) -> None:
    """Every attribute that send knows arrives under its name."""
    frame = Frame.parse(write({"n": 1}, **FULL))

    assert (
        "0190-1",
        "a",
        "b",
        "json",
        "run 42",
        "a.b",
        "critical",
        "lane ü",
        "c",
        "0190-0",
        "a",
        "k\"'",
        {"n": 1},
    ) == (
        frame.id,
        frame.sender,
        frame.recipient,
        frame.type,
        frame.session,
        frame.topic,
        frame.priority_name,
        frame.lane,
        frame.correlationid,
        frame.causationid,
        frame.replyto,
        frame.idempotencykey,
        frame.data,
    )
    assert 1_767_225_660_001 == frame.expires_at
    assert datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC) == frame.time
    assert FULL["headers"] == frame.headers


def test_the_lane_is_the_session_without_an_ordering_key(write: Write) -> None:
    """Mail of one session is one lane unless it says otherwise."""
    assert "run" == Frame.parse(write(session="run")).lane


@pytest.mark.parametrize(
    "body", [None, {"n": 1}, [1.5], "text \u2028 ü", "", 0, b"\x00\xff", b""], ids=repr
)
def test_the_official_sdk_reads_our_frames(write: Write, body: object) -> None:
    """
    A frame is a valid CloudEvent.

    The official SDK returns its attributes, extensions and body unchanged.
    """
    text = write(body, **FULL)
    event = JSONFormat().read(CloudEvent, text)

    assert body == event.get_data()
    assert ("0190-1", "urn:onceward:a", "1.0", "b", "run 42", 0, True) == (
        event.get_id(),
        event.get_source(),
        event.get_specversion(),
        event.get_extension("recipient"),
        event.get_extension("session"),
        event.get_extension("priority"),
        event.get_extension("flag"),
    )


@pytest.mark.parametrize("body", [{"n": 1}, "text ü", b"\x00\xff"], ids=repr)
def test_a_frame_survives_the_official_sdk(write: Write, body: object) -> None:
    """Read and written by the official SDK over its HTTP binding, a frame still says the same."""
    ours = Frame.parse(write(body, **FULL))
    sent = to_structured_event(JSONFormat().read(CloudEvent, write(body, **FULL)), JSONFormat())
    back = from_structured_event(HTTPMessage(headers=sent.headers, body=sent.body))

    assert ours == Frame.parse(JSONFormat().write(back))


def test_unknown_attributes_are_kept() -> None:
    """An extension that we do not know travels on, as the specification asks."""
    assert {"traceparent": "00-1", "lane": "x", "headers": "y"} == Frame.parse(
        text_of(traceparent="00-1", lane="x", headers="y")
    ).headers


@pytest.mark.parametrize(
    "name", ["foo", "topic", "subject", "partitionkey", "data", "expirytime", "datacontenttype"]
)
def test_a_null_attribute_is_an_absent_one(name: str) -> None:
    """CloudEvents' JSON says null for unset: such a frame is taken without the attribute."""
    assert Frame.parse(text_of()) == Frame.parse(text_of(**{name: None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"specversion": "0.3"},
        {"id": ""},
        {"id": 1},
        {"id": "x" * 257},
        {"source": ""},
        {"type": ""},
        {"type": None},
        {"recipient": "b\n"},
        {"recipient": "../b"},
        {"recipient": "b" * 129},
        {"recipient": ""},
        {"session": ""},
        {"topic": "x" * 257},
        {"priority": 5},
        {"priority": -1},
        {"priority": 1.5},
        {"priority": "high"},
        {"time": "yesterday"},
        {"expirytime": "soon"},
        {"time": "2026-01-01T00:00:00"},
        {"expirytime": "0001-01-01T00:00:00"},
        {"Foo": "x"},
        {"fo-o": "x"},
        {"": "x"},
        {"foo": 1.5},
        {"foo": 2**31},
        {"foo": [1]},
        {"data": 1, "data_base64": "AA=="},
        {"data_base64": 7},
    ],
    ids=repr,
)
def test_what_breaks_a_rule_is_no_frame(changes: dict[str, object]) -> None:
    """A missing attribute, or one of another kind or out of bounds, makes an invalid message."""
    with pytest.raises(InvalidMessage, match="not a frame"):
        Frame.parse(text_of(**changes))


@pytest.mark.parametrize("missing", BASE)
def test_nothing_that_the_specification_requires_may_be_missing(missing: str) -> None:
    """Id, source, type and recipient must be there; the specification's version need not be."""
    text = json.dumps({name: value for name, value in BASE.items() if name != missing})
    if missing == "specversion":
        assert "1.0" == Frame.parse(text).specversion
        return
    with pytest.raises(InvalidMessage):
        Frame.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "{",
        b"\xff",
        b'{"id":"\xff"}',
        '{"id":"\\ud800"}',
        '{"id":"\\ud800","id":"1"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_garbage_is_an_invalid_message(text: str | bytes) -> None:
    """Text that is not JSON, not an object, too deep or not UTF-8 raises the one known error."""
    with pytest.raises(InvalidMessage):
        Frame.parse(text)


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "[1e400]", '{"a":[{"b":1e309}]}', "1" * 400 + ".5"]
)
def test_a_number_too_large_for_a_float_is_no_frame(text: str) -> None:
    """No infinity enters through the back door of a large exponent."""
    with pytest.raises(InvalidMessage):
        Frame.parse(text_of()[:-1] + f',"data":{text}}}')


@pytest.mark.parametrize(
    "text",
    [
        text_of()[:-1] + ',"id":"2"}',
        text_of()[:-1] + ',"tenant":"a","tenant":"b"}',
        text_of()[:-1] + ', "data": {"a": 1, "a": 2}}',
        text_of()[:-1] + ',"data":[{"a":1},{"b":{"c":1,"c":1}}]}',
        text_of()[:-1] + ',"data":{"a":1,"\\u0061":2}}',
        text_of()[:-1] + ',"id" :"2"}',
        text_of()[:-1] + ',"data":{"a"\n:1,"a":2}}',
        text_of()[:-1] + ',"data":{"a":"\\":","a"\t\r :2,"b" :3}}',
    ],
    ids=["id", "extension", "body", "nested", "escaped", "space", "line", "more ends"],
)
def test_a_key_that_comes_twice_is_no_frame(text: str) -> None:
    """Readers disagree on which value of such a key holds: SQL takes the first, Python the last."""
    with pytest.raises(InvalidMessage, match="comes twice"):
        Frame.parse(text)
    with pytest.raises(InvalidMessage, match="comes twice"):
        Frame.parse(text.encode())


@pytest.mark.parametrize(
    "data", [{"a": [{"a": 1}, {"a": 2}]}, {'":': '":"a":'}, '{"a":1}', [{}, {"": {"": 1}}]]
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : ")])
def test_keys_that_come_once_are_taken(data: object, separators: tuple[str, str]) -> None:
    """The same key in several objects, and text that looks like one, is not a repetition."""
    text = json.dumps(BASE | {"data": data, "topic": None}, separators=separators)

    assert data == Frame.parse(text).data


@pytest.mark.parametrize(
    "text",
    ["é" + LONG, LONG.join(["", '":', '" ', '""', '"":', ":", '"']), '":"é:' * REMEMBERED],
    ids=["none", "few", "many"],
)
def test_keys_of_a_long_text_are_counted_alike(text: str) -> None:
    """With few quotes in it or with many, the same places are found that end keys."""
    assert text.count('":') == key_ends(text)


def test_a_key_that_comes_twice_in_a_long_text_is_no_frame() -> None:
    """A long body does not hide it."""
    body = json.dumps({"a": LONG})
    text = text_of()[:-1] + f',"data":{body}}}'

    assert {"a": LONG} == Frame.parse(text).data
    with pytest.raises(InvalidMessage, match="comes twice"):
        Frame.parse(text.replace('{"a":', '{"a":1,"a":'))
    with pytest.raises(InvalidMessage, match="comes twice"):
        Frame.parse(text.replace('{"a":', '{"a":1,"a" :'))


@pytest.mark.parametrize("text", [text_of(), text_of() + "\n", text_of()[:-1] + ',"data":'])
def test_session_and_type_are_read_from_any_stored_frame(text: str) -> None:
    """A frame may end with spaces, and one whose body is stored elsewhere ends before the body."""
    frame = Frame.parse(text_of())

    assert (frame.session, frame.type) == session_and_type(text)


@pytest.mark.parametrize("changes", [{}, {"tenant": None, "topic": None}, {"data": [{"a": 1}]}])
def test_an_accepted_frame_is_read_as_it_was_parsed(changes: dict[str, object]) -> None:
    """Its reader gets what its acceptance saw, nulls left out."""
    assert Frame.parse(text_of(**changes)) == Frame.accepted(text_of(**changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 10_000])
def test_an_accepted_text_that_is_no_frame_is_invalid(text: str) -> None:
    """A row that was planted ends its message, not its worker."""
    with pytest.raises(InvalidMessage):
        Frame.accepted(text)


@pytest.mark.parametrize("name", ["id", "session", "type", "topic", "correlationid"])
def test_a_nul_is_no_part_of_an_attribute(name: str) -> None:
    """SQL would end the text there, and take two ids for one."""
    with pytest.raises(InvalidMessage, match=name):
        Frame.parse(text_of(**{name: "a\0b"}))


def test_the_digest_changes_with_every_bit(write: Write) -> None:
    """No single flipped bit of a frame's text leaves its digest as it was."""
    raw = write({"n": 1}).encode()
    flipped = {
        digest(bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]]).decode()) for at in range(len(raw))
    }

    assert (len(raw), 16) == (len(flipped - {digest(raw.decode())}), len(digest("")))


def test_a_long_text_is_digested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same long text in a row is hashed once, also if it was read back; others are hashed."""
    hashed: list[int] = []

    def counted(raw: bytes) -> Any:
        hashed.append(len(raw))
        return sha256(raw)

    monkeypatch.setattr(frame, "sha256", counted)
    text, twin = ("x" * REMEMBERED for _ in range(2))
    other = f"{text[:-1]}y"
    digests = {digest(text), digest(text), digest(twin), digest(other), digest(text)}

    assert [REMEMBERED] * 3 == hashed
    assert 2 == len(digests)
