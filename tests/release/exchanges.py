"""One of each word that machines and processes say to each other, as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from onceward.message import wire
from onceward.message.frame import digest
from onceward.message.parcel import (
    Answer,
    Parcel,
    ParcelFrame,
    Receipt,
    ReceiptState,
    Takeover,
    Verdict,
)
from onceward.message.protocol import Speaks
from onceward.message.wire import Notice, NoticeKind
from onceward.transports import worker_wire

if TYPE_CHECKING:
    from pathlib import Path

FRAME: Final = (
    '{"specversion":"1.0","time":"2026-01-01T00:00:00.000Z","id":"%s","source":"urn:onceward:near",'
    '"type":"note","recipient":"far","session":"default","datacontenttype":"application/json",'
    '"data":{"n":%d}}'
)
STATES: Final = cast("tuple[ReceiptState, ...]", get_args(ReceiptState))
IDS: Final = tuple(f"019b76da-a800-7{n:03d}-8000-000000000000" for n in range(len(STATES)))
TEXTS: Final = tuple(FRAME % (name, n) for n, name in enumerate(IDS))
RECEIPTS: Final = tuple(
    Receipt(name, state, None if state == "stored" else f"it is {state}")
    for name, state in zip(IDS, STATES, strict=True)
)
MOVED: Final = Takeover(1, 1_767_225_600_000, "machine", "https://other.example").text
PARCEL: Final = Parcel(
    sender="near",
    recipient="far",
    epoch="0000000100000000000000000000000f",
    number=1,
    previous="",
    frames=tuple(
        ParcelFrame(name, text, digest(text), redelivered=n == 1)
        for n, (name, text) in enumerate(zip(IDS, TEXTS, strict=True))
    ),
    receipts=RECEIPTS,
    base_position=("0000000000000000000000000000000e", 41),
    unsettled=("019b76da-a800-7fff-8000-000000000000",),
    stream_position=("0000000100000000000000000000000d", 7),
    greeting=f"restored:{'a' * 24}",
    takeover=MOVED,
    known_takeover=MOVED,
)
ANSWER: Final = Answer(
    verdict="accepted",
    receipts=RECEIPTS,
    durability="fast",
    epoch=PARCEL.epoch,
    number=1,
    retry_after=250,
    takeover=MOVED,
    room=3,
)
SPEAKS: Final = Speaks(release="0.1.0", features=("greeting", "takeover"))


def answers() -> dict[str, Answer]:
    """Return an answer of each verdict, by the name of its file."""
    verdicts = cast("tuple[Verdict, ...]", get_args(Verdict))
    return {f"answer-{each}": replace(ANSWER, verdict=each) for each in verdicts}


def notices() -> dict[str, Notice]:
    """Return a notice of each kind, by the name of its file."""
    kinds = cast("tuple[NoticeKind, ...]", get_args(NoticeKind))
    made = {
        f"notice-{each}": Notice(
            kind=each, sender="far", recipient="near", at=9, limit=4096, detail=f"it is {each}"
        )
        for each in kinds
    }
    return {
        name: replace(each, speaks=SPEAKS) if each.kind in wire.SPEAKING else each
        for name, each in made.items()
    }


def write(folder: Path) -> None:
    """Write each of them into a file."""
    written: dict[str, bytes] = {
        "parcel": wire.encode_parcel(PARCEL),
        "socket-parcel": worker_wire.MARK + worker_wire.encode_parcel(PARCEL),
        "socket-answer": worker_wire.MARK + worker_wire.encode_answer(ANSWER),
    }
    written |= {name: wire.encode_answer(each, PARCEL) for name, each in answers().items()}
    written |= {name: wire.encode_notice(each) for name, each in notices().items()}
    folder.mkdir(parents=True)
    for name, body in written.items():
        (folder / f"{name}.bin").write_bytes(body)


def read(body: bytes, name: str) -> Any:
    """Return what this version reads in such a file; of another socket's encoding only the mark."""
    if name.startswith("socket-"):
        mark, text = body[:4], body[4:]
        if mark != worker_wire.MARK:
            return mark
        kind = worker_wire.decode_parcel if name == "socket-parcel" else worker_wire.decode_answer
        return kind(text)
    if name.startswith("answer-"):
        return wire.decode_answer(body, PARCEL)
    return wire.decode_parcel(body) if name == "parcel" else wire.decode_notice(body)


def expected() -> dict[str, Any]:
    """Return what each file means."""
    socket = replace(PARCEL, greeting=None)  # a parcel with one takes the way through the file
    return {
        "parcel": PARCEL,
        "socket-parcel": socket,
        "socket-answer": ANSWER,
        **answers(),
        **notices(),
    }
