"""
Exactly-once messages between agents, in one SQLite file each.

Authors of transports find their contract in ``onceward.transports``, tests of
agents their aids in ``onceward.testing``, hooks their events in
``onceward.events``.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from onceward import errors
    from onceward.api.agent import Agent
    from onceward.api.aio import AsyncChannel, AsyncMailbox, AsyncPostbox, AsyncSession
    from onceward.api.postbox import Postbox
    from onceward.api.session import Session
    from onceward.core.handle.context import AsyncContext, AsyncTransaction, Context
    from onceward.core.handle.message import AsyncMessage, Message
    from onceward.core.handle.signatures import Depends
    from onceward.core.send.block import Transaction
    from onceward.core.send.fanout import SendResult
    from onceward.core.upkeep.health import Health
    from onceward.core.views import DeadLetter, Page
    from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
    from onceward.features.batches.context import AsyncBatchContext, BatchContext
    from onceward.features.channels.api import Channel
    from onceward.features.channels.directory import ChannelConfig
    from onceward.features.checks.repairs import Repair
    from onceward.features.mailboxes.api import HandlerTransaction, Mailbox
    from onceward.features.mailboxes.mailbox_readers import Start
    from onceward.features.runs.run import AsyncRun, Run
    from onceward.features.schedules.schedules import Schedule
    from onceward.features.schedules.tick import Tick
    from onceward.message.body import Msg
    from onceward.message.record import MessageRecord
    from onceward.message.retry import RetryPolicy
    from onceward.message.send_options import SendOptions
    from onceward.message.settings import Settings
    from onceward.message.ticket import Ticket

__all__ = [
    "Agent",
    "AsyncBatchContext",
    "AsyncChannel",
    "AsyncContext",
    "AsyncMailbox",
    "AsyncMessage",
    "AsyncPostbox",
    "AsyncRun",
    "AsyncSession",
    "AsyncTransaction",
    "BatchContext",
    "Channel",
    "ChannelConfig",
    "Context",
    "DeadLetter",
    "Depends",
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
    "Schedule",
    "SendOptions",
    "SendResult",
    "Session",
    "Settings",
    "Start",
    "Tick",
    "Ticket",
    "Transaction",
    "errors",
]

_MODULES = {
    "Agent": "api.agent",
    "AsyncBatchContext": "features.batches.context",
    "AsyncChannel": "api.aio",
    "AsyncContext": "core.handle.context",
    "AsyncMailbox": "api.aio",
    "AsyncMessage": "core.handle.message",
    "AsyncPostbox": "api.aio",
    "AsyncRun": "features.runs.run",
    "AsyncSession": "api.aio",
    "AsyncTransaction": "core.handle.context",
    "BatchContext": "features.batches.context",
    "Channel": "features.channels.api",
    "ChannelConfig": "features.channels.directory",
    "Context": "core.handle.context",
    "DeadLetter": "core.views",
    "Depends": "core.handle.signatures",
    "Drop": "errors",
    "HandlerTransaction": "features.mailboxes.api",
    "Health": "core.upkeep.health",
    "Mailbox": "features.mailboxes.api",
    "Message": "core.handle.message",
    "MessageRecord": "message.record",
    "Msg": "message.body",
    "OncewardError": "errors",
    "OutcomeUnknown": "errors",
    "Page": "core.views",
    "Postbox": "api.postbox",
    "Reject": "errors",
    "Repair": "features.checks.repairs",
    "Retry": "errors",
    "RetryPolicy": "message.retry",
    "Run": "features.runs.run",
    "Schedule": "features.schedules.schedules",
    "SendOptions": "message.send_options",
    "SendResult": "core.send.fanout",
    "Session": "api.session",
    "Settings": "message.settings",
    "Start": "features.mailboxes.mailbox_readers",
    "Tick": "features.schedules.tick",
    "Ticket": "message.ticket",
    "Transaction": "core.send.block",
    "errors": "errors",
}
"""Module by public name: each is loaded with the first use of a name of it."""


def __getattr__(name: str) -> _typing.Any:
    """Load a public name on first use: a command, or an add-on, pays for what it needs."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415 - it is no public name

    module = import_module(f"onceward.{_MODULES[name]}")
    found = module if name == _MODULES[name] else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, which need not be loaded yet."""
    return [*__all__]
