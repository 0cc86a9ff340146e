"""The codec of parcels and answers: what goes in comes out, and nothing else is taken."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import InvalidParcel
from onceward.message.frame import digest
from onceward.message.parcel import (
    GREETING,
    TAKEOVER,
    Answer,
    Durability,
    Parcel,
    ParcelFrame,
    Receipt,
    ReceiptState,
    Verdict,
)
from onceward.testing.builders import build_frame, parcel
from onceward.transports import wire

SCHEMA = Path(__file__).parents[2] / "schema" / "wire.schema.json"
BIG = 2**63 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
numbers = st.integers(0, BIG)
positions = st.none() | st.tuples(ids, numbers)
receipts = st.builds(Receipt, ids, st.sampled_from(get_args(ReceiptState)), st.none() | texts)
frames = st.builds(
    lambda message_id, text, again: ParcelFrame(message_id, text, digest(text), again),
    ids,
    texts,
    st.booleans(),
)
takeovers = st.from_regex(TAKEOVER, fullmatch=True)
parcels = st.builds(
    Parcel,
    sender=names,
    recipient=names,
    epoch=ids,
    number=numbers,
    previous=ids,
    frames=st.lists(frames, max_size=4).map(tuple),
    receipts=st.lists(receipts, max_size=4).map(tuple),
    durability=st.sampled_from(get_args(Durability)),
    base_position=positions,
    unsettled=st.lists(ids, max_size=3).map(tuple),
    stream_position=positions,
    greeting=st.none() | st.from_regex(GREETING, fullmatch=True),
    takeover=st.none() | takeovers,
    known_takeover=st.none() | takeovers,
)


@st.composite
def answered(draw: Callable[..., Any]) -> tuple[Parcel, Answer]:
    """Return a parcel and an answer to it."""
    pushed: Parcel = draw(parcels)
    told = [draw(receipts)._replace(id=frame.id) for frame in pushed.frames]
    answer = Answer(
        verdict=draw(st.sampled_from(get_args(Verdict))),
        receipts=tuple(told),
        durability=draw(st.sampled_from(get_args(Durability))),
        epoch=draw(ids),
        number=draw(numbers),
        retry_after=draw(numbers),
    )
    return pushed, answer


SMALL = parcel(
    3, [build_frame("hello", sender="near", recipient="far")], receipts=[Receipt("m", "dead", "x")]
)
TAKEN = Answer(verdict="accepted", receipts=(Receipt(SMALL.last_id, "stored"),))


@settings(max_examples=300, deadline=None)
@given(parcels)
def test_a_parcel_comes_out_as_it_went_in(pushed: Parcel) -> None:
    """Any names, ids, texts and numbers that a parcel may hold survive the way, within its size."""
    body = wire.encode_parcel(pushed)

    assert pushed == wire.decode_parcel(body)
    assert len(body) <= wire.encoded_size(pushed)


@settings(max_examples=300, deadline=None)
@given(answered())
def test_an_answer_comes_out_as_it_went_in(both: tuple[Parcel, Answer]) -> None:
    """Any answer survives the way, within the size that its parcel allows."""
    pushed, answer = both
    body = wire.encode_answer(answer, pushed)

    assert answer == wire.decode_answer(body, pushed)
    assert len(body) <= wire.answer_bytes(pushed)


def test_the_size_of_the_largest_values_suffices() -> None:
    """The bound of sizes holds where each number, name and state is as long as it can be."""
    longest = "\x01" * 256
    takeover = " ".join(["0" * 8, "0" * 13, "\x01" * 200, "\x01" * 500])
    receipt = Receipt(longest, "processed", "\x01" * 2000)
    pushed = replace(
        SMALL,
        sender="a" * 128,
        recipient="b" * 128,
        epoch=longest,
        number=BIG,
        previous=longest,
        frames=(ParcelFrame(longest, "", b"\xff" * 16, redelivered=True),),
        receipts=(receipt,),
        base_position=(longest, BIG),
        unsettled=(longest,) * 64,
        stream_position=(longest, BIG),
        greeting=f"restored:{'f' * 24}",
        takeover=takeover,
        known_takeover=takeover,
    )
    answer = Answer(
        verdict="superseded",
        receipts=(receipt,),
        epoch=longest,
        number=BIG,
        base_position=(longest, BIG),
        retry_after=BIG,
        takeover=takeover,
        room=BIG,
    )

    slack = wire.encoded_size(pushed) - len(wire.encode_parcel(pushed))
    answer_slack = wire.answer_bytes(pushed) - len(wire.encode_answer(answer, pushed))

    assert 0 <= slack < 300
    assert 0 <= answer_slack < 300


def test_frames_travel_byte_for_byte() -> None:
    """The frames stand in the body as they are stored, after one event on one line."""
    text = SMALL.frames[0].text

    head, frames_part = wire.encode_parcel(SMALL).split(b"\n")

    assert f",{text}]".encode() == frames_part
    event = json.loads(head[1:])
    assert ("onceward.parcel", "urn:onceward:near", "1.0") == (
        event["type"],
        event["source"],
        event["specversion"],
    )
    assert [{"id": SMALL.last_id, "digest": digest(text).hex(), "length": len(text)}] == (
        event["data"]["frames"]
    )


def test_each_attempt_has_its_own_id() -> None:
    """The same parcel pushed again is another event: its receipts may have changed."""
    first, second = (json.loads(wire.encode_parcel(SMALL))[0]["id"] for _ in range(2))

    assert first != second


def test_a_long_reason_is_cut() -> None:
    """A reason of more than 1,000 characters arrives cut, so that an answer has a largest size."""
    answer = replace(TAKEN, receipts=(Receipt(SMALL.last_id, "rejected", "ä" * 5000),))

    [receipt] = wire.decode_answer(wire.encode_answer(answer, SMALL), SMALL).receipts

    assert "ä" * 1000 == receipt.reason


@pytest.mark.parametrize(
    "broken",
    [
        {"epoch": "a\0b"},
        {"previous": "\ud800"},
        {"sender": "../x"},
        {"recipient": ""},
        {"number": -1},
        {"number": 2**63},
        {"frames": (ParcelFrame("a\0", "{}", b"0" * 16),)},
        {"frames": (ParcelFrame("a", "\ud800", b"0" * 16),)},
        {"frames": (ParcelFrame("a", "{}", b"short"),)},
        {"receipts": (Receipt("a", "gone"),)},  # type: ignore[arg-type]
        {"durability": "perhaps"},
        {"unsettled": ("x",) * 65},
    ],
)
def test_what_cannot_travel_is_refused_before_it_leaves(broken: dict[str, Any]) -> None:
    """An encoder writes nothing that a decoder refuses."""
    with pytest.raises(InvalidParcel):
        wire.encode_parcel(replace(SMALL, **broken))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b"[\n]",
        b"[null\n]",
        b"[{}\n]",
        b"\n",
        wire.encode_parcel(SMALL).replace(b"\n", b""),
        wire.encode_parcel(SMALL)[1:],
        wire.encode_parcel(SMALL)[:-1],
        wire.encode_parcel(SMALL) + b" ",
        wire.encode_parcel(SMALL) + b"\n",
        wire.encode_parcel(SMALL)[:-1] + b",{}]",
        wire.encode_parcel(SMALL).replace(b"\n,", b"\n "),
        wire.encode_parcel(SMALL).replace(b"hello", b"\xff\xfe\xfd\xfc\xfb"),
        wire.encode_parcel(SMALL).replace(b'"version":1', b'"version":2'),
        wire.encode_parcel(SMALL).replace(b'"version":1', b'"version":1,"version":1'),
        wire.encode_parcel(SMALL).replace(b'"version":1', b'"version":1.0'),
        wire.encode_parcel(SMALL).replace(b'"number":3', b'"number":"3"'),
        wire.encode_parcel(SMALL).replace(b'"number":3', b'"number":3.0'),
        wire.encode_parcel(SMALL).replace(b'"number":3', b'"number":true'),
        wire.encode_parcel(SMALL).replace(b'"number":3', b'"number":' + b"9" * 5000),
        wire.encode_parcel(SMALL).replace(b'"epoch":"first"', b'"epoch":"\\u0000"'),
        wire.encode_parcel(SMALL).replace(b'"epoch":"first"', b'"epoch":"\\ud800"'),
        wire.encode_parcel(SMALL).replace(b'"sender":"near"', b'"sender":"dave"'),
        wire.encode_parcel(SMALL).replace(b"onceward.parcel", b"onceward.answer"),
        wire.encode_answer(TAKEN, SMALL),
        b"[" + b"[" * 100_000 + b"\n]",
    ],
    ids=lambda body: ascii(body[:12])[2:-1],
)
def test_another_body_is_refused(body: bytes) -> None:
    """Bytes that are not a parcel to the last one raise the one error that callers know."""
    with pytest.raises(InvalidParcel):
        wire.decode_parcel(body)


@pytest.mark.parametrize(
    ("length", "frame"),
    [(-1, "{}"), (0, "{}"), (1, "{}"), (3, "{}"), (10**9, "{}"), (2**63, "{}")],
)
def test_a_wrong_length_is_refused(length: int, frame: str) -> None:
    """The lengths of an event take exactly the bytes that follow it."""
    pushed = replace(SMALL, frames=(ParcelFrame("a", frame, b"0" * 16),))
    body = wire.encode_parcel(pushed).replace(b'"length":2', b'"length":%d' % length)

    with pytest.raises(InvalidParcel):
        wire.decode_parcel(body)


def test_frames_that_trade_bytes_are_refused() -> None:
    """Lengths whose sum is right but that cut a frame elsewhere are refused."""
    two = tuple(ParcelFrame(name, '{"a":1}', b"0" * 16) for name in "ab")
    body = wire.encode_parcel(replace(SMALL, frames=two))
    body = body.replace(b'"length":7', b'"length":6', 1)
    at = body.rindex(b'"length":7')

    with pytest.raises(InvalidParcel):
        wire.decode_parcel(body[:at] + b'"length":8' + body[at + 10 :])


@pytest.mark.parametrize(
    "other",
    [
        {"sender": "else"},
        {"recipient": "else"},
        {"epoch": "second"},
        {"number": 4},
        {"frames": ()},
        {"frames": (ParcelFrame("other", "{}", b"0" * 16),)},
    ],
)
def test_an_answer_to_another_parcel_is_refused(other: dict[str, Any]) -> None:
    """An answer names its parcel, and has receipts for frames of that parcel only."""
    body = wire.encode_answer(TAKEN, SMALL)

    with pytest.raises(InvalidParcel):
        wire.decode_answer(body, replace(SMALL, **other))


@pytest.mark.parametrize("colon", [b":", b" :", b"\n:"], ids=repr)
def test_a_key_that_comes_twice_is_refused(colon: bytes) -> None:
    """Readers would take different values of it, however it is written."""
    body = wire.encode_answer(TAKEN, SMALL).replace(b'"number":', b'"number":9,"number"' + colon)

    with pytest.raises(InvalidParcel, match="comes twice"):
        wire.decode_answer(body, SMALL)


def test_more_receipts_than_frames_are_refused() -> None:
    """An answer has at most one receipt for each frame."""
    twice = replace(TAKEN, receipts=TAKEN.receipts * 2)

    with pytest.raises(InvalidParcel):
        wire.decode_answer(wire.encode_answer(twice, SMALL), SMALL)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutilated_body_is_a_parcel_or_refused(data: st.DataObject) -> None:
    """Cutting and overwriting parts of a good body never raises anything but InvalidParcel."""
    raw = wire.encode_parcel(SMALL)
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    try:
        found = wire.decode_parcel(raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:])
    except InvalidParcel:
        return
    assert found == wire.decode_parcel(wire.encode_parcel(found))


# -- the JSON Schema -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Return the published JSON Schema, ready to judge."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@settings(max_examples=50, deadline=None)
@given(both=answered())
def test_what_travels_fits_the_schema(
    validator: jsonschema.Draft202012Validator, both: tuple[Parcel, Answer]
) -> None:
    """Bodies are JSON as of ``wire.schema.json``, where their frames are objects."""
    pushed, answer = both
    whole = replace(pushed, frames=tuple(each._replace(text="{}") for each in pushed.frames))

    validator.validate(json.loads(wire.encode_parcel(whole)))
    validator.validate(json.loads(wire.encode_answer(answer, pushed)))


VALUES: tuple[Any, ...] = (None, "", "\0", "a" * 300, -1, 2**63, True, [], {}, 1, 2)


def test_the_schema_judges_as_the_decoder(validator: jsonschema.Draft202012Validator) -> None:
    """An event with one value replaced or left out is taken by both or refused by both."""
    frame = SMALL.frames[0].text
    event = json.loads(wire.encode_parcel(SMALL))[0]
    differ = [
        changed
        for changed in _variants(event)
        if validator.is_valid([changed, {}]) != _takes(changed, frame)
    ]

    assert [] == differ


def _takes(event: dict[str, Any], frame: str) -> bool:
    try:
        wire.decode_parcel(f"[{json.dumps(event)}\n,{frame}]".encode())
    except InvalidParcel as error:
        return "is not its sender" in str(error) or "bytes follow" in str(
            error
        )  # no schema can say so
    return True


def _variants(value: Any) -> list[Any]:
    """Return *value* with each part of it replaced by other values, left out or added."""
    found: list[Any] = []
    if isinstance(value, dict):
        found += [value | {"more": 1}]
        for key, inner in value.items():
            found += [{k: v for k, v in value.items() if k != key}]
            found += [value | {key: other} for other in (*VALUES, *_variants(inner))]
    elif isinstance(value, list) and value:
        found += [[other, *value[1:]] for other in (*VALUES, *_variants(value[0]))]
    return found
