"""
A peer that accepts and processes everything at once.

So what is measured is the sender's own work.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tests.bench.mail import UNBOUNDED

from onceward import Postbox
from onceward.core.deliver.transport import Features
from onceward.errors import Unreachable
from onceward.message.parcel import Answer, Parcel, Receipt

URL: Final = "sink:bob"


class Sink:
    """
    Take *parcels* parcels, then become unreachable.

    It remembers when each came and how much it held.
    """

    features = Features(schemes=frozenset({"sink"}))

    def __init__(self, parcels: int | None = None) -> None:
        self.parcels = parcels
        self.came: list[float] = []
        self.messages: list[int] = []

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Answer that every frame was processed."""
        if self.parcels is not None and len(self.came) >= self.parcels:
            msg = f"{url} has seen enough"
            raise Unreachable(msg)
        self.came.append(time.perf_counter())
        self.messages.append(len(parcel.frames))
        return Answer(
            verdict="accepted",
            receipts=tuple(Receipt(frame.id, "processed") for frame in parcel.frames),
        )

    def close(self) -> None:
        """Nothing is open."""


def box_with(path: Path, sink: Sink, *, start: bool, **settings: Any) -> Postbox:
    """Open a postbox whose mail for bob goes into the sink, however often that was unreachable."""
    patient: dict[str, Any] = {
        "max_pending": UNBOUNDED,
        "delivery_retry": "0s ±0%",
        "handler_retry": "0s ±0%",
        "tuning": {"breaker_failures": 1 << 30},
    }
    box = Postbox(
        path, agent="alice", start=start, transports={"sink": sink}, **(patient | settings)
    )
    box.peers.add("bob", URL)
    return box
