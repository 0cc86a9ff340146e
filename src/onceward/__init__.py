"""Exactly-once mail between agents, in one SQLite file each."""

import typing as _typing

from onceward import errors
from onceward.boxes.readers import Start
from onceward.boxes.tickets import Ticket
from onceward.door.channel import Channel
from onceward.door.mailbox import Mailbox
from onceward.door.postbox import Postbox
from onceward.door.session import Session
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.ground.policy import RetryPolicy
from onceward.ground.transport import Features, Transport
from onceward.hands.agent import Agent
from onceward.hands.context import AsyncContext, Context
from onceward.hands.message import Message
from onceward.hands.transaction import Transaction
from onceward.seeing.health import Health
from onceward.seeing.views import Page
from onceward.words.frame import Frame
from onceward.words.parcel import Answer, Parcel, Receipt
from onceward.words.payload import Msg
from onceward.words.readout import Letter
from onceward.words.settings import Settings

if _typing.TYPE_CHECKING:
    from onceward.door.aio import AsyncPostbox, AsyncSession
    from onceward.door.aio_channel import AsyncChannel
    from onceward.door.aio_mailbox import AsyncMailbox
    from onceward.door.awaitable import AsyncMessage, AsyncTransaction
    from onceward.engines.run import AsyncRun, Run

__all__ = [
    "Agent",
    "Answer",
    "AsyncChannel",
    "AsyncContext",
    "AsyncMailbox",
    "AsyncMessage",
    "AsyncPostbox",
    "AsyncRun",
    "AsyncSession",
    "AsyncTransaction",
    "Channel",
    "Context",
    "Drop",
    "Features",
    "Frame",
    "Health",
    "Letter",
    "Mailbox",
    "Message",
    "Msg",
    "OncewardError",
    "OutcomeUnknown",
    "Page",
    "Parcel",
    "Postbox",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "Session",
    "Settings",
    "Start",
    "Ticket",
    "Transaction",
    "Transport",
    "errors",
]

_LAZY = {
    "AsyncChannel": "door.aio_channel",
    "AsyncMailbox": "door.aio_mailbox",
    "AsyncMessage": "door.awaitable",
    "AsyncPostbox": "door.aio",
    "AsyncRun": "engines.run",
    "AsyncSession": "door.aio",
    "AsyncTransaction": "door.awaitable",
    "Run": "engines.run",
}


def __getattr__(name: str) -> _typing.Any:
    """Load the awaitable half, and what only sessions with runs need, on first use: a tenth of the time that importing takes."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"onceward.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, the lazy ones too."""
    return [*__all__]
