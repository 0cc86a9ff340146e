"""
Define the contract of transports for their authors: inputs, answers and checks.

Check every arriving parcel with ``refuse_damaged`` before accepting it: a frame whose text does not
match its ``digest`` is pushed again.

Imports core, file and message.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from onceward.core.deliver.transport import (
    Accept,
    ChecksUrls,
    Features,
    Listener,
    MakeListener,
    MakeTransport,
    Pings,
    ServedHere,
    Transport,
    TransportContext,
)
from onceward.message.frame import Frame, digest
from onceward.message.parcel import (
    Answer,
    Durability,
    Parcel,
    ParcelFrame,
    Receipt,
    ReceiptState,
    Verdict,
    refuse_damaged,
)

if TYPE_CHECKING:
    from onceward.message import wire
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
    "Pings",
    "Receipt",
    "ReceiptState",
    "ServedHere",
    "Transport",
    "TransportContext",
    "Verdict",
    "digest",
    "refuse_damaged",
    "wire",
]


LATER: Final = {
    "FunctionTransport": "onceward.transports.function",
    "wire": "onceward.message.wire",
}
"""Names whose modules are imported on first use: the import is slow, or needs an extra."""


def __getattr__(name: str) -> Any:
    """Import a name's module on first use."""
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(LATER[name])
    return module if name == "wire" else getattr(module, name)
