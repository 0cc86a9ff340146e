"""Exactly-once mail between agents, in one SQLite file each."""

import typing as _typing

from onceward import errors
from onceward.api.channels import Channel
from onceward.api.mailbox import Mailbox
from onceward.api.postbox import Postbox
from onceward.api.session import Session
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.model.body import Msg
from onceward.model.frame import Frame
from onceward.model.parcel import Answer, Parcel, Receipt
from onceward.model.record import MessageRecord
from onceward.model.retry import RetryPolicy
from onceward.model.settings import Settings
from onceward.runtime.agent import Agent
from onceward.runtime.context import AsyncContext, Context
from onceward.runtime.message import Message
from onceward.runtime.transaction import Transaction
from onceward.store.health import Health
from onceward.store.mailbox_readers import Start
from onceward.store.queries import Page
from onceward.store.requests import Ticket
from onceward.transports.base import Features, Transport

if _typing.TYPE_CHECKING:
    from onceward.api.aio import AsyncPostbox, AsyncSession
    from onceward.api.aio_channel import AsyncChannel
    from onceward.api.aio_mailbox import AsyncMailbox
    from onceward.api.awaitable import AsyncMessage, AsyncTransaction
    from onceward.runtime.runs.run import AsyncRun, Run

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
    "Mailbox",
    "Message",
    "MessageRecord",
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
    "AsyncChannel": "api.aio_channel",
    "AsyncMailbox": "api.aio_mailbox",
    "AsyncMessage": "api.awaitable",
    "AsyncPostbox": "api.aio",
    "AsyncRun": "runtime.runs.run",
    "AsyncSession": "api.aio",
    "AsyncTransaction": "api.awaitable",
    "Run": "runtime.runs.run",
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
