"""
Exactly-once messages between agents, in one SQLite file each.

Authors of transports find their contract in ``onceward.transports``, tests of
agents their aids in ``onceward.testing``, hooks their events in
``onceward.events``.
"""

import typing as _typing

from onceward import errors
from onceward.api.channels import Channel
from onceward.api.mailboxes import HandlerTransaction, Mailbox
from onceward.api.postbox import Postbox
from onceward.api.session import Session
from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
from onceward.model.body import Msg
from onceward.model.record import MessageRecord
from onceward.model.retry import RetryPolicy
from onceward.model.send_options import SendOptions
from onceward.model.settings import Settings
from onceward.model.ticket import Ticket
from onceward.runtime.agent import Agent
from onceward.runtime.context import AsyncContext, AsyncTransaction, Context
from onceward.runtime.fanout import SendResult
from onceward.runtime.message import AsyncMessage, Message
from onceward.runtime.transaction import Transaction
from onceward.store.directory.channels import ChannelConfig
from onceward.store.health import Health
from onceward.store.mailbox_readers import Start
from onceward.store.queries import DeadLetter, Page
from onceward.store.repairs import Repair

if _typing.TYPE_CHECKING:
    from onceward.api.aio import AsyncChannel, AsyncMailbox, AsyncPostbox, AsyncSession
    from onceward.runtime.runs.run import AsyncRun, Run

__all__ = [
    "Agent",
    "AsyncChannel",
    "AsyncContext",
    "AsyncMailbox",
    "AsyncMessage",
    "AsyncPostbox",
    "AsyncRun",
    "AsyncSession",
    "AsyncTransaction",
    "Channel",
    "ChannelConfig",
    "Context",
    "DeadLetter",
    "Drop",
    "HandlerTransaction",
    "Health",
    "Mailbox",
    "Message",
    "MessageRecord",
    "Msg",
    "OncewardError",
    "OutcomeUnknown",
    "Page",
    "Postbox",
    "Reject",
    "Repair",
    "Retry",
    "RetryPolicy",
    "Run",
    "SendOptions",
    "SendResult",
    "Session",
    "Settings",
    "Start",
    "Ticket",
    "Transaction",
    "errors",
]

_LAZY = {
    "AsyncChannel": "api.aio",
    "AsyncMailbox": "api.aio",
    "AsyncPostbox": "api.aio",
    "AsyncRun": "runtime.runs.run",
    "AsyncSession": "api.aio",
    "Run": "runtime.runs.run",
}


def __getattr__(name: str) -> _typing.Any:
    """Load the async face and the runs on first use: a tenth of the time of importing."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"onceward.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, the lazy ones too."""
    return [*__all__]
