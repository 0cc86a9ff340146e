"""Bound the bytes of parcels and answers as networks carry them, without encoding them."""

from __future__ import annotations

from typing import Final

from pydantic_core import to_json

from onceward.message.parcel import Parcel, Receipt

RECEIPTS_MAX: Final = 100_000
"""Most receipts of a parcel."""
REASON_MAX: Final = 1000
"""Longest reason of a receipt in characters; an encoder cuts longer ones."""
ENVELOPE: Final = 640
"""Bytes of an event without names, ids, frames and receipts, at most; a test measures it."""
FRAME: Final = len(f',{{"id":,"digest":"{"0" * 32}","length":{2**63},"redelivered":false}},')
RECEIPT: Final = len('{"id":,"state":"processed","reason":null},')
LONGEST_ID: Final = 6 * 256 + 2
LONGEST_REASON: Final = 6 * REASON_MAX + 2
"""Bytes of the longest reason as JSON, where a control character takes six."""


def encoded_size(parcel: Parcel) -> int:
    """Return a number of bytes that an encoded parcel does not exceed, near its true size."""
    positions = filter(None, (parcel.base_position, parcel.stream_position))
    texts = [parcel.sender, parcel.sender, parcel.recipient, parcel.epoch, parcel.previous]
    texts += [*parcel.unsettled, *(epoch for epoch, _ in positions)]
    return (
        ENVELOPE
        + sum(_text_bytes(text) + 1 for text in texts)
        + sum(frame_bytes(each.id, len(each.text.encode())) for each in parcel.frames)
        + sum(map(receipt_bytes, parcel.receipts))
    )


def frame_bytes(message_id: str, length: int) -> int:
    """Return how many bytes a frame of *length* bytes adds to an encoded parcel, at most."""
    return FRAME + _text_bytes(message_id) + length


def receipt_bytes(receipt: Receipt) -> int:
    """Return how many bytes a receipt adds to an encoded parcel or answer, at most."""
    reason = receipt.reason
    told = 0 if reason is None else _text_bytes(reason[:REASON_MAX])
    return RECEIPT + _text_bytes(receipt.id) + told


def answer_bytes(parcel: Parcel) -> int:
    """Return how many bytes an answer to *parcel* has at most, for a reader's limit."""
    texts = parcel.sender, parcel.recipient, parcel.recipient, parcel.epoch
    return (
        ENVELOPE
        + LONGEST_ID
        + sum(map(_text_bytes, texts))
        + sum(RECEIPT + LONGEST_REASON + _text_bytes(each.id) for each in parcel.frames)
    )


def _text_bytes(text: str) -> int:
    return len(to_json(text))
