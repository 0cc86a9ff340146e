"""Exactly-once mail between agents, in one SQLite file each."""

import typing as _typing

from onceward import errors
from onceward.agent import Agent
from onceward.channel import Channel
from onceward.context import AsyncContext, Context
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.frame import Frame
from onceward.health import Health
from onceward.mailbox import Mailbox
from onceward.message import Message
from onceward.parcel import Answer, Parcel, Receipt
from onceward.payload import Msg
from onceward.policy import RetryPolicy
from onceward.postbox import Postbox
from onceward.readers import Start
from onceward.readout import Letter
from onceward.run import AsyncRun, Run
from onceward.session import Session
from onceward.settings import Settings
from onceward.tickets import Ticket
from onceward.transaction import Transaction
from onceward.transport import Features, Transport
from onceward.views import Page

if _typing.TYPE_CHECKING:
    from onceward.aio import AsyncPostbox, AsyncSession
    from onceward.aio_channel import AsyncChannel
    from onceward.aio_mailbox import AsyncMailbox
    from onceward.awaitable import AsyncMessage, AsyncTransaction

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
    "AsyncChannel": "aio_channel",
    "AsyncMailbox": "aio_mailbox",
    "AsyncMessage": "awaitable",
    "AsyncPostbox": "aio",
    "AsyncSession": "aio",
    "AsyncTransaction": "awaitable",
}


def __getattr__(name: str) -> _typing.Any:
    """Load the awaitable half on first use: asyncio is the largest part of what importing the rest costs."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"onceward.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, the lazy ones too."""
    return [*__all__]
