"""
Limits: a body is measured to the byte, the same way on both sides.

A stranger's message cannot stop a parcel.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onceward import Msg, Postbox
from onceward.core.accept import judge
from onceward.core.accept.accept import accept
from onceward.core.accept.judge import parse_frames
from onceward.core.accept.policy import InboxPolicy
from onceward.errors import TooLarge
from onceward.message.body import encode
from onceward.message.frame import Frame, digest
from onceward.message.parcel import Parcel, ParcelFrame

Open = Callable[..., Postbox]
MIB = 1 << 20


class Note(Msg):
    """A message with one text."""

    text: str


@dataclass
class Point:
    """A dataclass."""

    x: int


def filled(kind: str, size: int) -> object:
    """Return a body of *kind* whose size, as the limit counts it, is exactly *size* bytes."""
    match kind:
        case "ascii":
            return "x" * size
        case "three-byte":
            return "€" * (size // 3) + "x" * (size % 3)
        case "four-byte":
            return "😀" * (size // 4) + "x" * (size % 4)
        case "escapes":
            return '\n"\\\0'[:4] * (size // 4) + "x" * (size % 4)
        case "bytes":
            return b"\xff" * size
        case "list":
            return ["x" * (size - 4)]
        case "list of three-byte":
            return ["€" * ((size - 4) // 3) + "x" * ((size - 4) % 3)]
        case _:
            return Note(text="x" * (size - len('{"text":""}')))


KINDS = [
    "ascii",
    "three-byte",
    "four-byte",
    "escapes",
    "bytes",
    "list",
    "list of three-byte",
    "msg",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_limit_is_exact_on_both_sides(opened: Open, kind: str) -> None:
    """
    A body of exactly the limit is sent and kept; one byte more is refused at send.

    From a sender with a larger limit it is refused at receipt.
    """
    limit = 3001
    receiver = opened("b", max_body=limit)
    sender, lavish = opened("a", max_body=limit), opened("c", max_body=limit + 1)
    sender.send("b", filled(kind, limit))
    with pytest.raises(TooLarge, match=f"{limit + 1} bytes exceeds max_body {limit}"):
        sender.send("b", filled(kind, limit + 1))
    too_large = lavish.send("b", filled(kind, limit + 1))
    sender.run_until_idle()
    lavish.run_until_idle()
    message = receiver.receive()
    assert message is not None

    expected = filled(kind, limit)
    assert (expected.model_dump() if isinstance(expected, Note) else expected) == message.body
    assert ([too_large], None) == (
        [letter.id for letter in lavish.dead_letters.list()],
        receiver.receive(),
    )
    assert 1 == sender.file.stats()["enqueued"]


def test_a_body_whose_frame_fits_is_not_encoded_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipt measures a body only where the frame around it is longer than the limit."""
    measured: list[str] = []

    def body_size(frame: Frame) -> int:
        measured.append(frame.type)
        return 0

    monkeypatch.setattr(judge, "body_size", body_size)
    receiver, sender = opened("b", max_body=3000), opened("a", max_body=3000)
    sender.send("b", ["x" * 2000], type="fits")
    sender.send("b", ["x" * 2990], type="does not")
    sender.run_until_idle()

    assert (["does not"], 2) == (measured, receiver.file.stats()["inbox_pending"])


@pytest.mark.parametrize("kind", ["ascii", "three-byte", "bytes", "escapes"])
def test_one_mebibyte_is_the_default(box: Postbox, kind: str) -> None:
    """Without a word about it the limit is 1 MiB."""
    assert box.send("b", filled(kind, MIB))
    with pytest.raises(TooLarge):
        box.send("b", filled(kind, MIB + 1))


@pytest.mark.parametrize(
    "body",
    [1.5, 1e22, 1e15, -0.0, 10**300, [1e16] * 50, {"ü": 1}, "\u2028", Point(1), Note(text="\x7f")],
    ids=repr,
)
def test_what_send_takes_receipt_takes(box: Postbox, body: object) -> None:
    """The size that the receiver counts is never larger than the one that the sender counted."""
    media, text, kind = encode(body)
    size = len(text.encode()) if not isinstance(body, str) else len(body.encode())
    parcel = _parcel(box, body)
    door = InboxPolicy(agent="b", durability="safe", max_body=size)

    assert [""] == [each.problem for each in parse_frames(parcel, door)]
    assert media
    assert kind


def _parcel(box: Postbox, body: object) -> Parcel:
    message_id = box.send("b", body)
    [(text,)] = box._db.read("SELECT frame FROM _onceward_outbox ORDER BY seq DESC LIMIT 1")
    return Parcel(
        sender="a",
        recipient="b",
        epoch="e",
        number=1,
        previous="",
        frames=(ParcelFrame(message_id, text, digest(text)),),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "x", "expirytime": "0001-01-01T00:00:00"},
        {"expirytime": "9999-12-31T23:59:59.999999+00:00"},
        {"data_base64": "###"},
        {"data_base64": "ü"},
        {"data": [1.5e308] * 3},
        {"id": "x" * 257},
        {"recipient": "c"},
        {"source": "urn:onceward:c"},
        {"session": ""},
        {"priority": 9},
        {"foo": None},
        {"data": {"a" * 5000: 1}},
    ],
    ids=str,
)
def test_a_hostile_frame_never_stops_a_parcel(opened: Open, changes: dict[str, Any]) -> None:
    """Whatever a frame says, its neighbours are kept and every frame gets an answer."""
    box = opened("b")
    door = InboxPolicy(agent="b", durability="safe", max_body=4096)
    base = {
        "specversion": "1.0",
        "id": "1",
        "source": "urn:onceward:a",
        "type": "t",
        "recipient": "b",
    }
    texts = [
        json.dumps(base),
        json.dumps(base | {"id": "2"} | changes),
        json.dumps(base | {"id": "3"}),
    ]
    parcel = Parcel(
        sender="a",
        recipient="b",
        epoch="e",
        number=1,
        previous="",
        frames=tuple(ParcelFrame(str(k), text, digest(text)) for k, text in enumerate(texts, 1)),
    )
    kept = box._db.write(lambda tx: accept(tx, parcel, door, parse_frames(parcel, door)))

    assert ["1", "2", "3"] == [receipt.id for receipt in kept.answer.receipts]
    assert {"1", "3"} <= set(kept.received)
    assert [] == box.file.check()
