"""
Bodies: every kind is written once as JSON and read back as the type that was asked for.

A value that JSON cannot say is refused.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from onceward import Msg
from onceward.errors import InvalidMessage
from onceward.message.body import BYTES, JSON, TEXT, decode, encode, message_type
from onceward.message.validators import reply_schema


class Paid(Msg, type="invoice.paid"):
    """A message with a wire name of its own."""

    id: int
    at: datetime
    tags: tuple[str, ...] = ()


class Loose(Msg):
    """A message that takes anything."""

    data: dict[str, Any]
    share: float = 0.0


class Exact(Msg):
    """A message whose model coerces nothing."""

    model_config = ConfigDict(strict=True)
    at: datetime
    key: UUID
    parts: tuple[int, ...]


class Renamed(Msg):
    """A message whose field has another name on the wire."""

    cents: int = Field(alias="amount_cents")


class Plain(BaseModel):
    """A pydantic model that knows nothing of us."""

    share: float


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    x: float
    label: str = "p"


PAID = Paid(id=7, at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), tags=("a", "b"))
EXACT = Exact(at=PAID.at, key=UUID(int=7), parts=(1, 2))


class Parcel(Msg):
    """A message with bytes, in fields of every shape."""

    data: bytes
    many: tuple[bytes, ...] = ()
    named: dict[str, bytes] = Field(default_factory=dict)
    loose: dict[Any, Any] = Field(default_factory=dict)
    numbered: dict[int, str] = Field(default_factory=dict)


class OwnParcel(BaseModel):
    """A model of another library with bytes."""

    data: bytes


class Base64Parcel(BaseModel):
    """A model of another library that says how bytes travel."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


@dataclass(frozen=True)
class Chunk:
    """A dataclass with bytes."""

    data: bytes
    inner: Point | None = None


class Values(Msg):
    """One value of each kind that JSON has no word for."""

    sum: Decimal
    at: datetime
    names: set[str]
    pair: tuple[int, str]
    key: UUID
    wait: timedelta


class OwnValues(BaseModel):
    """The same in a model of another library."""

    sum: Decimal
    at: datetime
    names: set[str]
    pair: tuple[int, str]
    key: UUID
    wait: timedelta


@dataclass(frozen=True)
class DataValues:
    """The same in a dataclass."""

    sum: Decimal
    at: datetime
    names: frozenset[str]
    pair: tuple[int, str]
    key: UUID
    wait: timedelta


VALUES: dict[str, Any] = {
    "sum": Decimal("1.10"),
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "names": {"b", "a", "c", "d"},
    "pair": (1, "x"),
    "key": UUID(int=7),
    "wait": timedelta(seconds=1.5),
}

KINDS: list[tuple[object, str, str, str]] = [
    (PAID, JSON, "invoice.paid", '{"id":7,"at":"2026-01-02T03:04:05.678901Z","tags":["a","b"]}'),
    (Plain(share=0.5), JSON, "plain", '{"share":0.5}'),
    (Point(1.0), JSON, "point", '{"x":1.0,"label":"p"}'),
    ({"a": [1, None, True]}, JSON, "json", '{"a":[1,null,true]}'),
    ([1, 2], JSON, "json", "[1,2]"),
    ((1, 2), JSON, "json", "[1,2]"),
    (None, JSON, "json", "null"),
    (False, JSON, "json", "false"),
    (7, JSON, "json", "7"),
    (0.1, JSON, "json", "0.1"),
    (PAID.at, JSON, "json", '"2026-01-02T03:04:05.678901Z"'),
    (Decimal("1.10"), JSON, "json", '"1.10"'),
    ("grün\n\0", TEXT, "text", '"grün\\n\\u0000"'),
    ("", TEXT, "text", '""'),
    (b"\x00\xff", BYTES, "bytes", '"AP8="'),
    (bytearray(b"\x00\xff"), BYTES, "bytes", '"AP8="'),
    (memoryview(b"\x00!\xff")[::2], BYTES, "bytes", '"AP8="'),
]


@pytest.mark.parametrize(
    ("body", "media", "kind", "text"), KINDS, ids=lambda value: type(value).__name__
)
def test_every_kind_of_body_is_written_as_json(
    body: object, media: str, kind: str, text: str
) -> None:
    """A body's media type, declared type and JSON text follow from its Python type alone."""
    assert (media, text, kind) == tuple(encode(body))


@pytest.mark.parametrize(
    "body",
    [
        PAID,
        Plain(share=0.5),
        Point(1.5),
        Point(2.0, "ü"),
        {"a": 1},
        [1],
        None,
        True,
        7,
        0.1,
        "text",
        "1",
        b"\x00\xff",
        b"",
        EXACT,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_body_comes_back_as_what_was_asked_for(body: object) -> None:
    """Asking for the type that was sent returns an equal value."""
    media, text, _ = encode(body)
    value = json.loads(text)

    assert body == (
        decode(None, value, type(body)) if media == BYTES else decode(value, None, type(body))
    )


def test_an_aliased_field_survives_the_journey() -> None:
    """A field with an alias is written under the name under which it is read."""
    assert Renamed(amount_cents=5) == decode(
        json.loads(encode(Renamed(amount_cents=5)).text), None, Renamed
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda n: n,
        lambda n: {"a": [n]},
        Point,
        lambda n: Plain(share=n),
        lambda n: Loose(data={"x": [n]}),
        lambda n: Loose.model_construct(data={}, share=n),
    ],
    ids=["bare", "dict", "dataclass", "model", "msg", "msg-unvalidated"],
)
def test_numbers_that_json_does_not_know_are_refused(wrap: Any, number: float) -> None:
    """NaN and infinities never turn into null or into another value on the way."""
    with pytest.raises(InvalidMessage):
        encode(wrap(number))


def test_a_message_class_refuses_nan_at_once() -> None:
    """A Msg with a number that JSON does not know cannot even be made."""
    with pytest.raises(ValueError, match="finite number"):
        Loose(data={}, share=math.nan)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_words_that_look_like_numbers_pass(text: str) -> None:
    """The word NaN inside a string is a string like any other."""
    assert json.dumps({"a": text}, separators=(",", ":")) == encode({"a": text}).text


@pytest.mark.parametrize(
    "body",
    [
        object(),
        {"a": object()},
        "\ud800",
        {"a": "\ud800"},
        Loose(data={"a": object()}),
        Loose(data={"a": b"\xff"}),
        Loose(data={"a": "\ud800"}),
        [10**5000, "NaN"],
    ],
    ids=[
        "object",
        "in-dict",
        "surrogate",
        "surrogate-in-dict",
        "msg-object",
        "msg-bytes",
        "msg-surrogate",
        "huge-int",
    ],
)
def test_what_cannot_be_written_is_an_invalid_message(body: object) -> None:
    """Every body that cannot be JSON raises the one error that callers know."""
    with pytest.raises(InvalidMessage):
        encode(body)


def nested(depth: int) -> Any:
    """Return a list in a list in a list."""
    body: Any = 1
    for _ in range(depth):
        body = [body]
    return body


@pytest.mark.parametrize(
    "body", [nested(200), nested(254), nested(5000), 10**4301], ids=["200", "254", "5000", "digits"]
)
def test_what_no_receiver_could_read_is_refused_at_send(body: object) -> None:
    """
    A body deeper or a number longer than the frame's parser takes fails here.

    It does not fail at the peer's door.
    """
    with pytest.raises(InvalidMessage):
        encode(body)


def test_a_deep_body_that_can_be_read_is_taken() -> None:
    """The limit on depth is the parser's, not a smaller one."""
    assert nested(190) == json.loads(encode(nested(190)).text)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(1, str), ("x", bytes), ("x", int), ({"id": "x"}, Paid), (None, Paid), ([1], Point)],
)
def test_a_body_that_does_not_fit_is_an_invalid_message(data: object, wanted: type) -> None:
    """Reading a body as another type names the misfit and is never tried again."""
    with pytest.raises(InvalidMessage, match="does not fit"):
        decode(data, None, wanted)


def test_a_misfit_is_told_in_one_line() -> None:
    """
    Dead letters are listed a line each, so the reason is a line.

    It says the field, what is wrong and what was given.
    """
    with pytest.raises(InvalidMessage) as caught:
        decode({"id": "x"}, None, Paid)

    integer, missing = str(caught.value).removeprefix("body does not fit Paid: ").split("; ")
    assert integer.startswith("id: Input should be a valid integer")
    assert integer.endswith("(given 'x')")
    assert "at: Field required (given {'id': 'x'})" == missing


@pytest.mark.parametrize("text", ["###", "AP8", "AP8=\n", "ü"])
def test_broken_base64_is_an_invalid_message(text: str) -> None:
    """Bytes that are not what they claim are refused for good, whatever was asked for."""
    for wanted in (None, bytes, Paid):
        with pytest.raises(InvalidMessage):
            decode(None, text, wanted)


def test_the_wire_name_stands_in_the_class_statement() -> None:
    """A class is called as declared, or after itself in lower case."""
    assert ["invoice.paid", "loose", "plain", "point"] == [
        message_type(each) for each in (Paid, Loose, Plain, Point)
    ]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_a_bad_wire_name_fails_when_the_class_is_made(name: str) -> None:
    """A type that could not travel is refused before anything is sent."""
    with pytest.raises(InvalidMessage):
        type("Bad", (Msg,), {"__module__": __name__}, type=name)


RAW = b"\xff\xfb hi"


@pytest.mark.parametrize(
    "body",
    [
        Parcel(data=RAW, many=(b"hi", RAW), named={"a": RAW}, numbered={1: "a"}),
        Parcel(data=b"hi", loose={"a": (1, {2})}),
        Base64Parcel(data=RAW),
        OwnParcel(data=b"hi"),
        Chunk(RAW, Point(1.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_typed_bytes_come_back(body: Any) -> None:
    """A field of type bytes is read back as it was sent, whatever its bytes are."""
    read = decode(json.loads(encode(body).text), None, type(body))

    assert body.data == read.data
    assert getattr(body, "numbered", {}) == getattr(read, "numbered", {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"a": [b"hi"]}, r"a\[0\]: bytes"),
        ([{"x": {"y": bytearray(b"hi")}}], r"\[0\]\.x\.y: bytes"),
        (({"hi": {b"hi"}},), r"\[0\]\.hi\[0\]: bytes"),
        ({1: "a", "1": "b"}, "key 1 is not text"),
        ({"a": {None: 1}}, "a: key None is not text"),
        ({(1, 2): 1}, r"key \(1, 2\) is not text"),
        ({True: 1}, "key True is not text"),
        ({"a": iter([1])}, "a: an iterator"),
        ([Point(1.0), Loose(data={"a": b"hi"})], r"data\.a: bytes"),
        (Loose(data={"a": b"hi"}), r"data\.a: bytes"),
        (Loose(data={"a": {1: 2}}), r"data\.a: key 1 is not text"),
        (Parcel(data=RAW, loose={1: 2}), "loose: key 1 is not text"),
        (Parcel(data=RAW, loose={"a": RAW}), r"loose\.a: bytes"),
        (OwnParcel(data=RAW), "derive the class from Msg"),
    ],
)
def test_what_json_would_alter_is_refused(body: object, said: str) -> None:
    """Bytes never turn into text, nor keys into other keys: the error says where they stand."""
    with pytest.raises(InvalidMessage, match=said):
        encode(body)


def test_one_value_is_written_alike_everywhere() -> None:
    """Sets, dates and numbers have one text, in a Msg, a model, a dataclass and a dict."""
    frozen = VALUES | {"names": frozenset(VALUES["names"])}
    expected = (
        '{"sum":"1.10","at":"2026-01-02T00:00:00Z","names":["a","b","c","d"],"pair":[1,"x"],'
        '"key":"00000000-0000-0000-0000-000000000007","wait":"PT1.5S"}'
    )

    assert [expected] * 4 == [
        encode(body).text
        for body in (Values(**VALUES), OwnValues(**VALUES), DataValues(**frozen), VALUES)
    ]


@pytest.mark.parametrize("kind", [Values, OwnValues])
def test_values_come_back_as_their_type(kind: Any) -> None:
    """A class that is asked for reads sets, dates and numbers of its own; without one: text."""
    sent = kind(**VALUES)
    data = json.loads(encode(sent).text)

    assert sent == decode(data, None, kind)
    assert "1.10" == decode(data, None, None)["sum"]


def test_members_of_a_set_are_sorted() -> None:
    """The same set is the same body in every process, so sending it again is not a conflict."""
    text = '{"a":["x",[1,2],[3]]}'

    assert text == encode({"a": {(3,), "x", (1, 2)}}).text


class Flat(BaseModel):
    """A reply with fields."""

    ok: bool


Long = create_model("Long", **{f"field_{n}": (int, ...) for n in range(200)})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "wanted", [None, dict, list[Flat], str, object, Long, Callable[[int], str]]
)
def test_a_request_carries_the_schema_of_objects_only(wanted: object) -> None:
    """Nothing that has no fields is described, nor what is long."""
    assert reply_schema(wanted) is None


def test_the_schema_of_a_reply_is_text_of_an_attribute() -> None:
    """It names the fields and is JSON in printable characters."""
    found = reply_schema(Flat)

    assert found is not None
    assert found.isprintable()
    assert ["ok"] == list(json.loads(found)["properties"])
