"""The awaitable twins of what a postbox hands out: transactions, messages, peers, dead letters."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from onceward.api.dead_letters import DeadLetterFilter, DeadLetters, ReplayResult
from onceward.api.home import Agents, Peers
from onceward.api.queues import Queues, Runs
from onceward.errors import Drop, Reject, Retry
from onceward.model.queue_modes import QueueOptions
from onceward.model.send_options import PublishOptions, SendOptions
from onceward.runtime.async_bridge import AsyncBridge
from onceward.runtime.message import Message
from onceward.runtime.transaction import Bindings, Transaction
from onceward.store import queries
from onceward.store.queries import QueuedMessage, QueueInfo, RunInfo

T_co = TypeVar("T_co", covariant=True)


class AsyncTransaction:
    """A transaction of one task: your statements and your messages, committed together or not at all."""

    def __init__(self, yours: Transaction, crossing: AsyncBridge) -> None:
        self._yours, self._crossing = yours, crossing

    async def execute(self, sql: str, bindings: Bindings = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all its rows; see ``Transaction.execute``."""
        return await self._crossing.call(lambda: self._yours.execute(sql, bindings))

    async def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        await self._crossing.call(lambda: self._yours.executemany(sql, bindings))

    async def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with this transaction; see ``Transaction.send``."""
        return await self._crossing.call(lambda: self._yours.send(to, body, **options))

    async def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Give another agent a task with this transaction; see ``Transaction.dispatch``."""
        return await self._crossing.call(
            lambda: self._yours.dispatch(to, body, session=session, **options)
        )

    async def publish(
        self, topic: str, body: object, **options: Unpack[PublishOptions]
    ) -> list[str]:
        """Send to every peer that subscribed to *topic*; see ``Transaction.publish``."""
        return await self._crossing.call(lambda: self._yours.publish(topic, body, **options))


class AsyncMessage(Generic[T_co]):
    """A message in your hands until its lease ends; see ``Message``."""

    def __init__(self, message: Message[T_co], crossing: AsyncBridge) -> None:
        self._message, self._crossing = message, crossing
        self.body: T_co = message.body

    def __getattr__(self, name: str) -> Any:
        """Return what the message itself knows: id, sender, session, type, topic, priority, attempt …."""
        return getattr(self._message, name)

    @property
    def plain(self) -> Message[T_co]:
        """The message itself."""
        return self._message

    async def ack(self) -> None:
        """Commit the processed mark; see ``Message.ack``."""
        await self._crossing.call(self._message.ack)

    async def retry(
        self, after: float | None = None, reason: str = "retry asked by reader"
    ) -> None:
        """Put the message back; see ``Message.retry``."""
        await self._crossing.call(lambda: self._message.retry(after, reason))

    async def reject(self, reason: str = "rejected by reader") -> None:
        """Make the message a dead letter; see ``Message.reject``."""
        await self._crossing.call(lambda: self._message.reject(reason))

    async def drop(self) -> None:
        """End the message without effects; see ``Message.drop``."""
        await self._crossing.call(self._message.drop)

    async def extend(self, seconds: float) -> None:
        """Keep the message for *seconds* from now; see ``Message.extend``."""
        await self._crossing.call(lambda: self._message.extend(seconds))

    async def reply(self, body: object) -> str:
        """Answer the sender; see ``Message.reply``."""
        return await self._crossing.call(lambda: self._message.reply(body))

    async def __aenter__(self) -> Self:
        """Work on the message."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Settle what is not settled yet, as ``with message:`` does."""
        await self._crossing.call(lambda: self._message.__exit__(kind, error, trace))
        return isinstance(error, Retry | Reject | Drop)


class AsyncPeers:
    """Who is reached where; see ``Peers``."""

    def __init__(self, peers: Peers, crossing: AsyncBridge) -> None:
        self._peers, self._crossing = peers, crossing

    async def register(self, name: str, url: str) -> None:
        """Reach *name* at *url* from now on."""
        await self._crossing.call(lambda: self._peers.register(name, url))

    async def forget(self, name: str) -> None:
        """Drop a registered url."""
        await self._crossing.call(lambda: self._peers.forget(name))

    async def list(self) -> list[queries.PeerInfo]:
        """Return all peers by name."""
        return await self._crossing.call(self._peers.list)

    async def get(self, name: str) -> queries.PeerInfo | None:
        """Return one peer, None where it is unknown."""
        return await self._crossing.call(lambda: self._peers.get(name))

    async def reset(self, name: str) -> None:
        """Try the peer again at once."""
        await self._crossing.call(lambda: self._peers.reset(name))

    async def subscribe(self, name: str, pattern: str) -> None:
        """Let *name* have what is published here under *pattern*."""
        await self._crossing.call(lambda: self._peers.subscribe(name, pattern))

    async def unsubscribe(self, name: str, pattern: str) -> None:
        """End a subscription."""
        await self._crossing.call(lambda: self._peers.unsubscribe(name, pattern))


class AsyncDeadLetters:
    """Messages that ended badly here; see ``DeadLetters``."""

    def __init__(self, letters: DeadLetters, crossing: AsyncBridge) -> None:
        self._letters, self._crossing = letters, crossing

    async def list(
        self, *, limit: int = 100, **which: Unpack[DeadLetterFilter]
    ) -> list[queries.DeadLetter]:
        """Return dead letters, oldest first."""
        return await self._crossing.call(lambda: self._letters.list(limit=limit, **which))

    async def get(self, message_id: str, *, peer: str | None = None) -> queries.DeadLetter | None:
        """Return one dead letter, None where there is none of that id."""
        return await self._crossing.call(lambda: self._letters.get(message_id, peer=peer))

    async def replay(
        self, message_id: str, *, as_new: bool = False, peer: str | None = None
    ) -> str:
        """Put a dead letter back on its way; see ``DeadLetters.replay``."""
        return await self._crossing.call(
            lambda: self._letters.replay(message_id, as_new=as_new, peer=peer)
        )

    async def replay_all(
        self,
        *,
        as_new: bool = False,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int = -1,
        **which: Unpack[DeadLetterFilter],
    ) -> ReplayResult:
        """Put all letters that match back on their way; see ``DeadLetters.replay_all``."""
        return await self._crossing.call(
            lambda: self._letters.replay_all(
                as_new=as_new, dry_run=dry_run, rate=rate, limit=limit, **which
            )
        )

    async def discard(self, message_id: str, *, peer: str | None = None) -> bool:
        """Forget a dead letter; say whether there was one."""
        return await self._crossing.call(lambda: self._letters.discard(message_id, peer=peer))

    async def discard_all(
        self, *, limit: int = -1, **which: Unpack[DeadLetterFilter]
    ) -> builtins.list[str]:
        """Forget all letters that match; see ``DeadLetters.discard_all``."""
        return await self._crossing.call(lambda: self._letters.discard_all(limit=limit, **which))

    async def purge(self, *, older_than: float) -> int:
        """Forget the dead letters that died more than *older_than* seconds ago."""
        return await self._crossing.call(lambda: self._letters.purge(older_than=older_than))


class AsyncQueues:
    """The queues of sessions with runs; see ``Queues``."""

    def __init__(self, queues: Queues, crossing: AsyncBridge) -> None:
        self._queues, self._crossing = queues, crossing

    async def list(self) -> list[QueueInfo]:
        """Return the queues of all sessions that ever had one, by name."""
        return await self._crossing.call(self._queues.list)

    async def get(self, session: str) -> QueueInfo | None:
        """Return one session's queue, None where it never had one."""
        return await self._crossing.call(lambda: self._queues.get(session))

    async def waiting(self, session: str) -> builtins.list[QueuedMessage]:
        """Return the messages that wait, in the order in which they will be taken."""
        return await self._crossing.call(lambda: self._queues.waiting(session))

    async def set(self, session: str, **options: Unpack[QueueOptions]) -> None:
        """Set a session's queue for itself; see ``Queues.set``."""
        await self._crossing.call(lambda: self._queues.set(session, **options))

    async def reorder(self, session: str, ids: Sequence[str]) -> builtins.list[str]:
        """Put waiting messages to the front; see ``Queues.reorder``."""
        return await self._crossing.call(lambda: self._queues.reorder(session, ids))

    async def remove(self, session: str, message_id: str) -> bool:
        """Drop one waiting message; see ``Queues.remove``."""
        return await self._crossing.call(lambda: self._queues.remove(session, message_id))

    async def pause(self, session: str) -> None:
        """Begin no further run of this session; see ``Queues.pause``."""
        await self._crossing.call(lambda: self._queues.pause(session))

    async def resume(self, session: str) -> None:
        """Go on where ``pause`` stopped."""
        await self._crossing.call(lambda: self._queues.resume(session))

    async def dissolve(self, pattern: str) -> None:
        """Serve sessions of a pattern by runs no more; see ``Queues.dissolve``."""
        await self._crossing.call(lambda: self._queues.dissolve(pattern))


class AsyncRuns:
    """The runs of an agent's sessions, open and past; see ``Runs``."""

    def __init__(self, runs: Runs, crossing: AsyncBridge) -> None:
        self._runs, self._crossing = runs, crossing

    async def list(
        self, *, session: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[RunInfo]:
        """Return runs, newest first."""
        return await self._crossing.call(
            lambda: self._runs.list(session=session, state=state, limit=limit)
        )

    async def get(self, run_id: str) -> RunInfo | None:
        """Return one run, None where there is none of that id."""
        return await self._crossing.call(lambda: self._runs.get(run_id))

    async def abort(self, run_id: str, cause: str = "aborted by hand") -> bool:
        """End an open run from outside; see ``Runs.abort``."""
        return await self._crossing.call(lambda: self._runs.abort(run_id, cause))


class AsyncAgents:
    """The agents of the home, and what they publish; see ``Neighbours``."""

    def __init__(self, neighbours: Agents, crossing: AsyncBridge) -> None:
        self._neighbours, self._crossing = neighbours, crossing

    async def register(self) -> bool:
        """Take part: from now on what is sent to all reaches this agent too."""
        return await self._crossing.call(self._neighbours.register)

    async def leave(self) -> bool:
        """Take part no more; see ``Neighbours.leave``."""
        return await self._crossing.call(self._neighbours.leave)

    async def list(self) -> list[str]:
        """Return all other registered agents by name."""
        return await self._crossing.call(self._neighbours.list)

    async def subscribe(self, pattern: str) -> bool:
        """Have what anybody else in the home publishes under *pattern*."""
        return await self._crossing.call(lambda: self._neighbours.subscribe(pattern))

    async def unsubscribe(self, pattern: str) -> bool:
        """End a subscription."""
        return await self._crossing.call(lambda: self._neighbours.unsubscribe(pattern))
