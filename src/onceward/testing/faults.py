"""Wrap a transport so that it fails by script, delivery by delivery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from threading import Lock
from typing import Final

from onceward.core.deliver.transport import Transport
from onceward.errors import Refused, Unreachable
from onceward.message.parcel import Answer, Parcel, ParcelFrame


class Fault(StrEnum):
    """The fault of one delivery."""

    NONE = "none"
    """It arrives, and its answer comes back."""
    DROP = "drop"
    """It never arrives; the sender gets no answer."""
    LOSE_RECEIPT = "lose-receipt"
    """It arrives, but the answer is lost; the sender gets none."""
    DUPLICATE = "duplicate"
    """It arrives twice; the second answer comes back."""
    DELAY = "delay"
    """The answer is lost and the parcel arrives late: right after the next delivery."""
    REFUSE = "refuse"
    """The peer permanently refuses this parcel; it does not arrive."""
    BUSY = "busy"
    """The peer is busy; it does not arrive."""
    PARTIAL = "partial"
    """It arrives, but the answer says nothing about its last frame, as plain functions may do."""
    CORRUPT = "corrupt"
    """It arrives with the text of its last frame damaged, so that no frame can be read from it."""


HARMLESS: Final = tuple(each for each in Fault if each not in {Fault.REFUSE, Fault.CORRUPT})
"""Faults after which every message must still arrive once and in order."""


class FaultyTransport:
    """
    Carries parcels by *inner* with one fault of the script per delivery, then without faults.

    ``seen`` lists what was done to each delivery so far. The script may be
    endless: ``FaultyTransport(inner, iter(lambda: rng.choice(list(Fault)), None))``.
    """

    def __init__(self, inner: Transport, script: Iterable[Fault | str] = ()) -> None:
        self.features = inner.features
        self.seen: list[Fault] = []
        self._inner, self._script = inner, iter(script)
        self._late: list[tuple[str, Parcel]] = []
        self._lock = Lock()

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Deliver with the next fault of the script.

        Raises:
            Unreachable: by script, or from the inner transport.
            Refused: by script, or from the inner transport.

        """
        with self._lock:
            fault = Fault(next(self._script, Fault.NONE))
            self.seen.append(fault)
            late, self._late = self._late, []
        try:
            return self._suffer(fault, url, parcel)
        finally:
            for old_url, old in late:
                self._inner.deliver(old_url, old)

    def _suffer(self, fault: Fault, url: str, parcel: Parcel) -> Answer:
        match fault:
            case Fault.DROP:
                raise _silence(fault)
            case Fault.LOSE_RECEIPT:
                self._inner.deliver(url, parcel)
                raise _silence(fault)
            case Fault.DUPLICATE:
                self._inner.deliver(url, parcel)
            case Fault.DELAY:
                self._late.append((url, parcel))
                raise _silence(fault)
            case Fault.REFUSE:
                raise Refused("the peer refused the parcel, as the script says")
            case Fault.BUSY:
                return Answer(verdict="busy")
            case Fault.PARTIAL:
                answer = self._inner.deliver(url, parcel)
                return replace(answer, receipts=answer.receipts[:-1])
            case Fault.CORRUPT:
                return self._inner.deliver(url, replace(parcel, frames=_damaged(parcel.frames)))
        return self._inner.deliver(url, parcel)

    def close(self) -> None:
        """Close the inner transport; parcels that are still late never arrive."""
        self._late.clear()
        self._inner.close()


def _silence(fault: Fault) -> Unreachable:
    return Unreachable(f"no answer, as the script says: {fault}")


def _damaged(frames: tuple[ParcelFrame, ...]) -> tuple[ParcelFrame, ...]:
    if not frames:
        return frames
    last = frames[-1]
    return (*frames[:-1], last._replace(text=last.text[: len(last.text) // 2]))
