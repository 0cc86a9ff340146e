"""
Types of arguments and results, for annotations; programs rarely create one.

The names that every program needs are in ``onceward`` itself.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from onceward.api.aio import AsyncSession
    from onceward.api.handler_postbox import AsyncHandlerPostbox, HandlerPostbox
    from onceward.core.handle.context import AsyncTransaction
    from onceward.core.rows.dead_letters import DeadLetter
    from onceward.core.send.fanout import SendResult
    from onceward.features.batches.context import AsyncBatchContext
    from onceward.features.channels.aio import AsyncChannel
    from onceward.features.channels.directory import ChannelConfig
    from onceward.features.checks.health import Health
    from onceward.features.checks.invariants import Violation
    from onceward.features.checks.repairs import Repair
    from onceward.features.groups.done import GroupDone
    from onceward.features.history.journey import Journey
    from onceward.features.mailboxes.aio import AsyncMailbox
    from onceward.features.mailboxes.api import HandlerTransaction
    from onceward.features.mailboxes.mailbox_readers import Start
    from onceward.features.schedules.tick import Tick
    from onceward.features.streams.reading import Chunk, Ended, Restarted, StreamItem
    from onceward.message.body import LargeBodyStore
    from onceward.message.dates import Schedule
    from onceward.message.encrypted import BodyCodec, EncryptedMsg
    from onceward.message.names import AgentInfo
    from onceward.message.options import SendOptions
    from onceward.message.record import (
        Cancellation,
        Cancellations,
        GroupInfo,
        Page,
        PoolInfo,
        PoolMember,
        Status,
    )

__all__ = [
    "AgentInfo",
    "AsyncBatchContext",
    "AsyncChannel",
    "AsyncHandlerPostbox",
    "AsyncMailbox",
    "AsyncSession",
    "AsyncTransaction",
    "BodyCodec",
    "Cancellation",
    "Cancellations",
    "ChannelConfig",
    "Chunk",
    "DeadLetter",
    "EncryptedMsg",
    "Ended",
    "GroupDone",
    "GroupInfo",
    "HandlerPostbox",
    "HandlerTransaction",
    "Health",
    "Journey",
    "LargeBodyStore",
    "Page",
    "PoolInfo",
    "PoolMember",
    "Repair",
    "Restarted",
    "Schedule",
    "SendOptions",
    "SendResult",
    "Start",
    "Status",
    "StreamItem",
    "Tick",
    "Violation",
]

_MODULES = {
    "AgentInfo": "message.names",
    "AsyncBatchContext": "features.batches.context",
    "AsyncChannel": "features.channels.aio",
    "AsyncHandlerPostbox": "api.handler_postbox",
    "AsyncMailbox": "features.mailboxes.aio",
    "AsyncSession": "api.aio",
    "AsyncTransaction": "core.handle.context",
    "BodyCodec": "message.encrypted",
    "Cancellation": "message.record",
    "Cancellations": "message.record",
    "ChannelConfig": "features.channels.directory",
    "Chunk": "features.streams.reading",
    "Ended": "features.streams.reading",
    "Restarted": "features.streams.reading",
    "Status": "message.record",
    "StreamItem": "features.streams.reading",
    "DeadLetter": "core.rows.dead_letters",
    "GroupDone": "features.groups.done",
    "GroupInfo": "message.record",
    "EncryptedMsg": "message.encrypted",
    "HandlerPostbox": "api.handler_postbox",
    "HandlerTransaction": "features.mailboxes.api",
    "Health": "features.checks.health",
    "Journey": "features.history.journey",
    "LargeBodyStore": "message.body",
    "Page": "message.record",
    "PoolInfo": "message.record",
    "PoolMember": "message.record",
    "Repair": "features.checks.repairs",
    "Schedule": "message.dates",
    "SendOptions": "message.options",
    "SendResult": "core.send.fanout",
    "Start": "features.mailboxes.mailbox_readers",
    "Tick": "features.schedules.tick",
    "Violation": "features.checks.invariants",
}
"""Module by name; the first use of a name loads its module."""


def __getattr__(name: str) -> _typing.Any:
    """Load a type on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - it is not a public name

    found = getattr(import_module(f"onceward.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the names, loaded or not."""
    return [*__all__]
