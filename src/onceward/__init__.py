"""
Exactly-once messages between agents, in one SQLite file each.

Types that annotations rarely need are in ``onceward.types``. The contract of transports is in
``onceward.transports``, helpers for tests of agents in ``onceward.testing``, the events of hooks in
``onceward.events``.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from onceward import errors
    from onceward.api.agent import Agent
    from onceward.api.aio import AsyncPostbox
    from onceward.api.contexts import AsyncContext, AsyncRun, Context, Run
    from onceward.api.postbox import Postbox
    from onceward.api.session import Session
    from onceward.core.handle.message import AsyncMessage, Message
    from onceward.core.handle.signatures import Depends
    from onceward.core.send.block import Transaction
    from onceward.errors import Drop, OncewardError, OutcomeUnknown, Reject, Retry
    from onceward.features.batches.context import BatchContext
    from onceward.features.channels.api import Channel
    from onceward.features.mailboxes.api import Mailbox
    from onceward.features.steps.decorator import step
    from onceward.message.body import Msg
    from onceward.message.record import MessageRecord, Ticket
    from onceward.message.retry import RetryPolicy
    from onceward.message.settings import Settings, Tuning

__all__ = [
    "Agent",
    "AsyncContext",
    "AsyncMessage",
    "AsyncPostbox",
    "AsyncRun",
    "BatchContext",
    "Channel",
    "Context",
    "Depends",
    "Drop",
    "Mailbox",
    "Message",
    "MessageRecord",
    "Msg",
    "OncewardError",
    "OutcomeUnknown",
    "Postbox",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "Session",
    "Settings",
    "Ticket",
    "Transaction",
    "Tuning",
    "errors",
    "step",
]

_MODULES = {
    "Agent": "api.agent",
    "AsyncContext": "api.contexts",
    "AsyncMessage": "core.handle.message",
    "AsyncPostbox": "api.aio",
    "AsyncRun": "api.contexts",
    "BatchContext": "features.batches.context",
    "Channel": "features.channels.api",
    "Context": "api.contexts",
    "Depends": "core.handle.signatures",
    "Drop": "errors",
    "Mailbox": "features.mailboxes.api",
    "Message": "core.handle.message",
    "MessageRecord": "message.record",
    "Msg": "message.body",
    "OncewardError": "errors",
    "OutcomeUnknown": "errors",
    "Postbox": "api.postbox",
    "Reject": "errors",
    "Retry": "errors",
    "RetryPolicy": "message.retry",
    "Run": "api.contexts",
    "Session": "api.session",
    "Settings": "message.settings",
    "Ticket": "message.record",
    "Transaction": "core.send.block",
    "Tuning": "message.settings",
    "errors": "errors",
    "step": "features.steps.decorator",
}
"""Module by public name; the first use of a name loads its module."""


def __getattr__(name: str) -> _typing.Any:
    """Load a public name on first use, so that a command loads only what it needs."""
    from importlib import import_module  # noqa: PLC0415 - it is not a public name

    if name not in _MODULES:
        return import_module("onceward.deprecated").attribute(__name__, name)
    module = import_module(f"onceward.{_MODULES[name]}")
    found = module if name == _MODULES[name] else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__]
