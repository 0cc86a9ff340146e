"""
The contract of transports, for authors of one: what they get, what they answer, what they check.

Every parcel that arrives is checked with ``refuse_damaged`` before it is
accepted: a frame whose text does not fit its ``digest`` is pushed again.
"""

from typing import TYPE_CHECKING, Any

from onceward.model.frame import Frame, digest
from onceward.model.parcel import (
    Answer,
    Durability,
    Parcel,
    ParcelFrame,
    Receipt,
    ReceiptState,
    Verdict,
)
from onceward.transports.base import (
    Accept,
    ChecksUrls,
    Features,
    Listener,
    MakeListener,
    MakeTransport,
    Transport,
    TransportContext,
    refuse_damaged,
)

if TYPE_CHECKING:
    from onceward.model import wire
    from onceward.transports.function import FunctionTransport

__all__ = [
    "Accept",
    "Answer",
    "ChecksUrls",
    "Durability",
    "Features",
    "Frame",
    "FunctionTransport",
    "Listener",
    "MakeListener",
    "MakeTransport",
    "Parcel",
    "ParcelFrame",
    "Receipt",
    "ReceiptState",
    "Transport",
    "TransportContext",
    "Verdict",
    "digest",
    "refuse_damaged",
    "wire",
]


def __getattr__(name: str) -> Any:
    """Load ``FunctionTransport`` and ``wire`` on first use: importing them takes long."""
    if name == "FunctionTransport":
        from onceward.transports.function import FunctionTransport  # noqa: PLC0415 - see above

        return FunctionTransport
    if name == "wire":
        from onceward.model import wire  # noqa: PLC0415 - see above

        return wire
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
