"""Define the contract of transports, which carry parcels to peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from onceward.errors import Unreachable
from onceward.model.frame import digest
from onceward.model.parcel import Answer, Parcel

Accept = Callable[[Parcel], Answer]
"""Function of a receiving agent: stores the parcel once, answers after the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The promises of an implementation; they select its conformance tests."""

    schemes: frozenset[str]
    """Url schemes it serves, such as ``file``."""
    streams: bool = True
    """The other end is an inbox of ours that checks parcel numbers; False for a plain function."""
    max_bytes: int = 16 << 20
    """Largest parcel; the dispatcher packs smaller ones."""


@runtime_checkable
class Transport(Protocol):
    """Carries parcels to peers."""

    features: Features

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Deliver *parcel* to the agent at *url* and return its answer.

        Frames without a receipt in the answer are pushed again. A transport that can
        fail at a single frame hands over nothing of its lane behind that frame.

        Raises:
            Unreachable: no answer, or not in time; the same parcel is pushed again.
            Refused: the peer will never take this parcel; its frames become dead letters.

        """
        ...

    def close(self) -> None:
        """Release all resources; safe to call twice."""
        ...


def refuse_damaged(parcel: Parcel) -> None:
    """Raise Unreachable if a frame was damaged on the way; the same parcel is then pushed again."""
    for carried in parcel.frames:
        if digest(carried.text) != carried.digest:
            msg = f"frame {carried.id} was damaged on the way: its digest does not match"
            raise Unreachable(msg)
