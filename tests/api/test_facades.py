"""Both faces have the same names, and each name takes the same arguments and says the same."""

import inspect

import pytest

from onceward import Context, Message, Postbox, Run, Session, Transaction
from onceward.api import aio
from onceward.api.agent_file import AgentFile
from onceward.api.agents import Agents
from onceward.api.contexts import AsyncContext, AsyncRun
from onceward.api.dead_letters import DeadLetters
from onceward.api.peers import Peers
from onceward.core.handle.context import AsyncTransaction
from onceward.core.handle.message import AsyncMessage
from onceward.features.channels.aio import AsyncChannel, AsyncChannels
from onceward.features.channels.api import Channel, Channels
from onceward.features.limits.aio import AsyncLimits
from onceward.features.limits.api import Limits
from onceward.features.mailboxes.aio import AsyncHandlerTransaction, AsyncMailbox, AsyncMailboxes
from onceward.features.mailboxes.api import HandlerTransaction, Mailbox, Mailboxes
from onceward.features.polling.aio import AsyncSessions
from onceward.features.polling.api import Sessions
from onceward.features.runs.aio import AsyncRuns
from onceward.features.runs.api import Runs

FACES: dict[type, type] = {
    AgentFile: aio.AsyncAgentFile,
    Agents: aio.AsyncAgents,
    Channel: AsyncChannel,
    Channels: AsyncChannels,
    Context: AsyncContext,
    DeadLetters: aio.AsyncDeadLetters,
    HandlerTransaction: AsyncHandlerTransaction,
    Limits: AsyncLimits,
    Mailbox: AsyncMailbox,
    Mailboxes: AsyncMailboxes,
    Message: AsyncMessage,
    Peers: aio.AsyncPeers,
    Postbox: aio.AsyncPostbox,
    Run: AsyncRun,
    Runs: AsyncRuns,
    Session: aio.AsyncSession,
    Sessions: AsyncSessions,
    Transaction: AsyncTransaction,
}


def calls(of: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return the arguments of every public call by its name."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(call).parameters.values()]
        for name, call in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") and (of, name) != (aio.AsyncPostbox, "open")
    }


@pytest.mark.parametrize(("plain", "face"), FACES.items())
def test_the_same_calls(plain: type, face: type) -> None:
    """A reader of one face knows the other: the same calls take the same arguments."""
    assert calls(plain) == calls(face)


@pytest.mark.parametrize("face", FACES.values())
def test_calls_that_are_made_awaitable_are_coroutine_functions(face: type) -> None:
    """A call that was made from the sync one is awaited, and keeps its docstring."""
    made = {
        name: call
        for name, call in vars(face).items()
        if hasattr(call, "__wrapped__") and name != "begin"
    }

    assert set() == {name for name, call in made.items() if not inspect.iscoroutinefunction(call)}
    assert {name: call.__wrapped__.__doc__ for name, call in made.items()} == {
        name: call.__doc__ for name, call in made.items()
    }
