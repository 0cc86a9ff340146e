"""
The async versions of a postbox and of the objects that it returns.

Methods are the sync ones, made awaitable: threads outside the loop access the file, and sends of
tasks in one tick of the loop share one commit. Waits, blocks and iterators are written here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from typing_extensions import TypeForm

from onceward.api.agent import Agent
from onceward.api.agent_file import AgentFile
from onceward.api.agents import Agents
from onceward.api.dead_letters import DeadLetters
from onceward.api.event_source import EventSource
from onceward.api.parts import AsyncPostboxParts
from onceward.api.peers import Peers
from onceward.api.postbox import Postbox, PostboxOptions
from onceward.api.session import Session
from onceward.core.handle.bridge import FileBridge
from onceward.core.handle.context import AsyncTransaction
from onceward.core.handle.message import AsyncMessage
from onceward.core.run.async_face import (
    AsyncFace,
    OffLoop,
    awaitable,
    awaitable_on_thread,
    awaitable_write,
    carried,
    uncancelled,
)
from onceward.core.run.engine_loop import at_least_each
from onceward.errors import InvalidArgument, OncewardError, StoreClosed
from onceward.hooks import Hooks
from onceward.message.body import Body
from onceward.message.names import DEFAULT_SESSION, listed
from onceward.message.options import SendOptions
from onceward.message.record import Status, Ticket
from onceward.message.times import Span
from onceward.message.validators import check_type

if TYPE_CHECKING:
    from onceward.features.checks.invariants import Violation
    from onceward.features.streams.reading import StreamItem

T = TypeVar("T")
S_co = TypeVar("S_co", bound=Session, covariant=True)


class SessionFace(AsyncFace[S_co]):
    """Verbs that async sessions and postboxes share."""

    @property
    def _bridge(self) -> FileBridge:
        return cast("FileBridge", self._off_loop)

    progress_of = awaitable(Session.progress_of)
    send = awaitable_write(Session.send)
    send_many = awaitable(Session.send_many)
    broadcast = awaitable(Session.broadcast)
    publish = awaitable(Session.publish)
    request = awaitable_write(Session.request)
    thread = awaitable(Session.thread)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        """Open a transaction for this task; leaving the block commits; see ``Session.begin``."""
        async with self._bridge.block() as tx:
            yours = self._plain._is_over(tx)
            try:
                yield AsyncTransaction(yours, self._bridge)
            finally:
                yours._finish()

    async def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = 30.0,
        **options: Unpack[SendOptions],
    ) -> T:
        """Send a request and wait for its reply, read as *reply*; see ``Session.ask``."""
        if self._bridge.in_transaction:
            raise InvalidArgument(
                "ask inside an open transaction would wait for a message "
                "that is not committed: ask outside of it"
            )
        check_type("reply", reply)
        ticket = await self.request(to, body, reply=reply, timeout=timeout, **options)
        return await self.result(ticket, reply=reply, timeout=timeout)

    async def result(self, ticket: Ticket | str, *, reply: TypeForm[T], timeout: Span = 0.0) -> T:
        """Return the reply to a ticket, waiting for it; see ``Session.result``."""
        return (await self.gather([ticket], reply=reply, timeout=timeout))[0]

    @overload
    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: bool,
    ) -> list[T | OncewardError]: ...

    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Return the replies to tickets, waiting for all; see ``Session.gather``."""
        check_type("reply", reply)
        awaited = self._plain._awaited(listed("tickets", tickets))
        in_time = await self._bridge.wait(awaited.look, timeout) is not None
        if return_exceptions:
            return await self._bridge.call(lambda: awaited.read_each(reply, timeout))
        if not in_time:
            raise await self._bridge.call(lambda: awaited.overdue(timeout))
        return awaited.read(reply)

    async def status(
        self,
        ticket: Ticket | str,
        *,
        depth: int = 1,
        after: Status | None = None,
        timeout: Span | None = 0.0,
    ) -> Status:
        """Return how far a message is, at once or after a change; see ``Session.status``."""
        plain, bridge = self._plain, self._bridge
        reader = await bridge.call(lambda: plain._status_reader(ticket, depth, after))
        due = partial(at_least_each, plain._settings.tuning.poll_interval)
        return await bridge.wait(reader.look, timeout, db=reader.file, due=due) or reader.last

    async def receive(
        self, type: TypeForm[Body] | str | None = None, timeout: Span = 0.0
    ) -> AsyncMessage[Body] | None:
        """Lease the next message; see ``Session.receive``."""
        return await self._bridge.receive(lambda: self._plain.receive(type), timeout)

    async def receive_one(
        self, message_id: str, type: TypeForm[Body] | str | None = None, timeout: Span = 0.0
    ) -> AsyncMessage[Body] | None:
        """Lease the message of an id; see ``Session.receive_one``."""
        return await self._bridge.receive(
            lambda: self._plain.receive_one(message_id, type), timeout
        )

    async def attach(
        self, handle: str, type: TypeForm[Body] | str | None = None
    ) -> AsyncMessage[Body]:
        """Return a message that was detached; see ``Session.attach``."""
        # a cancelled caller keeps it: it is leased until its lease ends
        found = await self._bridge.call(lambda: self._plain.attach(handle, type))
        return AsyncMessage(found, self._bridge)

    async def receive_each(
        self, type: TypeForm[Body] | str | None = None, timeout: Span | None = None
    ) -> AsyncIterator[AsyncMessage[Body]]:
        """Yield messages as they come; see ``Session.receive_each``."""
        while found := await self._bridge.receive(lambda: self._plain.receive(type), timeout):
            yield found


class AsyncSession(SessionFace[Session]):
    """One named conversation of an agent; see ``Session``."""

    def __init__(self, session: Session, bridge: FileBridge) -> None:
        super().__init__(session, bridge)
        self.name = session.name
        """Name of the conversation."""

    history = awaitable(Session.history)


class AsyncPeers(AsyncFace[Peers]):
    """The peers of an agent; see ``Peers``."""

    add = awaitable(Peers.add)
    allow = awaitable(Peers.allow)
    remove = awaitable(Peers.remove)
    list = awaitable(Peers.list)
    get = awaitable(Peers.get)
    reset = awaitable(Peers.reset)
    ping = awaitable(Peers.ping)
    subscribe = awaitable(Peers.subscribe)
    unsubscribe = awaitable(Peers.unsubscribe)


class AsyncAgents(AsyncFace[Agents]):
    """The agents of the home; see ``Agents``."""

    register = awaitable(Agents.register)
    remove = awaitable(Agents.remove)
    list = awaitable(Agents.list)
    subscribe = awaitable(Agents.subscribe)
    unsubscribe = awaitable(Agents.unsubscribe)


class AsyncDeadLetters(AsyncFace[DeadLetters]):
    """Messages that ended badly here; see ``DeadLetters``."""

    list = awaitable(DeadLetters.list)
    get = awaitable(DeadLetters.get)
    edit = awaitable(DeadLetters.edit)
    checks = awaitable(DeadLetters.checks)
    replay = awaitable(DeadLetters.replay)
    replay_all = awaitable(DeadLetters.replay_all)
    discard = awaitable(DeadLetters.discard)
    discard_all = awaitable(DeadLetters.discard_all)


class AsyncAgentFile(AsyncFace[AgentFile]):
    """The file itself: health, checks, repairs, maintenance, pause; see ``AgentFile``."""

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._plain.path

    repair = awaitable(AgentFile.repair)
    stats = awaitable(AgentFile.stats)
    health = awaitable(AgentFile.health)
    expire = awaitable(AgentFile.expire)
    pause = awaitable(AgentFile.pause)
    resume = awaitable(AgentFile.resume)
    run_maintenance = awaitable_on_thread(AgentFile.run_maintenance)

    async def check(self, *others: AsyncAgentFile) -> list[Violation]:
        """Return the invariants that do not hold; see ``AgentFile.check``."""
        plain = [other._plain for other in others]
        return await self._off_loop.call(lambda: self._plain.check(*plain))


class AsyncPostbox(SessionFace[Postbox], EventSource, AsyncPostboxParts):
    """
    One agent's SQLite file, open, for asyncio.

    ``async with AsyncPostbox(path, agent=…) as box``: opening, and every call that accesses the
    file, happens off the loop; async handlers run on the loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        agent: str | Agent | None = None,
        **options: Unpack[PostboxOptions],
    ) -> None:
        self._path, self._agent, self._options = path, agent, options
        self._opened: tuple[Postbox, FileBridge] | None = None
        self.name = DEFAULT_SESSION
        """Name of the default session."""

    def __repr__(self) -> str:
        """Name the agent and its file."""
        if self._opened is None:
            return f"<AsyncPostbox, not open: {self._path}>"
        return f"<AsyncPostbox of {self.agent}: {self.file.path}>"

    async def follow(
        self,
        ticket: Ticket | str,
        *,
        name: str | None = None,
        after: int = 0,
        timeout: Span | None = None,
    ) -> AsyncIterator[StreamItem]:
        """Yield the output of a message's handler; see ``Postbox.follow``."""
        bridge = self._bridge
        reader = await bridge.call(lambda: self._plain._stream_reader(ticket, name, after))
        due = partial(at_least_each, self._plain._settings.tuning.poll_interval)
        while items := await bridge.wait(reader.look, timeout, db=reader.file, due=due):
            for each in items:
                yield each
            if items[-1].kind == "ended":
                return

    async def open(self) -> Self:
        """Open the file and start the engines; do nothing if it is open."""
        if self._is_open:
            return self
        loop = asyncio.get_running_loop()
        self._join(await self._open_plain(loop), loop)
        return self

    def _join(self, box: Postbox, loop: asyncio.AbstractEventLoop) -> None:
        bridge = FileBridge(box._db, loop, box._settings.tuning.poll_interval)
        self._opened = (box, bridge)
        self._forget_parts()
        self.agents = AsyncAgents(box.agents, bridge)
        """The agents of the home, and their subscriptions."""
        self.peers = AsyncPeers(box.peers, bridge)
        """The peers: urls, circuit breakers, subscriptions."""
        self.dead_letters = AsyncDeadLetters(box.dead_letters, bridge)
        """Messages that ended badly here."""
        self.file = AsyncAgentFile(box.file, bridge)
        """The file itself: health, checks, repairs, maintenance, pause."""

    def _part(self) -> None:
        """End the threads of a face that ``face_of`` made, on its loop if that still runs."""
        bridge = self._bridge
        if not bridge._loop.is_running():
            bridge.close()
            return
        with suppress(RuntimeError):  # it was closed a moment ago, with its tasks
            bridge._loop.call_soon_threadsafe(bridge.close)

    async def _open_plain(self, loop: asyncio.AbstractEventLoop) -> Postbox:
        """Open the file on a thread; close it again if the task is cancelled meanwhile."""
        boxes = list[Postbox]()

        def work() -> None:
            boxes.append(Postbox(self._path, agent=self._agent, loop=loop, **self._options))

        try:
            await _to_its_end(work)
        except asyncio.CancelledError:
            for box in boxes:
                with suppress(asyncio.CancelledError):  # the first one is raised
                    await _to_its_end(box.close)
            raise
        return boxes[0]

    async def __aenter__(self) -> Self:
        """Use the postbox for a block; open it if it is not open."""
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    @property
    def _is_open(self) -> bool:
        return self._opened is not None and not self._opened[1].closed

    @property
    def _face_if_open(self) -> tuple[Postbox, FileBridge]:
        if self._opened is None:
            raise StoreClosed("the postbox is not open: use `async with`, or await open()")
        return self._opened

    @property
    def _plain(self) -> Postbox:
        return self._face_if_open[0]

    @property
    def _off_loop(self) -> OffLoop:
        return self._face_if_open[1]

    def _event_hooks(self) -> Hooks:
        return self._plain._event_hooks()

    @property
    def agent(self) -> str:
        """Return the agent whose file it is."""
        return self._plain.agent

    def session(
        self, name: str = DEFAULT_SESSION, *, topics: Iterable[str] | None = None
    ) -> AsyncSession:
        """Return the conversation called *name*; see ``Postbox.session``."""
        return AsyncSession(self._plain.session(name, topics=topics), self._bridge)

    query = awaitable(Postbox.query)
    accept = awaitable(Postbox.accept)
    history = awaitable(Postbox.history)
    search = awaitable(Postbox.search)
    journey = awaitable(Postbox.journey)
    state = awaitable(Postbox.state)
    cancel = awaitable(Postbox.cancel)
    cancel_all = awaitable(Postbox.cancel_all)
    flush = awaitable_on_thread(Postbox.flush)
    run_until_idle = awaitable_on_thread(Postbox.run_until_idle)
    stop = awaitable_on_thread(Postbox.stop)

    async def close(self, timeout: Span | None = None) -> None:
        """
        Stop the engines and close the file; safe to call twice.

        A cancellation is raised once everything is closed: *timeout* limits that, see
        ``Postbox.close``.
        """
        if self._opened is None:
            return
        box, bridge = self._opened
        if box._db.is_inherited:  # a forked child has none of the threads, and no running loop
            return
        try:
            await _to_its_end(lambda: box.close(timeout))
        finally:
            bridge.close()


def face_of(box: Postbox, loop: asyncio.AbstractEventLoop) -> AsyncPostbox:
    """Return the face of a postbox that another caller opened, and will close."""
    face = AsyncPostbox(box.file.path, agent=box.agent)
    face._join(box, loop)
    return face


async def _to_its_end(work: Callable[[], object]) -> None:
    """
    Run *work* on a thread of its own, and await its end even when cancelled.

    The loop's default threads may all wait for what only the work ends, as ``flush`` does.
    """
    own = ThreadPoolExecutor(1, thread_name_prefix="onceward-open")
    try:
        await uncancelled(asyncio.get_running_loop().run_in_executor(own, carried(work)))
    finally:
        own.shutdown(wait=False)
