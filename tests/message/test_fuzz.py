"""Any input from outside is a frame or an invalid message; the parser has no other result."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import InvalidMessage
from onceward.message.frame import RESERVED_ATTRIBUTES, Frame, check_extension

values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
moments = (
    st.datetimes().map(lambda at: at.isoformat())
    | st.datetimes().map(lambda at: at.isoformat() + "+01:00")
    | values
)
attributes = st.fixed_dictionaries(
    {
        "specversion": st.just("1.0"),
        "id": st.text(max_size=5),
        "source": st.text(max_size=5),
        "type": st.text(max_size=5),
        "recipient": st.just("b"),
    },
    optional=dict.fromkeys(
        sorted(
            RESERVED_ATTRIBUTES
            - {"specversion", "id", "source", "type", "recipient", "time", "expirytime"}
        ),
        values,
    )
    | {"time": moments, "expirytime": moments, "foo": values, "Foo": values},
)


def look(frame: Frame) -> tuple[object, ...]:
    """Read every property of a frame."""
    return frame.sender, frame.lane, frame.priority_name, frame.headers, frame.expires_at


@settings(max_examples=400, deadline=None)
@given(attributes)
def test_any_attributes_are_a_frame_or_refused(found: dict[str, object]) -> None:
    """A frame that parsed can be read in every property and written again without change."""
    try:
        frame = Frame.parse(json.dumps(found))
    except InvalidMessage:
        return
    assert look(frame) == look(Frame.parse(frame.model_dump_json(exclude_unset=True)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200) | values.map(json.dumps))
def test_any_bytes_are_a_frame_or_refused(text: bytes | str) -> None:
    """Random bytes, text and JSON raise nothing but the one error that callers know."""
    try:
        look(Frame.parse(text))
    except InvalidMessage:
        return


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutilated_frame_is_a_frame_or_refused(data: st.DataObject) -> None:
    """Cutting, flipping and doubling parts of a good frame never confuses the parser."""
    head = '{"specversion":"1.0","id":"1","source":"urn:onceward:a","type":"t","recipient":"b"'
    good = head + ',"time":"2026-01-01T00:00:00.000Z","data":{"a":[1]}}'
    raw = good.encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    try:
        look(Frame.parse(raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:]))
    except InvalidMessage:
        return


@given(st.text(max_size=25) | st.integers() | st.none(), values)
def test_any_header_is_taken_or_refused(name: Any, value: object) -> None:
    """
    A header that passes is a string, a boolean or a 32-bit number under a legal name.

    A frame carries it.
    """
    try:
        check_extension(name, value)
    except InvalidMessage:
        return
    assert isinstance(value, str | int)
    frame = Frame.parse(
        json.dumps(
            {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "recipient": "b"}
            | ({name: value} if name not in RESERVED_ATTRIBUTES else {})
        )
    )
    assert name in RESERVED_ATTRIBUTES or {name: value} == frame.headers
