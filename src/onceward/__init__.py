"""
Exactly-once messages between agents, in one SQLite file each.

Authors of transports find their contract in ``onceward.transports``, tests of
agents their aids in ``onceward.testing``, hooks their events in
``onceward.events``.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from onceward import errors
    from onceward.api.aio import AsyncChannel, AsyncMailbox, AsyncPostbox, AsyncSession
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
    from onceward.model.tick import Tick
    from onceward.model.ticket import Ticket
    from onceward.runtime.agent import Agent
    from onceward.runtime.batch_context import AsyncBatchContext, BatchContext
    from onceward.runtime.context import AsyncContext, AsyncTransaction, Context
    from onceward.runtime.depends import Depends
    from onceward.runtime.fanout import SendResult
    from onceward.runtime.message import AsyncMessage, Message
    from onceward.runtime.runs.run import AsyncRun, Run
    from onceward.runtime.transaction import Transaction
    from onceward.store.directory.channels import ChannelConfig
    from onceward.store.health import Health
    from onceward.store.mailbox_readers import Start
    from onceward.store.queries import DeadLetter, Page
    from onceward.store.repairs import Repair
    from onceward.store.schedules import Schedule

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
    "Agent": "runtime.agent",
    "AsyncBatchContext": "runtime.batch_context",
    "AsyncChannel": "api.aio",
    "AsyncContext": "runtime.context",
    "AsyncMailbox": "api.aio",
    "AsyncMessage": "runtime.message",
    "AsyncPostbox": "api.aio",
    "AsyncRun": "runtime.runs.run",
    "AsyncSession": "api.aio",
    "AsyncTransaction": "runtime.context",
    "BatchContext": "runtime.batch_context",
    "Channel": "api.channels",
    "ChannelConfig": "store.directory.channels",
    "Context": "runtime.context",
    "DeadLetter": "store.queries",
    "Depends": "runtime.depends",
    "Drop": "errors",
    "HandlerTransaction": "api.mailboxes",
    "Health": "store.health",
    "Mailbox": "api.mailboxes",
    "Message": "runtime.message",
    "MessageRecord": "model.record",
    "Msg": "model.body",
    "OncewardError": "errors",
    "OutcomeUnknown": "errors",
    "Page": "store.queries",
    "Postbox": "api.postbox",
    "Reject": "errors",
    "Repair": "store.repairs",
    "Retry": "errors",
    "RetryPolicy": "model.retry",
    "Run": "runtime.runs.run",
    "Schedule": "store.schedules",
    "SendOptions": "model.send_options",
    "SendResult": "runtime.fanout",
    "Session": "api.session",
    "Settings": "model.settings",
    "Start": "store.mailbox_readers",
    "Tick": "model.tick",
    "Ticket": "model.ticket",
    "Transaction": "runtime.transaction",
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
