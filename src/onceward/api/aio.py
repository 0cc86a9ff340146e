"""The same calls, awaitable: one line each, one hop per operation, one commit per loop tick."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from onceward.api.aio_channel import AsyncChannels
from onceward.api.aio_limits import AsyncLimits
from onceward.api.aio_looks import AsyncLooks
from onceward.api.aio_mailbox import AsyncMailboxes
from onceward.api.aio_polls import AsyncPolls
from onceward.api.awaitable import (
    AsyncAgents,
    AsyncDeadLetters,
    AsyncMessage,
    AsyncPeers,
    AsyncQueues,
    AsyncRuns,
    AsyncTransaction,
)
from onceward.api.postbox import Postbox
from onceward.api.session import Session, read_reply
from onceward.db.database import Database
from onceward.errors import InvalidArgument, StoreClosed
from onceward.hooks import Hook
from onceward.model.names import DEFAULT_SESSION
from onceward.model.parcel import Answer, Parcel
from onceward.model.send_options import PublishOptions, SendOptions
from onceward.runtime.agent import Agent
from onceward.runtime.async_bridge import AsyncBridge
from onceward.runtime.engine import Due
from onceward.store import invariants, queries
from onceward.store.health import Health
from onceward.store.requests import Ticket

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncSession:
    """One named conversation of an agent; see ``Session``."""

    def __init__(self, session: Session, box: AsyncPostbox, crossing: AsyncBridge) -> None:
        self._session, self._box, self._crossing = session, box, crossing
        self.name = session.name

    def __repr__(self) -> str:
        """Name the session."""
        return f"<AsyncSession {self.name} of {self._box.agent}>"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        """Open a transaction for this task; leaving the block commits, an exception undoes; see ``Session.begin``."""
        async with self._crossing.block() as tx:
            yours = self._session._is_over(tx)
            try:
                yield AsyncTransaction(yours, self._crossing)
            finally:
                yours._finish()

    async def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Commit one message into the outbox, together with others of this tick; see ``Session.send``."""
        return await self._crossing.write(self._session._compose(to, body, options))

    async def send_many(
        self, messages: Iterable[tuple[str, object]], **options: Unpack[SendOptions]
    ) -> list[str]:
        """Commit many (recipient, body) at once; see ``Session.send_many``."""
        return await self._crossing.call(lambda: self._session.send_many(messages, **options))

    async def publish(
        self, topic: str, body: object, **options: Unpack[PublishOptions]
    ) -> list[str]:
        """Send to every peer that subscribed to *topic*; see ``Session.publish``."""
        return await self._crossing.call(lambda: self._session.publish(topic, body, **options))

    async def request(
        self,
        to: str,
        body: object,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Ticket:
        """Send a request and return its ticket; see ``Session.request``."""
        return await self._crossing.write(
            lambda: self._session.request(to, body, timeout=timeout, **options)
        )

    async def ask(
        self,
        to: str,
        body: object,
        *,
        reply: type[T],
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> T:
        """Send a request and wait for its reply; see ``Session.ask``."""
        if self._crossing.in_transaction:
            msg = "ask inside an open transaction would wait for a message that is not committed: ask outside of it"
            raise InvalidArgument(msg)
        return await self.result(
            await self.request(to, body, timeout=timeout, **options), reply=reply, timeout=timeout
        )

    async def result(self, ticket: Ticket | str, *, reply: type[T], timeout: float = 0.0) -> T:
        """Return the reply to a ticket, waiting for it; see ``Session.result``."""
        ticket_id = ticket if isinstance(ticket, str) else ticket.id
        found = await self._box.wait(lambda: self._session._reply_state(ticket_id), timeout)
        if found is None:
            raise await self._crossing.call(lambda: self._session._overdue(ticket_id, timeout))
        return read_reply(ticket_id, found, reply)

    @overload
    async def receive(self, type: type[T], timeout: float = 0.0) -> AsyncMessage[T] | None: ...

    @overload
    async def receive(
        self,
        type: str | None = None,
        timeout: float = 0.0,
    ) -> AsyncMessage[Any] | None: ...

    async def receive(self, type: Any = None, timeout: float = 0.0) -> AsyncMessage[Any] | None:
        """Lease the next message of this session; see ``Session.receive``."""
        found = await self._box.wait(lambda: self._session.receive(type), timeout)
        return None if found is None else AsyncMessage(found, self._crossing)

    async def messages(
        self,
        type: Any = None,
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncMessage[Any]]:
        """Yield messages as they come; see ``Session.messages``."""
        while (
            found := await self._box.wait(lambda: self._session.receive(type), timeout)
        ) is not None:
            yield AsyncMessage(found, self._crossing)

    async def thread(self, message_id: str) -> list[queries.HistoryEntry]:
        """Return the conversation that a message belongs to; see ``Session.thread``."""
        return await self._crossing.call(lambda: self._session.thread(message_id))

    async def history(self, **filters: Any) -> queries.Page:
        """Return past messages, newest first; see ``Session.history``."""
        return await self._crossing.call(lambda: self._session.history(**filters))


class AsyncPostbox(AsyncPolls, AsyncLooks):
    """
    One agent's SQLite file, open, for asyncio.

    ``async with AsyncPostbox(path, agent=…) as box``: opening, and every call
    that touches the file, happens off the loop; async handlers run on it.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, agent: str | Agent | None = None, **arguments: Any
    ) -> None:
        self._path, self._agent, self._arguments = path, agent, arguments
        self._opened: tuple[Postbox, AsyncBridge] | None = None

    def __repr__(self) -> str:
        """Name the agent and its file."""
        return (
            f"<AsyncPostbox, not open: {self._path}>"
            if self._opened is None
            else f"<AsyncPostbox of {self.agent}: {self.path}>"
        )

    async def open(self) -> Self:
        """Open the file and start the engines; takes what ``Postbox`` takes."""
        loop = asyncio.get_running_loop()
        box = await asyncio.to_thread(
            lambda: Postbox(self._path, agent=self._agent, loop=loop, **self._arguments)
        )
        crossing = AsyncBridge(box.db, loop)
        self._opened = (box, crossing)
        self.channels = AsyncChannels(box.channels, crossing, self.wait)
        """The channels of the home."""
        self.agents = AsyncAgents(box.agents, crossing)
        """The agents of the home, and what they publish."""
        self.peers = AsyncPeers(box.peers, crossing)
        """Who is reached where."""
        self.dead_letters = AsyncDeadLetters(box.dead_letters, crossing)
        """Messages that ended badly here."""
        self.limits = AsyncLimits(box.limits, crossing)
        """What bounds the file."""
        self.queues, self.runs = AsyncQueues(box.queues, crossing), AsyncRuns(box.runs, crossing)
        self.mailboxes = AsyncMailboxes(box.mailboxes, crossing, self.wait)
        """Mailboxes of the home."""
        self._default = self.session()
        return self

    async def __aenter__(self) -> Self:
        """Use the postbox for a block."""
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    @property
    def _both(self) -> tuple[Postbox, AsyncBridge]:
        if self._opened is None:
            msg = "the postbox is not open: use `async with`, or await open()"
            raise StoreClosed(msg)
        return self._opened

    async def wait(
        self,
        look: Callable[[], T | None],
        seconds: float | None,
        *,
        db: Database | None = None,
        due: Due | None = None,
    ) -> T | None:
        """Look, and look again whenever somebody committed, until there is something or *seconds* have passed."""
        found = await self._crossing.call(look)
        if found is not None or seconds == 0:
            return found
        deadline = None if seconds is None else time.monotonic() + seconds
        rang, loop, file = asyncio.Event(), asyncio.get_running_loop(), db or self._box.db
        wake = due or (lambda left: queries.next_wakeup(file, left))

        def ring() -> None:
            loop.call_soon_threadsafe(rang.set)

        stop = file.notifier.listen(
            "in", ring, version=file.version, poll=self._box.settings.poll_interval
        )
        try:
            while (found := await self._crossing.call(look)) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                await _notify(rang, await self._crossing.call(lambda left=left: wake(left)))  # type: ignore[misc]
        finally:
            stop()
        return found

    @property
    def path(self) -> Path:
        """The file."""
        return self._box.path

    @property
    def agent(self) -> str:
        """Whose file it is."""
        return self._box.agent

    def session(
        self, name: str = DEFAULT_SESSION, *, topics: Iterable[str] | None = None
    ) -> AsyncSession:
        """Return the conversation called *name*; see ``Postbox.session``."""
        return AsyncSession(self._box.session(name, topics=topics), self, self._crossing)

    def begin(self) -> AbstractAsyncContextManager[AsyncTransaction]:
        """Open a transaction in the default session."""
        return self._default.begin()

    async def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Send in the default session; see ``Session.send``."""
        return await self._default.send(to, body, **options)

    async def send_many(
        self, messages: Iterable[tuple[str, object]], **options: Unpack[SendOptions]
    ) -> list[str]:
        """Send many in the default session; see ``Session.send_many``."""
        return await self._default.send_many(messages, **options)

    async def publish(
        self, topic: str, body: object, **options: Unpack[PublishOptions]
    ) -> list[str]:
        """Publish in the default session; see ``Session.publish``."""
        return await self._default.publish(topic, body, **options)

    async def ask(
        self,
        to: str,
        body: object,
        *,
        reply: type[T],
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> T:
        """Ask in the default session; see ``Session.ask``."""
        return await self._default.ask(to, body, reply=reply, timeout=timeout, **options)

    async def request(
        self,
        to: str,
        body: object,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Ticket:
        """Request in the default session; see ``Session.request``."""
        return await self._default.request(to, body, timeout=timeout, **options)

    async def result(self, ticket: Ticket | str, *, reply: type[T], timeout: float = 0.0) -> T:
        """Return the reply to a ticket of any session; see ``Session.result``."""
        return await self._default.result(ticket, reply=reply, timeout=timeout)

    @overload
    async def receive(self, type: type[T], timeout: float = 0.0) -> AsyncMessage[T] | None: ...

    @overload
    async def receive(
        self,
        type: str | None = None,
        timeout: float = 0.0,
    ) -> AsyncMessage[Any] | None: ...

    async def receive(self, type: Any = None, timeout: float = 0.0) -> AsyncMessage[Any] | None:
        """Lease the next message of any session; see ``Session.receive``."""
        found = await self.wait(lambda: self._box.receive(type), timeout)
        return None if found is None else AsyncMessage(found, self._crossing)

    async def messages(
        self,
        type: Any = None,
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncMessage[Any]]:
        """Yield messages of any session; see ``Session.messages``."""
        while (found := await self.wait(lambda: self._box.receive(type), timeout)) is not None:
            yield AsyncMessage(found, self._crossing)

    def on(self, event: str, hook: Hook) -> Callable[[], None]:
        """Tell *hook* of every event of that name, on the thread that committed; returns the call that ends it."""
        return self._box.on(event, hook)

    async def resolve(self, message_id: str) -> str:
        """Return how a message we sent stands; see ``Postbox.resolve``."""
        return await self._crossing.call(lambda: self._box.resolve(message_id))

    async def cancel(self, message_id: str) -> bool:
        """Withdraw a message that has not left yet."""
        return await self._crossing.call(lambda: self._box.cancel(message_id))

    async def check(self, *others: AsyncPostbox) -> list[invariants.Violation]:
        """Return the invariants that do not hold in this file, and in the mail between it and *others*."""
        return await self._crossing.call(lambda: self._box.check(*(other._box for other in others)))

    async def health(self) -> Health:
        """Return how the file is."""
        return await self._crossing.call(self._box.health)

    async def accept(self, parcel: Parcel) -> Answer:
        """Keep a parcel once and answer for each frame; see ``Postbox.accept``."""
        return await self._crossing.call(lambda: self._box.accept(parcel))

    async def pause(self) -> None:
        """Stop sending, pushing and handling in all processes, durably."""
        await self._crossing.call(self._box.pause)

    async def resume(self) -> None:
        """Go on where ``pause`` stopped."""
        await self._crossing.call(self._box.resume)

    async def run_until_idle(self) -> int:
        """Run the engines until nothing is due; see ``Postbox.pump``."""
        return await asyncio.to_thread(self._box.run_until_idle)

    async def run_maintenance(self) -> int:
        """Run the janitor once."""
        return await asyncio.to_thread(self._box.run_maintenance)

    async def flush(self, timeout: float | None = 30.0) -> int:
        """Wait until nothing waits to leave; see ``Postbox.flush``."""
        return await asyncio.to_thread(self._box.flush, timeout)

    async def stop(self, timeout: float | None = None) -> None:
        """Claim and push nothing more; see ``Postbox.stop``."""
        await asyncio.to_thread(self._box.stop, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Stop the engines and close the file; safe to call twice."""
        if self._opened is None:
            return
        box, crossing = self._opened
        await asyncio.to_thread(box.close, timeout)
        crossing.close()


async def _notify(rang: asyncio.Event, seconds: float | None) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(rang.wait(), seconds)
    rang.clear()
